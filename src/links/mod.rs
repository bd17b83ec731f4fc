//! Links between nodes: which pairs of addresses to try, what two ends' measurements mean together,
//! and whether the links of a plan are fast enough.
//!
//! Pure: the node measures and tells. [`candidates()`] says what to dial, [`merge`] makes the one record
//! that both ends keep, [`check`] judges the edges of a plan and words its refusal. This module knows
//! no socket and no clock. Start at [`merge`].

mod candidates;
mod verdict;

use daisy_proto::local::{LinkStatus, LinkWish};
use daisy_proto::{LinkKind, NodeId, NodeLink, Path, PathEnd, Sample, Trial};

pub use candidates::candidates;
pub use verdict::{Edge, allowed, check, token_cost_us};

/// Whether `me` measures the link to `other`, so that the two never disturb each other and there is one
/// record; else that one does.
pub fn leads(me: NodeId, other: NodeId) -> bool {
    me.0 < other.0
}

/// One record of what both ends measured. The same whichever end makes it.
pub fn merge(
    me: NodeId,
    other: NodeId,
    round: u64,
    ours: Vec<Trial>,
    theirs: Vec<Trial>,
) -> NodeLink {
    let mine_is_first = leads(me, other);
    let mut theirs = theirs;
    let mut paths = Vec::new();
    for Trial { own, other, outcome } in ours {
        let same = |trial: &Trial| is_same(&trial.own, &other) && is_same(&trial.other, &own);
        let back = match theirs.iter().position(same) {
            Some(at) => theirs.swap_remove(at).outcome,
            None => Err(NOT_TRIED.to_owned()),
        };
        paths.push(path(own, other, outcome, back, mine_is_first));
    }
    // What only the other end knew to try.
    for Trial { own, other, outcome } in theirs {
        paths.push(path(other, own, Err(NOT_TRIED.to_owned()), outcome, mine_is_first));
    }
    paths.sort_by_cached_key(rank);
    let nodes = if mine_is_first { [me, other] } else { [other, me] };
    NodeLink { nodes, round, paths }
}

/// The record after this end has looked at its best path again; none: that path is no longer good, so
/// all of them must be measured.
pub fn refreshed(link: &NodeLink, me: NodeId, latency: Sample) -> Option<NodeLink> {
    let mut link = link.clone();
    let own = usize::from(link.nodes[0] != me);
    let best = link.paths.first_mut()?;
    let before = figures(best)?;
    let trial = best.trials[own].as_mut().ok()?;
    *trial = Sample { bit_per_s: trial.bit_per_s, ..latency };
    let after = figures(best)?;
    let was_good = verdict::fault(best, before).is_none();
    let is_good = verdict::fault(best, after).is_none();
    link.round += 1;
    (is_good == was_good && after.rtt_median_us <= before.rtt_median_us.saturating_mul(4))
        .then_some(link)
}

/// Paths that hidden states may take: allowed, working, and good unless any will do; best first.
pub fn usable<'a>(link: &'a NodeLink, wish: &'a LinkWish) -> impl Iterator<Item = &'a Path> {
    let is_usable = |path: &&Path| {
        figures(path).is_some_and(|sample| wish.any || verdict::fault(path, sample).is_none())
    };
    allowed(link, wish).filter(is_usable)
}

/// Whether the best path will do for hidden states.
pub fn is_good(link: &NodeLink) -> bool {
    link.paths.first().is_some_and(is_path_good)
}

fn is_path_good(path: &Path) -> bool {
    figures(path).is_some_and(|sample| verdict::fault(path, sample).is_none())
}

/// Ways to change over to, best first, when the one in use is no longer good and there is a good one. Ways
/// are pairs of the end of `me` and the other one. Empty: stay.
pub fn better(
    link: &NodeLink,
    wish: &LinkWish,
    me: NodeId,
    in_use: &(PathEnd, PathEnd),
) -> Vec<(PathEnd, PathEnd)> {
    let is_in_use = |path: &&Path| {
        let (own, other) = ends(link, path, me);
        is_same(own, &in_use.0) && is_same(other, &in_use.1)
    };
    if link.paths.iter().find(is_in_use).is_some_and(is_path_good) {
        return Vec::new();
    }
    let good = allowed(link, wish).filter(|path| is_path_good(path));
    good.map(|path| ends(link, path, me)).map(|(own, other)| (own.clone(), other.clone())).collect()
}

/// What carries hidden states now, in words that stay the same while nothing of weight changes.
pub fn best_now(link: &NodeLink, wish: &LinkWish) -> String {
    let best = allowed(link, wish).find_map(|path| Some((path, figures(path)?)));
    let Some((path, sample)) = best else { return "nothing comes through any more".to_owned() };
    let [a, b] = &path.ends;
    let over = format!("{} - {} ({})", a.device.name, b.device.name, kind_name(carrier(path)));
    match verdict::fault(path, sample) {
        // Its figures change all the time.
        Some(_) if carrier(path) == LinkKind::WiFi => format!("{over} is best, and it is Wi-Fi"),
        Some(_) => format!("{over} is best, and its round trips take too long"),
        None => format!("{over} is best, and good"),
    }
}

