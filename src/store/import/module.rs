//! One tensor of the file, what becomes of it, and its conversion.
//!
//! [`Wish`] is what the user asked for. [`Form::choose`] decides, in one place: floats stay as they
//! are, types that MLX's affine form holds exactly go into it, the other ones become floats, and a
//! quantisation that was asked for takes every matrix that is not exact in as few bits already.
//!
//! Start at [`Module`].

use daisy_proto::Dtype;

use super::super::gguf::{TensorInfo, TensorKind};
use super::affine::{Affine, AffineForm, EXACT_GROUP, exact_bits};
use super::blocks::Block;
use super::floats::{Floats, decode, stored};
use super::safetensors::Planned;
use crate::model::StoredDtype;

/// What the checkpoint shall look like.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Wish {
    /// Type of all floats: weights that are not quantised, norms, scales and biases. None keeps
    /// what is exact, and makes other blocks `f16`.
    pub dtype: Option<Dtype>,
    pub quantise: Option<Quantise>,
}

/// Quantise matrices; `bits` are 4 or 8, `group` 32, 64 or 128.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Quantise {
    pub bits: u32,
    pub group: u32,
}

/// One tensor of the file and what becomes of it.
#[derive(Debug)]
pub(super) struct Module {
    pub source: TensorInfo,
    /// Path of the module, such as `model.layers.0.mlp.up_proj`.
    pub path: String,
    pub held: Held,
    pub form: Form,
    /// Heads whose rows llama.cpp has permuted.
    pub permuted: Option<usize>,
}

/// How the file holds a tensor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Held {
    Floats(Dtype),
    Blocks(Block),
}

/// How the checkpoint holds it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Form {
    Floats(Dtype),
    /// The file's own numbers.
    Exact(AffineForm),
    Quantised(AffineForm),
}

impl Held {
    /// None for a type that is not imported.
    pub fn of(kind: TensorKind) -> Option<Self> {
        match kind {
            TensorKind::F32 => Some(Self::Floats(Dtype::F32)),
            TensorKind::F16 => Some(Self::Floats(Dtype::F16)),
            TensorKind::BF16 => Some(Self::Floats(Dtype::Bf16)),
            kind => Block::of(kind).map(Self::Blocks),
        }
    }

    /// Names of all types that are imported.
    pub fn names() -> String {
        let floats = [TensorKind::F32, TensorKind::F16, TensorKind::BF16];
        let kinds = floats.into_iter().chain(Block::ALL.map(Block::kind));
        kinds.map(|kind| kind.to_string()).collect::<Vec<_>>().join(", ")
    }
}

impl Form {
    /// What becomes of a matrix with rows of `columns`.
    pub fn choose(held: Held, columns: u64, wish: Wish) -> Self {
        let exact = match held {
            Held::Floats(_) => None,
            Held::Blocks(block) => exact_bits(block),
        };
        let rounded = match held {
            Held::Floats(dtype) => dtype,
            Held::Blocks(_) => Dtype::F16,
        };
        let asked = wish.quantise.filter(|asked| {
            columns.is_multiple_of(asked.group.into()) && exact.is_none_or(|bits| bits > asked.bits)
        });
        match (asked, exact) {
            (Some(Quantise { bits, group }), _) => {
                let floats = wish.dtype.unwrap_or(rounded);
                Self::Quantised(AffineForm { bits, group: group as usize, floats })
            }
            (None, Some(bits)) => {
                let floats = wish.dtype.unwrap_or(Dtype::F32);
                Self::Exact(AffineForm { bits, group: EXACT_GROUP, floats })
            }
            (None, None) => Self::Floats(wish.dtype.unwrap_or(rounded)),
        }
    }

    pub const fn affine(self) -> Option<AffineForm> {
        match self {
            Self::Floats(_) => None,
            Self::Exact(form) | Self::Quantised(form) => Some(form),
        }
    }

    /// The type of its floats.
    pub const fn floats(self) -> Dtype {
        match self {
            Self::Floats(floats) => floats,
            Self::Exact(form) | Self::Quantised(form) => form.floats,
        }
    }
}

impl Module {
    pub const fn is_matrix(&self) -> bool {
        self.source.sizes.len() == 2
    }

