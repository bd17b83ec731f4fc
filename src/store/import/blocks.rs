//! What GGUF's blocks of quantised values hold.
//!
//! Every type comes down to one form: groups of 16 or 32 unsigned numbers `q` with a `scale` and a
//! `bias`, and a value is `scale·q + bias`. All three are exact in f32, for half-precision scales
//! times a few bits fit its 24. The layouts are ggml's
//! (<https://github.com/ggml-org/ggml/blob/master/src/ggml-common.h>). MLX's own form, which needs
//! groups of 32 at least, is `affine`'s business.
//!
//! Start at [`Block::unpack`].

use half::f16;

use super::super::gguf::TensorKind;

/// A type of block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Block {
    Q4_0,
    Q4_1,
    Q5_0,
    Q5_1,
    Q8_0,
    Q2K,
    Q3K,
    Q4K,
    Q5K,
    Q6K,
}

/// A block, taken apart. What is beyond [`Block::values`] and [`Block::groups`] means nothing.
#[derive(Debug)]
pub(super) struct Unpacked {
    pub q: [u8; SUPER_BLOCK],
    pub scales: [f32; SUPER_BLOCK / GROUP_MIN],
    pub biases: [f32; SUPER_BLOCK / GROUP_MIN],
}

impl Block {
    pub const ALL: [Self; 10] = [
        Self::Q4_0,
        Self::Q4_1,
        Self::Q5_0,
        Self::Q5_1,
        Self::Q8_0,
        Self::Q2K,
        Self::Q3K,
        Self::Q4K,
        Self::Q5K,
        Self::Q6K,
    ];

    pub fn of(kind: TensorKind) -> Option<Self> {
        Self::ALL.into_iter().find(|block| block.kind() == kind)
    }

    pub const fn kind(self) -> TensorKind {
        match self {
            Self::Q4_0 => TensorKind::Q4_0,
            Self::Q4_1 => TensorKind::Q4_1,
            Self::Q5_0 => TensorKind::Q5_0,
            Self::Q5_1 => TensorKind::Q5_1,
            Self::Q8_0 => TensorKind::Q8_0,
            Self::Q2K => TensorKind::Q2_K,
            Self::Q3K => TensorKind::Q3_K,
            Self::Q4K => TensorKind::Q4_K,
            Self::Q5K => TensorKind::Q5_K,
            Self::Q6K => TensorKind::Q6_K,
        }
    }

    pub const fn bits(self) -> u32 {
        match self {
            Self::Q2K => 2,
            Self::Q3K => 3,
            Self::Q4_0 | Self::Q4_1 | Self::Q4K => 4,
            Self::Q5_0 | Self::Q5_1 | Self::Q5K => 5,
            Self::Q6K => 6,
            Self::Q8_0 => 8,
        }
    }

    /// Values that share a scale.
    pub const fn group(self) -> usize {
        if matches!(self, Self::Q2K | Self::Q3K | Self::Q6K) { GROUP_MIN } else { 32 }
    }

    pub const fn groups(self) -> usize {
        self.values() / self.group()
    }

    /// Values in a block.
    pub const fn values(self) -> usize {
        match self {
            Self::Q4_0 | Self::Q4_1 | Self::Q5_0 | Self::Q5_1 | Self::Q8_0 => 32,
            Self::Q2K | Self::Q3K | Self::Q4K | Self::Q5K | Self::Q6K => SUPER_BLOCK,
        }
    }

    /// Bytes of a block.
    pub const fn bytes(self) -> usize {
        match self {
            Self::Q4_0 => 18,
            Self::Q4_1 => 20,
            Self::Q5_0 => 22,
            Self::Q5_1 => 24,
            Self::Q8_0 => 34,
            Self::Q2K => 84,
            Self::Q3K => 110,
            Self::Q4K => 144,
            Self::Q5K => 176,
            Self::Q6K => 210,
        }
    }

