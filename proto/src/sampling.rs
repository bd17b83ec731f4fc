//! How the next token is drawn.

use serde::{Deserialize, Serialize};

/// Sampling parameters of one sequence. With `seed` they make the draw of each position a pure
/// function of the logits, so that batching, preemption and replay cannot change it.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Sampling {
    /// 0 is greedy.
    pub temperature: f32,
    /// Nucleus: the smallest set of tokens whose probability reaches this. 1 keeps all.
    pub top_p: f32,
    /// The most probable tokens that stay. 0 keeps all.
    pub top_k: u32,
    pub seed: u64,
}

impl Sampling {
    #[must_use]
    pub const fn greedy() -> Self {
        Self { temperature: 0.0, top_p: 1.0, top_k: 0, seed: 0 }
    }
}
