//! Gated attention (Qiu et al. 2025, arXiv 2505.06708): each head's output is multiplied with the
//! sigmoid of a gate that is projected along with its queries. Queries and keys are normalised per
//! head, and a part of each head turns.

use mlx_rs::error::Exception;
use mlx_rs::{Array, ops};

use super::compiled::{fused, inputs};
use super::{Heads, Joined, Linear, RmsNorm, Span, attend};
use crate::engine::cache::Caches;
use crate::engine::error::EngineError;
use crate::engine::ffi;
use crate::engine::weights::Weights;

pub(in crate::engine) struct GatedAttention {
    /// `q_proj` (each head's queries and then its gates), `k_proj` and `v_proj`.
    qkv: Joined<3>,
    o_proj: Linear,
    q_norm: RmsNorm,
    k_norm: RmsNorm,
    heads: Heads,
    on_gpu: bool,
}

impl GatedAttention {
    pub(in crate::engine) fn load(
        weights: &mut Weights<'_>,
        path: &str,
    ) -> Result<Self, EngineError> {
        let bias = weights.config().attention_bias;
        Ok(Self {
            qkv: weights.joined(path, ["q_proj", "k_proj", "v_proj"], bias.on_inputs())?,
            o_proj: weights.linear(&format!("{path}.o_proj"), bias.on_output())?,
            q_norm: weights.rms_norm(&format!("{path}.q_norm"))?,
            k_norm: weights.rms_norm(&format!("{path}.k_norm"))?,
            heads: Heads::new(weights.config()),
            on_gpu: weights.on_gpu(),
        })
    }

    /// `[tokens, hidden]` to the same; `layer` is the layer's place in this shard.
    pub(in crate::engine) fn forward(
        &self,
        x: &Array,
        spans: &[Span],
        layer: usize,
        caches: &mut Caches,
    ) -> Result<Array, EngineError> {
        let Heads { query, kv, dim, .. } = self.heads;
        let tokens = x.dim(0);
        let [queries, keys, values] = self.qkv.forward(x)?;
        let both = queries.reshape(&[tokens, query, 2 * dim])?;
        let queries = ffi::slice(&both, &[0; 3], &[tokens, query, dim])?;
        let gate = ffi::slice(&both, &[0, 0, dim], &[tokens, query, 2 * dim])?;
        let queries = self.q_norm.forward(&queries)?;
        let keys = self.k_norm.forward(&keys.reshape(&[tokens, kv, dim])?)?;
        let values = values.reshape(&[tokens, kv, dim])?;
        let attended = attend(&self.heads, spans, layer, caches, [queries, keys, values])?;
        let gate = gate.reshape(&[tokens, query * dim])?;
        let [gated] = OPENED.call(self.on_gpu, &[attended, gate])?;
        self.o_proj.forward(&gated)
    }
}

/// `x · sigmoid(gate)`.
fn opened(arrays: &[Array]) -> Result<Vec<Array>, Exception> {
    let [x, gate] = inputs(arrays)?;
    Ok(vec![x.multiply(ops::sigmoid(gate)?)?])
}
fused!(OPENED, opened);
