//! Floats of 16 and 32 bits: read as f32, and written in a type that may not hold all of them.

use daisy_proto::Dtype;
use half::{bf16, f16};

use crate::model::StoredDtype;

/// Little-endian floats of one type.
#[derive(Debug)]
pub(super) struct Floats {
    dtype: Dtype,
    bytes: Vec<u8>,
    fit: bool,
}

impl Floats {
    pub const fn new(dtype: Dtype) -> Self {
        Self { dtype, bytes: Vec::new(), fit: true }
    }

    /// Rounds to the nearest.
    pub fn push(&mut self, value: f32) {
        let written = match self.dtype {
            Dtype::F32 => {
                self.bytes.extend(value.to_le_bytes());
                value
            }
            Dtype::F16 => {
                let value = f16::from_f32(value);
                self.bytes.extend(value.to_le_bytes());
                value.to_f32()
            }
            Dtype::Bf16 => {
                let value = bf16::from_f32(value);
                self.bytes.extend(value.to_le_bytes());
                value.to_f32()
            }
        };
        self.fit &= written.is_finite();
    }

    #[cfg(test)]
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    pub fn into_bytes(self) -> Vec<u8> {
        self.bytes
    }

    /// Whether everything that was written is a finite number.
    pub const fn fit(&self) -> bool {
        self.fit
    }
}

/// Appends floats of a type; part of one at the end is left out.
pub(super) fn decode(dtype: Dtype, bytes: &[u8], out: &mut Vec<f32>) {
    match dtype {
        Dtype::F32 => out.extend(bytes.as_chunks().0.iter().map(|b| f32::from_le_bytes(*b))),
        Dtype::F16 => {
            out.extend(bytes.as_chunks().0.iter().map(|b| f16::from_le_bytes(*b).to_f32()));
        }
        Dtype::Bf16 => {
            out.extend(bytes.as_chunks().0.iter().map(|b| bf16::from_le_bytes(*b).to_f32()));
        }
    }
}

/// The value as a type holds it.
pub(super) fn rounded(dtype: Dtype, value: f32) -> f32 {
    match dtype {
        Dtype::F32 => value,
        Dtype::F16 => f16::from_f32(value).to_f32(),
        Dtype::Bf16 => bf16::from_f32(value).to_f32(),
    }
}

/// As safetensors name it.
pub(super) const fn stored(dtype: Dtype) -> StoredDtype {
    match dtype {
        Dtype::F32 => StoredDtype::F32,
        Dtype::F16 => StoredDtype::F16,
        Dtype::Bf16 => StoredDtype::Bf16,
    }
}

/// As configs name it.
pub(super) const fn torch_name(dtype: Dtype) -> &'static str {
    match dtype {
        Dtype::F32 => "float32",
        Dtype::F16 => "float16",
        Dtype::Bf16 => "bfloat16",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn floats_are_rounded_to_the_nearest_and_beyond_the_largest_is_seen() {
        for (dtype, value, expected, fits) in [
            (Dtype::F16, 1.0 + 2.0_f32.powi(-11), 1.0, true),
            (Dtype::F16, 1.0 + 3.0 * 2.0_f32.powi(-11), 1.0 + 2.0_f32.powi(-9), true),
            (Dtype::F16, 65504.0, 65504.0, true),
            (Dtype::F16, 65520.0, f32::INFINITY, false),
            (Dtype::F16, 2.0_f32.powi(-24), 2.0_f32.powi(-24), true),
            (Dtype::Bf16, 65520.0, 65536.0, true),
            (Dtype::Bf16, 1.0 + 2.0_f32.powi(-8), 1.0, true),
            (Dtype::F32, 0.1, 0.1, true),
            (Dtype::F32, f32::NAN, f32::NAN, false),
        ] {
            let mut floats = Floats::new(dtype);
            floats.push(value);
            let mut back = Vec::new();
            decode(dtype, floats.bytes(), &mut back);
            assert_eq!(floats.fit(), fits, "{value} as {dtype:?}");
            assert_eq!(back[0].to_bits(), expected.to_bits(), "{value} as {dtype:?}");
            assert_eq!(rounded(dtype, value).to_bits(), expected.to_bits());
        }
    }
}
