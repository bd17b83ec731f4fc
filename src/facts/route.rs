//! The way that a Mac would take to an address: `route -n get`.
//!
//! The flags of a healthy and of a stale host route look the same: the interface and the expiry tell.

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Route {
    pub interface: String,
    pub gateway: Option<String>,
    /// The system refuses to send: a neighbour that did not answer, or overlapping subnets.
    pub is_rejected: bool,
    /// The neighbour was not heard for longer than its entry holds.
    pub is_stale: bool,
}

/// None: there is no route.
pub fn parse(text: &str) -> Option<Route> {
    let value = |name: &str| {
        let rows = text.lines().filter_map(|line| line.trim().split_once(": "));
        rows.into_iter().find(|(key, _)| *key == name).map(|(_, value)| value.trim())
    };
    let flags = value("flags").unwrap_or_default();
    let expire = text.lines().last()?.split_whitespace().last()?.parse::<i64>();
    Some(Route {
        interface: value("interface")?.to_owned(),
        gateway: value("gateway").map(str::to_owned),
        is_rejected: flags.trim_matches(['<', '>']).split(',').any(|flag| flag == "REJECT"),
        is_stale: expire.is_ok_and(|seconds| seconds < 0),
    })
}
