//! MLX's affine form of a matrix: unsigned numbers of a few bits, `scale·q + bias` per group.
//!
//! A matrix comes into it in one of two ways. [`Affine::push_blocks`] puts a GGUF type whose groups
//! are MLX's into it without loss. [`Affine::push_quantised`] quantises floats as MLX does on its
//! CPU library, to the bit. Numbers lie in one stream of bits per row, the first lowest, for every
//! number of bits.
//!
//! Floats are written in a given type; [`Floats`] says whether all of them fitted.

use daisy_proto::Dtype;

use super::blocks::{Block, Unpacked};
use super::floats::{Floats, rounded};

/// Three tensors, little-endian, one after the other row by row.
#[derive(Debug)]
pub(super) struct Affine {
    /// u32 words.
    pub weight: Vec<u8>,
    pub scales: Floats,
    pub biases: Floats,
}

/// How numbers are kept: bits each, values per group, type of scales and biases.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct AffineForm {
    pub bits: u32,
    pub group: usize,
    pub floats: Dtype,
}

impl Affine {
    pub const fn new(floats: Dtype) -> Self {
        Self { weight: Vec::new(), scales: Floats::new(floats), biases: Floats::new(floats) }
    }

    /// Whole blocks of a type with [`exact_bits`].
    pub fn push_blocks(&mut self, block: Block, blocks: &[u8]) {
        let mut unpacked = Unpacked::new();
        for bytes in blocks.chunks_exact(block.bytes()) {
            block.unpack(bytes, &mut unpacked);
            pack(&mut self.weight, block.bits(), unpacked.q[..block.values()].iter().copied());
            for group in 0..block.groups() {
                self.scales.push(unpacked.scales[group]);
                self.biases.push(unpacked.biases[group]);
            }
        }
    }

    /// Whole groups of values, which are taken as `form.floats` holds them.
    pub fn push_quantised(&mut self, form: AffineForm, values: &[f32]) {
        let mut group = Vec::with_capacity(form.group);
        for values in values.chunks_exact(form.group) {
            group.clear();
            group.extend(values.iter().map(|value| rounded(form.floats, *value)));
            self.push_group(form.bits, &group);
        }
    }

    /// The group's value of largest magnitude is met exactly, and zero is among its values: MLX's
    /// formula (<https://github.com/ml-explore/mlx/blob/main/mlx/backend/cpu/quantized.cpp>).
    fn push_group(&mut self, bits: u32, group: &[f32]) {
        let highest = f32::from(u8::MAX >> (8 - bits));
        let least = group.iter().copied().fold(f32::INFINITY, f32::min);
        let most = group.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let mut scale = ((most - least) / highest).max(SCALE_MIN);
        let edge = if least.abs() > most.abs() {
            least
        } else {
            scale = -scale;
            most
        };
        let zero = (edge / scale).round_ties_even();
        let mut offset = 0.0;
        if zero != 0.0 {
            (scale, offset) = (edge / zero, edge);
        }
        if !group.iter().all(|value| value.is_finite()) {
            // The extremes above pass over what is no number; the import must not.
            scale = f32::NAN;
        }
        let numbers = group.iter().map(|value| {
            let number = ((value - offset) / scale).round_ties_even().clamp(0.0, highest);
            #[expect(
                clippy::cast_possible_truncation,
                clippy::cast_sign_loss,
                reason = "between 0 and 255, or NaN, which becomes 0"
            )]
            let number = number as u8;
            number
        });
        pack(&mut self.weight, bits, numbers);
        self.scales.push(scale);
        self.biases.push(offset);
    }
}

/// Bits of the affine form that holds a type's blocks exactly, in groups of [`EXACT_GROUP`]; none
/// for one whose groups are smaller than MLX's smallest.
pub(super) const fn exact_bits(block: Block) -> Option<u32> {
    if block.group() == EXACT_GROUP { Some(block.bits()) } else { None }
}

/// Appends numbers as one stream of bits. They must fill whole bytes, as any multiple of 8 does.
fn pack(out: &mut Vec<u8>, bits: u32, numbers: impl Iterator<Item = u8>) {
    let (mut word, mut filled) = (0_u32, 0);
    for number in numbers {
        word |= u32::from(number) << filled;
        filled += bits;
        while filled >= 8 {
            out.push(word.to_le_bytes()[0]);
            word >>= 8;
            filled -= 8;
        }
    }
}

