//! How the next token is drawn, and how likely it was.

use serde::{Deserialize, Serialize};

/// Sampling parameters of one sequence. With `seed` they make the draw of each position a pure
/// function of the logits and the tokens before it, so that batching, preemption and replay cannot
/// change it.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Sampling {
    /// 0 is greedy.
    pub temperature: f32,
    /// Nucleus: the smallest set of tokens whose probability reaches this. 1 keeps all.
    pub top_p: f32,
    /// The most probable tokens that stay. 0 keeps all.
    pub top_k: u32,
    /// Tokens below this share of the most probable one's probability go. 0 keeps all.
    pub min_p: f32,
    /// Of every token of prompt and answer, a positive logit is divided by this and a negative one
    /// multiplied. 1 changes nothing.
    pub repetition_penalty: f32,
    /// Taken off the logit of every token of the answer.
    pub presence_penalty: f32,
    /// Taken off the logit of a token for each time that it stands in the answer.
    pub frequency_penalty: f32,
    pub seed: u64,
}

impl Sampling {
    #[must_use]
    pub const fn greedy() -> Self {
        Self {
            temperature: 0.0,
            top_p: 1.0,
            top_k: 0,
            min_p: 0.0,
            repetition_penalty: 1.0,
            presence_penalty: 0.0,
            frequency_penalty: 0.0,
            seed: 0,
        }
    }

    /// Whether the tokens so far change the draw.
    #[must_use]
    #[expect(clippy::float_cmp, reason = "only the exact neutral values change nothing")]
    pub fn penalises(&self) -> bool {
        self.repetition_penalty != 1.0
            || self.presence_penalty != 0.0
            || self.frequency_penalty != 0.0
    }
}

/// How likely a drawn token was by the model's own logits: natural logarithms of probabilities,
/// before bias, penalties and temperature.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Logprobs {
    /// Of the drawn token.
    pub drawn: f32,
    /// The most likely tokens, the likeliest first.
    pub top: Vec<(u32, f32)>,
}
