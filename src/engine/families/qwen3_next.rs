//! Qwen3-Next: of four layers, three are gated delta nets and one is gated attention. After either
//! come experts, a shared one among them.
//!
//! ```text
//! h   = x + delta net(norm(x))        or gated attention(norm(x)), in each period's last layer
//! out = h + experts(norm(h))          or mlp(norm(h)), in layers that the config names
//! ```

use mlx_rs::Array;

use super::{Mixer, PreNorm, StepContext};
use crate::engine::error::EngineError;
use crate::engine::layers::{GatedAttention, GatedDeltaNet};
use crate::engine::weights::Weights;

pub(in crate::engine) type Block = PreNorm<Hybrid>;

/// What lets a position see those before it.
pub(in crate::engine) enum Hybrid {
    LinearAttn(GatedDeltaNet),
    SelfAttn(GatedAttention),
}

impl Mixer for Hybrid {
    fn load(weights: &mut Weights<'_>, path: &str, layer: u32) -> Result<Self, EngineError> {
        let config = weights.config();
        match config.delta_of(layer) {
            Some(shape) => GatedDeltaNet::load(weights, &format!("{path}linear_attn"), shape)
                .map(Self::LinearAttn),
            None => GatedAttention::load(weights, &format!("{path}self_attn")).map(Self::SelfAttn),
        }
    }

    fn forward(&self, x: &Array, step: &mut StepContext<'_>) -> Result<Array, EngineError> {
        match self {
            Self::LinearAttn(net) => net.forward(x, step.spans, step.layer, step.caches),
            Self::SelfAttn(attention) => attention.forward(x, step.spans, step.layer, step.caches),
        }
    }
}
