//! Which node holds which layers. Pure: bytes and wishes in, shards out; it knows no socket, no
//! clock and no file.
//!
//! For now the cut balances bytes: the heaviest rank is as light as it can be. Memory, speed and
//! links enter here when nodes know theirs.

use daisy_proto::{LayerRange, Rank, Shard};

/// What each part of a model weighs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Weights {
    /// Bytes of each layer, in order.
    pub layers: Vec<u64>,
    /// Embedding, final norm and head: all on rank 0.
    pub ends: u64,
}

/// How the user wants the model cut.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Cut {
    /// Into this many ranks, balanced by bytes.
    Ranks(u32),
    /// Layers per rank, in rank order.
    Layers(Vec<u32>),
}

/// One rank of a plan.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Planned {
    pub rank: Rank,
    pub shard: Shard,
    pub weight_bytes: u64,
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
}

/// Cuts the model for `nodes` nodes, the driver first.
pub fn plan(weights: &Weights, nodes: usize, cut: &Cut) -> Result<Vec<Planned>, PlanError> {
    let counts = match cut {
        Cut::Layers(counts) => checked(weights, nodes, counts)?,
        Cut::Ranks(ranks) => balanced(weights, nodes, *ranks)?,
    };
    let mut start = 0;
    let shards = counts.iter().zip(0..).map(|(count, rank)| {
        let layers = LayerRange::new(start, start + count);
        start = layers.end;
        Planned {
            rank: Rank(rank),
            shard: Shard::of(Rank(rank), layers),
            weight_bytes: weights.of(layers) + if rank == 0 { weights.ends } else { 0 },
        }
    });
    Ok(shards.collect())
}

impl Weights {
    fn of(&self, layers: LayerRange) -> u64 {
        self.layers[layers.start as usize..layers.end as usize].iter().sum()
    }
}

fn checked(weights: &Weights, nodes: usize, counts: &[u32]) -> Result<Vec<u32>, PlanError> {
    let given = || counts.iter().map(u32::to_string).collect::<Vec<_>>().join(",");
    if let Some(rank) = counts.iter().position(|count| *count == 0) {
        return Err(PlanError::EmptyRank { given: given(), rank });
    }
    let sum: u64 = counts.iter().copied().map(u64::from).sum();
    let layers = weights.layers.len();
    if sum != layers as u64 {
        return Err(PlanError::Sum { given: given(), sum, layers });
    }
    if counts.len() > nodes {
        return Err(PlanError::TooManyShards { given: given(), ranks: counts.len(), nodes });
    }
    Ok(counts.to_vec())
}

/// Layer counts whose heaviest rank is lightest; among those, the most even.
fn balanced(weights: &Weights, nodes: usize, ranks: u32) -> Result<Vec<u32>, PlanError> {
    let layers = weights.layers.len();
    let world = ranks as usize;
    if world == 0 {
        return Err(PlanError::NoRank);
    }
    if world > nodes {
        return Err(PlanError::TooFewNodes { ranks, nodes });
    }
    if layers < world {
        return Err(PlanError::TooFewLayers { layers, ranks });
    }
    // best[n]: the best cut of the first n layers into the ranks so far.
    let mut best: Vec<Option<Partial>> = vec![None; layers + 1];
    best[0] = Some(Partial::default());
    for rank in 0..world {
        let mut next: Vec<Option<Partial>> = vec![None; layers + 1];
        let ends = if rank == 0 { weights.ends } else { 0 };
        for (start, partial) in best.iter().enumerate() {
            let Some(partial) = partial else { continue };
            let mut bytes = ends;
            for (count, (layer, slot)) in
                (1..).zip(weights.layers[start..].iter().zip(&mut next[start + 1..]))
            {
                bytes += layer;
                let longer = partial.with(count, bytes);
                if slot.as_ref().is_none_or(|known| longer.cost < known.cost) {
                    *slot = Some(longer);
                }
            }
        }
        best = next;
    }
    let partial = best[layers].take().expect("there are at least as many layers as ranks");
    Ok(partial.counts)
}

