//! A gated delta net (Yang et al. 2024, arXiv 2412.06464) as Qwen3-Next and its successors have it:
//! linear attention whose state is one matrix per head, whatever the length.
//!
//! ```text
//! q, k, v = silu(convolution(qkv(x)))         q, k to length 1
//! y       = delta rule(q, k, v; g, β)         g = exp(−exp(A) softplus(a(x) + dt)), β = sigmoid(b(x))
//! out     = out_proj(norm(y) · silu(z(x)))
//! ```

use mlx_rs::error::Exception;
use mlx_rs::{Array, Dtype, fast, ops};

use super::compiled::{fused, inputs};
use super::delta::{Inputs, Sizes, chunks, step};
use super::{Joined, Linear, Span};
use crate::engine::cache::{Caches, Recurrent};
use crate::engine::error::EngineError;
use crate::engine::ffi;
use crate::engine::weights::Weights;
use crate::model::{Family, GatedDelta};

pub(in crate::engine) struct GatedDeltaNet {
    /// `in_proj_qkv`, `in_proj_z`, `in_proj_b` and `in_proj_a`.
    in_proj: Joined<4>,
    /// The weights `[channels]` of each position that the convolution sees, in f32.
    conv1d: Vec<Array>,
    /// `−exp(A_log)`, in f32.
    decay: Array,
    dt_bias: Array,
    /// Makes the root mean square of a key its length.
    unit: Array,
    norm: Array,
    norm_eps: f32,
    out_proj: Linear,
    sizes: Sizes,
    key_width: i32,
    conv_width: i32,
}

