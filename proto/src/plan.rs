//! The split of a model over nodes, with the sums that justify it.

use serde::{Deserialize, Serialize};

use crate::local::PlannedShard;

/// A plan, as its driver and a person read it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlanReport {
    pub model: String,
    /// In the order of ranks.
    pub ranks: Vec<PlannedRank>,
    /// Tokens that each sequence may have.
    pub context: u32,
    /// The longest context that fits this split.
    pub context_max: u32,
    pub sequences: u32,
    pub prediction: Prediction,
    /// How else it could be split.
    pub others: Vec<OtherPlan>,
    /// What the user should know of it.
    pub notes: Vec<String>,
}

/// A rank of a plan. Bytes are those in memory.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlannedRank {
    pub planned: PlannedShard,
    /// Keys, values, state, and room to work.
    pub work_bytes: u64,
    /// What the node can hold now.
    pub spare_bytes: u64,
    /// How much the rank could grow before a limit is met.
    pub margin_bytes: u64,
    /// The limit that is met first, with its figures.
    pub bound: String,
}

impl PlannedRank {
    #[must_use]
    pub const fn needs_bytes(&self) -> u64 {
        self.planned.weight_bytes.saturating_add(self.work_bytes)
    }
}

/// What a plan should take, by figures of the machines and links.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Prediction {
    /// Per token, after the first one.
    pub token_us: u64,
    /// Of it, on the ways between ranks.
    pub hops_us: u64,
    /// After a prompt of so many tokens; none: the speed of a node is not known.
    pub first_token: Option<FirstToken>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct FirstToken {
    pub prompt_tokens: u32,
    pub us: u64,
}

/// Another split of the same model.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct OtherPlan {
    /// Where it runs.
    pub what: String,
    /// What `daisy cluster serve` takes to split it so.
    pub args: Vec<String>,
    pub context_max: u32,
    pub prediction: Prediction,
}
