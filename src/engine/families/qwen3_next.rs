//! Qwen3-Next: of four layers, three are gated delta nets and one is gated attention. After either
//! come experts, a shared one among them.
//!
//! ```text
//! h   = x + delta net(norm(x))        or gated attention(norm(x)), in each period's last layer
//! out = h + experts(norm(h))          or mlp(norm(h)), in layers that the config names
//! ```

use mlx_rs::Array;

use super::StepContext;
use crate::engine::error::EngineError;
use crate::engine::layers::{FeedForward, GatedAttention, GatedDeltaNet, RmsNorm};
use crate::engine::weights::Weights;
use crate::model::spec::layer_prefix;

pub(in crate::engine) struct Block {
    input_layernorm: RmsNorm,
    mixer: Mixer,
    post_attention_layernorm: RmsNorm,
    mlp: FeedForward,
}

/// What lets a position see those before it.
enum Mixer {
    LinearAttn(GatedDeltaNet),
    SelfAttn(GatedAttention),
}

impl Block {
    pub(super) fn load(weights: &mut Weights<'_>, layer: u32) -> Result<Self, EngineError> {
        let path = layer_prefix(layer);
        Ok(Self {
            input_layernorm: weights.rms_norm(&format!("{path}input_layernorm"))?,
            mixer: Mixer::load(weights, &path, layer)?,
            post_attention_layernorm: weights
                .rms_norm(&format!("{path}post_attention_layernorm"))?,
            mlp: FeedForward::load(weights, &format!("{path}mlp"), layer)?,
        })
    }

    pub(super) fn forward(
        &self,
        x: &Array,
        step: &mut StepContext<'_>,
    ) -> Result<Array, EngineError> {
        let mixed = self.mixer.forward(&self.input_layernorm.forward(x)?, step)?;
        let h = x.add(mixed)?;
        let out = self.mlp.forward(&self.post_attention_layernorm.forward(&h)?)?;
        Ok(h.add(out)?)
    }
}

impl Mixer {
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
