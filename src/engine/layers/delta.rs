//! The gated delta rule (Yang et al. 2024, arXiv 2412.06464), for one sequence.
//!
//! Each value head has a matrix `S`, `[key dim, value dim]`, that forgets and is corrected:
//!
//! ```text
//! S ← g S;   S ← S + kᵀ β (v − k S);   y = q S
//! ```
//!
//! [`step`] does that for one position. [`chunks`] does it for many, in parallel within chunks of up
//! to [`CHUNK`] positions (the WY form of section 3.3 there): with `G` the sums of `log g` since the
//! chunk's start, `D = exp(Gᵢ − Gⱼ)` for `j ≤ i`, and `A = β (K Kᵀ) D` strictly below the diagonal,
//!
//! ```text
//! U = (1 + A)⁻¹ β (V − exp(G) K S)
//! Y = exp(G) Q S + ((Q Kᵀ) D) U
//! S ← exp(G_last) S + (exp(G_last − G) K)ᵀ U
//! ```
//!
//! Only the two lines with `S` go from chunk to chunk. All is in f32. Queries and keys come with a
//! length of one; `scale` multiplies what is read out.

use std::cell::RefCell;

use mlx_rs::error::Exception;
use mlx_rs::{Array, ops};

use super::compiled::{fused, inputs};
use crate::engine::error::EngineError;
use crate::engine::ffi;

/// What a step or a chunk takes, in f32.
pub(super) struct Inputs {
    /// `[tokens, key heads, key dim]`, and keys alike.
    pub(super) queries: Array,
    pub(super) keys: Array,
    /// `[tokens, value heads, value dim]`.
    pub(super) values: Array,
    /// `log g`, `[tokens, value heads]`, and `β` alike.
    pub(super) log_decay: Array,
    pub(super) beta: Array,
}

#[derive(Debug, Clone, Copy)]
pub(super) struct Sizes {
    pub(super) key_heads: i32,
    /// Value heads that share a key head, next to each other.
    pub(super) shared_by: i32,
    pub(super) key_dim: i32,
    pub(super) value_dim: i32,
    pub(super) on_gpu: bool,
}

impl Sizes {
    /// Of the state: `[key heads, shared by, key dim, value dim]`.
    pub(super) const fn state(&self) -> [i32; 4] {
        [self.key_heads, self.shared_by, self.key_dim, self.value_dim]
    }

    #[expect(clippy::cast_precision_loss, reason = "head sizes are small")]
    fn scale(&self) -> f32 {
        (self.key_dim as f32).sqrt().recip()
    }
}

/// One position from `state` on; gives `[1, value heads, value dim]` and the state after it.
pub(super) fn step(sizes: Sizes, input: &Inputs, state: &Array) -> Result<[Array; 2], EngineError> {
    let Sizes { key_heads, shared_by, key_dim, value_dim, on_gpu } = sizes;
    let by_head = |array: &Array| array.reshape(&[key_heads, 1, 1, key_dim]);
    let (query, key) = (by_head(&input.queries)?, by_head(&input.keys)?);
    let value = input.values.reshape(&[key_heads, shared_by, 1, value_dim])?;
    let per_head = |array: &Array| array.reshape(&[key_heads, shared_by, 1, 1]);
    let (log_decay, beta) = (per_head(&input.log_decay)?, per_head(&input.beta)?);

    // What key and query read of the old state, at once: the state is the bulk of it all.
    let both = ops::concatenate(&[&key, &query], 2)?;
    let read = both.matmul(state)?;
    let row = |row| ffi::slice(&read, &[0, 0, row, 0], &[key_heads, shared_by, row + 1, value_dim]);
    let along = query.multiply(&key)?.sum_axis(-1, true)?;
    let scale = Array::from_f32(sizes.scale());
    let [correction, output] = CORRECTION
        .call(on_gpu, &[value, row(0)?, row(1)?, log_decay.clone(), beta, along, scale])?;
    let column = key.reshape(&[key_heads, 1, key_dim, 1])?;
    let [state] = UPDATE.call(on_gpu, &[state.clone(), log_decay, column, correction])?;
    Ok([output.reshape(&[1, key_heads * shared_by, value_dim])?, state])
}

