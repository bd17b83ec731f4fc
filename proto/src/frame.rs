//! How bytes are cut into messages, on every wire and socket of Daisy.
//!
//! ```text
//! header length u32 LE | payload length u32 LE | header (postcard) | payload (raw)
//! ```
//!
//! The header says what the message is; bulk data (a hidden state) follows it raw, so it never
//! passes a serialiser. A frame does not know what its header means: [`encode`] and [`decode`] are
//! generic, and [`Decoder`] only cuts. Both lengths are checked against [`Limits`] before a byte of
//! the frame is kept, and nothing is allocated for bytes that have not come.

use std::collections::VecDeque;

use bytes::{Bytes, BytesMut};
use serde::Serialize;
use serde::de::DeserializeOwned;

/// One message as it came: the header is still encoded, see [`decode`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Frame {
    pub header: Bytes,
    pub payload: Bytes,
}

/// How long the two parts of a frame may be in one conversation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    pub header_bytes: usize,
    pub payload_bytes: usize,
}

impl Limits {
    /// Rank ↔ rank: small headers, hidden states.
    pub const EDGE: Self =
        Self { header_bytes: MAX_HEADER_BYTES, payload_bytes: MAX_PAYLOAD_BYTES };
    /// Node ↔ node: small headers alone.
    pub const CONTROL: Self = Self { header_bytes: MAX_HEADER_BYTES, payload_bytes: 0 };
    /// Files from node to node: lists of them as headers, their bytes as payload.
    pub const FILES: Self =
        Self { header_bytes: MAX_LIST_HEADER_BYTES, payload_bytes: crate::files::CHUNK_BYTES_MAX };
    /// Sockets on one machine, where a header can hold a prompt.
    pub const LOCAL: Self = Self { header_bytes: MAX_LOCAL_HEADER_BYTES, payload_bytes: 0 };
    /// What some conversation allows.
    const WIDEST: Self =
        Self { header_bytes: MAX_LOCAL_HEADER_BYTES, payload_bytes: MAX_PAYLOAD_BYTES };

    const fn check(self, prefix: Prefix) -> Result<(), FrameError> {
        let Prefix { header_len, payload_len } = prefix;
        if header_len > self.header_bytes {
            return Err(FrameError::HeaderTooLong { got: header_len, limit: self.header_bytes });
        }
        if payload_len > self.payload_bytes {
            return Err(FrameError::PayloadTooLong { got: payload_len, limit: self.payload_bytes });
        }
        Ok(())
    }
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    #[error("frame header of {got} bytes is above the limit of {limit}")]
    HeaderTooLong { got: usize, limit: usize },
    #[error("frame payload of {got} bytes is above the limit of {limit}")]
    PayloadTooLong { got: usize, limit: usize },
    #[error("the stream ended within a frame ({buffered} bytes of it had come)")]
    Truncated { buffered: usize },
    #[error("frame header cannot be written: {0}")]
    Encode(postcard::Error),
    #[error("frame header cannot be read: {0}")]
    Decode(postcard::Error),
    #[error("frame header has {count} bytes after its message")]
    TrailingBytes { count: usize },
}

/// Prefix and header of a frame in one buffer. The caller writes the `payload_len` bytes of the
/// payload after it as they are.
///
/// ```
/// use daisy_proto::frame::{Decoder, Limits, decode, encode};
///
/// let mut decoder = Decoder::new(Limits::EDGE);
/// decoder.push(encode(&("step", 7_u32), 3)?);
/// assert_eq!(decoder.next()?, None);
/// decoder.push(bytes::Bytes::from_static(b"abc"));
/// let frame = decoder.next()?.expect("the frame is complete");
/// assert_eq!(decode::<(String, u32)>(&frame.header)?, ("step".to_owned(), 7));
/// assert_eq!(&frame.payload[..], b"abc");
/// # Ok::<(), daisy_proto::frame::FrameError>(())
/// ```
pub fn encode<T: Serialize + ?Sized>(header: &T, payload_len: usize) -> Result<Bytes, FrameError> {
    encode_within(Limits::WIDEST, header, payload_len)
}

