//! Qwen3, dense (Qwen team 2025, arXiv 2505.09388): a llama whose queries and keys are normalised
//! per head before they turn.
//!
//! ```text
//! h   = x + attention(norm(x))
//! out = h + mlp(norm(h))
//! ```

use mlx_rs::Array;

use super::{StepContext, split_heads};
use crate::engine::error::EngineError;
use crate::engine::layers::{Heads, Joined, Linear, Mlp, RmsNorm, attend};
use crate::engine::weights::Weights;
use crate::model::spec::layer_prefix;

pub(in crate::engine) struct Block {
    input_layernorm: RmsNorm,
    self_attn: Attention,
    post_attention_layernorm: RmsNorm,
    mlp: Mlp,
}

pub(super) struct Attention {
    /// `q_proj`, `k_proj` and `v_proj`.
    qkv: Joined<3>,
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
    pub(super) fn load(weights: &mut Weights<'_>, path: &str) -> Result<Self, EngineError> {
        let config = weights.config();
        let bias = config.attention_bias;
        Ok(Self {
            qkv: weights.joined(path, ["q_proj", "k_proj", "v_proj"], bias.on_inputs())?,
            o_proj: weights.linear(&format!("{path}.o_proj"), bias.on_output())?,
            q_norm: weights.rms_norm(&format!("{path}.q_norm"))?,
            k_norm: weights.rms_norm(&format!("{path}.k_norm"))?,
            heads: Heads::new(config),
        })
    }

    pub(super) fn forward(
        &self,
        x: &Array,
        step: &mut StepContext<'_>,
    ) -> Result<Array, EngineError> {
        let Heads { query, kv, dim, .. } = &self.heads;
        let [queries, keys, values] = self.qkv.forward(x)?;
        let queries = split_heads(&queries, *query, *dim)?;
        let keys = split_heads(&keys, *kv, *dim)?;
        let values = split_heads(&values, *kv, *dim)?;
        let inputs = [self.q_norm.forward(&queries)?, self.k_norm.forward(&keys)?, values];
        self.o_proj.forward(&attend(&self.heads, step.spans, step.layer, step.caches, inputs)?)
    }
}
