//! Which node holds which layers. Pure: a model's bytes, what nodes can spare and the ways between
//! them in; shards with the sums that justify them out. It knows no socket, no clock and no file.
//!
//! A split is possible when every rank's needs are within its node's spare memory and its weights
//! under the residency ceiling. Of all possible ones the fastest per token is taken, and of equally
//! fast ones that with the largest margin. Start at [`plan`].

pub mod chips;
mod model;
mod node;
mod objective;
mod report;
mod search;
mod shortage;
mod speed;
#[cfg(test)]
mod tests;

use daisy_proto::{LayerRange, Rank, Shard};

pub use model::{Demand, Ends, Layer, Model};
pub use node::{Bound, Ceiling, Node, RESERVE_USUAL, Spare, Speed};
use objective::{Fastest, LeastShort};
pub use report::{Task, report};
pub use search::NODES_MAX;
use search::{Ranks, Stage, best};
pub use shortage::Shortage;
pub use speed::{Hop, Hops};

use model::Sums;

/// What the user asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Wish {
    pub cut: Cut,
    /// In tokens; none: as much as the split that is fastest with a short one has room for.
    pub context: Option<u32>,
    pub sequences: u32,
    /// Longest prefill chunk, in tokens.
    pub chunk: u32,
}

/// How the user wants the model cut.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Cut {
    /// On this node alone where it fits, else as is fastest.
    Best,
    /// Over this many nodes.
    Ranks(u32),
    /// Over all nodes.
    All,
    /// Layers per rank; ranks are the nodes in their order.
    Layers(Vec<u32>),
}

/// A split that fits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Plan {
    /// In the order of ranks.
    pub ranks: Vec<Ranked>,
    /// Tokens that each sequence may have.
    pub context: u32,
    /// The longest context that fits this split.
    pub context_max: u32,
    /// Predicted time per token.
    pub token_ns: u64,
    /// Of it, what the ways between the ranks take.
    pub hops_ns: u64,
    /// Predicted time to the first token after a prompt of [`PROMPT`] tokens; none: a node's speed
    /// is not known.
    pub first_token_ns: Option<u64>,
}

/// What a rank takes beside what its node can hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fit {
    pub weight_bytes: u64,
    /// Keys, values, state, and room to work.
    pub work_bytes: u64,
    pub spare: Spare,
}

/// A rank, its node and what it takes there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ranked {
    pub rank: Rank,
    /// Which of the nodes that were given.
    pub node: usize,
    pub shard: Shard,
    pub fit: Fit,
}

impl Fit {
    pub const fn needs_bytes(&self) -> u64 {
        self.weight_bytes.saturating_add(self.work_bytes)
    }

    /// How far this is beyond what the node can hold; 0: it fits.
    pub fn short_bytes(&self) -> u64 {
        let over_ceiling = self.weight_bytes.saturating_sub(self.spare.weights_max());
        self.needs_bytes().saturating_sub(self.spare.bytes).max(over_ceiling)
    }

    /// How much could be added before a limit is met.
    pub fn margin_bytes(&self) -> u64 {
        let below_ceiling = self.spare.weights_max().saturating_sub(self.weight_bytes);
        self.spare.bytes.saturating_sub(self.needs_bytes()).min(below_ceiling)
    }