    /// Takes apart a block of [`Block::bytes`].
    pub fn unpack(self, block: &[u8], out: &mut Unpacked) {
        match self {
            Self::Q4_0 => {
                out.one(half(block, 0), -8.0);
                nibbles(&block[2..], &mut out.q);
            }
            Self::Q4_1 => {
                (out.scales[0], out.biases[0]) = (half(block, 0), half(block, 2));
                nibbles(&block[4..], &mut out.q);
            }
            Self::Q5_0 => {
                out.one(half(block, 0), -16.0);
                fives(&block[2..], &mut out.q);
            }
            Self::Q5_1 => {
                (out.scales[0], out.biases[0]) = (half(block, 0), half(block, 2));
                fives(&block[4..], &mut out.q);
            }
            Self::Q8_0 => {
                out.one(half(block, 0), -128.0);
                // Adding 128 to a signed byte turns its highest bit.
                for (q, stored) in out.q.iter_mut().zip(&block[2..]) {
                    *q = stored ^ 0x80;
                }
            }
            Self::Q2K => q2_k(block, out),
            Self::Q3K => q3_k(block, out),
            Self::Q4K | Self::Q5K => q4_or_q5_k(self, block, out),
            Self::Q6K => q6_k(block, out),
        }
    }

    /// Appends the values of whole blocks; part of one at the end is left out.
    pub fn dequantise(self, blocks: &[u8], out: &mut Vec<f32>) {
        let mut unpacked = Unpacked::new();
        for block in blocks.chunks_exact(self.bytes()) {
            self.unpack(block, &mut unpacked);
            let groups = unpacked.q[..self.values()].chunks_exact(self.group());
            for (group, q) in groups.enumerate() {
                let (scale, bias) = (unpacked.scales[group], unpacked.biases[group]);
                out.extend(q.iter().map(|q| scale * f32::from(*q) + bias));
            }
        }
    }
}

impl Unpacked {
    pub const fn new() -> Self {
        const GROUPS: usize = SUPER_BLOCK / GROUP_MIN;
        Self { q: [0; SUPER_BLOCK], scales: [0.0; GROUPS], biases: [0.0; GROUPS] }
    }

    /// A single group of signed numbers, which `zero` makes unsigned.
    fn one(&mut self, scale: f32, zero: f32) {
        (self.scales[0], self.biases[0]) = (scale, zero * scale);
    }
}

/// The low halves of 16 bytes come first, then the high ones.
fn nibbles(bytes: &[u8], q: &mut [u8]) {
    for (i, byte) in bytes.iter().take(16).enumerate() {
        (q[i], q[i + 16]) = (byte & 15, byte >> 4);
    }
}

/// Four bytes of fifth bits, the first value's lowest, then nibbles.
fn fives(bytes: &[u8], q: &mut [u8]) {
    nibbles(&bytes[4..], q);
    for (i, q) in q.iter_mut().take(32).enumerate() {
        *q |= (bytes[i / 8] >> (i % 8) & 1) << 4;
    }
}

/// 16 scales and minima of four bits, 64 bytes of twos, `d`, `dmin`.
fn q2_k(block: &[u8], out: &mut Unpacked) {
    let (d, least) = (half(block, 80), half(block, 82));
    for (group, packed) in block[..16].iter().enumerate() {
        out.scales[group] = d * f32::from(packed & 15);
        out.biases[group] = -least * f32::from(packed >> 4);
    }
    twos(&block[16..80], &mut out.q);
}

/// 32 bytes of third bits, 64 bytes of twos, 16 scales of six bits, `d`. A third bit that is not
/// set takes four away.
fn q3_k(block: &[u8], out: &mut Unpacked) {
    let (thirds, packed, d) = (&block[..32], &block[96..108], half(block, 108));
    for group in 0..16 {
        let low = packed[group % 8] >> (group / 8 * 4) & 15;
        let high = packed[8 + group % 4] >> (group / 4 * 2) & 3;
        let scale = d * (f32::from(low | high << 4) - 32.0);
        (out.scales[group], out.biases[group]) = (scale, -4.0 * scale);
    }
    twos(&block[32..96], &mut out.q);
    for (i, q) in out.q.iter_mut().enumerate() {
        *q |= (thirds[i % 32] >> (i / 32) & 1) << 2;
    }
}

/// Two halves of 128 values: 32 bytes hold their four quarters, the lowest bits the first.
fn twos(bytes: &[u8], q: &mut [u8; SUPER_BLOCK]) {
    for (i, q) in q.iter_mut().enumerate() {
        *q = bytes[i / 128 * 32 + i % 32] >> (i % 128 / 32 * 2) & 3;
    }
}

