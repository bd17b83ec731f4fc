//! Rotary position embedding (Su et al. 2021, arXiv 2104.09864), in halves: element `i` turns with
//! element `i + dim / 2`.

use mlx_rs::{Array, fast};

use crate::engine::error::EngineError;
use crate::model::ModelConfig;

/// How heads turn. Cheap to clone: the array is shared.
#[derive(Clone)]
pub(in crate::engine) struct Rope {
    theta: f32,
    position_scale: f32,
    /// Positions per radian of each pair, `[dim / 2]`; none: they follow from `theta`.
    wavelengths: Option<Array>,
}

impl Rope {
    pub(in crate::engine) fn new(config: &ModelConfig) -> Self {
        let wavelengths = config.rope.wavelengths(config.head_dim);
        Self {
            theta: config.rope.theta,
            position_scale: config.rope.position_scale(),
            wavelengths: wavelengths
                .map(|values| Array::from_slice(&values, &[config.head_dim.cast_signed() / 2])),
        }
    }

    /// Turns `[…, positions, dim]`, whose first position is `first`.
    pub(in crate::engine) fn turn(
        &self,
        heads: &Array,
        dim: i32,
        first: i32,
    ) -> Result<Array, EngineError> {
        // MLX wants exactly one of the two.
        let theta = self.wavelengths.is_none().then_some(self.theta);
        let wavelengths = self.wavelengths.as_ref();
        Ok(fast::rope(heads, dim, false, theta, self.position_scale, first, wavelengths)?)
    }
}
