//! The exact search for the best split: which nodes, in which order, with which layers.
//!
//! Dynamic programming over (nodes used, last node, layers placed). Node 0 drives and holds rank 0.
//! What a split costs is the [`Objective`]'s to say.

use daisy_proto::LayerRange;

/// One rank of a split: an index into the nodes, and its layers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Stage {
    pub(super) node: usize,
    pub(super) layers: LayerRange,
}

/// What is looked for. A split costs what its ranks and the ways between them cost, added up.
pub(super) trait Objective {
    /// Smaller is better.
    type Cost: Copy + Ord;

    /// These layers on one node; with layer 0, as rank 0. None: impossible, and so are these and
    /// more.
    fn rank(&self, node: usize, layers: LayerRange) -> Option<Self::Cost>;

    /// The way from one node to another one, or to itself. None: there is none.
    fn hop(&self, from: usize, to: usize) -> Option<Self::Cost>;

    /// Of two costs the smaller one must stay so, or become equal, whatever is added to both.
    fn add(a: Self::Cost, b: Self::Cost) -> Self::Cost;
}

/// How many ranks a split may have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Ranks {
    Any,
    Exactly(u32),
}

/// The cheapest split of `layers` layers over some of `nodes` nodes; none: no split is possible.
/// Among equals the one with fewer ranks, then the one whose nodes come first.
pub(super) fn best<O: Objective>(
    objective: &O,
    nodes: usize,
    layers: u32,
    ranks: Ranks,
) -> Option<(O::Cost, Vec<Stage>)> {
    debug_assert!((1..=NODES_MAX).contains(&nodes), "the caller bounds the nodes");
    let costs = Costs::of(objective, nodes, layers);
    let mut table = Table::new(nodes, layers);
    for (slot, &cost) in table.row_mut(0, 0)[1..].iter_mut().zip(costs.from(0, 0)) {
        *slot = Some(Entry { cost, before: None });
    }
    // A set of nodes is a number that is larger than that of each of its parts.
    for used in 0..1_u32 << (nodes - 1) {
        if matches!(ranks, Ranks::Exactly(ranks) if used.count_ones() + 1 >= ranks) {
            continue;
        }
        for last in 0..nodes {
            for to in (1..nodes).filter(|to| used & bit(*to) == 0) {
                if let Some(hop) = objective.hop(last, to) {
                    extend::<O>(&costs, &mut table, (used, last), to, hop);
                }
            }
        }
    }
    let mut found: Option<(O::Cost, u32, u32, usize)> = None;
    for used in 0..1_u32 << (nodes - 1) {
        let count = used.count_ones() + 1;
        if matches!(ranks, Ranks::Exactly(ranks) if count != ranks) {
            continue;
        }
        for last in 0..nodes {
            let whole = table.row(used, last)[layers as usize];
            let Some((entry, back)) = whole.zip(objective.hop(last, 0)) else { continue };
            let cost = O::add(entry.cost, back);
            if found.is_none_or(|(least, ranks, ..)| (cost, count) < (least, ranks)) {
                found = Some((cost, count, used, last));
            }
        }
    }
    found.map(|(cost, _, used, last)| (cost, table.split(used, last, layers)))
}

/// Node `to` takes on from every boundary that `last` reached with the nodes of `used`.
fn extend<O: Objective>(
    costs: &Costs<O::Cost>,
    table: &mut Table<O::Cost>,
    (used, last): (u32, usize),
    to: usize,
    hop: O::Cost,
) {
    let starts: Vec<Option<Entry<O::Cost>>> = table.row(used, last).to_vec();
    let row = table.row_mut(used | bit(to), to);
    for (start, entry) in (0..costs.layers).zip(starts) {
        let Some(entry) = entry else { continue };
        let so_far = O::add(entry.cost, hop);
        let before = Some((last, start));
        for (slot, &rank) in row[start as usize + 1..].iter_mut().zip(costs.from(to, start)) {
            let cost = O::add(so_far, rank);
            if slot.is_none_or(|known| cost < known.cost) {
                *slot = Some(Entry { cost, before });
            }
        }
    }
}

/// Node 0 is in every set and has no bit.
const fn bit(node: usize) -> u32 {
    1 << (node - 1)
}

/// What every range of layers costs on every node, worked out once: each is in many splits.
struct Costs<C> {
    layers: u32,
    /// By node and first layer: the costs of one layer, two, and so on, as far as is possible.
    ranges: Vec<Vec<C>>,
}

impl<C: Copy> Costs<C> {
    fn of<O: Objective<Cost = C>>(objective: &O, nodes: usize, layers: u32) -> Self {
        let starts = (0..nodes).flat_map(|node| (0..layers).map(move |start| (node, start)));
        let ranges = starts.map(|(node, start)| {
            let ends = start + 1..=layers;
            ends.map_while(|end| objective.rank(node, LayerRange::new(start, end))).collect()
        });
        Self { layers, ranges: ranges.collect() }
    }

    /// Of one layer from `start` on, of two, and so on.
    fn from(&self, node: usize, start: u32) -> &[C] {
        &self.ranges[node * self.layers as usize + start as usize]
    }
}

#[derive(Debug, Clone, Copy)]
struct Entry<C> {
    cost: C,
    /// The node before the last one, and where the last one's layers start.
    before: Option<(usize, u32)>,
}

/// The cheapest way to each boundary, by the nodes used and the last of them.
struct Table<C> {
    nodes: usize,
    boundaries: usize,
    entries: Vec<Option<Entry<C>>>,
}

impl<C: Copy> Table<C> {
    fn new(nodes: usize, layers: u32) -> Self {
        let boundaries = layers as usize + 1;
        let size = (1 << (nodes - 1)) * nodes * boundaries;
        Self { nodes, boundaries, entries: vec![None; size] }
    }

    /// By the number of layers placed.
    fn row(&self, used: u32, last: usize) -> &[Option<Entry<C>>] {
        &self.entries[self.place(used, last)]
    }

    fn row_mut(&mut self, used: u32, last: usize) -> &mut [Option<Entry<C>>] {
        let place = self.place(used, last);
        &mut self.entries[place]
    }

    const fn place(&self, used: u32, last: usize) -> std::ops::Range<usize> {
        let at = (used as usize * self.nodes + last) * self.boundaries;
        at..at + self.boundaries
    }

    /// The ranks that led to `end` layers on the nodes of `used`, rank 0 first.
    fn split(&self, mut used: u32, mut last: usize, mut end: u32) -> Vec<Stage> {
        let mut stages = Vec::new();
        while let Some(entry) = &self.row(used, last)[end as usize] {
            let start = entry.before.map_or(0, |(_, start)| start);
            stages.push(Stage { node: last, layers: LayerRange::new(start, end) });
            let Some((before, boundary)) = entry.before else { break };
            used &= !bit(last);
            (last, end) = (before, boundary);
        }
        stages.reverse();
        stages
    }
}

/// Sets of nodes are counted through: each further one doubles the work.
pub const NODES_MAX: usize = 8;