/// `d`, `dmin`, eight scales and minima of six bits in twelve bytes, then for five bits 32 bytes of
/// fifth bits, then nibbles: each 32 bytes hold a group in their low halves and one in their high.
fn q4_or_q5_k(block_type: Block, block: &[u8], out: &mut Unpacked) {
    let (d, least, packed) = (half(block, 0), half(block, 2), &block[4..16]);
    for group in 0..8_usize {
        let (scale, minimum) = match group.checked_sub(4) {
            None => (packed[group] & 63, packed[group + 4] & 63),
            // The later four have their upper two bits in those of the earlier four.
            Some(earlier) => (
                packed[group + 4] & 15 | packed[earlier] >> 6 << 4,
                packed[group + 4] >> 4 | packed[group] >> 6 << 4,
            ),
        };
        (out.scales[group], out.biases[group]) =
            (d * f32::from(scale), -least * f32::from(minimum));
    }
    let (fifths, nibbles) = match block_type {
        Block::Q5K => (Some(&block[16..48]), &block[48..]),
        _ => (None, &block[16..]),
    };
    for (i, q) in out.q.iter_mut().enumerate() {
        let (group, within) = (i / 32, i % 32);
        *q = nibbles[group / 2 * 32 + within] >> (group % 2 * 4) & 15;
        if let Some(fifths) = fifths {
            *q |= (fifths[within] >> group & 1) << 4;
        }
    }
}

/// 128 bytes of low nibbles, 64 of upper twos, 16 signed scales, `d`.
fn q6_k(block: &[u8], out: &mut Unpacked) {
    let (low, high, scales, d) =
        (&block[..128], &block[128..192], &block[192..208], half(block, 208));
    for (group, scale) in scales.iter().enumerate() {
        let scale = d * f32::from(scale.cast_signed());
        (out.scales[group], out.biases[group]) = (scale, -32.0 * scale);
    }
    for (i, q) in out.q.iter_mut().enumerate() {
        // Four quarters of each half: 64 bytes hold two in their low halves and two in their high.
        let (side, quarter, within) = (i / 128, i % 128 / 32, i % 32);
        let nibble = low[side * 64 + quarter % 2 * 32 + within] >> (quarter / 2 * 4) & 15;
        let upper = high[side * 32 + within] >> (quarter * 2) & 3;
        *q = nibble | upper << 4;
    }
}

fn half(block: &[u8], at: usize) -> f32 {
    f16::from_le_bytes([block[at], block[at + 1]]).to_f32()
}

/// Values in a block of the types whose names end in `K`.
const SUPER_BLOCK: usize = 256;
const GROUP_MIN: usize = 16;

#[cfg(test)]
pub(super) mod tests {
    use std::fs;
    use std::path::Path;

    use super::*;

    /// Blocks of a type and what the Python package `gguf` says they mean.
    pub(in super::super) fn golden(block: Block) -> (Vec<u8>, Vec<f32>) {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/gguf");
        let bytes = fs::read(folder.join(format!("{}.bin", block.kind()))).expect("a fixture");
        let count = bytes.len() / (block.bytes() + 4 * block.values());
        let (blocks, values) = bytes.split_at(count * block.bytes());
        let values = values.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes));
        (blocks.to_vec(), values.collect())
    }

    #[test]
    fn every_type_means_what_the_reference_says() {
        for block in Block::ALL {
            let (blocks, expected) = golden(block);
            let mut got = Vec::new();
            block.dequantise(&blocks, &mut got);
            assert_eq!(got, expected, "{}", block.kind());
            assert!(got.len() >= 2 * block.values(), "{}", block.kind());
        }
    }

    #[test]
    fn numbers_stay_in_their_bits_whatever_the_bytes() {
        let mut out = Unpacked::new();
        for block in Block::ALL {
            for byte in [0x00, 0xFF, 0x5A] {
                block.unpack(&vec![byte; block.bytes()], &mut out);
                let q = &out.q[..block.values()];
                assert!(q.iter().all(|q| u32::from(*q) >> block.bits() == 0), "{}", block.kind());
            }
        }
    }

    #[test]
    fn a_part_of_a_block_is_left_out() {
        for block in Block::ALL {
            let (blocks, expected) = golden(block);
            for length in 0..=block.bytes() * 2 {
                let mut got = Vec::new();
                block.dequantise(&blocks[..length], &mut got);
                let whole = length / block.bytes() * block.values();
                assert_eq!(got, expected[..whole], "{} {length}", block.kind());
            }
        }
    }
}