    /// The limit that is exceeded most, or would be met first.
    pub fn bound(&self) -> Bound {
        let past = |taken: u64, most: u64| i128::from(taken) - i128::from(most);
        let past_spare = past(self.needs_bytes(), self.spare.bytes);
        match self.spare.ceiling {
            Some(ceiling) if past(self.weight_bytes, ceiling.bytes()) > past_spare => ceiling,
            _ => self.spare.bound,
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PlanError {
    #[error("--layers {given} adds up to {sum} layers, but the model has {layers}")]
    Sum { given: String, sum: u64, layers: usize },
    #[error("--layers {given} leaves rank {rank} without a layer; each rank needs at least 1")]
    EmptyRank { given: String, rank: usize },
    #[error("--layers {given} names {ranks} ranks, but {nodes} node(s) are reachable")]
    TooManyShards { given: String, ranks: usize, nodes: usize },
    #[error("{ranks} ranks were asked for, but {nodes} node(s) are reachable; add one with --peer")]
    TooFewNodes { ranks: u32, nodes: usize },
    #[error("the model has {layers} layers, too few for {ranks} ranks")]
    TooFewLayers { layers: usize, ranks: u32 },
    #[error("--nodes 0: at least 1 rank is needed")]
    NoRank,
    #[error(
        "{nodes} nodes are there, and a plan takes at most {NODES_MAX}: name them with --nodes"
    )]
    TooManyNodes { nodes: usize },
    #[error("no fast links join {ranks} nodes into a ring")]
    NoRing { ranks: u32 },
    #[error("--context {wanted} is more than the model's own {most} tokens")]
    Context { wanted: u32, most: u32 },
    /// Boxed: it has a table.
    #[error("the model does not fit")]
    Short(Box<Shortage>),
}

/// Cuts the model for these nodes, the driver first.
pub fn plan(model: &Model, nodes: &[Node], hops: &Hops, wish: &Wish) -> Result<Plan, PlanError> {
    let ranks = checked(model, nodes.len(), wish)?;
    // A longer context is taken afterwards, if there is room.
    let least = wish.context.unwrap_or_else(|| model.context_max.min(CONTEXT_LEAST));
    let demand = Demand { context: least, sequences: wish.sequences, chunk: wish.chunk };
    let costs = Costs::new(model, nodes, hops, demand);
    let stages = match &wish.cut {
        Cut::Layers(counts) => by_hand(counts),
        cut => {
            let fastest = |ranks| best(&Fastest(&costs), nodes.len(), model.layer_count(), ranks);
            // What fits one node is split only when asked: a chain has more that can fail.
            let alone = (*cut == Cut::Best).then(|| fastest(Ranks::Exactly(1))).flatten();
            match alone.or_else(|| fastest(ranks)) {
                Some((_, stages)) => stages,
                None => return Err(costs.shortage(ranks)),
            }
        }
    };
    if costs.ranked(&stages).iter().any(|rank| rank.fit.short_bytes() > 0) {
        return Err(PlanError::Short(Box::new(costs.shortage_of(&stages))));
    }
    let context_max = costs.context_max(&stages);
    let context = wish.context.unwrap_or(context_max);
    let costs = costs.with_context(context);
    Ok(Plan {
        ranks: costs.ranked(&stages),
        context,
        context_max,
        token_ns: costs.token_ns(&stages),
        hops_ns: costs.hops_ns(&stages, model.hidden_bytes),
        first_token_ns: costs.first_token_ns(&stages),
    })
}

/// The longest context that any split of this many ranks has room for; 0: none has for one token.
pub fn context_max(model: &Model, nodes: &[Node], hops: &Hops, wish: &Wish) -> u32 {
    let Ok(ranks) = checked(model, nodes.len(), wish) else { return 0 };
    let fits = |context: u32| {
        let demand = Demand { context, sequences: wish.sequences, chunk: wish.chunk };
        let costs = Costs::new(model, nodes, hops, demand);
        match &wish.cut {
            Cut::Layers(counts) => {
                costs.ranked(&by_hand(counts)).iter().all(|rank| rank.fit.short_bytes() == 0)
            }
            _ => best(&Fastest(&costs), nodes.len(), model.layer_count(), ranks).is_some(),
        }
    };
    let (mut fitting, mut too_long) = (0, model.context_max.saturating_add(1));
    while too_long - fitting > 1 {
        let middle = fitting + (too_long - fitting) / 2;
        if fits(middle) {
            fitting = middle;
        } else {
            too_long = middle;
        }
    }
    fitting
}

/// How many ranks there may be, once the wish is known to make sense.
fn checked(model: &Model, nodes: usize, wish: &Wish) -> Result<Ranks, PlanError> {
    let layers = model.layers.len();
    if let Some(wanted) = wish.context.filter(|wanted| *wanted > model.context_max) {
        return Err(PlanError::Context { wanted, most: model.context_max });
    }
    if nodes > NODES_MAX {
        return Err(PlanError::TooManyNodes { nodes });
    }
    let exactly = |ranks: u32| match ranks {
        0 => Err(PlanError::NoRank),
        _ if ranks as usize > nodes => Err(PlanError::TooFewNodes { ranks, nodes }),
        _ if ranks as usize > layers => Err(PlanError::TooFewLayers { layers, ranks }),
        _ => Ok(Ranks::Exactly(ranks)),
    };
    let count = |count: usize| u32::try_from(count).unwrap_or(u32::MAX);
    match &wish.cut {
        Cut::Best => Ok(Ranks::Any),
        Cut::Ranks(ranks) => exactly(*ranks),
        Cut::All => exactly(count(nodes)),
        Cut::Layers(counts) => {
            let given = || counts.iter().map(u32::to_string).collect::<Vec<_>>().join(",");
            if let Some(rank) = counts.iter().position(|count| *count == 0) {
                return Err(PlanError::EmptyRank { given: given(), rank });
            }
            let sum: u64 = counts.iter().copied().map(u64::from).sum();
            if sum != layers as u64 {
                return Err(PlanError::Sum { given: given(), sum, layers });
            }
            if counts.len() > nodes {
                let ranks = counts.len();
                return Err(PlanError::TooManyShards { given: given(), ranks, nodes });
            }
            exactly(count(counts.len()))
        }
    }
}

fn by_hand(counts: &[u32]) -> Vec<Stage> {
    let mut start = 0;
    let stages = counts.iter().enumerate().map(|(node, count)| {
        let layers = LayerRange::new(start, start + count);
        start = layers.end;
        Stage { node, layers }
    });
    stages.collect()
}

/// What splits cost, for one model, set of nodes and demand.
#[derive(Debug)]
struct Costs<'a> {
    model: &'a Model,
    sums: Sums,
    nodes: &'a [Node],
    spares: Vec<Spare>,
    hops: &'a Hops,
    demand: Demand,
}

