//! Projections of the same input, as one product where that pays and their matrices allow it.
//!
//! A GPU that decodes waits for launches more than for bytes, and one product of three matrices is
//! one launch. A row of the product does not depend on the rows beside it, and ranks join within a
//! layer only, so no cut sees a difference. On a CPU they stay apart: there nothing is gained.

use mlx_rs::Array;

use super::Linear;
use crate::engine::error::EngineError;
use crate::engine::ffi;

/// `N` linear layers with one input.
pub(in crate::engine) enum Joined<const N: usize> {
    /// Their matrices one below the other, and where each ends.
    One {
        linear: Linear,
        ends: [i32; N],
    },
    Each([Linear; N]),
}

impl<const N: usize> Joined<N> {
    /// Joins `parts` if all have the same form.
    pub(in crate::engine) fn one(parts: [Linear; N]) -> Result<Self, EngineError> {
        let mut end = 0;
        let ends = parts.each_ref().map(|part| {
            end += part.outputs();
            end
        });
        Ok(match Linear::below_each_other(&parts)? {
            Some(linear) => Self::One { linear, ends },
            None => Self::Each(parts),
        })
    }

    /// `[tokens, in]` to `[tokens, out]` of each.
    pub(in crate::engine) fn forward(&self, x: &Array) -> Result<[Array; N], EngineError> {
        let outputs: Result<Vec<Array>, EngineError> = match self {
            Self::Each(parts) => parts.iter().map(|part| part.forward(x)).collect(),
            Self::One { linear, ends } => {
                let all = linear.forward(x)?;
                let starts = [0].into_iter().chain(ends.iter().copied());
                let cut = |(start, end)| Ok(ffi::slice(&all, &[0, start], &[all.dim(0), end])?);
                starts.zip(ends.iter().copied()).map(cut).collect()
            }
        };
        outputs?.try_into().map_err(|_| EngineError::Internal("a joined product in other parts"))
    }

    /// What a join made anew, to be computed with the layer.
    pub(in crate::engine) fn made(&self) -> Vec<Array> {
        match self {
            Self::One { linear, .. } => linear.arrays(),
            Self::Each(_) => Vec::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use mlx_rs::{Dtype, ops, random};

    use super::*;
    use crate::engine::layers::Quantised;
    use crate::engine::weights::Matrix;
    use crate::model::{ModuleQuantisation, QuantisationMode};

    const INPUTS: i32 = 64;

    fn uniform(shape: &[i32], seed: u64) -> Array {
        let key = random::key(seed).expect("a key");
        random::uniform::<_, f32>(-1.0, 1.0, shape, &key).expect("an array")
    }

    fn plain(outputs: i32, bias: bool) -> Linear {
        let seed = u64::try_from(outputs).expect("a size");
        let bias = bias.then(|| uniform(&[outputs], seed + 1));
        Linear::new(Matrix::Plain(uniform(&[outputs, INPUTS], seed)), bias).expect("a layer")
    }

    fn quantised(outputs: i32, bits: i32) -> Linear {
        let seed = u64::try_from(outputs).expect("a size");
        let (weight, scales, biases) =
            ops::quantize(uniform(&[outputs, INPUTS], seed), 32, bits).expect("quantised");
        let mode = QuantisationMode::Affine;
        let quantisation = ModuleQuantisation { mode, group_size: 32, bits: bits.cast_unsigned() };
        let (biases, dtype) = (Some(biases), Dtype::Float32);
        let quantised = Quantised { weight, scales, biases, quantisation, dtype };
        Linear::new(Matrix::Quantised(quantised), None).expect("a layer")
    }

    /// A sum is an array of its own, in one piece.
    fn values(array: &Array) -> Vec<f32> {
        let whole = ops::add(array, Array::from_f32(0.0)).expect("a copy");
        whole.eval().expect("computed");
        whole.try_as_slice::<f32>().expect("f32").to_vec()
    }

    #[test]
    fn a_join_gives_what_its_parts_give() {
        let cases: [(&str, [Linear; 3], [Linear; 3], bool); 5] = [
            ("plain", [8, 4, 4].map(|n| plain(n, false)), [8, 4, 4].map(|n| plain(n, false)), true),
            (
                "with bias",
                [8, 4, 6].map(|n| plain(n, true)),
                [8, 4, 6].map(|n| plain(n, true)),
                true,
            ),
            (
                "quantised",
                [8, 4, 4].map(|n| quantised(n, 4)),
                [8, 4, 4].map(|n| quantised(n, 4)),
                true,
            ),
            (
                "of other bits",
                [quantised(8, 4), quantised(4, 4), quantised(4, 6)],
                [quantised(8, 4), quantised(4, 4), quantised(4, 6)],
                false,
            ),
            (
                "plain and quantised",
                [quantised(8, 4), plain(4, false), quantised(4, 4)],
                [quantised(8, 4), plain(4, false), quantised(4, 4)],
                false,
            ),
        ];
        for (what, parts, same, joins) in cases {
            let joined = Joined::one(parts).expect("joined");
            assert_eq!(matches!(joined, Joined::One { .. }), joins, "{what}");
            for tokens in [1, 5] {
                let x = uniform(&[tokens, INPUTS], 9);
                let outputs = joined.forward(&x).expect("a product");
                for (output, part) in outputs.iter().zip(&same) {
                    let (got, want) = (values(output), values(&part.forward(&x).expect("one")));
                    assert_eq!(got.len(), want.len(), "{what}");
                    let close = got.iter().zip(&want).all(|(g, w)| (g - w).abs() <= 1e-4);
                    assert!(close, "{what}, {tokens} tokens: {got:?} and {want:?}");
                }
            }
        }
    }
}
