//! `y = x Wᵀ + b`, with the matrix plain or quantised.

use mlx_rs::{Array, ops};

use crate::engine::error::EngineError;
use crate::engine::weights::Matrix;
use crate::model::ModuleQuantisation;

/// A linear layer from `in` to `out`.
pub(in crate::engine) struct Linear {
    weight: Weight,
    bias: Option<Array>,
}

enum Weight {
    /// `[in, out]`: a view of the stored matrix.
    Plain(Array),
    Quantised(Quantised),
}

/// A quantised matrix `[out, in]`, multiplied without being unpacked.
pub(super) struct Quantised {
    pub(super) weight: Array,
    pub(super) scales: Array,
    pub(super) biases: Array,
    pub(super) group_size: i32,
    pub(super) bits: i32,
}

impl Linear {
    pub(in crate::engine) fn new(matrix: Matrix, bias: Option<Array>) -> Result<Self, EngineError> {
        let weight = match matrix {
            Matrix::Plain(weight) => Weight::Plain(weight.transpose()?),
            Matrix::Quantised { weight, scales, biases, quantisation } => {
                Weight::Quantised(Quantised::new(weight, scales, biases, quantisation))
            }
        };
        Ok(Self { weight, bias })
    }

    /// `[tokens, in]` to `[tokens, out]`.
    pub(in crate::engine) fn forward(&self, x: &Array) -> Result<Array, EngineError> {
        match (&self.weight, &self.bias) {
            (Weight::Plain(weight), None) => Ok(x.matmul(weight)?),
            (Weight::Plain(weight), Some(bias)) => Ok(ops::addmm(bias, x, weight, None, None)?),
            (Weight::Quantised(weight), None) => weight.multiply(x),
            (Weight::Quantised(weight), Some(bias)) => Ok(weight.multiply(x)?.add(bias)?),
        }
    }
}

impl Quantised {
    pub(super) fn new(
        weight: Array,
        scales: Array,
        biases: Array,
        ModuleQuantisation { group_size, bits }: ModuleQuantisation,
    ) -> Self {
        let (group_size, bits) = (group_size.cast_signed(), bits.cast_signed());
        Self { weight, scales, biases, group_size, bits }
    }

    /// `x Wᵀ`.
    pub(super) fn multiply(&self, x: &Array) -> Result<Array, EngineError> {
        let Self { weight, scales, biases, group_size, bits } = self;
        Ok(ops::quantized_matmul(x, weight, scales, biases, true, *group_size, *bits)?)
    }
}
