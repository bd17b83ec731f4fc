//! GGUF's blocks as MLX's affine groups, bit for bit.
//!
//! A `Q4_1` block holds `d`, `m` and 32 numbers `q` of four bits, and means `d·q + m`; a `Q8_0`
//! block holds `d` and 32 signed numbers `q` of eight bits, and means `d·q`. MLX's affine form means
//! `scale·q + bias` with unsigned `q`. So the first is `scale = d, bias = m`, the second
//! `scale = d, bias = −128·d` with 128 added to `q`; both are exact, and scales become f32 because
//! that holds every f16, and every f16 times 128, without loss.

/// A matrix of blocks in MLX's form: three tensors, little-endian, one after the other row by row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Affine {
    /// u32 words; the first value is in the lowest bits.
    pub weight: Vec<u8>,
    /// f32, one per block.
    pub scales: Vec<u8>,
    /// f32, one per block.
    pub biases: Vec<u8>,
}

/// A type of block that MLX's affine form holds exactly.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Block {
    Q4_1,
    Q8_0,
}

impl Block {
    pub const fn bits(self) -> u32 {
        match self {
            Self::Q4_1 => 4,
            Self::Q8_0 => 8,
        }
    }

    pub const fn bytes(self) -> usize {
        match self {
            Self::Q4_1 => 20,
            Self::Q8_0 => 34,
        }
    }
}

/// Takes blocks, which may end in part of one that is left out.
pub(super) fn affine(block: Block, blocks: &[u8]) -> Affine {
    let count = blocks.len() / block.bytes();
    let mut out = Affine {
        weight: Vec::with_capacity(count * GROUP * block.bits() as usize / 8),
        scales: Vec::with_capacity(count * 4),
        biases: Vec::with_capacity(count * 4),
    };
    for bytes in blocks.chunks_exact(block.bytes()) {
        let d = f16(bytes[0], bytes[1]);
        out.scales.extend(d.to_le_bytes());
        match block {
            Block::Q4_1 => {
                out.biases.extend(f16(bytes[2], bytes[3]).to_le_bytes());
                // The low halves of the 16 bytes come first, then the high ones.
                let (pairs, _) = bytes[4..].as_chunks::<2>();
                out.weight.extend(pairs.iter().map(|[a, b]| (a & 15) | (b & 15) << 4));
                out.weight.extend(pairs.iter().map(|[a, b]| a >> 4 | (b >> 4) << 4));
            }
            Block::Q8_0 => {
                out.biases.extend((-128.0 * d).to_le_bytes());
                // Adding 128 to a signed byte turns its highest bit.
                out.weight.extend(bytes[2..].iter().map(|q| q ^ 0x80));
            }
        }
    }
    out
}

