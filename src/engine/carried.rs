//! The hidden state that rank 0's head gets: bytes that another rank sent, or, where the chain has
//! one rank, rows that never left the device.
//!
//! What stays on the device need not be waited for, so the host builds a step while the device
//! computes the one before it. Bytes and rows hold the same values.

use std::fmt;

use bytes::BytesMut;
use daisy_proto::{Dtype, Hidden};
use mlx_rs::Array;

use super::error::EngineError;
use super::host::{Submitted, all_rows, array_of, size};

/// One position of each sequence, on its way to the head.
#[derive(Debug)]
pub enum Carried {
    Bytes(Hidden),
    Device(OnDevice),
}

/// Rows that are computed or being computed on the device of the thread that holds them.
pub struct OnDevice {
    array: Submitted,
    /// The rows that count, in order; none: all.
    kept: Option<Vec<i32>>,
    dtype: Dtype,
    tokens: u32,
    width: u32,
}

impl From<Hidden> for Carried {
    fn from(hidden: Hidden) -> Self {
        Self::Bytes(hidden)
    }
}

impl Carried {
    pub const fn dtype(&self) -> Dtype {
        match self {
            Self::Bytes(hidden) => hidden.dtype,
            Self::Device(rows) => rows.dtype,
        }
    }

    pub const fn tokens(&self) -> u32 {
        match self {
            Self::Bytes(hidden) => hidden.tokens,
            Self::Device(rows) => rows.tokens,
        }
    }

    pub const fn width(&self) -> u32 {
        match self {
            Self::Bytes(hidden) => hidden.width,
            Self::Device(rows) => rows.width,
        }
    }

    /// The rows that `keep` marks. Where all stay nothing is copied.
    #[must_use]
    pub fn keep(self, keep: &[bool]) -> Self {
        if keep.iter().all(|kept| *kept) {
            return self;
        }
        match self {
            Self::Bytes(hidden) => Self::Bytes(keep_rows(&hidden, keep)),
            Self::Device(rows) => Self::Device(rows.keep(keep)),
        }
    }

    /// For another rank. Waits for what is still being computed.
    pub fn into_bytes(self) -> Result<Hidden, EngineError> {
        match self {
            Self::Bytes(hidden) => Ok(hidden),
            Self::Device(rows) => rows.into_bytes(),
        }
    }

    /// `[tokens, width]` in `dtype`, not waited for.
    pub(super) fn array(&self, dtype: Dtype) -> Result<Array, EngineError> {
        match self {
            Self::Bytes(hidden) => array_of(hidden, dtype),
            Self::Device(rows) => rows.array(),
        }
    }
}

impl OnDevice {
    pub(super) const fn new(array: Submitted, dtype: Dtype, tokens: u32, width: u32) -> Self {
        Self { array, kept: None, dtype, tokens, width }
    }

    fn keep(self, keep: &[bool]) -> Self {
        let all = self.kept.unwrap_or_else(|| (0..self.tokens.cast_signed()).collect());
        let kept: Vec<i32> =
            all.into_iter().zip(keep).filter(|(_, kept)| **kept).map(|(row, _)| row).collect();
        #[expect(clippy::cast_possible_truncation, reason = "no more than there were")]
        let tokens = kept.len() as u32;
        Self { kept: Some(kept), tokens, ..self }
    }

    fn array(&self) -> Result<Array, EngineError> {
        let all = self.array.array();
        match &self.kept {
            None => Ok(all.clone()),
            Some(kept) => {
                let places = Array::from_slice(kept, &[size(kept.len() as u64)?]);
                Ok(all.take_axis(places, 0)?)
            }
        }
    }

    fn into_bytes(self) -> Result<Hidden, EngineError> {
        let hidden = all_rows(&self.array, self.dtype, self.width)?;
        let Some(kept) = self.kept else { return Ok(hidden) };
        let marks = (0..hidden.tokens.cast_signed()).map(|row| kept.contains(&row));
        Ok(keep_rows(&hidden, &marks.collect::<Vec<bool>>()))
    }
}

impl fmt::Debug for OnDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { array: _, kept, dtype, tokens, width } = self;
        f.debug_struct("OnDevice")
            .field("kept", kept)
            .field("dtype", dtype)
            .field("tokens", tokens)
            .field("width", width)
            .finish_non_exhaustive()
    }
}

fn keep_rows(hidden: &Hidden, keep: &[bool]) -> Hidden {
    let row_bytes = hidden.width as usize * hidden.dtype.size_bytes();
    let mut data = BytesMut::new();
    let mut tokens = 0;
    for (row, kept) in hidden.data.chunks(row_bytes).zip(keep) {
        if *kept {
            data.extend_from_slice(row);
            tokens += 1;
        }
    }
    Hidden { tokens, data: data.freeze(), ..*hidden }
}

#[cfg(test)]
mod tests {
    use std::iter;

    use bytes::Bytes;

    use super::super::host::Submissions;
    use super::*;

    fn bytes() -> Hidden {
        let values: Vec<u8> = (1..=3).flat_map(|v: u8| f32::from(v).to_ne_bytes()).collect();
        Hidden::new(Dtype::F32, 3, 1, Bytes::from(values)).expect("fits")
    }

    #[test]
    fn rows_that_ended_are_left_out() {
        let on_device = || {
            let array = array_of(&bytes(), Dtype::F32).expect("an array");
            let array = Submissions::default().submit(array, iter::empty()).expect("submitted");
            Carried::Device(OnDevice::new(array, Dtype::F32, 3, 1))
        };
        let makes: [&dyn Fn() -> Carried; 2] = [&|| Carried::Bytes(bytes()), &on_device];
        for make in makes {
            assert_eq!(make().keep(&[true; 3]).into_bytes().expect("rows"), bytes());
            let kept = make().keep(&[true, false, true]);
            assert_eq!((kept.tokens(), kept.dtype(), kept.width()), (2, Dtype::F32, 1));
            let array = kept.array(Dtype::F32).expect("an array");
            array.eval().expect("computed");
            assert_eq!(array.try_as_slice::<f32>().expect("f32"), [1.0, 3.0]);
            let last = kept.keep(&[false, true]).into_bytes().expect("rows");
            assert_eq!((last.tokens, &last.data[..]), (1, &3_f32.to_ne_bytes()[..]));
        }
    }
}
