//! Weights in MLX's quantised forms, multiplied without being unpacked.

use std::ffi::CStr;

use mlx_rs::{Array, Dtype, ops};

use crate::engine::error::EngineError;
use crate::engine::ffi::{self, Packed};
use crate::model::{ModuleQuantisation, QuantisationMode};

/// A quantised matrix `[out, in]`, or a stack of them.
pub(in crate::engine) struct Quantised {
    pub(in crate::engine) weight: Array,
    pub(in crate::engine) scales: Array,
    /// In affine mode alone.
    pub(in crate::engine) biases: Option<Array>,
    pub(in crate::engine) quantisation: ModuleQuantisation,
    /// Of what it is unpacked to.
    pub(in crate::engine) dtype: Dtype,
}

impl Quantised {
    /// `x Wᵀ`.
    pub(super) fn multiply(&self, x: &Array) -> Result<Array, EngineError> {
        Ok(ffi::quantized_matmul(x, &self.packed())?)
    }

    /// `x Wᵀ` with the matrix of a stack that each of `indices` names.
    pub(super) fn gather(
        &self,
        x: &Array,
        indices: &Array,
        sorted: bool,
    ) -> Result<Array, EngineError> {
        Ok(ffi::gather_qmm(x, &self.packed(), indices, sorted)?)
    }

    /// The rows that `ids` names, unpacked.
    pub(super) fn unpacked_rows(&self, ids: &Array) -> Result<Array, EngineError> {
        let rows = self.rows(ids)?;
        Ok(ffi::dequantize(&rows.packed(), self.dtype)?)
    }

    /// The rows that `ids` names.
    pub(super) fn rows(&self, ids: &Array) -> Result<Self, EngineError> {
        self.each(|array| Ok(array.take_axis(ids, 0)?))
    }

    /// One whose outputs are those of `parts`, one behind the other, along `axis`; none where their
    /// forms differ.
    pub(super) fn joined(parts: &[&Self], axis: i32) -> Result<Option<Self>, EngineError> {
        let Some(first) = parts.first() else { return Ok(None) };
        if parts.iter().any(|part| part.quantisation != first.quantisation) {
            return Ok(None);
        }
        let join = |of: fn(&Self) -> Option<&Array>| {
            let arrays: Option<Vec<&Array>> = parts.iter().map(|part| of(part)).collect();
            arrays.map(|arrays| ops::concatenate(&arrays, axis)).transpose()
        };
        let (weight, scales) = (join(|part| Some(&part.weight))?, join(|part| Some(&part.scales))?);
        let biases = join(|part| part.biases.as_ref())?;
        let (Some(weight), Some(scales)) = (weight, scales) else { return Ok(None) };
        Ok(Some(Self { weight, scales, biases, ..**first }))
    }

    pub(in crate::engine) fn arrays(&self) -> Vec<Array> {
        let mut arrays = vec![self.weight.clone(), self.scales.clone()];
        arrays.extend(self.biases.clone());
        arrays
    }

    fn each(&self, of: impl Fn(&Array) -> Result<Array, EngineError>) -> Result<Self, EngineError> {
        Ok(Self {
            weight: of(&self.weight)?,
            scales: of(&self.scales)?,
            biases: self.biases.as_ref().map(of).transpose()?,
            ..*self
        })
    }

    fn packed(&self) -> Packed<'_> {
        let ModuleQuantisation { mode, group_size, bits } = self.quantisation;
        Packed {
            weight: &self.weight,
            scales: &self.scales,
            biases: self.biases.as_ref(),
            group_size: group_size.cast_signed(),
            bits: bits.cast_signed(),
            mode: mode_name(mode),
        }
    }
}

const fn mode_name(mode: QuantisationMode) -> &'static CStr {
    match mode {
        QuantisationMode::Affine => c"affine",
        QuantisationMode::Mxfp4 => c"mxfp4",
        QuantisationMode::Mxfp8 => c"mxfp8",
        QuantisationMode::Nvfp4 => c"nvfp4",
    }
}