    /// The tensors that it becomes, in the order in which they are written.
    pub fn planned(&self) -> Vec<Planned> {
        let name = |suffix: &str| format!("{}.{suffix}", self.path);
        let shape: Vec<u64> = self.source.sizes.iter().rev().copied().collect();
        let floats = stored(self.form.floats());
        let Some(AffineForm { bits, group, .. }) = self.form.affine() else {
            return vec![Planned { name: name("weight"), dtype: floats, shape }];
        };
        let (rows, columns) = (shape[0], shape[1]);
        let groups = vec![rows, columns / group as u64];
        let words = vec![rows, columns * u64::from(bits) / u64::from(u32::BITS)];
        vec![
            Planned { name: name("weight"), dtype: StoredDtype::U32, shape: words },
            Planned { name: name("scales"), dtype: floats, shape: groups.clone() },
            Planned { name: name("biases"), dtype: floats, shape: groups },
        ]
    }

    /// The data of [`Module::planned`]'s tensors, from the tensor's bytes. None: they hold something
    /// that is no finite number in the wanted type.
    pub fn converted(&self, bytes: Vec<u8>) -> Option<Vec<Vec<u8>>> {
        let bytes = self.rows_in_order(bytes);
        match (self.held, self.form) {
            (Held::Floats(held), Form::Floats(wanted)) if held == wanted => Some(vec![bytes]),
            (_, Form::Floats(dtype)) => {
                let mut floats = Floats::new(dtype);
                self.each_row(&bytes, |row| row.iter().for_each(|value| floats.push(*value)));
                floats.fit().then(|| vec![floats.into_bytes()])
            }
            (Held::Blocks(block), Form::Exact(form)) => {
                let mut affine = Affine::new(form.floats);
                affine.push_blocks(block, &bytes);
                parts(affine)
            }
            (_, Form::Exact(form) | Form::Quantised(form)) => {
                let mut affine = Affine::new(form.floats);
                self.each_row(&bytes, |row| affine.push_quantised(form, row));
                parts(affine)
            }
        }
    }

    /// Values row by row, so that a matrix is never in memory as a whole in 32 bits.
    fn each_row(&self, bytes: &[u8], mut take: impl FnMut(&[f32])) {
        let rows = if self.is_matrix() { self.rows() } else { 1 };
        let mut values = Vec::new();
        for row in bytes.chunks((bytes.len() / rows).max(1)) {
            values.clear();
            match self.held {
                Held::Floats(dtype) => decode(dtype, row, &mut values),
                Held::Blocks(block) => block.dequantise(row, &mut values),
            }
            take(&values);
        }
    }

    fn rows_in_order(&self, bytes: Vec<u8>) -> Vec<u8> {
        match self.permuted {
            Some(heads) => unpermuted(&bytes, self.rows(), heads),
            None => bytes,
        }
    }

    fn rows(&self) -> usize {
        let rows = self.source.sizes.last().and_then(|rows| usize::try_from(*rows).ok());
        rows.unwrap_or(1).max(1)
    }
}

fn parts(affine: Affine) -> Option<Vec<Vec<u8>>> {
    let Affine { weight, scales, biases } = affine;
    let fit = scales.fit() && biases.fit();
    fit.then(|| vec![weight, scales.into_bytes(), biases.into_bytes()])
}

