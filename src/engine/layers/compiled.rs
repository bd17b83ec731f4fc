//! Chains of elementwise operations, as one launch where that pays.
//!
//! On a GPU they are compiled, once for all layers: MLX keeps what it compiled with the function, and
//! both with the thread. On a CPU that would call a C++ compiler at run time, so there they stay
//! apart.

use std::cell::RefCell;
use std::thread::LocalKey;

use mlx_rs::Array;
use mlx_rs::error::Exception;
use mlx_rs::transforms::compile::compile;

use crate::engine::error::EngineError;

/// Arrays to arrays, of any shapes.
pub(super) type Elementwise = fn(&[Array]) -> Result<Vec<Array>, Exception>;
pub(super) type Compiled = RefCell<Box<dyn FnMut(&[Array]) -> Result<Vec<Array>, Exception>>>;

pub(super) fn compiled(function: Elementwise) -> Compiled {
    RefCell::new(Box::new(compile(function, true)))
}

/// A function and what it is compiled to.
pub(super) struct Fused {
    pub(super) plain: Elementwise,
    pub(super) compiled: &'static LocalKey<Compiled>,
}

impl Fused {
    pub(super) fn call<const N: usize>(
        &self,
        on_gpu: bool,
        inputs: &[Array],
    ) -> Result<[Array; N], EngineError> {
        let outputs = if on_gpu {
            self.compiled.with_borrow_mut(|compiled| compiled(inputs))?
        } else {
            (self.plain)(inputs)?
        };
        outputs.try_into().map_err(|_| EngineError::Internal("a function with other outputs"))
    }
}

/// A [`Fused`] of the function `$plain`.
macro_rules! fused {
    ($visibility:vis $name:ident, $plain:path) => {
        $visibility const $name: $crate::engine::layers::compiled::Fused = {
            thread_local! {
                static COMPILED: $crate::engine::layers::compiled::Compiled =
                    $crate::engine::layers::compiled::compiled($plain);
            }
            $crate::engine::layers::compiled::Fused { plain: $plain, compiled: &COMPILED }
        };
    };
}
pub(super) use fused;

/// The inputs of a function that takes `N`.
pub(super) fn inputs<const N: usize>(inputs: &[Array]) -> Result<&[Array; N], Exception> {
    inputs.try_into().map_err(|_| Exception::custom("a function with other inputs"))
}
