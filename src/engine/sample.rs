//! Drawing a token from logits, on the device.
//!
//! A draw is a pure function of one row of logits and its [`Draw`]: the randomness is counter-based
//! (threefry), its key a mix of seed and position. So batching, preemption and replay cannot change
//! it. The noise belongs to token ids, not to ranks in the sorted order, so that logits which differ
//! in the last bit almost always draw the same token.
//!
//! Order: penalties and bias change the logits; the `top_k` most probable tokens stay; of those,
//! renormalised, the smallest set that reaches `top_p`; of those, what has at least `min_p` of the
//! best one's probability; then temperature; then a draw by the Gumbel-max trick.

use daisy_proto::Sampling;
use mlx_rs::ops::{self, indexing};
use mlx_rs::{Array, Dtype, random};

use super::draw::Draw;
use super::error::EngineError;
use super::ffi;
use super::host::size;

/// One token id (u32) per row of `logits`, `[rows, vocab]`.
pub(super) fn sample(logits: &Array, draws: &[Draw<'_>]) -> Result<Array, EngineError> {
    if draws.iter().all(|draw| is_greedy(&draw.sampling) && is_unchanged(draw)) {
        return Ok(indexing::argmax_axis(logits, -1, false)?);
    }
    let mut tokens = Vec::with_capacity(draws.len());
    for (row, draw) in (0..).zip(draws) {
        let mut logits = row_of(logits, row)?;
        if !is_unchanged(draw) {
            logits = changed(&logits.as_dtype(Dtype::Float32)?, draw)?;
        }
        let token = if is_greedy(&draw.sampling) {
            indexing::argmax_axis(&logits, -1, false)?
        } else {
            sample_row(&logits.as_dtype(Dtype::Float32)?, &draw.sampling, draw.position)?
        };
        tokens.push(token.reshape(&[1])?);
    }
    Ok(ops::concatenate(&tokens, 0)?)
}

/// Row `row` of `[rows, vocab]`, as `[vocab]`.
pub(super) fn row_of(logits: &Array, row: i32) -> Result<Array, EngineError> {
    let vocab = logits.dim(1);
    Ok(ffi::slice(logits, &[row, 0], &[row + 1, vocab])?.reshape(&[vocab])?)
}

fn is_unchanged(draw: &Draw<'_>) -> bool {
    draw.penalised().is_empty() && draw.bias.is_empty()
}

/// `logits`, `[vocab]` in f32, with penalties (Keskar et al. 2019, arXiv 1909.05858, for that of
/// repetition; `OpenAI`'s for the other two) and then bias.
fn changed(logits: &Array, draw: &Draw<'_>) -> Result<Array, EngineError> {
    let mut logits = logits.clone();
    let past = draw.penalised();
    if !past.is_empty() {
        let Sampling { repetition_penalty, presence_penalty, frequency_penalty, .. } =
            draw.sampling;
        #[expect(clippy::cast_precision_loss, reason = "an answer has far fewer than 2^24 tokens")]
        let taken_off = past.iter().map(|(_, times)| match times {
            0 => 0.0,
            times => frequency_penalty.mul_add(*times as f32, presence_penalty),
        });
        let (ids, taken_off) = (ids(past)?, floats(taken_off)?);
        let old = logits.take_axis(&ids, 0)?;
        let factor = Array::from_f32(repetition_penalty);
        let is_positive = old.gt(Array::from_f32(0.0))?;
        let repeated = ops::select(&is_positive, old.divide(&factor)?, old.multiply(&factor)?)?;
        logits = logits.put_along_axis(&ids, repeated.subtract(&taken_off)?, 0)?;
    }
    if !draw.bias.is_empty() {
        let ids = ids(draw.bias)?;
        let added = floats(draw.bias.iter().map(|(_, bias)| *bias))?;
        let biased = logits.take_axis(&ids, 0)?.add(added)?;
        logits = logits.put_along_axis(&ids, biased, 0)?;
    }
    Ok(logits)
}

fn ids<T>(tokens: &[(u32, T)]) -> Result<Array, EngineError> {
    let ids: Vec<u32> = tokens.iter().map(|(token, _)| *token).collect();
    Ok(Array::from_slice(&ids, &[size(ids.len() as u64)?]))
}

fn floats(values: impl Iterator<Item = f32>) -> Result<Array, EngineError> {
    let values: Vec<f32> = values.collect();
    Ok(Array::from_slice(&values, &[size(values.len() as u64)?]))
}

fn is_greedy(sampling: &Sampling) -> bool {
    sampling.temperature <= 0.0 || sampling.top_k == 1
}

/// `logits` is `[vocab]` in f32.
fn sample_row(logits: &Array, sampling: &Sampling, position: u32) -> Result<Array, EngineError> {
    let vocab = logits.dim(0);
    let key = Array::from_slice(&key(sampling.seed, position), &[2]);
    let noise = random::gumbel::<f32>(&[vocab], &key)?;
    let kept = i32::try_from(sampling.top_k).unwrap_or(i32::MAX).min(vocab);
    let all = sampling.top_k == 0 || kept == vocab;
    if all && sampling.top_p >= 1.0 {
        let logits = likely(logits, sampling.min_p)?;
        return Ok(indexing::argmax_axis(perturbed(&logits, &noise, sampling)?, -1, false)?);
    }
    let mut order = ops::argsort_axis(logits.negative()?, -1)?;
    if !all {
        order = ffi::slice(&order, &[0], &[kept])?;
    }
    let mut sorted = logits.take_axis(&order, 0)?;
    if sampling.top_p < 1.0 {
        sorted = nucleus(&sorted, sampling.top_p)?;
    }
    let sorted = likely(&sorted, sampling.min_p)?;
    let noise = noise.take_axis(&order, 0)?;
    let drawn = indexing::argmax_axis(perturbed(&sorted, &noise, sampling)?, -1, true)?;
    Ok(order.take_axis(drawn, 0)?)
}

/// Of logits in falling order, those whose predecessors do not yet reach `top_p`; the others −∞.
fn nucleus(sorted: &Array, top_p: f32) -> Result<Array, EngineError> {
    let probability = ops::softmax_axis(sorted, -1, true)?;
    let before = probability.cumsum(-1, false, false)?;
    // The first token has nothing before it and must stay, even for a top_p of 0.
    let kept = before.lt(Array::from_f32(top_p.max(f32::MIN_POSITIVE)))?;
    Ok(ops::select(&kept, sorted, Array::from_f32(f32::NEG_INFINITY))?)
}

/// The logits of tokens that have at least `min_p` of the best one's probability; the others −∞.
fn likely(logits: &Array, min_p: f32) -> Result<Array, EngineError> {
    if min_p <= 0.0 {
        return Ok(logits.clone());
    }
    // Probabilities relate as the exponentials of logits do, so none need be computed.
    let least = logits.max(true)?.add(Array::from_f32(min_p.ln()))?;
    let kept = logits.ge(least)?;
    Ok(ops::select(&kept, logits, Array::from_f32(f32::NEG_INFINITY))?)
}

/// Taking the largest logit off first keeps a tiny temperature from making infinities of several.
fn perturbed(logits: &Array, noise: &Array, sampling: &Sampling) -> Result<Array, EngineError> {
    let shifted = logits.subtract(logits.max(true)?)?;
    Ok(shifted.divide(Array::from_f32(sampling.temperature))?.add(noise)?)
}

/// The generator's key: neighbouring seeds and positions give unrelated ones (the finaliser of
/// splitmix64, Steele et al. 2014, applied to each in turn).
fn key(seed: u64, position: u32) -> [u32; 2] {
    let mix = |mut z: u64| {
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    };
    let golden = 0x9e37_79b9_7f4a_7c15_u64;
    let mixed = mix(mix(seed.wrapping_add(golden)) ^ u64::from(position).wrapping_mul(golden));
    #[expect(clippy::cast_possible_truncation, reason = "the halves are what is wanted")]
    [(mixed >> 32) as u32, mixed as u32]
}