/// A cut of the first layers into the first ranks.
#[derive(Debug, Clone, Default)]
struct Partial {
    /// The heaviest rank, then the sum of squares: of equally light cuts the most even is best.
    cost: (u64, u128),
    counts: Vec<u32>,
}

impl Partial {
    /// One rank more, of `count` layers and `bytes` in all.
    fn with(&self, count: u32, bytes: u64) -> Self {
        let square = u128::from(bytes).saturating_mul(u128::from(bytes));
        let cost = (self.cost.0.max(bytes), self.cost.1.saturating_add(square));
        let mut counts = self.counts.clone();
        counts.push(count);
        Self { cost, counts }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn counts(plan: &[Planned]) -> Vec<u32> {
        plan.iter().map(|planned| planned.shard.layers.len()).collect()
    }

    #[test]
    fn rank_0_holds_the_ends_and_so_gets_fewer_layers() {
        let weights = Weights { layers: vec![10; 10], ends: 40 };
        let plan = plan(&weights, 2, &Cut::Ranks(2)).expect("fits");
        assert_eq!(counts(&plan), [3, 7]);
        assert!(plan[0].shard.has_embedding && plan[0].shard.has_head);
        assert!(!plan[1].shard.has_embedding && !plan[1].shard.has_head);
        assert_eq!((plan[0].weight_bytes, plan[1].weight_bytes), (70, 70));
    }

    #[test]
    fn a_cut_by_hand_is_taken_as_it_is_or_refused() {
        let weights = Weights { layers: vec![1; 30], ends: 0 };
        let by_hand = |layers: &[u32], nodes| plan(&weights, nodes, &Cut::Layers(layers.to_vec()));
        assert_eq!(counts(&by_hand(&[1, 29], 2).expect("fits")), [1, 29]);
        for (layers, nodes, message) in [
            (&[15, 14][..], 2, "--layers 15,14 adds up to 29 layers, but the model has 30"),
            (
                &[30, 0],
                2,
                "--layers 30,0 leaves rank 1 without a layer; each rank needs at least 1",
            ),
            (&[15, 15], 1, "--layers 15,15 names 2 ranks, but 1 node(s) are reachable"),
        ] {
            assert_eq!(by_hand(layers, nodes).expect_err("refused").to_string(), message);
        }
    }

    #[test]
    fn what_cannot_be_cut_is_refused() {
        let weights = Weights { layers: vec![1; 3], ends: 0 };
        for (ranks, nodes, error) in [
            (0, 2, PlanError::NoRank),
            (3, 2, PlanError::TooFewNodes { ranks: 3, nodes: 2 }),
            (4, 4, PlanError::TooFewLayers { layers: 3, ranks: 4 }),
        ] {
            assert_eq!(plan(&weights, nodes, &Cut::Ranks(ranks)), Err(error));
        }
    }

    /// The lightest heaviest rank, by trying every cut.
    fn brute_force(layers: &[u64], ends: u64, ranks: usize) -> u64 {
        if ranks == 1 {
            return ends + layers.iter().sum::<u64>();
        }
        (1..=layers.len() + 1 - ranks)
            .map(|first| {
                let own: u64 = ends + layers[..first].iter().sum::<u64>();
                own.max(brute_force(&layers[first..], 0, ranks - 1))
            })
            .min()
            .expect("at least one cut")
    }

    proptest! {
        #[test]
        fn every_layer_once_in_order_and_as_light_as_brute_force(
            layers in prop::collection::vec(1..1000u64, 4..10),
            ends in 0..3000u64,
            ranks in 1..5u32,
        ) {
            let weights = Weights { layers: layers.clone(), ends };
            let plan = plan(&weights, 4, &Cut::Ranks(ranks)).expect("fits");
            let mut next = 0;
            for planned in &plan {
                prop_assert_eq!(planned.shard.layers.start, next);
                prop_assert!(!planned.shard.layers.is_empty());
                next = planned.shard.layers.end;
            }
            prop_assert_eq!(next as usize, layers.len());
            let heaviest = plan.iter().map(|planned| planned.weight_bytes).max().expect("a rank");
            prop_assert_eq!(heaviest, brute_force(&layers, ends, ranks as usize));
        }
    }
}