/// `β (v − g k S)` and `scale (g q S + (q·k) of that)`.
fn correction(arrays: &[Array]) -> Result<Vec<Array>, Exception> {
    let [value, of_key, of_query, log_decay, beta, along, scale] = inputs(arrays)?;
    let decay = log_decay.exp()?;
    let correction = value.subtract(decay.multiply(of_key)?)?.multiply(beta)?;
    let output = decay.multiply(of_query)?.add(along.multiply(&correction)?)?.multiply(scale)?;
    Ok(vec![correction, output])
}
fused!(CORRECTION, correction);

fn update(arrays: &[Array]) -> Result<Vec<Array>, Exception> {
    let [state, log_decay, key, correction] = inputs(arrays)?;
    Ok(vec![state.multiply(log_decay.exp()?)?.add(key.multiply(correction)?)?])
}
fused!(UPDATE, update);

/// Many positions from `state` on (none: the start of a sequence); gives `[tokens, value heads,
/// value dim]` and the state after them.
pub(super) fn chunks(
    sizes: Sizes,
    input: &Inputs,
    state: Option<&Array>,
) -> Result<[Array; 2], EngineError> {
    let tokens = input.values.dim(0);
    let chunk = usize::try_from(tokens).map_or(CHUNK, |tokens| {
        i32::try_from(tokens.next_power_of_two()).map_or(CHUNK, |n| n.min(CHUNK))
    });
    let prepared = Prepared::new(sizes, input, chunk)?;
    let (outputs, state) = prepared.run(sizes, state)?;
    // [key heads, shared by, chunks, chunk, value dim] back to tokens.
    let heads = sizes.key_heads * sizes.shared_by;
    let by_token = outputs.transpose_axes(&[2, 3, 0, 1, 4])?;
    let padded = by_token.reshape(&[-1, heads, sizes.value_dim])?;
    let outputs = ffi::slice(&padded, &[0; 3], &[tokens, heads, sizes.value_dim])?;
    Ok([outputs, state])
}

/// All that does not depend on the state: `[key heads, shared by, chunks, …]`.
struct Prepared {
    chunks: i32,
    chunk: i32,
    /// `(1 + A)⁻¹ β V`.
    values: Array,
    /// `(1 + A)⁻¹ β exp(G) K`.
    keys: Array,
    /// `scale exp(G) Q`.
    queries: Array,
    /// `exp(G_last − G) K`, transposed.
    remembered: Array,
    /// `scale (Q Kᵀ) D`.
    attention: Array,
    /// `exp(G_last)`, `[…, 1, 1]`.
    decay: Array,
}

