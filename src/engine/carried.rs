//! The hidden state that rank 0's head gets: bytes that another rank sent, or, where the chain has
//! one rank, rows that never left the device.
//!
//! What stays on the device need not be waited for, so the host builds a step while the device
//! computes the one before it. Bytes and rows hold the same values.

use std::fmt;

use bytes::BytesMut;
use daisy_proto::{Dtype, Hidden};
use mlx_rs::{Array, ops};

use super::error::EngineError;
use super::host::{Submitted, all_rows, array_of, size};

/// One position of each sequence, on its way to the head. A clone copies no rows.
#[derive(Debug, Clone)]
pub enum Carried {
    Bytes(Hidden),
    Device(OnDevice),
    /// Of several steps, not all of them bytes; see [`Carried::join`].
    Joined(Vec<Self>),
}

/// Rows that are computed or being computed on the device of the thread that holds them.
#[derive(Clone)]
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
    /// The rows of all `parts`, which are at least one and of one width, in their order.
    pub fn join(mut parts: Vec<Self>) -> Self {
        if parts.len() == 1 {
            return parts.remove(0);
        }
        let bytes = |part: &Self| match part {
            Self::Bytes(hidden) => Some(hidden.clone()),
            Self::Device(_) | Self::Joined(_) => None,
        };
        let all: Option<Vec<Hidden>> = parts.iter().map(bytes).collect();
        match all {
            Some(all) if all.iter().all(|hidden| hidden.dtype == all[0].dtype) => {
                Self::Bytes(joined(&all))
            }
            _ => Self::Joined(parts),
        }
    }

    pub fn dtype(&self) -> Dtype {
        match self {
            Self::Bytes(hidden) => hidden.dtype,
            Self::Device(rows) => rows.dtype,
            Self::Joined(parts) => parts[0].dtype(),
        }
    }

    pub fn tokens(&self) -> u32 {
        match self {
            Self::Bytes(hidden) => hidden.tokens,
            Self::Device(rows) => rows.tokens,
            Self::Joined(parts) => parts.iter().map(Self::tokens).sum(),
        }
    }

    pub fn width(&self) -> u32 {
        match self {
            Self::Bytes(hidden) => hidden.width,
            Self::Device(rows) => rows.width,
            Self::Joined(parts) => parts[0].width(),
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
            Self::Joined(parts) => {
                let mut rest = keep;
                let kept = parts.into_iter().map(|part| {
                    let (own, others) = rest.split_at(part.tokens() as usize);
                    rest = others;
                    part.keep(own)
                });
                Self::join(kept.filter(|part| part.tokens() > 0).collect())
            }
        }
    }

    /// For another rank. Waits for what is still being computed.
    pub fn into_bytes(self) -> Result<Hidden, EngineError> {
        match self {
            Self::Bytes(hidden) => Ok(hidden),
            Self::Device(rows) => rows.into_bytes(),
            Self::Joined(parts) => {
                let parts = parts.into_iter().map(Self::into_bytes);
                Ok(joined(&parts.collect::<Result<Vec<_>, _>>()?))
            }
        }
    }

    /// `[tokens, width]` in `dtype`, not waited for.
    pub(super) fn array(&self, dtype: Dtype) -> Result<Array, EngineError> {
        match self {
            Self::Bytes(hidden) => array_of(hidden, dtype),
            Self::Device(rows) => rows.array(),
            Self::Joined(parts) => {
                let arrays = parts.iter().map(|part| part.array(dtype));
                Ok(ops::concatenate(&arrays.collect::<Result<Vec<_>, _>>()?, 0)?)
            }
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

/// The rows of all, one behind the other.
fn joined(all: &[Hidden]) -> Hidden {
    let mut data = BytesMut::new();
    for hidden in all {
        data.extend_from_slice(&hidden.data);
    }
    let tokens = all.iter().map(|hidden| hidden.tokens).sum();
    Hidden { tokens, data: data.freeze(), ..all[0] }
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

    #[test]
    fn rows_of_several_steps_are_joined_in_their_order() {
        let on_device = || {
            let array = array_of(&bytes(), Dtype::F32).expect("an array");
            let array = Submissions::default().submit(array, iter::empty()).expect("submitted");
            Carried::Device(OnDevice::new(array, Dtype::F32, 3, 1))
        };
        let floats = |carried: &Carried| {
            let array = carried.array(Dtype::F32).expect("an array");
            array.eval().expect("computed");
            array.try_as_slice::<f32>().expect("f32").to_vec()
        };
        for second in [Carried::Bytes(bytes()), on_device()] {
            let first = Carried::Bytes(bytes()).keep(&[false, false, true]);
            let both = Carried::join(vec![first, second]);
            assert_eq!((both.tokens(), both.dtype(), both.width()), (4, Dtype::F32, 1));
            assert_eq!(floats(&both), [3.0, 1.0, 2.0, 3.0]);
            let kept = both.clone().keep(&[true, false, true, false]);
            assert_eq!(floats(&kept), [3.0, 2.0]);
            assert_eq!(kept.into_bytes().expect("rows").tokens, 2);
            // None of the first step's rows is left.
            assert_eq!(floats(&both.keep(&[false, true, false, true])), [1.0, 3.0]);
        }
    }
}
