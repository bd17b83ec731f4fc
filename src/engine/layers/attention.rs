//! Causal attention of a step's rows over their cached positions, with rotary embedding.
//!
//! Projections run over all tokens of a step at once and lie in the families' files; here each row
//! attends to its own sequence. Rows may have different lengths and positions.

use daisy_proto::SeqId;
use mlx_rs::fast::{self, ScaledDotProductAttentionMask};
use mlx_rs::{Array, ops};

use super::Rope;
use crate::engine::cache::Caches;
use crate::engine::error::EngineError;
use crate::engine::ffi;
use crate::model::ModelConfig;

/// A row as attention sees it, in MLX's own integers.
#[derive(Debug, Clone, Copy)]
pub(in crate::engine) struct Span {
    pub(in crate::engine) seq: SeqId,
    /// Position of the first token in its sequence.
    pub(in crate::engine) first: i32,
    pub(in crate::engine) count: i32,
}

/// How many heads there are and how they turn.
pub(in crate::engine) struct Heads {
    pub(in crate::engine) query: i32,
    pub(in crate::engine) kv: i32,
    pub(in crate::engine) dim: i32,
    pub(in crate::engine) rope: Rope,
}

impl Heads {
    pub(in crate::engine) fn new(config: &ModelConfig) -> Self {
        Self {
            query: config.heads.cast_signed(),
            kv: config.kv_heads.cast_signed(),
            dim: config.head_dim.cast_signed(),
            rope: Rope::new(config),
        }
    }
}

/// Queries `[tokens, query heads, dim]` over keys and values `[tokens, kv heads, dim]`, which are
/// added to the cache of `layer`; gives `[tokens, query heads · dim]`.
pub(in crate::engine) fn attend(
    heads: &Heads,
    spans: &[Span],
    layer: usize,
    caches: &mut Caches,
    [queries, keys, values]: [Array; 3],
) -> Result<Array, EngineError> {
    // The usual step has one row: nothing is cut out or joined.
    if let [span] = spans {
        return attend_row(heads, *span, layer, caches, [&queries, &keys, &values]);
    }
    let mut outputs = Vec::with_capacity(spans.len());
    let mut token = 0;
    for span in spans {
        let end = token + span.count;
        let rows = |array, count| ffi::slice(array, &[token, 0, 0], &[end, count, heads.dim]);
        let [queries, keys, values] =
            [rows(&queries, heads.query)?, rows(&keys, heads.kv)?, rows(&values, heads.kv)?];
        outputs.push(attend_row(heads, *span, layer, caches, [&queries, &keys, &values])?);
        token = end;
    }
    Ok(ops::concatenate(&outputs, 0)?)
}

fn attend_row(
    heads: &Heads,
    span: Span,
    layer: usize,
    caches: &mut Caches,
    [queries, keys, values]: [&Array; 3],
) -> Result<Array, EngineError> {
    let by_head = |array: &Array, count| {
        array.reshape(&[1, span.count, count, heads.dim])?.transpose_axes(&[0, 2, 1, 3])
    };
    let queries = heads.rope.turn(&by_head(queries, heads.query)?, span.first)?;
    let keys = heads.rope.turn(&by_head(keys, heads.kv)?, span.first)?;
    let values = by_head(values, heads.kv)?;

    let kept = caches.keys_values(span.seq, layer)?;
    let [keys, values] = kept.update(span.first, &keys, &values)?;
    // The causal mask is aligned to the end, so that earlier positions are seen by all.
    let mask = (span.count > 1).then_some(ScaledDotProductAttentionMask::Causal);
    #[expect(clippy::cast_precision_loss, reason = "head sizes are small")]
    let scale = (heads.dim as f32).sqrt().recip();
    let output = fast::scaled_dot_product_attention(queries, keys, values, scale, mask, None)?;
    Ok(output.transpose_axes(&[0, 2, 1, 3])?.reshape(&[span.count, heads.query * heads.dim])?)
}
