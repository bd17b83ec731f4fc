//! Rotary position embedding (Su et al. 2021, arXiv 2104.09864), in halves: element `i` turns with
//! element `i + dims / 2`, of the first `dims` elements of a head.

use mlx_rs::{Array, fast};

use crate::engine::error::EngineError;
use crate::model::ModelConfig;

/// How heads turn. Cheap to clone: the array is shared.
#[derive(Clone)]
pub(in crate::engine) struct Rope {
    /// Elements of a head that turn.
    dims: i32,
    theta: f32,
    position_scale: f32,
    /// Positions per radian of each pair, `[dim / 2]`; none: they follow from `theta`.
    wavelengths: Option<Array>,
}

impl Rope {
    pub(in crate::engine) fn new(config: &ModelConfig) -> Self {
        let rope = config.rope;
        let dims = rope.dims.cast_signed();
        let wavelengths = rope.wavelengths();
        Self {
            dims,
            theta: rope.theta,
            position_scale: rope.position_scale(),
            wavelengths: wavelengths.map(|values| Array::from_slice(&values, &[dims / 2])),
        }
    }

    /// Turns `[…, positions, dim]`, whose first position is `first`.
    pub(in crate::engine) fn turn(&self, heads: &Array, first: i32) -> Result<Array, EngineError> {
        // MLX wants exactly one of the two.
        let theta = self.wavelengths.is_none().then_some(self.theta);
        let wavelengths = self.wavelengths.as_ref();
        let Self { dims, position_scale, .. } = *self;
        Ok(fast::rope(heads, dims, false, theta, position_scale, first, wavelengths)?)
    }
}
