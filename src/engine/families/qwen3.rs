//! Qwen3, dense (Qwen team 2025, arXiv 2505.09388): a llama whose queries and keys are normalised
//! per head before they turn.
//!
//! ```text
//! h   = x + attention(norm(x))
//! out = h + mlp(norm(h))
//! ```

use mlx_rs::Array;

use super::{StepContext, heads, split_heads};
use crate::engine::error::EngineError;
use crate::engine::layers::{Heads, Linear, Mlp, RmsNorm, attend};
use crate::engine::weights::Weights;
use crate::model::spec::layer_prefix;

pub(in crate::engine) struct Block {
    input_layernorm: RmsNorm,
    self_attn: Attention,
    post_attention_layernorm: RmsNorm,
    mlp: Mlp,
}

struct Attention {
    q_proj: Linear,
    k_proj: Linear,
    v_proj: Linear,
    o_proj: Linear,
    q_norm: RmsNorm,
    k_norm: RmsNorm,
    heads: Heads,
}

impl Block {
    pub(super) fn load(weights: &mut Weights<'_>, layer: u32) -> Result<Self, EngineError> {
        let path = layer_prefix(layer);
        Ok(Self {
            input_layernorm: weights.rms_norm(&format!("{path}input_layernorm"))?,
            self_attn: Attention::load(weights, &format!("{path}self_attn"))?,
            post_attention_layernorm: weights
                .rms_norm(&format!("{path}post_attention_layernorm"))?,
            mlp: Mlp::load(weights, &format!("{path}mlp"))?,
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

impl Attention {
    fn load(weights: &mut Weights<'_>, path: &str) -> Result<Self, EngineError> {
        let config = weights.config();
        let mut linear = |name| weights.linear(&format!("{path}.{name}"), config.attention_bias);
        Ok(Self {
            q_proj: linear("q_proj")?,
            k_proj: linear("k_proj")?,
            v_proj: linear("v_proj")?,
            o_proj: linear("o_proj")?,
            q_norm: weights.rms_norm(&format!("{path}.q_norm"))?,
            k_norm: weights.rms_norm(&format!("{path}.k_norm"))?,
            heads: heads(config),
        })
    }

    fn forward(&self, x: &Array, step: &mut StepContext<'_>) -> Result<Array, EngineError> {
        let Heads { query, kv, dim, .. } = &self.heads;
        let queries = split_heads(&self.q_proj.forward(x)?, *query, *dim)?;
        let keys = split_heads(&self.k_proj.forward(x)?, *kv, *dim)?;
        let values = split_heads(&self.v_proj.forward(x)?, *kv, *dim)?;
        let inputs = [self.q_norm.forward(&queries)?, self.k_norm.forward(&keys)?, values];
        self.o_proj.forward(&attend(&self.heads, step.spans, step.layer, step.caches, inputs)?)
    }
}
