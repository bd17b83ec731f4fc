//! The gated feed-forward network: `down(silu(gate(x)) · up(x))`.

use mlx_rs::{Array, ops};

use super::Linear;
use crate::engine::error::EngineError;
use crate::engine::weights::Weights;

#[expect(clippy::struct_field_names, reason = "fields are named as the checkpoint's modules")]
pub(in crate::engine) struct Mlp {
    gate_proj: Linear,
    up_proj: Linear,
    down_proj: Linear,
}

impl Mlp {
    pub(in crate::engine) fn load(
        weights: &mut Weights<'_>,
        path: &str,
    ) -> Result<Self, EngineError> {
        let bias = weights.config().mlp_bias;
        Ok(Self {
            gate_proj: weights.linear(&format!("{path}.gate_proj"), bias)?,
            up_proj: weights.linear(&format!("{path}.up_proj"), bias)?,
            down_proj: weights.linear(&format!("{path}.down_proj"), bias)?,
        })
    }

    pub(in crate::engine) fn forward(&self, x: &Array) -> Result<Array, EngineError> {
        let gate = self.gate_proj.forward(x)?;
        // mlx-rs's own silu is compiled, which on a CPU would call a C++ compiler at run time.
        let gate = gate.multiply(ops::sigmoid(&gate)?)?;
        self.down_proj.forward(&gate.multiply(self.up_proj.forward(x)?)?)
    }
}
