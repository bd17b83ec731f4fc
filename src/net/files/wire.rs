//! Frames over a blocking TLS stream.

use std::io::{self, Read, Write};

use daisy_proto::frame::{self, FrameError, Limits, PREFIX_BYTES};
use serde::Serialize;
use serde::de::DeserializeOwned;

#[derive(Debug, thiserror::Error)]
pub(super) enum WireError {
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error(transparent)]
    Frame(#[from] FrameError),
}

/// Reads one message; its payload replaces what was in `payload`.
pub(super) fn read<T: DeserializeOwned>(
    stream: &mut impl Read,
    payload: &mut Vec<u8>,
) -> Result<T, WireError> {
    let mut prefix = [0; PREFIX_BYTES];
    stream.read_exact(&mut prefix)?;
    let (header_len, payload_len) = frame::lengths(Limits::FILES, prefix)?;
    let mut header = vec![0; header_len];
    stream.read_exact(&mut header)?;
    payload.resize(payload_len, 0);
    stream.read_exact(payload)?;
    Ok(frame::decode(&header)?)
}

pub(super) fn write<T: Serialize>(
    stream: &mut impl Write,
    message: &T,
    payload: &[u8],
) -> Result<(), WireError> {
    let head = frame::encode_within(Limits::FILES, message, payload.len())?;
    stream.write_all(&head)?;
    stream.write_all(payload)?;
    stream.flush()?;
    Ok(())
}