/// As [`encode`], but a frame that the other end of this conversation would refuse is refused here,
/// where its maker can be named.
pub fn encode_within<T: Serialize + ?Sized>(
    limits: Limits,
    header: &T,
    payload_len: usize,
) -> Result<Bytes, FrameError> {
    let mut buffer =
        postcard::to_extend(header, vec![0; PREFIX_BYTES]).map_err(FrameError::Encode)?;
    let prefix = Prefix { header_len: buffer.len() - PREFIX_BYTES, payload_len };
    limits.check(prefix)?;
    buffer[..PREFIX_BYTES].copy_from_slice(&prefix.write());
    Ok(buffer.into())
}

/// The lengths of header and payload that a frame's first bytes promise: for a reader that blocks and
/// takes the two apart by itself.
pub fn lengths(limits: Limits, prefix: [u8; PREFIX_BYTES]) -> Result<(usize, usize), FrameError> {
    let prefix = Prefix::read(prefix);
    limits.check(prefix)?;
    Ok((prefix.header_len, prefix.payload_len))
}

/// The message of a frame's header. Bytes after it are an error: they would be a field that the
/// sender believes in and this side ignores.
pub fn decode<T: DeserializeOwned>(header: &[u8]) -> Result<T, FrameError> {
    let (message, rest) = postcard::take_from_bytes(header).map_err(FrameError::Decode)?;
    if rest.is_empty() { Ok(message) } else { Err(FrameError::TrailingBytes { count: rest.len() }) }
}

/// Cuts a stream of chunks into frames.
///
/// Memory: call [`Decoder::next`] until it gives `None` after each [`Decoder::push`]; then at most
/// one frame within the limits and the last chunk are held. A part of a frame that lies in one chunk
/// is a slice of it; a part that spans chunks is copied once into a buffer of its exact size, when
/// all of it is there. After an error the stream has no more boundaries: every later call repeats
/// the error.
#[derive(Debug)]
pub struct Decoder {
    limits: Limits,
    chunks: VecDeque<Bytes>,
    /// Chunks too small to be worth keeping apart are gathered here, behind `chunks`.
    tail: BytesMut,
    buffered: usize,
    prefix: Option<Prefix>,
    failed: Option<FrameError>,
}

impl Decoder {
    #[must_use]
    pub fn new(limits: Limits) -> Self {
        Self {
            limits,
            chunks: VecDeque::new(),
            tail: BytesMut::new(),
            buffered: 0,
            prefix: None,
            failed: None,
        }
    }

    pub fn push(&mut self, chunk: Bytes) {
        if self.failed.is_some() || chunk.is_empty() {
            return;
        }
        self.buffered += chunk.len();
        if chunk.len() < SMALL_CHUNK_BYTES {
            if self.tail.capacity() - self.tail.len() < chunk.len() {
                self.flush_tail();
                self.tail.reserve(TAIL_BYTES);
            }
            self.tail.extend_from_slice(&chunk);
        } else {
            self.flush_tail();
            self.chunks.push_back(chunk);
        }
    }

    /// The next whole frame, if all its bytes have come.
    #[expect(clippy::should_implement_trait, reason = "an iterator that ends is not what this is")]
    pub fn next(&mut self) -> Result<Option<Frame>, FrameError> {
        if let Some(error) = &self.failed {
            return Err(error.clone());
        }
        let Some(prefix) = self.prefix()? else { return Ok(None) };
        if self.buffered < prefix.header_len + prefix.payload_len {
            return Ok(None);
        }
        self.prefix = None;
        let header = self.take(prefix.header_len);
        let payload = self.take(prefix.payload_len);
        Ok(Some(Frame { header, payload }))
    }

    /// Bytes that came and were not handed out yet.
    #[must_use]
    pub const fn buffered(&self) -> usize {
        self.buffered + if self.prefix.is_some() { PREFIX_BYTES } else { 0 }
    }

    /// Call when the stream ended: an error if it ended within a frame.
    pub const fn finish(&self) -> Result<(), FrameError> {
        match self.buffered() {
            0 => Ok(()),
            buffered => Err(FrameError::Truncated { buffered }),
        }
    }

