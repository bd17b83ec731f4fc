//! Qwen3, dense (Qwen team 2025, arXiv 2505.09388): a llama whose queries and keys are normalised
//! per head before they turn.
//!
//! ```text
//! h   = x + attention(norm(x))
//! out = h + mlp(norm(h))
//! ```

use mlx_rs::Array;

use super::{Mixer, PreNorm, StepContext, split_heads};
use crate::engine::error::EngineError;
use crate::engine::layers::{Heads, Joined, Linear, RmsNorm, attend};
use crate::engine::weights::Weights;

pub(in crate::engine) type Block = PreNorm<Attention>;

pub(in crate::engine) struct Attention {
    /// `q_proj`, `k_proj` and `v_proj`.
    qkv: Joined<3>,
    o_proj: Linear,
    q_norm: RmsNorm,
    k_norm: RmsNorm,
    heads: Heads,
}

impl Mixer for Attention {
    fn load(weights: &mut Weights<'_>, path: &str, _layer: u32) -> Result<Self, EngineError> {
        let path = &format!("{path}self_attn");
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

    fn forward(&self, x: &Array, step: &mut StepContext<'_>) -> Result<Array, EngineError> {
        let Heads { query, kv, dim, .. } = &self.heads;
        let [queries, keys, values] = self.qkv.forward(x)?;
        let queries = split_heads(&queries, *query, *dim)?;
        let keys = split_heads(&keys, *kv, *dim)?;
        let values = split_heads(&values, *kv, *dim)?;
        let inputs = [self.q_norm.forward(&queries)?, self.k_norm.forward(&keys)?, values];
        self.o_proj.forward(&attend(&self.heads, step.spans, step.layer, step.caches, inputs)?)
    }
}
