//! Qwen3 with mixtures of experts (Qwen team 2025, arXiv 2505.09388): its attention is that of the
//! dense one.
//!
//! ```text
//! h   = x + attention(norm(x))
//! out = h + experts(norm(h))          or mlp(norm(h)), in layers that the config names
//! ```

use mlx_rs::Array;

use super::StepContext;
use super::qwen3::Attention;
use crate::engine::error::EngineError;
use crate::engine::layers::{FeedForward, RmsNorm};
use crate::engine::weights::Weights;
use crate::model::spec::layer_prefix;

pub(in crate::engine) struct Block {
    input_layernorm: RmsNorm,
    self_attn: Attention,
    post_attention_layernorm: RmsNorm,
    mlp: FeedForward,
}

impl Block {
    pub(super) fn load(weights: &mut Weights<'_>, layer: u32) -> Result<Self, EngineError> {
        let path = layer_prefix(layer);
        Ok(Self {
            input_layernorm: weights.rms_norm(&format!("{path}input_layernorm"))?,
            self_attn: Attention::load(weights, &format!("{path}self_attn"))?,
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
        let attended = self.self_attn.forward(&self.input_layernorm.forward(x)?, step)?;
        let h = x.add(attended)?;
        let out = self.mlp.forward(&self.post_attention_layernorm.forward(&h)?)?;
        Ok(h.add(out)?)
    }
}