    /// Reads the lengths as soon as they are there, so that a damaged one is refused before its
    /// bytes come.
    fn prefix(&mut self) -> Result<Option<Prefix>, FrameError> {
        if self.prefix.is_none() && self.buffered >= PREFIX_BYTES {
            let mut bytes = [0; PREFIX_BYTES];
            bytes.copy_from_slice(&self.take(PREFIX_BYTES));
            let prefix = Prefix::read(bytes);
            if let Err(error) = self.limits.check(prefix) {
                let limits = self.limits;
                *self = Self { failed: Some(error.clone()), ..Self::new(limits) };
                return Err(error);
            }
            self.prefix = Some(prefix);
        }
        Ok(self.prefix)
    }

    /// Takes `len` bytes that must have come.
    fn take(&mut self, len: usize) -> Bytes {
        debug_assert!(len <= self.buffered, "only bytes that came are taken");
        if len == 0 {
            return Bytes::new();
        }
        if self.chunks.front().map_or(0, Bytes::len) < len {
            self.flush_tail();
        }
        self.buffered -= len;
        match self.chunks.front_mut() {
            Some(front) if front.len() > len => front.split_to(len),
            Some(front) if front.len() == len => self.chunks.pop_front().unwrap_or_default(),
            _ => self.gather(len),
        }
    }

    fn gather(&mut self, len: usize) -> Bytes {
        let mut whole = Vec::with_capacity(len);
        while whole.len() < len
            && let Some(mut front) = self.chunks.pop_front()
        {
            let part = front.split_to(front.len().min(len - whole.len()));
            whole.extend_from_slice(&part);
            if !front.is_empty() {
                self.chunks.push_front(front);
            }
        }
        whole.into()
    }

    fn flush_tail(&mut self) {
        if !self.tail.is_empty() {
            self.chunks.push_back(self.tail.split().freeze());
        }
    }
}

/// The two lengths in front of each frame.
#[derive(Debug, Clone, Copy)]
struct Prefix {
    header_len: usize,
    payload_len: usize,
}

impl Prefix {
    fn read(bytes: [u8; PREFIX_BYTES]) -> Self {
        let [h0, h1, h2, h3, p0, p1, p2, p3] = bytes;
        Self {
            header_len: u32::from_le_bytes([h0, h1, h2, h3]) as usize,
            payload_len: u32::from_le_bytes([p0, p1, p2, p3]) as usize,
        }
    }

    fn write(self) -> [u8; PREFIX_BYTES] {
        let [h0, h1, h2, h3] = length_u32(self.header_len).to_le_bytes();
        let [p0, p1, p2, p3] = length_u32(self.payload_len).to_le_bytes();
        [h0, h1, h2, h3, p0, p1, p2, p3]
    }
}

/// Lengths within any [`Limits`] that we write fit by far.
fn length_u32(len: usize) -> u32 {
    u32::try_from(len).expect("a length within the limits fits 32 bits")
}

/// Two u32.
pub const PREFIX_BYTES: usize = 8;
/// A step's header with [`crate::link::MAX_ROWS`] rows and as many releases, each at its longest,
/// is 63,488 bytes and some fixed fields.
pub const MAX_HEADER_BYTES: usize = 64 * 1024;
/// 4096 files with names of 240 bytes.
pub const MAX_LIST_HEADER_BYTES: usize = 1024 * 1024;
/// A prompt token is at most 5 bytes, 3 in any vocabulary below 2,097,152 tokens: 8 MiB hold a
/// prompt of 1,677,721 tokens at the worst, beyond every model's context.
pub const MAX_LOCAL_HEADER_BYTES: usize = 8 * 1024 * 1024;
/// The largest hidden state: 4,096 positions × 16,384 elements × 4 bytes (f32), or twice the
/// positions in 2 bytes (bf16, f16) = 256 MiB. The largest open models have widths of 16,384.
pub const MAX_PAYLOAD_BYTES: usize = 256 * 1024 * 1024;
/// Below this a chunk's own bookkeeping and the buffer that it keeps alive outweigh a copy. Chunks
/// of a QUIC stream are a packet's worth, 1,100 bytes and more, and stay whole.
const SMALL_CHUNK_BYTES: usize = 1024;
const TAIL_BYTES: usize = 4 * SMALL_CHUNK_BYTES;
