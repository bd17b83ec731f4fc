//! Token ids to hidden states; and, in a model with tied weights, hidden states to logits.

use mlx_rs::Array;

use super::quantised::Quantised;
use crate::engine::error::EngineError;
use crate::engine::weights::Matrix;

/// The matrix `[vocab, hidden]`.
pub(in crate::engine) enum Embedding {
    Plain { weight: Array, transposed: Array },
    Quantised(Quantised),
}

impl Embedding {
    pub(in crate::engine) fn new(matrix: Matrix) -> Result<Self, EngineError> {
        Ok(match matrix {
            Matrix::Plain(weight) => Self::Plain { transposed: weight.transpose()?, weight },
            Matrix::Quantised(weight) => Self::Quantised(weight),
        })
    }

    /// Ids `[tokens]` to `[tokens, hidden]`. The ids must be inside the vocabulary.
    pub(in crate::engine) fn forward(&self, tokens: &Array) -> Result<Array, EngineError> {
        match self {
            Self::Plain { weight, .. } => Ok(weight.take_axis(tokens, 0)?),
            Self::Quantised(weight) => weight.unpacked_rows(tokens),
        }
    }

    /// `[tokens, hidden]` to logits `[tokens, vocab]`.
    pub(in crate::engine) fn as_head(&self, x: &Array) -> Result<Array, EngineError> {
        match self {
            Self::Plain { transposed, .. } => Ok(x.matmul(transposed)?),
            Self::Quantised(weight) => weight.multiply(x),
        }
    }
}
