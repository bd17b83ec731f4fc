//! What a split should take per token and before the first one.
//!
//! A rank that decodes reads each active byte of its layers once per token, and little else takes
//! time; a hop takes half a round trip. Prefill computes two operations per active weight and
//! token. Both are predictions from figures of the machine: the share of them that is reached
//! differs by model and machine, so they are for comparing splits more than for promises.

use super::model::Layer;
use super::node::Speed;

/// One-way times from each node to each other one, in nanoseconds; none: no link that may carry
/// hidden states.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hops {
    nodes: usize,
    between: Vec<Option<Hop>>,
    /// A node between, where two have no link of their own.
    via: Vec<Option<usize>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Hop {
    /// Half a round trip.
    pub one_way_ns: u64,
    pub bit_per_s: u64,
}

impl Hops {
    /// No links yet.
    pub fn none(nodes: usize) -> Self {
        Self { nodes, between: vec![None; nodes * nodes], via: vec![None; nodes * nodes] }
    }

    /// A link works in both directions.
    pub fn set(&mut self, a: usize, b: usize, hop: Hop) {
        self.between[a * self.nodes + b] = Some(hop);
        self.between[b * self.nodes + a] = Some(hop);
    }

    /// Where two nodes have no link, the shortest way over others that pass on what they are sent.
    #[must_use]
    pub fn with_detours(mut self) -> Self {
        let direct = self.between.clone();
        for via in 0..self.nodes {
            for (from, to) in (0..self.nodes).flat_map(|a| (0..self.nodes).map(move |b| (a, b))) {
                let at = from * self.nodes + to;
                if from == to || from == via || to == via || direct[at].is_some() {
                    continue;
                }
                let (Some(there), Some(on)) = (self.at(from, via), self.at(via, to)) else {
                    continue;
                };
                let longer = there.and_then(on);
                if self.between[at].is_none_or(|known| longer.one_way_ns < known.one_way_ns) {
                    (self.between[at], self.via[at]) = (Some(longer), Some(via));
                }
            }
        }
        self
    }

    /// The nodes between two that have no link of their own, in order; none where they have one.
    pub fn detour(&self, from: usize, to: usize) -> Vec<usize> {
        let Some(via) = self.via[from * self.nodes + to] else { return Vec::new() };
        let mut nodes = self.detour(from, via);
        nodes.push(via);
        nodes.extend(self.detour(via, to));
        nodes
    }

    /// The ways among these nodes alone, in this order; without detours.
    #[must_use]
    pub fn among(&self, nodes: &[usize]) -> Self {
        let direct = |from: usize, to: usize| match self.via[from * self.nodes + to] {
            None => self.at(from, to),
            Some(_) => None,
        };
        let between = nodes.iter().flat_map(|from| nodes.iter().map(move |to| direct(*from, *to)));
        let via = vec![None; nodes.len() * nodes.len()];
        Self { nodes: nodes.len(), between: between.collect(), via }
    }

    /// As if every node reached every other one at once: what memory alone allows.
    pub fn ideal(nodes: usize) -> Self {
        let hop = Hop { one_way_ns: 0, bit_per_s: u64::MAX };
        Self { nodes, between: vec![Some(hop); nodes * nodes], via: vec![None; nodes * nodes] }
    }

    /// From one node to another.
    pub fn at(&self, from: usize, to: usize) -> Option<Hop> {
        self.between[from * self.nodes + to]
    }
}

impl Hop {
    /// This way and then another one.
    fn and_then(self, on: Self) -> Self {
        let wire = self.one_way_ns.saturating_add(on.one_way_ns);
        Self {
            one_way_ns: wire.saturating_add(PASSED_ON_NS),
            bit_per_s: self.bit_per_s.min(on.bit_per_s),
        }
    }

    /// Until this many bytes are there.
    pub fn ns(self, bytes: u64) -> u64 {
        self.one_way_ns.saturating_add(over(bytes.saturating_mul(8), self.bit_per_s))
    }
}

impl Speed {
    /// One token through what a rank holds.
    pub(super) fn decode_ns(self, rank: &Layer) -> u64 {
        let per_s = self.bytes_per_s.unwrap_or(BYTES_PER_S_ASSUMED);
        over(rank.active_bytes.saturating_mul(100), per_s.saturating_mul(REACHED_PERCENT))
    }

    /// A prompt through what a rank holds, with weights of this many thousandths of a bit.
    pub(super) fn prefill_ns(self, rank: &Layer, millibits: u64, tokens: u32) -> Option<u64> {
        let weights = u128::from(rank.active_bytes) * 8 * 1000 / u128::from(millibits.max(1));
        let operations = u64::try_from(weights * 2 * u128::from(tokens)).unwrap_or(u64::MAX);
        let reached = self.flop_per_s?.saturating_mul(REACHED_PERCENT);
        let computed = over(operations.saturating_mul(100), reached);
        Some(computed.max(self.decode_ns(rank)))
    }
}

/// `amount` at `per_s`, in nanoseconds.
fn over(amount: u64, per_s: u64) -> u64 {
    let ns = u128::from(amount) * 1_000_000_000 / u128::from(per_s.max(1));
    u64::try_from(ns).unwrap_or(u64::MAX)
}

/// What a node takes to pass a datagram on: two system calls and a wake-up.
const PASSED_ON_NS: u64 = 50_000;
/// Of the memory's and the GPU's figures, what a model's arithmetic gets in practice.
const REACHED_PERCENT: u64 = 70;
/// Where a machine's memory is of unknown speed: that of an ordinary computer.
const BYTES_PER_S_ASSUMED: u64 = 50_000_000_000;
