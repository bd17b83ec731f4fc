//! Root mean square normalisation: `x / sqrt(mean(x²) + eps) · weight` over the last axis.

use mlx_rs::{Array, fast};

use crate::engine::error::EngineError;

pub(in crate::engine) struct RmsNorm {
    pub(in crate::engine) weight: Array,
    pub(in crate::engine) eps: f32,
}

impl RmsNorm {
    pub(in crate::engine) fn forward(&self, x: &Array) -> Result<Array, EngineError> {
        Ok(fast::rms_norm(x, Some(&self.weight), self.eps)?)
    }
}
