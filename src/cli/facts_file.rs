//! A file that describes machines which need not be there, for `daisy cluster plan --facts`.
//!
//! ```json
//! {"nodes": [{"name": "studio", "memory_gib": 36, "available_gib": 27, "gpu_limit_gib": 30,
//!             "chip": "Apple M3 Max"},
//!            {"name": "mini", "memory_gib": 24}],
//!  "links": [{"between": ["studio", "mini"], "rtt_ms": 0.6, "gbit_per_s": 10}]}
//! ```
//!
//! The first node drives. What is left out is that of an idle Mac, and links that are left out are
//! Thunderbolt cables.

use std::path::Path;

use daisy_proto::Facts;
use daisy_proto::local::Serve;
use daisy_proto::plan::PlanReport;
use serde::Deserialize;

use super::Failure;
use crate::facts::chips::memory_bytes_per_s;
use crate::node::planning::{Machine, plan_for};
use crate::plan::{Hop, Hops};

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct FactsFile {
    nodes: Vec<NodeEntry>,
    #[serde(default)]
    links: Vec<LinkEntry>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct NodeEntry {
    name: String,
    memory_gib: f64,
    available_gib: Option<f64>,
    gpu_limit_gib: Option<f64>,
    memory_limit_gib: Option<f64>,
    ceiling_percent: Option<u8>,
    #[serde(default)]
    swap_used_gib: f64,
    chip: Option<String>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct LinkEntry {
    between: [String; 2],
    rtt_ms: f64,
    gbit_per_s: f64,
}

impl FactsFile {
    pub(crate) fn read(path: &Path) -> Result<Self, Failure> {
        let fault = |error: &dyn std::fmt::Display| {
            Failure::usage(format!("--facts {}: {error}", path.display()))
        };
        let text = std::fs::read_to_string(path).map_err(|error| fault(&error))?;
        let file = Self::parse(&text).map_err(|error| fault(&error))?;
        Ok(file)
    }

    fn parse(text: &str) -> Result<Self, String> {
        let file: Self = serde_json::from_str(text).map_err(|error| error.to_string())?;
        if file.nodes.is_empty() {
            return Err("`nodes` is empty; the first one drives".to_owned());
        }
        for (at, node) in file.nodes.iter().enumerate() {
            let name = &node.name;
            if file.nodes[..at].iter().any(|other| other.name == *name) {
                return Err(format!("two nodes are named `{name}`"));
            }
            let sizes = [
                ("memory_gib", Some(node.memory_gib)),
                ("available_gib", node.available_gib),
                ("gpu_limit_gib", node.gpu_limit_gib),
                ("memory_limit_gib", node.memory_limit_gib),
                ("swap_used_gib", Some(node.swap_used_gib)),
            ];
            let is_size = |size: f64| (0.0..=GIB_MAX).contains(&size);
            if let Some((field, size)) = sizes
                .iter()
                .find_map(|(field, size)| Some((field, size.filter(|size| !is_size(*size))?)))
            {
                return Err(format!("{field} of `{name}` is {size}, not a size in GiB"));
            }
        }
        for LinkEntry { between, rtt_ms, gbit_per_s } in &file.links {
            let known = |name: &String| file.nodes.iter().any(|node| node.name == *name);
            if let Some(name) = between.iter().find(|name| !known(name)) {
                return Err(format!("a link names `{name}`, which is no node of this file"));
            }
            let is_right = (0.0..=60_000.0).contains(rtt_ms) && (0.0..=1e6).contains(gbit_per_s);
            if between[0] == between[1] || !is_right {
                return Err(format!(
                    "the link between `{}` and `{}` is odd",
                    between[0], between[1]
                ));
            }
        }
        Ok(file)
    }

    /// The plan for these machines; only the checkpoint is read.
    pub(crate) fn plan(&self, wish: &Serve) -> Result<PlanReport, Failure> {
        let machines: Vec<Machine> = self.nodes.iter().map(NodeEntry::machine).collect();
        let cable = Hop { one_way_ns: 300_000, bit_per_s: 10_000_000_000 };
        let mut hops = Hops::none(machines.len());
        for (a, b) in (0..machines.len()).flat_map(|a| (0..a).map(move |b| (a, b))) {
            hops.set(a, b, cable);
        }
        let at = |name: &String| self.nodes.iter().position(|node| node.name == *name);
        for LinkEntry { between: [a, b], rtt_ms, gbit_per_s } in &self.links {
            let (Some(a), Some(b)) = (at(a), at(b)) else { continue };
            let one_way_ns = whole(rtt_ms * 500_000.0);
            hops.set(a, b, Hop { one_way_ns, bit_per_s: whole(gbit_per_s * 1e9) });
        }
        plan_for(wish, &machines, &hops).map_err(Failure::Refused)
    }
}

impl NodeEntry {
    fn machine(&self) -> Machine {
        let gib = |size: f64| whole(size * f64::from(1 << 30));
        let available = self.available_gib.unwrap_or(self.memory_gib * IDLE_SHARE);
        let gpu_limit = self.gpu_limit_gib.unwrap_or(self.memory_gib * GPU_SHARE);
        let chip = self.chip.clone().unwrap_or_else(|| "Apple".to_owned());
        let facts = Facts {
            memory_bytes_per_s: memory_bytes_per_s(&chip, None),
            memory_bytes: gib(self.memory_gib),
            available_bytes: gib(available),
            memory_limit_bytes: self.memory_limit_gib.map(gib),
            ceiling_percent: self.ceiling_percent,
            gpu_limit_bytes: Some(gib(gpu_limit)),
            swap_used_bytes: Some(gib(self.swap_used_gib)),
            chip: Some(chip),
            ..Facts::default()
        };
        Machine { name: self.name.clone(), facts }
    }
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "checked when read")]
fn whole(number: f64) -> u64 {
    number as u64
}

/// What an idle Mac has left of its memory.
const IDLE_SHARE: f64 = 0.85;
/// What macOS lets the GPU hold, unless told otherwise.
const GPU_SHARE: f64 = 0.75;
const GIB_MAX: f64 = 1e6;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_wrong_is_named() {
        for (text, part) in [
            ("[]", "expected struct FactsFile"),
            (r#"{"nodes": []}"#, "`nodes` is empty"),
            (r#"{"nodes": [{"name": "a"}]}"#, "missing field `memory_gib`"),
            (r#"{"nodes": [{"name": "a", "memory_gib": 1, "ram": 2}]}"#, "unknown field `ram`"),
            (r#"{"nodes": [{"name": "a", "memory_gib": -1}]}"#, "memory_gib of `a` is -1"),
            (
                r#"{"nodes": [{"name": "a", "memory_gib": 1}, {"name": "a", "memory_gib": 1}]}"#,
                "two nodes are named `a`",
            ),
            (
                r#"{"nodes": [{"name": "a", "memory_gib": 1}],
                    "links": [{"between": ["a", "b"], "rtt_ms": 1, "gbit_per_s": 1}]}"#,
                "a link names `b`",
            ),
            (
                r#"{"nodes": [{"name": "a", "memory_gib": 1}],
                    "links": [{"between": ["a", "a"], "rtt_ms": 1, "gbit_per_s": 1}]}"#,
                "the link between `a` and `a` is odd",
            ),
        ] {
            let error = FactsFile::parse(text).expect_err(text);
            assert!(error.contains(part), "{text}: {error}");
        }
    }

    #[test]
    fn what_is_left_out_is_that_of_an_idle_mac() {
        let text = r#"{"nodes": [{"name": "mini", "memory_gib": 24, "chip": "Apple M4"}]}"#;
        let machine = FactsFile::parse(text).expect("a file").nodes[0].machine();
        assert_eq!(machine.facts.memory_bytes, 24 << 30);
        assert_eq!(machine.facts.gpu_limit_bytes, Some(18 << 30));
        assert_eq!(machine.facts.chip.as_deref(), Some("Apple M4"));
    }
}
