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
        Ok(Quantised::below_each_other(&all)?
            .map(|weight| Self { weight: Weight::Quantised(weight), bias }))
    }

    pub(super) fn outputs(&self) -> i32 {
        match &self.weight {
            Weight::Plain(weight) => weight.dim(1),
            Weight::Quantised(quantised) => quantised.weight.dim(0),
        }
    }

    pub(super) fn arrays(&self) -> Vec<Array> {
        let mut arrays = match &self.weight {
            Weight::Plain(weight) => vec![weight.clone()],
            Weight::Quantised(Quantised { weight, scales, biases, .. }) => {
                vec![weight.clone(), scales.clone(), biases.clone()]
            }
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

    fn below_each_other(parts: &[&Self]) -> Result<Option<Self>, EngineError> {
        let Some(&&Self { group_size, bits, .. }) = parts.first() else { return Ok(None) };
        if parts.iter().any(|part| (part.group_size, part.bits) != (group_size, bits)) {
            return Ok(None);
        }
        let rows = |of: fn(&Self) -> &Array| {
            let arrays: Vec<&Array> = parts.iter().map(|part| of(part)).collect();
            ops::concatenate(&arrays, 0)
        };
        let (weight, scales) = (rows(|part| &part.weight)?, rows(|part| &part.scales)?);
        Ok(Some(Self { weight, scales, biases: rows(|part| &part.biases)?, group_size, bits }))
    }

    /// `x Wᵀ`.
    pub(super) fn multiply(&self, x: &Array) -> Result<Array, EngineError> {
        let Self { weight, scales, biases, group_size, bits } = self;
        Ok(ops::quantized_matmul(x, weight, scales, biases, true, *group_size, *bits)?)
    }
}
