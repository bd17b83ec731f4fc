//! The hidden state that crosses an edge: `[tokens, hidden]`, row-major, little-endian.

use bytes::Bytes;
use serde::{Deserialize, Serialize};

/// Element type of a hidden state.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Dtype {
    F32,
    F16,
    Bf16,
}

impl Dtype {
    #[must_use]
    pub const fn size_bytes(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::F16 | Self::Bf16 => 2,
        }
    }
}

/// `tokens × width` elements of `dtype`. The bytes stay out of the serialiser: the frame's header
/// carries this shape and the payload is raw.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hidden {
    pub dtype: Dtype,
    pub tokens: u32,
    pub width: u32,
    pub data: Bytes,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("hidden state of {tokens} × {width} {dtype:?} needs {expected} bytes, got {got}")]
pub struct HiddenSizeError {
    tokens: u32,
    width: u32,
    dtype: Dtype,
    expected: u64,
    got: usize,
}

impl Hidden {
    /// # Errors
    /// The length of `data` is not `tokens × width × dtype`.
    pub fn new(
        dtype: Dtype,
        tokens: u32,
        width: u32,
        data: Bytes,
    ) -> Result<Self, HiddenSizeError> {
        let expected = u64::from(tokens) * u64::from(width) * dtype.size_bytes() as u64;
        if data.len() as u64 != expected {
            return Err(HiddenSizeError { tokens, width, dtype, expected, got: data.len() });
        }
        Ok(Self { dtype, tokens, width, data })
    }

    /// No rows: a step that only releases sequences or answers a chunk without logits.
    #[must_use]
    pub const fn empty(dtype: Dtype, width: u32) -> Self {
        Self { dtype, tokens: 0, width, data: Bytes::new() }
    }
}