pub(super) const EXACT_GROUP: usize = 32;
const SCALE_MIN: f32 = 1e-7;

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use super::super::blocks::tests::golden;
    use super::super::floats::decode;
    use super::*;

    /// What MLX reads from the three tensors.
    fn read(bits: u32, group: usize, affine: &Affine) -> Vec<f32> {
        let floats = |part: &Floats| {
            let mut out = Vec::new();
            decode(Dtype::F32, part.bytes(), &mut out);
            out
        };
        let (scales, biases) = (floats(&affine.scales), floats(&affine.biases));
        let bit = |at: usize| u32::from(affine.weight[at / 8] >> (at % 8) & 1);
        let size = bits as usize;
        (0..affine.weight.len() * 8 / size)
            .map(|i| {
                let q: u32 = (0..size).map(|b| bit(i * size + b) << b).sum();
                let q = f32::from(u8::try_from(q).expect("at most 8 bits"));
                scales[i / group] * q + biases[i / group]
            })
            .collect()
    }

    #[test]
    fn exact_types_mean_the_same_in_both_forms() {
        let mut exact = Vec::new();
        for block in Block::ALL {
            let Some(bits) = exact_bits(block) else { continue };
            exact.push(block.kind().to_string());
            let (blocks, expected) = golden(block);
            let mut affine = Affine::new(Dtype::F32);
            affine.push_blocks(block, &blocks);
            assert!(affine.scales.fit() && affine.biases.fit());
            assert_eq!(read(bits, EXACT_GROUP, &affine), expected, "{}", block.kind());
        }
        assert_eq!(exact, ["Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q4_K", "Q5_K"]);
    }

    #[test]
    fn a_known_block_gives_known_bits() {
        // d = 0.5, m = −2, and byte i holds i below and 15 − i above.
        let mut bytes = vec![0x00, 0x38, 0x00, 0xC0];
        bytes.extend((0..16_u8).map(|i| i | (15 - i) << 4));
        let mut got = Affine::new(Dtype::F32);
        got.push_blocks(Block::Q4_1, &bytes);
        let words = [0x7654_3210_u32, 0xFEDC_BA98, 0x89AB_CDEF, 0x0123_4567];
        assert_eq!(got.weight, words.map(u32::to_le_bytes).concat());
        assert_eq!(got.scales.bytes(), 0.5_f32.to_le_bytes());
        assert_eq!(got.biases.bytes(), (-2.0_f32).to_le_bytes());

        let mut bytes = vec![0x00, 0x38];
        bytes.extend((0..32_i8).map(|i| (i - 16).cast_unsigned()));
        let mut got = Affine::new(Dtype::F16);
        got.push_blocks(Block::Q8_0, &bytes);
        assert_eq!(got.weight, (112..144).collect::<Vec<u8>>());
        assert_eq!(got.biases.bytes(), [0x00, 0xD4], "−64");
    }

    /// `quantised.bin` holds, for each case, weights and what MLX made of them.
    #[test]
    fn floats_are_quantised_as_by_mlx() {
        let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/gguf/quantised.bin");
        let bytes = fs::read(file).expect("a fixture");
        let mut rest = bytes.as_slice();
        for (bits, group, floats) in [
            (4, 32, Dtype::F32),
            (4, 64, Dtype::F32),
            (4, 128, Dtype::F32),
            (8, 64, Dtype::F32),
            (5, 32, Dtype::F32),
            (4, 64, Dtype::F16),
            (8, 32, Dtype::F16),
            (4, 64, Dtype::Bf16),
            (8, 64, Dtype::Bf16),
        ] {
            let form = AffineForm { bits, group, floats };
            let mut part = |bytes: usize| rest.split_off(..bytes).expect("long enough");
            let (values, groups) = (6 * 128, 6 * 128 / group);
            let stored = part(values * floats.size_bytes());
            let weight = part(values * bits as usize / 8);
            let [scales, biases] = [(); 2].map(|()| part(groups * floats.size_bytes()));
            let mut read = Vec::new();
            decode(floats, stored, &mut read);
            let mut got = Affine::new(floats);
            got.push_quantised(form, &read);
            assert_eq!(got.weight, weight, "{form:?}");
            assert_eq!(got.scales.bytes(), scales, "{form:?}");
            assert_eq!(got.biases.bytes(), biases, "{form:?}");
        }
        assert!(rest.is_empty());
    }

    #[test]
    fn what_is_no_number_is_seen() {
        for value in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let mut values = vec![0.5; 32];
            values[7] = value;
            let mut affine = Affine::new(Dtype::F32);
            let form = AffineForm { bits: 4, group: 32, floats: Dtype::F32 };
            affine.push_quantised(form, &values);
            assert!(!affine.scales.fit() || !affine.biases.fit(), "{value}");
        }
    }
}
