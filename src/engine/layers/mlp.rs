//! The gated feed-forward network: `down(silu(gate(x)) · up(x))`.

use std::cell::RefCell;

use mlx_rs::error::Exception;
use mlx_rs::transforms::compile::compile;
use mlx_rs::{Array, ops};

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
        let [gate, up] = self.gate_up.forward(x)?;
        // Compiled, it is one launch; on a CPU that would call a C++ compiler at run time.
        let gated = if self.on_gpu {
            COMPILED.with_borrow_mut(|gated| gated((&gate, &up)))?
        } else {
            gated((&gate, &up))?
        };
        self.down_proj.forward(&gated)
    }
}

/// `silu(gate) · up`.
fn gated((gate, up): (&Array, &Array)) -> Result<Array, Exception> {
    gate.multiply(ops::sigmoid(gate)?)?.multiply(up)
}

type Gated = Box<dyn for<'a> FnMut((&'a Array, &'a Array)) -> Result<Array, Exception>>;

thread_local! {
    /// One for all layers: MLX keeps what it compiled with the function, and both with the thread.
    static COMPILED: RefCell<Gated> = RefCell::new(Box::new(compile(gated, true)));
}