/// llama.cpp stores a head's query and key rows as pairs that its rotation turns together; Hugging
/// Face and MLX have the first of all pairs, then the second. Takes `rows` equal rows of bytes;
/// `heads` must divide `rows` evenly.
pub(super) fn unpermuted(bytes: &[u8], rows: usize, heads: usize) -> Vec<u8> {
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

fn f16(low: u8, high: u8) -> f32 {
    let bits = u16::from_le_bytes([low, high]);
    let sign = if bits & 0x8000 == 0 { 1.0 } else { -1.0 };
    let (exponent, fraction) = (u32::from(bits >> 10 & 0x1F), u32::from(bits & 0x3FF));
    match exponent {
        // Subnormal: the fraction times 2⁻²⁴, which f32 holds exactly.
        0 => sign * f32::from(bits & 0x3FF) * f32::from_bits(103 << 23),
        31 => f32::from_bits(u32::from(bits & 0x8000) << 16 | 0xFF << 23 | fraction << 13),
        _ => {
            f32::from_bits(u32::from(bits & 0x8000) << 16 | (exponent + 112) << 23 | fraction << 13)
        }
    }
}

/// Values per block, and MLX's group size.
pub(super) const GROUP: usize = 32;

#[cfg(test)]
mod tests {
    use super::*;

    /// What llama.cpp's documentation says a block means, value by value.
    fn meant(block: Block, bytes: &[u8]) -> Vec<f32> {
        let d = f16(bytes[0], bytes[1]);
        (0..GROUP)
            .map(|i| match block {
                Block::Q4_1 => {
                    let byte = bytes[4 + i % 16];
                    let q = if i < 16 { byte & 15 } else { byte >> 4 };
                    d * f32::from(q) + f16(bytes[2], bytes[3])
                }
                Block::Q8_0 => d * f32::from(bytes[2 + i].cast_signed()),
            })
            .collect()
    }

    fn low_bits(word: u32, bits: u32) -> u8 {
        u8::try_from(word & ((1 << bits) - 1)).expect("at most eight bits")
    }

    /// What MLX reads from its three tensors.
    fn read(bits: u32, affine: &Affine) -> Vec<f32> {
        let f32s = |bytes: &[u8]| -> Vec<f32> {
            bytes.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect()
        };
        let words = affine.weight.as_chunks().0.iter().map(|bytes| u32::from_le_bytes(*bytes));
        let (scales, biases) = (f32s(&affine.scales), f32s(&affine.biases));
        words
            .flat_map(|word| (0..32 / bits).map(move |i| low_bits(word >> (i * bits), bits)))
            .enumerate()
            .map(|(i, q)| scales[i / GROUP] * f32::from(q) + biases[i / GROUP])
            .collect()
    }

    #[test]
    fn blocks_mean_the_same_in_both_forms() {
        let mut state = 0x9E37_79B9_u32;
        let mut random = || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 24) as u8
        };
        for block in [Block::Q4_1, Block::Q8_0] {
            for round in 0..200_u8 {
                let mut bytes: Vec<u8> = (0..2 * block.bytes()).map(|_| random()).collect();
                for start in [0, block.bytes()] {
                    // Scales of every exponent up to 2⁹, subnormal ones too, and no infinity.
                    bytes[start + 1] &= 0xBF | (round & 0x20);
                    bytes[start + 3] &= if block == Block::Q4_1 { 0xBF } else { 0xFF };
                }
                let expected: Vec<f32> =
                    bytes.chunks(block.bytes()).flat_map(|bytes| meant(block, bytes)).collect();
                assert_eq!(
                    read(block.bits(), &affine(block, &bytes)),
                    expected,
                    "{block:?} {bytes:?}"
                );
            }
        }
    }

    #[test]
    fn a_known_block_gives_known_bits() {
        // d = 0.5, m = −2, and byte i holds i below and 15 − i above.
        let mut bytes = vec![0x00, 0x38, 0x00, 0xC0];
        bytes.extend((0..16_u8).map(|i| i | (15 - i) << 4));
        let got = affine(Block::Q4_1, &bytes);
        let words = [0x7654_3210_u32, 0xFEDC_BA98, 0x89AB_CDEF, 0x0123_4567];
        assert_eq!(got.weight, words.map(u32::to_le_bytes).concat());
        assert_eq!(got.scales, 0.5_f32.to_le_bytes());
        assert_eq!(got.biases, (-2.0_f32).to_le_bytes());

        let mut bytes = vec![0x00, 0x38];
        bytes.extend((0..32_i8).map(|i| (i - 16).cast_unsigned()));
        let got = affine(Block::Q8_0, &bytes);
        assert_eq!(got.weight, (112..144).collect::<Vec<u8>>());
        assert_eq!(got.biases, (-64.0_f32).to_le_bytes());
    }

    #[test]
    fn half_floats_are_exact() {
        for (bits, expected) in [
            (0x0000_u16, 0.0_f32),
            (0x0001, 2.0_f32.powi(-24)),
            (0x83FF, -1023.0 * 2.0_f32.powi(-24)),
            (0x0400, 2.0_f32.powi(-14)),
            (0x3C00, 1.0),
            (0xC000, -2.0),
            (0x3555, 0.333_251_95),
            (0x7BFF, 65504.0),
            (0x7C00, f32::INFINITY),
        ] {
            let [low, high] = bits.to_le_bytes();
            assert_eq!(f16(low, high).to_bits(), expected.to_bits(), "{bits:#06x}");
        }
        assert!(f16(0x01, 0x7E).is_nan());
        assert_eq!(f16(0x00, 0x80).to_bits(), (-0.0_f32).to_bits());
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