impl Prepared {
    fn new(sizes: Sizes, input: &Inputs, chunk: i32) -> Result<Self, EngineError> {
        let Sizes { key_heads, shared_by, key_dim, value_dim, on_gpu } = sizes;
        let tokens = input.values.dim(0);
        let chunks = (tokens + chunk - 1) / chunk;
        // Positions of zeros behind the last one change nothing: they neither forget nor correct.
        let padding = chunks * chunk - tokens;
        let pad = |array: &Array| {
            if padding == 0 {
                return Ok(array.clone());
            }
            let mut shape = array.shape().to_vec();
            shape[0] = padding;
            let zeros = ops::zeros_dtype(&shape, array.dtype())?;
            ops::concatenate(&[array, &zeros], 0)
        };
        let by_chunk = |array: &Array, shared_by, dim| {
            pad(array)?
                .reshape(&[chunks, chunk, key_heads, shared_by, dim])?
                .transpose_axes(&[2, 3, 0, 1, 4])
        };
        let queries = by_chunk(&input.queries, 1, key_dim)?;
        let keys = by_chunk(&input.keys, 1, key_dim)?;
        let values = by_chunk(&input.values, shared_by, value_dim)?;
        let beta = by_chunk(&input.beta, shared_by, 1)?;
        let since_start = by_chunk(&input.log_decay, shared_by, 1)?.cumsum(-2, false, true)?;

        let masks = Masks::of(chunk)?;
        let transposed = keys.swap_axes(-1, -2)?;
        let scale = Array::from_f32(sizes.scale());
        let [attention, below] = WITHIN.call(
            on_gpu,
            &[
                queries.matmul(&transposed)?,
                keys.matmul(&transposed)?,
                since_start.clone(),
                since_start.swap_axes(-1, -2)?,
                beta.clone(),
                masks.upper,
                scale.clone(),
            ],
        )?;
        let inverse = inverse(&below, &masks.identity, &masks.levels)?;

        let full = [key_heads, shared_by, chunks, chunk, 1];
        let last = [key_heads, shared_by, chunks, 1, 1];
        let end = ffi::slice(&since_start, &[0, 0, 0, chunk - 1, 0], &full)?.reshape(&last)?;
        let [values, decayed_keys, queries, remembered, decay] =
            WEIGHED.call(on_gpu, &[values, keys, queries, since_start, end, beta, scale])?;
        Ok(Self {
            chunks,
            chunk,
            values: inverse.matmul(&values)?,
            keys: inverse.matmul(&decayed_keys)?,
            queries,
            remembered: remembered.swap_axes(-1, -2)?,
            attention,
            decay,
        })
    }

    /// From chunk to chunk: the outputs `[key heads, shared by, chunks, chunk, value dim]` and the
    /// last state.
    fn run(self, sizes: Sizes, state: Option<&Array>) -> Result<(Array, Array), EngineError> {
        let Sizes { key_heads, shared_by, value_dim, .. } = sizes;
        let of = |array: &Array, number: i32| {
            let (rows, columns) = (array.dim(3), array.dim(4));
            ffi::slice(
                array,
                &[0, 0, number, 0, 0],
                &[key_heads, shared_by, number + 1, rows, columns],
            )
        };
        let state = match state {
            Some(state) => state.clone(),
            None => ops::zeros_dtype(&sizes.state(), mlx_rs::Dtype::Float32)?,
        };
        let mut state = state.expand_dims(2)?;
        let mut states = Vec::new();
        let mut corrections = Vec::new();
        for number in 0..self.chunks {
            let (values, keys) = (of(&self.values, number)?, of(&self.keys, number)?);
            let correction = values.subtract(keys.matmul(&state)?)?;
            let kept = state.multiply(of(&self.decay, number)?)?;
            let added = of(&self.remembered, number)?.matmul(&correction)?;
            states.push(std::mem::replace(&mut state, kept.add(added)?));
            corrections.push(correction);
        }
        let states = ops::concatenate(&states, 2)?;
        let corrections = ops::concatenate(&corrections, 2)?;
        let outputs = self.queries.matmul(&states)?.add(self.attention.matmul(&corrections)?)?;
        debug_assert_eq!((outputs.dim(3), outputs.dim(4)), (self.chunk, value_dim));
        Ok((outputs, state.squeeze_axes(&[2])?))
    }
}

/// `scale (Q Kᵀ) D` and `−β (K Kᵀ) D`, the latter with what stands on the diagonal and is not used.
fn within(arrays: &[Array]) -> Result<Vec<Array>, Exception> {
    let [of_queries, of_keys, row, column, beta, upper, scale] = inputs(arrays)?;
    // Minus infinity above the diagonal, where the difference could be too large for `exp`.
    let decay = row.subtract(column)?.add(upper)?.exp()?;
    let attention = of_queries.multiply(&decay)?.multiply(scale)?;
    let below = of_keys.multiply(&decay)?.multiply(beta)?.negative()?;
    Ok(vec![attention, below])
}
fused!(WITHIN, within);