/// What a path does in both directions: the slower one counts. None: it does not work from both ends.
pub fn figures(path: &Path) -> Option<Sample> {
    let [Ok(forth), Ok(back)] = &path.trials else { return None };
    Some(Sample {
        rtt_median_us: forth.rtt_median_us.max(back.rtt_median_us),
        rtt_worst_us: forth.rtt_worst_us.max(back.rtt_worst_us),
        probes: forth.probes.min(back.probes),
        bit_per_s: forth.bit_per_s.min(back.bit_per_s),
    })
}

/// What a path leads over: the worse of its ends.
pub fn carrier(path: &Path) -> LinkKind {
    let [a, b] = &path.ends;
    if a.ip == b.ip {
        return LinkKind::Loopback;
    }
    // `max_by_key` takes the later of equals, so of two cables the second end's speed.
    let worse = if grade(a.kind) > grade(b.kind) { a.kind } else { b.kind };
    match (a.kind, b.kind) {
        (LinkKind::Ethernet { mbit_per_s: a }, LinkKind::Ethernet { mbit_per_s: b }) => {
            LinkKind::Ethernet { mbit_per_s: [a, b].into_iter().flatten().min() }
        }
        _ => worse,
    }
}

/// Of a path, this node's end and the other's.
pub fn ends<'a>(link: &NodeLink, path: &'a Path, me: NodeId) -> (&'a PathEnd, &'a PathEnd) {
    let [first, second] = &path.ends;
    if link.nodes[0] == me { (first, second) } else { (second, first) }
}

/// The best path as one of its two nodes sees it; none: nothing comes through from both ends.
pub fn status(link: &NodeLink, me: NodeId) -> Option<LinkStatus> {
    let path = link.paths.first()?;
    let sample = figures(path)?;
    let (own, other) = ends(link, path, me);
    let devices = [own, other].map(|end| end.device.name.clone());
    Some(LinkStatus { devices, kind: carrier(path), sample })
}

/// As people read it.
pub fn kind_name(kind: LinkKind) -> String {
    match kind {
        LinkKind::ThunderboltBridge { gbit_per_s: Some(speed) }
        | LinkKind::ThunderboltPort { gbit_per_s: Some(speed) } => {
            format!("Thunderbolt {speed} Gbit/s")
        }
        LinkKind::ThunderboltBridge { .. } | LinkKind::ThunderboltPort { .. } => {
            "Thunderbolt".to_owned()
        }
        LinkKind::Ethernet { mbit_per_s: Some(speed) } if speed >= 1000 => {
            format!("Ethernet {} Gbit/s", f64::from(speed) / 1000.0)
        }
        LinkKind::Ethernet { mbit_per_s: Some(speed) } => format!("Ethernet {speed} Mbit/s"),
        LinkKind::Ethernet { mbit_per_s: None } => "Ethernet".to_owned(),
        LinkKind::WiFi => "Wi-Fi".to_owned(),
        LinkKind::Tunnel => "VPN".to_owned(),
        LinkKind::VirtualBridge => "virtual".to_owned(),
        LinkKind::Loopback => "this machine".to_owned(),
        LinkKind::Unknown => "unknown".to_owned(),
    }
}

fn path(
    own: PathEnd,
    other: PathEnd,
    forth: Result<Sample, String>,
    back: Result<Sample, String>,
    own_is_first: bool,
) -> Path {
    if own_is_first {
        Path { ends: [own, other], trials: [forth, back] }
    } else {
        Path { ends: [other, own], trials: [back, forth] }
    }
}

/// An end is known by its interface and address; how each node concludes the kind does not count.
fn is_same(a: &PathEnd, b: &PathEnd) -> bool {
    (&a.device.name, a.ip) == (&b.device.name, b.ip)
}

type Ranked = (bool, bool, u64, [String; 2]);

/// Paths that work come first, of those the ones that may carry hidden states, of those the quickest.
/// Addresses settle the rest, so that both ends sort alike.
fn rank(path: &Path) -> Ranked {
    let sample = figures(path);
    let is_slow = sample.is_none_or(|sample| verdict::fault(path, sample).is_some());
    // Two figures that hardly differ must not put a cable behind something else.
    let bias = 10 + u64::from(grade(carrier(path)));
    let cost = sample.map_or(u64::MAX, |sample| cost_ns(sample).saturating_mul(bias));
    let names = path.ends.clone().map(|end| format!("{} {}", end.ip, end.device.name));
    (sample.is_none(), is_slow, cost, names)
}

/// A small step's way and its share of a prompt's.
fn cost_ns(sample: Sample) -> u64 {
    let latency = u64::from(sample.rtt_median_us) * 500;
    let bits = TYPICAL_BYTES * 8 * 1_000_000_000;
    latency.saturating_add(bits / sample.bit_per_s.max(1))
}

fn grade(kind: LinkKind) -> u8 {
    match kind {
        LinkKind::Loopback => 0,
        LinkKind::ThunderboltBridge { .. } | LinkKind::ThunderboltPort { .. } => 1,
        LinkKind::Ethernet { .. } => 2,
        LinkKind::VirtualBridge | LinkKind::Unknown => 3,
        LinkKind::Tunnel => 4,
        LinkKind::WiFi => 5,
    }
}

const NOT_TRIED: &str = "not tried from there";
/// Between a decode step and a prefill chunk.
const TYPICAL_BYTES: u64 = 256 << 10;

#[cfg(test)]
mod tests;
