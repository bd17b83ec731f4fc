//! Between host bytes and arrays: hidden states in and out, drawn tokens out. Every array that
//! leaves is copied, because an array must not outlive or leave its thread.
//!
//! Only what was [`Submitted`] can be read, so that no reading starts a computation of its own, and
//! [`Submissions`] counts every one.

use std::fmt;

use bytes::{Bytes, BytesMut};
use daisy_proto::{Dtype, Hidden, Logprobs, Row};
use mlx_rs::{Array, transforms};

use super::carried::{Carried, OnDevice};
use super::error::EngineError;
use super::ffi;
use super::logprobs::Computed;

/// Counts what is handed to the device.
#[derive(Debug, Default)]
pub(super) struct Submissions(u64);

/// An array whose values are there or being computed. A clone is the same array.
#[derive(Clone)]
pub(super) struct Submitted(Array);

impl Submissions {
    /// Hands `output` and what it needs to the device, and with it `beside`; waits for nothing.
    pub(super) fn submit<'a>(
        &mut self,
        output: Array,
        beside: impl Iterator<Item = &'a Array>,
    ) -> Result<Submitted, EngineError> {
        let mut arrays = vec![&output];
        for array in beside {
            arrays.push(array);
        }
        transforms::async_eval(arrays)?;
        self.0 += 1;
        Ok(Submitted(output))
    }

    pub(super) const fn count(&self) -> u64 {
        self.0
    }
}

impl Submitted {
    pub(super) const fn array(&self) -> &Array {
        &self.0
    }

    #[cfg(test)]
    pub(super) fn is_available(&self) -> bool {
        ffi::is_available(&self.0)
    }
}

/// What a sampling step gives: tokens first, then the hidden state of the sequences that go on.
/// Both are on the device already; each is waited for only when it is asked for.
pub struct Sampled {
    pub(super) tokens: Option<Submitted>,
    /// In the order of the draws; submitted with the tokens.
    pub(super) logprobs: Vec<Option<Computed>>,
    /// With the number of its rows.
    pub(super) advanced: Option<(Submitted, u32)>,
    pub(super) dtype: Dtype,
    pub(super) width: u32,
}

impl Sampled {
    pub(super) const fn nothing(dtype: Dtype, width: u32) -> Self {
        Self { tokens: None, logprobs: Vec::new(), advanced: None, dtype, width }
    }

    /// The drawn tokens in the order of the draws. Waits for them alone.
    pub fn tokens(&self) -> Result<Vec<u32>, EngineError> {
        let Some(Submitted(tokens)) = &self.tokens else { return Ok(Vec::new()) };
        let ids = tokens.try_as_slice::<u32>().map_err(|e| EngineError::Mlx(e.to_string()))?;
        Ok(ids.to_vec())
    }

    /// The log probabilities of each draw, where they were asked for. Waits for them alone.
    pub fn logprobs(&self) -> Result<Vec<Option<Logprobs>>, EngineError> {
        self.logprobs.iter().map(|row| row.as_ref().map(Computed::read).transpose()).collect()
    }

    /// The hidden state of each draw with `advance`, in their order. Waits for nothing.
    pub fn advanced(self) -> Carried {
        match self.advanced {
            None => Hidden::empty(self.dtype, self.width).into(),
            Some((rows, count)) => {
                Carried::Device(OnDevice::new(rows, self.dtype, count, self.width))
            }
        }
    }
}

impl fmt::Debug for Sampled {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { tokens, logprobs: _, advanced, dtype, width } = self;
        f.debug_struct("Sampled")
            .field("tokens", &tokens.as_ref().map(|tokens| tokens.0.shape()))
            .field("advanced", &advanced.as_ref().map(|(_, rows)| rows))
            .field("dtype", dtype)
            .field("width", width)
            .finish_non_exhaustive()
    }
}

/// A hidden state as an array `[tokens, width]` of the compute type.
pub(super) fn array_of(hidden: &Hidden, dtype: Dtype) -> Result<Array, EngineError> {
    let shape = [size(u64::from(hidden.tokens))?, size(u64::from(hidden.width))?];
    let array = ffi::array_from_bytes(&hidden.data, &shape, mlx_dtype(hidden.dtype))?;
    // Ranks on devices of different kinds compute in different types.
    if hidden.dtype == dtype { Ok(array) } else { Ok(array.as_dtype(mlx_dtype(dtype))?) }
}

/// Waits for `array`, `[tokens, width]`, and copies it out.
pub(super) fn all_rows(
    Submitted(array): &Submitted,
    dtype: Dtype,
    width: u32,
) -> Result<Hidden, EngineError> {
    hidden(dtype, width, Bytes::copy_from_slice(ffi::array_bytes(array)?))
}

/// Waits for `array`, `[tokens, width]`, and copies out the last position of each row that wants
/// logits.
pub(super) fn wanted_rows(
    Submitted(array): &Submitted,
    rows: &[Row],
    dtype: Dtype,
    width: u32,
) -> Result<Hidden, EngineError> {
    let bytes = ffi::array_bytes(array)?;
    let row_bytes = width as usize * dtype.size_bytes();
    let wanted = rows.iter().filter(|row| row.logits).count();
    let mut data = BytesMut::with_capacity(wanted * row_bytes);
    let mut end = 0;
    for row in rows {
        end += row.count as usize * row_bytes;
        if row.logits {
            let last = bytes.get(end - row_bytes..end);
            data.extend_from_slice(last.ok_or(EngineError::Internal("a row beyond its array"))?);
        }
    }
    hidden(dtype, width, data.freeze())
}

/// Waits for `array`, all f32, and copies it out.
pub(super) fn values(Submitted(array): &Submitted) -> Result<Vec<f32>, EngineError> {
    let values = array.try_as_slice::<f32>().map_err(|e| EngineError::Mlx(e.to_string()))?;
    Ok(values.to_vec())
}

pub(super) const fn mlx_dtype(dtype: Dtype) -> mlx_rs::Dtype {
    match dtype {
        Dtype::F32 => mlx_rs::Dtype::Float32,
        Dtype::F16 => mlx_rs::Dtype::Float16,
        Dtype::Bf16 => mlx_rs::Dtype::Bfloat16,
    }
}

/// A size for MLX, whose shapes are 32-bit and signed.
pub(super) fn size(count: u64) -> Result<i32, EngineError> {
    i32::try_from(count).map_err(|_| EngineError::Count {
        what: "positions of a step",
        expected: i32::MAX as u64,
        got: count,
    })
}

fn hidden(dtype: Dtype, width: u32, data: Bytes) -> Result<Hidden, EngineError> {
    let tokens = data.len() / (width as usize * dtype.size_bytes());
    let tokens = u32::try_from(tokens).map_err(|_| EngineError::Internal("too many rows"))?;
    Hidden::new(dtype, tokens, width, data)
        .map_err(|_| EngineError::Internal("a hidden state of another size"))
}