/// llama.cpp stores a llama's query and key rows as pairs that its rotation turns together; Hugging
/// Face and MLX have the first of all pairs, then the second. Takes `rows` equal rows of bytes;
/// `heads` must divide `rows` evenly.
fn unpermuted(bytes: &[u8], rows: usize, heads: usize) -> Vec<u8> {
    let (row_bytes, head) = (bytes.len() / rows, rows / heads);
    let half = head / 2;
    let mut out = Vec::with_capacity(bytes.len());
    for row in 0..rows {
        let (start, within) = (row / head * head, row % head);
        let source = start + within % half * 2 + within / half;
        out.extend(&bytes[source * row_bytes..][..row_bytes]);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::super::blocks::tests::golden;
    use super::*;

    #[test]
    fn forms_follow_from_type_and_wish() {
        let floats = Form::Floats;
        let exact = |bits, floats| Form::Exact(AffineForm { bits, group: 32, floats });
        let quantised = |bits, group, floats| Form::Quantised(AffineForm { bits, group, floats });
        let wish = |dtype, quantise: Option<(u32, u32)>| Wish {
            dtype,
            quantise: quantise.map(|(bits, group)| Quantise { bits, group }),
        };
        let (four, eight) = (Some((4, 64)), Some((8, 64)));
        for (kind, dtype, quantise, columns, expected) in [
            (TensorKind::F16, None, None, 64, floats(Dtype::F16)),
            (TensorKind::BF16, None, None, 64, floats(Dtype::Bf16)),
            (TensorKind::F32, Some(Dtype::Bf16), None, 64, floats(Dtype::Bf16)),
            (TensorKind::F32, None, four, 64, quantised(4, 64, Dtype::F32)),
            (TensorKind::BF16, None, eight, 64, quantised(8, 64, Dtype::Bf16)),
            (TensorKind::BF16, None, eight, 96, floats(Dtype::Bf16)),
            (TensorKind::Q4_0, None, None, 64, exact(4, Dtype::F32)),
            (TensorKind::Q4_0, Some(Dtype::F16), four, 64, exact(4, Dtype::F16)),
            (TensorKind::Q5_K, None, None, 256, exact(5, Dtype::F32)),
            (TensorKind::Q5_K, None, four, 256, quantised(4, 64, Dtype::F16)),
            (TensorKind::Q5_K, None, eight, 256, exact(5, Dtype::F32)),
            (TensorKind::Q8_0, None, four, 96, exact(8, Dtype::F32)),
            (TensorKind::Q6_K, None, None, 256, floats(Dtype::F16)),
            (TensorKind::Q6_K, Some(Dtype::F32), None, 256, floats(Dtype::F32)),
            (TensorKind::Q2_K, None, four, 256, quantised(4, 64, Dtype::F16)),
        ] {
            let held = Held::of(kind).expect("imported");
            let got = Form::choose(held, columns, wish(dtype, quantise));
            assert_eq!(got, expected, "{kind} {dtype:?} {quantise:?} {columns}");
        }
    }

    #[test]
    fn every_type_becomes_floats_as_the_reference_says() {
        for block in Block::ALL {
            let (blocks, values) = golden(block);
            let module = Module {
                source: TensorInfo {
                    name: "t".to_owned(),
                    sizes: vec![values.len() as u64, 1],
                    kind: block.kind(),
                    offset: 0,
                    bytes: Some(blocks.len() as u64),
                },
                path: "t".to_owned(),
                held: Held::Blocks(block),
                form: Form::Floats(Dtype::F32),
                permuted: None,
            };
            let expected: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
            let got = module.converted(blocks.clone()).expect("finite");
            let mut read = Vec::new();
            decode(Dtype::F32, &got[0], &mut read);
            assert_eq!(read, values, "{}", block.kind());
            assert_eq!(got[0].len(), expected.len());

            // The largest exponent: no type may pass on what is no number.
            let infinite = vec![0x7C; blocks.len()];
            assert_eq!(module.converted(infinite.clone()).is_some(), finite(block, &infinite));
        }
    }

    fn finite(block: Block, bytes: &[u8]) -> bool {
        let mut values = Vec::new();
        block.dequantise(bytes, &mut values);
        values.iter().all(|value| value.is_finite())
    }

    #[test]
    fn rows_return_to_their_halves() {
        // Two heads of six rows: pairs (0,3), (1,4), (2,5) lie side by side in the file.
        let stored = [0, 3, 1, 4, 2, 5, 10, 13, 11, 14, 12, 15];
        let bytes: Vec<u8> = stored.iter().flat_map(|row| [*row, 100 + row]).collect();
        let rows: Vec<u8> = unpermuted(&bytes, 12, 2).chunks(2).map(|row| row[0]).collect();
        assert_eq!(rows, [0, 1, 2, 3, 4, 5, 10, 11, 12, 13, 14, 15]);
        assert!(unpermuted(&bytes, 12, 2).chunks(2).all(|row| row[1] == 100 + row[0]));
    }
}
