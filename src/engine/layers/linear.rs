//! `y = x Wᵀ + b`, with the matrix plain or quantised.

use mlx_rs::{Array, ops};

use super::quantised::Quantised;
use crate::engine::error::EngineError;
use crate::engine::weights::Matrix;

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

impl Linear {
    pub(in crate::engine) fn new(matrix: Matrix, bias: Option<Array>) -> Result<Self, EngineError> {
        let weight = match matrix {
            Matrix::Plain(weight) => Weight::Plain(weight.transpose()?),
            Matrix::Quantised(weight) => Weight::Quantised(weight),
        };
        Ok(Self { weight, bias })
    }

    /// One layer whose outputs are those of `parts`, one behind the other; none where their forms
    /// differ.
    pub(super) fn below_each_other(parts: &[Self]) -> Result<Option<Self>, EngineError> {
        let rows = |arrays: Option<Vec<Array>>| {
            arrays.map(|arrays| ops::concatenate(&arrays, 0)).transpose()
        };
        let bias = match rows(parts.iter().map(|part| part.bias.clone()).collect())? {
            None if parts.iter().any(|part| part.bias.is_some()) => return Ok(None),
            bias => bias,
        };
        let plain = |part: &Self| match &part.weight {
            Weight::Plain(weight) => Some(weight.transpose()),
            Weight::Quantised(_) => None,
        };
        if let Some(weights) = parts.iter().map(plain).collect::<Option<Result<Vec<_>, _>>>() {
            let weight = ops::concatenate(&weights?, 0)?.transpose()?;
            return Ok(Some(Self { weight: Weight::Plain(weight), bias }));
        }
        let quantised = |part| match part {
            &Self { weight: Weight::Quantised(ref quantised), .. } => Some(quantised),
            _ => None,
        };
        let Some(all) = parts.iter().map(quantised).collect::<Option<Vec<&Quantised>>>() else {
            return Ok(None);
        };
        Ok(Quantised::joined(&all, 0)?
            .map(|weight| Self { weight: Weight::Quantised(weight), bias }))
    }

    /// The outputs that `ids` names, in their order.
    pub(in crate::engine) fn rows(&self, ids: &Array) -> Result<Self, EngineError> {
        let weight = match &self.weight {
            Weight::Plain(weight) => {
                Weight::Plain(weight.transpose()?.take_axis(ids, 0)?.transpose()?)
            }
            Weight::Quantised(weight) => Weight::Quantised(weight.rows(ids)?),
        };
        let bias = self.bias.as_ref().map(|bias| bias.take_axis(ids, 0)).transpose()?;
        Ok(Self { weight, bias })
    }

    pub(super) fn outputs(&self) -> i32 {
        match &self.weight {
            Weight::Plain(weight) => weight.dim(1),
            Weight::Quantised(quantised) => quantised.weight.dim(0),
        }
    }

    pub(in crate::engine) fn arrays(&self) -> Vec<Array> {
        let mut arrays = match &self.weight {
            Weight::Plain(weight) => vec![weight.clone()],
            Weight::Quantised(weight) => weight.arrays(),
        };
        arrays.extend(self.bias.clone());
        arrays
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
