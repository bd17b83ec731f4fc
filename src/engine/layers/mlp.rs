//! The gated feed-forward network: `down(silu(gate(x)) · up(x))`.

use mlx_rs::error::Exception;
use mlx_rs::{Array, ops};

use super::compiled::{fused, inputs};
use super::{Joined, Linear};
use crate::engine::error::EngineError;
use crate::engine::weights::Weights;

pub(in crate::engine) struct Mlp {
    /// `gate_proj` and `up_proj`.
    gate_up: Joined<2>,
    down_proj: Linear,
    on_gpu: bool,
}

impl Mlp {
    pub(in crate::engine) fn load(
        weights: &mut Weights<'_>,
        path: &str,
    ) -> Result<Self, EngineError> {
        let bias = weights.config().mlp_bias;
        Ok(Self {
            gate_up: weights.joined(path, ["gate_proj", "up_proj"], bias)?,
            down_proj: weights.linear(&format!("{path}.down_proj"), bias)?,
            on_gpu: weights.on_gpu(),
        })
    }

    pub(in crate::engine) fn forward(&self, x: &Array) -> Result<Array, EngineError> {
        let [gated] = GATED.call(self.on_gpu, &self.gate_up.forward(x)?)?;
        self.down_proj.forward(&gated)
    }
}

/// `silu(gate) · up`.
fn gated(arrays: &[Array]) -> Result<Vec<Array>, Exception> {
    let [gate, up] = inputs(arrays)?;
    Ok(vec![gate.multiply(ops::sigmoid(gate)?)?.multiply(up)?])
}
fused!(pub(super) GATED, gated);