impl GatedDeltaNet {
    pub(in crate::engine) fn load(
        weights: &mut Weights<'_>,
        path: &str,
        shape: &GatedDelta,
    ) -> Result<Self, EngineError> {
        let in_proj = match weights.config().family {
            Family::Qwen3Next => from_fused(weights, path, shape)?,
            _ => weights.joined(
                path,
                ["in_proj_qkv", "in_proj_z", "in_proj_b", "in_proj_a"],
                false,
            )?,
        };
        let (channels, kernel) = (shape.conv_width().cast_signed(), shape.kernel.cast_signed());
        // Either layout of a depthwise weight is a row per channel.
        let conv1d = weights.in_f32(&format!("{path}.conv1d.weight"))?;
        let conv1d = conv1d.reshape(&[channels, kernel])?.transpose()?.contiguous()?;
        let taps = (0..kernel).map(|tap| {
            Ok::<_, EngineError>(
                ffi::slice(&conv1d, &[tap, 0], &[tap + 1, channels])?.reshape(&[channels])?,
            )
        });
        let conv1d: Vec<Array> = taps.collect::<Result<_, _>>()?;
        let decay = weights.in_f32(&format!("{path}.A_log"))?.exp()?.negative()?;
        let key_dim = shape.key_dim.cast_signed();
        let sizes = Sizes {
            key_heads: shape.key_heads.cast_signed(),
            shared_by: (shape.value_heads / shape.key_heads).cast_signed(),
            key_dim,
            value_dim: shape.value_dim.cast_signed(),
            on_gpu: weights.on_gpu(),
        };
        #[expect(clippy::cast_precision_loss, reason = "head sizes are small")]
        let unit = (key_dim as f32).sqrt().recip();
        let unit = Array::from_slice(&vec![unit; shape.key_dim as usize], &[key_dim]);
        weights.made(conv1d.clone());
        weights.made(vec![decay.clone()]);
        Ok(Self {
            in_proj,
            conv1d,
            decay,
            dt_bias: weights.in_f32(&format!("{path}.dt_bias"))?,
            unit,
            norm: weights.in_f32(&format!("{path}.norm.weight"))?,
            norm_eps: weights.config().rms_eps,
            out_proj: weights.linear(&format!("{path}.out_proj"), false)?,
            sizes,
            key_width: shape.key_width().cast_signed(),
            conv_width: channels,
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
        let Sizes { key_heads, shared_by, value_dim, on_gpu, .. } = self.sizes;
        let heads = key_heads * shared_by;
        let [qkv, gate, beta, decay] = self.in_proj.forward(x)?;
        let [log_decay, beta] =
            GATES.call(on_gpu, &[decay, self.dt_bias.clone(), self.decay.clone(), beta])?;
        let mut outputs = Vec::with_capacity(spans.len());
        let mut token = 0;
        for span in spans {
            let end = token + span.count;
            let rows = |array: &Array| match spans {
                [_] => Ok(array.clone()),
                _ => ffi::slice(array, &[token, 0], &[end, array.dim(1)]),
            };
            let row = [rows(&qkv)?, rows(&log_decay)?, rows(&beta)?];
            outputs.push(self.row(row, caches.recurrent(span.seq, layer)?)?);
            token = end;
        }
        let output = match outputs.as_slice() {
            [output] => output.clone(),
            outputs => ops::concatenate(outputs, 0)?,
        };
        let output = fast::rms_norm(output, Some(&self.norm), self.norm_eps)?;
        let gate = gate.reshape(&[x.dim(0), heads, value_dim])?;
        let [gated] = GATED_NORM.call(on_gpu, &[output, gate])?;
        self.out_proj.forward(&gated.reshape(&[x.dim(0), heads * value_dim])?)
    }

    /// One sequence's row: `[count, value heads, value dim]` in f32.
    fn row(
        &self,
        [qkv, log_decay, beta]: [Array; 3],
        cached: &mut Recurrent,
    ) -> Result<Array, EngineError> {
        let Sizes { key_heads, shared_by, key_dim, value_dim, .. } = self.sizes;
        let count = qkv.dim(0);
        let (seen, state) = match cached.arrays.take() {
            Some([seen, state]) => (Some(seen), Some(state)),
            None => (None, None),
        };
        let (mixed, seen) = self.convolve(&qkv, seen)?;

        // Queries and keys alike get a length of one.
        let (keys, width) = (2 * key_heads, 2 * self.key_width);
        let both = ffi::slice(&mixed, &[0, 0], &[count, width])?;
        let both = both.reshape(&[count, keys, key_dim])?;
        #[expect(clippy::cast_precision_loss, reason = "head sizes are small")]
        let eps = LENGTH_EPS / key_dim as f32;
        let both = fast::rms_norm(both, Some(&self.unit), eps)?;
        let values = ffi::slice(&mixed, &[0, width], &[count, self.conv_width])?;
        let input = Inputs {
            queries: ffi::slice(&both, &[0; 3], &[count, key_heads, key_dim])?,
            keys: ffi::slice(&both, &[0, key_heads, 0], &[count, keys, key_dim])?,
            values: values.reshape(&[count, key_heads * shared_by, value_dim])?,
            log_decay,
            beta,
        };
        let [output, state] = match state {
            Some(state) if count == 1 => step(self.sizes, &input, &state)?,
            state => chunks(self.sizes, &input, state.as_ref())?,
        };
        cached.arrays = Some([seen, state]);
        Ok(output)
    }

    /// `silu` of the causal convolution of `[count, channels]`, in f32, and what the next step's
    /// will see of it.
    fn convolve(&self, qkv: &Array, seen: Option<Array>) -> Result<(Array, Array), EngineError> {
        let (count, channels) = (qkv.dim(0), self.conv_width);
        let kernel = i32::try_from(self.conv1d.len())
            .map_err(|_| EngineError::Internal("a convolution without end"))?;
        let before = match seen {
            Some(seen) => seen,
            None => ops::zeros_dtype(&[kernel - 1, channels], qkv.dtype())?,
        };
        let all = ops::concatenate(&[&before, qkv], 0)?;
        let mut arrays = Vec::with_capacity(2 * self.conv1d.len());
        for tap in 0..kernel {
            arrays.push(ffi::slice(&all, &[tap, 0], &[tap + count, channels])?);
        }
        arrays.extend(self.conv1d.iter().cloned());
        let [mixed] = CONVOLUTION.call(self.sizes.on_gpu, &arrays)?;
        // In one piece, so that it does not keep all the rest.
        let seen = ffi::slice(&all, &[count, 0], &[count + kernel - 1, channels])?.contiguous()?;
        Ok((mixed, seen))
    }
}

/// The projections of a checkpoint that has them in two, by key head: its queries, keys, values and
/// gates, and its betas and decays.
fn from_fused(
    weights: &mut Weights<'_>,
    path: &str,
    shape: &GatedDelta,
) -> Result<Joined<4>, EngineError> {
    let shared_by = (shape.value_heads / shape.key_heads).cast_signed();
    let (key, values) = (shape.key_dim.cast_signed(), shared_by * shape.value_dim.cast_signed());
    let of_each = |start: i32, count: i32, stride: i32| {
        (0..shape.key_heads.cast_signed())
            .flat_map(move |head| head * stride + start..head * stride + start + count)
    };
    let all = 2 * (key + values);
    let queries = of_each(0, key, all);
    let qkv = queries.chain(of_each(key, key, all)).chain(of_each(2 * key, values, all));
    let gates = of_each(2 * key + values, values, all);
    let parts = [qkv.collect(), gates.collect()];
    let mut linears = weights.linear_parts(&format!("{path}.in_proj_qkvz"), &parts)?;
    let parts = [0, shared_by].map(|start| of_each(start, shared_by, 2 * shared_by).collect());
    linears.extend(weights.linear_parts(&format!("{path}.in_proj_ba"), &parts)?);
    let linears = linears.try_into().map_err(|_| EngineError::Internal("four projections"))?;
    weights.join(linears)
}

/// `log g` and `β`.
fn gates(arrays: &[Array]) -> Result<Vec<Array>, Exception> {
    let [a, dt_bias, decay, beta] = inputs(arrays)?;
    let softplus = ops::logaddexp(a.add(dt_bias)?, Array::from_f32(0.0))?;
    Ok(vec![decay.multiply(softplus)?, ops::sigmoid(beta.as_dtype(Dtype::Float32)?)?])
}
fused!(GATES, gates);

/// The first half of the arrays, each with its weight of the second half.
fn convolution(arrays: &[Array]) -> Result<Vec<Array>, Exception> {
    let (inputs, taps) = arrays.split_at(arrays.len() / 2);
    let mut sum: Option<Array> = None;
    for (input, tap) in inputs.iter().zip(taps) {
        let product = input.multiply(tap)?;
        sum = Some(match sum {
            Some(sum) => sum.add(product)?,
            None => product,
        });
    }
    let sum = sum.ok_or_else(|| Exception::custom("a convolution of nothing"))?;
    Ok(vec![sum.multiply(ops::sigmoid(&sum)?)?])
}
fused!(CONVOLUTION, convolution);

/// `x · silu(gate)` in the gate's type.
fn gated_norm(arrays: &[Array]) -> Result<Vec<Array>, Exception> {
    let [x, gate] = inputs(arrays)?;
    let wide = gate.as_dtype(Dtype::Float32)?;
    let gated = x.multiply(wide.multiply(ops::sigmoid(&wide)?)?)?;
    Ok(vec![gated.as_dtype(gate.dtype())?])
}
fused!(GATED_NORM, gated_norm);

/// What is added to the squared length of a query or key.
const LENGTH_EPS: f32 = 1e-6;