impl<'a> Costs<'a> {
    fn new(model: &'a Model, nodes: &'a [Node], hops: &'a Hops, demand: Demand) -> Self {
        let spares = nodes.iter().map(Node::spare).collect();
        Self { model, sums: Sums::of(model), nodes, spares, hops, demand }
    }

    /// A rank that holds what `rank` sums up, on node `node`.
    fn fit(&self, node: usize, rank: &Layer) -> Fit {
        let room = self.model.work_bytes_per_token.saturating_mul(u64::from(self.demand.chunk));
        Fit {
            weight_bytes: rank.weight_bytes,
            work_bytes: rank.kv_bytes(&self.demand).saturating_add(room),
            spare: self.spares[node],
        }
    }

    fn ranked(&self, stages: &[Stage]) -> Vec<Ranked> {
        let ranks = (0..).map(Rank).zip(stages);
        let ranked = ranks.map(|(rank, stage)| {
            let fit = self.fit(stage.node, &self.sums.range(stage.layers, rank.0 == 0));
            Ranked { rank, node: stage.node, shard: Shard::of(rank, stage.layers), fit }
        });
        ranked.collect()
    }

    /// One way from a rank to the next, for this many bytes; none: no link that may carry them.
    fn hop_ns(&self, from: usize, to: usize, bytes: u64) -> Option<u64> {
        if from == to { Some(0) } else { self.hops.at(from, to).map(|hop| hop.ns(bytes)) }
    }

    fn hops_ns(&self, stages: &[Stage], bytes: u64) -> u64 {
        let next = stages.iter().cycle().skip(1);
        let hops = stages.iter().zip(next).map(|(a, b)| self.hop_ns(a.node, b.node, bytes));
        hops.map(Option::unwrap_or_default).fold(0, u64::saturating_add)
    }

    fn token_ns(&self, stages: &[Stage]) -> u64 {
        let computed = stages.iter().map(|stage| {
            let sum = self.sums.range(stage.layers, stage.layers.start == 0);
            self.nodes[stage.node].speed.decode_ns(&sum)
        });
        computed.fold(self.hops_ns(stages, self.model.hidden_bytes), u64::saturating_add)
    }

    fn first_token_ns(&self, stages: &[Stage]) -> Option<u64> {
        let millibits = self.model.millibits_per_weight();
        let prompt = PROMPT.min(self.model.context_max);
        let computed = stages.iter().map(|stage| {
            let sum = self.sums.range(stage.layers, stage.layers.start == 0);
            self.nodes[stage.node].speed.prefill_ns(&sum, millibits, prompt)
        });
        let bytes = self.model.hidden_bytes.saturating_mul(u64::from(prompt));
        let sum: Option<u64> = computed.sum();
        Some(sum?.saturating_add(self.hops_ns(stages, bytes)))
    }

    /// The longest context for which every rank of this split has room; 0: not even for one token.
    fn context_max(&self, stages: &[Stage]) -> u32 {
        let empty = self.with_context(0);
        let most = stages.iter().map(|stage| {
            let sum = self.sums.range(stage.layers, stage.layers.start == 0);
            let sequences = u64::from(self.demand.sequences);
            let per_token = sum.kv_bytes_per_token.saturating_mul(sequences);
            let fit = empty.fit(stage.node, &sum);
            match fit.spare.bytes.checked_sub(fit.needs_bytes()) {
                Some(left) if fit.short_bytes() == 0 => {
                    left.checked_div(per_token).unwrap_or(u64::MAX)
                }
                _ => 0,
            }
        });
        let most = most.min().unwrap_or(0).min(u64::from(self.model.context_max));
        u32::try_from(most).unwrap_or(u32::MAX)
    }

    fn with_context(&self, context: u32) -> Self {
        let demand = Demand { context, ..self.demand };
        Self::new(self.model, self.nodes, self.hops, demand)
    }

    /// Why there is no split of so many ranks: the one that lacks least, if links allow any.
    fn shortage(&self, ranks: Ranks) -> PlanError {
        let least = best(&LeastShort(self), self.nodes.len(), self.model.layer_count(), ranks);
        match (least, ranks) {
            (Some((_, stages)), _) => PlanError::Short(Box::new(self.shortage_of(&stages))),
            (None, Ranks::Exactly(ranks)) => PlanError::NoRing { ranks },
            (None, Ranks::Any) => PlanError::NoRing { ranks: 1 },
        }
    }

    fn shortage_of(&self, stages: &[Stage]) -> Shortage {
        Shortage {
            ranks: self.ranked(stages),
            nodes: self.nodes.to_vec(),
            weight_bytes: self.model.weight_bytes(),
            millibits_per_weight: self.model.millibits_per_weight(),
            demand: self.demand,
            context_max: self.context_max(stages),
        }
    }
}

/// The context for which there must be room where none is asked for, in tokens.
pub const CONTEXT_LEAST: u32 = 4096;
/// The prompt for which the time to the first token is predicted, in tokens.
pub const PROMPT: u32 = 1024;