/// `β V`, `β exp(G) K`, `scale exp(G) Q`, `exp(G_last − G) K` and `exp(G_last)`.
fn weighed(arrays: &[Array]) -> Result<Vec<Array>, Exception> {
    let [values, keys, queries, since_start, end, beta, scale] = inputs(arrays)?;
    let decay = since_start.exp()?;
    Ok(vec![
        values.multiply(beta)?,
        keys.multiply(&decay)?.multiply(beta)?,
        queries.multiply(&decay)?.multiply(scale)?,
        keys.multiply(end.subtract(since_start)?.exp()?)?,
        end.exp()?,
    ])
}
fused!(WEIGHED, weighed);

/// The inverse of `1 − below`, of which only what lies strictly below the diagonal counts.
///
/// By blocks of 1, 2, 4 and so on: of a block `[[a, 0], [c, b]]` with inverses `A` and `B` on its
/// diagonal the inverse is `[[A, 0], [−B c A, B]]`. All blocks of a size are done at once, as
/// products of whole matrices of which a mask leaves the `c`.
fn inverse(below: &Array, identity: &Array, levels: &[Array]) -> Result<Array, EngineError> {
    let mut inverse = identity.clone();
    for (level, mask) in levels.iter().enumerate() {
        let blocks = below.multiply(mask)?;
        // Blocks of 1 have themselves as inverses.
        let added = if level == 0 { blocks } else { inverse.matmul(blocks)?.matmul(&inverse)? };
        inverse = inverse.add(added)?;
    }
    Ok(inverse)
}

/// Constants for chunks of one size, `[chunk, chunk]`.
#[derive(Clone)]
struct Masks {
    identity: Array,
    /// 0 up to the diagonal, minus infinity above it.
    upper: Array,
    /// 1 in the lower left quarters of blocks of 2, 4, 8, …
    levels: Vec<Array>,
}

impl Masks {
    /// Those for `chunk`, a power of two up to [`CHUNK`].
    fn of(chunk: i32) -> Result<Self, EngineError> {
        let largest =
            MASKS.with_borrow_mut(|masks| masks.get_or_insert_with(Self::largest).clone());
        if chunk == CHUNK {
            return Ok(largest);
        }
        let corner = |mask: &Array| ffi::slice(mask, &[0, 0], &[chunk, chunk]);
        let levels = largest.levels.iter().take(chunk.trailing_zeros() as usize);
        Ok(Self {
            identity: corner(&largest.identity)?,
            upper: corner(&largest.upper)?,
            levels: levels.map(corner).collect::<Result<_, _>>()?,
        })
    }

    fn largest() -> Self {
        let filled = |of: &dyn Fn(i32, i32) -> f32| {
            let rows = (0..CHUNK).flat_map(|row| (0..CHUNK).map(move |column| (row, column)));
            let values: Vec<f32> = rows.map(|(row, column)| of(row, column)).collect();
            Array::from_slice(&values, &[CHUNK, CHUNK])
        };
        let level = |level: u32| {
            let half = 1 << level;
            filled(&move |row, column| {
                let same_block = row / (2 * half) == column / (2 * half);
                f32::from(u8::from(
                    same_block && row % (2 * half) >= half && column % (2 * half) < half,
                ))
            })
        };
        Self {
            identity: filled(&|row, column| f32::from(u8::from(row == column))),
            upper: filled(&|row, column| if column > row { f32::NEG_INFINITY } else { 0.0 }),
            levels: (0..CHUNK.trailing_zeros()).map(level).collect(),
        }
    }
}

thread_local! {
    /// One for all layers.
    static MASKS: RefCell<Option<Masks>> = const { RefCell::new(None) };
}

/// Positions that are computed in parallel; a power of two.
const CHUNK: i32 = 64;

#[cfg(test)]
#[path = "delta_tests.rs"]
mod tests;
