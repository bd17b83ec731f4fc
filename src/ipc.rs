//! Frames over Unix sockets: between a node and its rank, and between the command line and its
//! node. Two faces of one format, blocking for the rank (which has no runtime of its own) and
//! async for the node. It knows no message's meaning.

use std::fs;
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::os::unix::net::UnixStream as BlockingStream;
use std::path::{Path, PathBuf};

use bytes::{Bytes, BytesMut};
use daisy_proto::frame::{self, Decoder, FrameError, Limits};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};

#[derive(Debug, thiserror::Error)]
pub enum IpcError {
    #[error("local socket: {0}")]
    Io(#[from] io::Error),
    #[error("local socket: {0}")]
    Frame(#[from] FrameError),
}

/// Reads messages one after another; blocks.
#[derive(Debug)]
pub struct BlockingReader {
    stream: BlockingStream,
    decoder: Decoder,
}

impl BlockingReader {
    pub fn new(stream: BlockingStream) -> Self {
        Self { stream, decoder: Decoder::new(Limits::LOCAL) }
    }

    /// The next message; none when the other side closed.
    pub fn read<T: DeserializeOwned>(&mut self) -> Result<Option<T>, IpcError> {
        let mut buffer = vec![0; READ_BYTES];
        loop {
            if let Some(frame) = self.decoder.next()? {
                return Ok(Some(frame::decode(&frame.header)?));
            }
            let count = match self.stream.read(&mut buffer) {
                Ok(count) => count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(error.into()),
            };
            if count == 0 {
                self.decoder.finish()?;
                return Ok(None);
            }
            self.decoder.push(Bytes::copy_from_slice(&buffer[..count]));
        }
    }
}

/// Writes messages; blocks while the other side does not read.
#[derive(Debug)]
pub struct BlockingWriter(BlockingStream);

impl BlockingWriter {
    pub fn new(stream: BlockingStream) -> Self {
        Self(stream)
    }

    /// Another writer to the same socket: only one of them may be at work at a time.
    pub fn try_clone(&self) -> Result<Self, IpcError> {
        Ok(Self(self.0.try_clone()?))
    }

    pub fn write<T: Serialize>(&mut self, message: &T) -> Result<(), IpcError> {
        Ok(self.0.write_all(&frame::encode_within(Limits::LOCAL, message, 0)?)?)
    }
}

/// Reads messages one after another. Cancel-safe: what was read of a message is kept.
#[derive(Debug)]
pub struct Reader {
    stream: OwnedReadHalf,
    decoder: Decoder,
    buffer: BytesMut,
}

impl Reader {
    pub fn new(stream: OwnedReadHalf) -> Self {
        Self { stream, decoder: Decoder::new(Limits::LOCAL), buffer: BytesMut::new() }
    }

    /// The next message; none when the other side closed.
    pub async fn read<T: DeserializeOwned>(&mut self) -> Result<Option<T>, IpcError> {
        loop {
            if let Some(frame) = self.decoder.next()? {
                return Ok(Some(frame::decode(&frame.header)?));
            }
            self.buffer.reserve(READ_BYTES);
            if self.stream.read_buf(&mut self.buffer).await? == 0 {
                self.decoder.finish()?;
                return Ok(None);
            }
            self.decoder.push(self.buffer.split().freeze());
        }
    }
}

/// Writes messages. Not cancel-safe: drop the connection after a cancelled write.
#[derive(Debug)]
pub struct Writer(OwnedWriteHalf);

impl Writer {
    pub fn new(stream: OwnedWriteHalf) -> Self {
        Self(stream)
    }

    pub async fn write<T: Serialize>(&mut self, message: &T) -> Result<(), IpcError> {
        let bytes = frame::encode_within(Limits::LOCAL, message, 0)?;
        Ok(self.0.write_all(&bytes).await?)
    }
}

/// Where the node of `home` listens for its command line: in the home, which is private. A socket's
/// path is limited to 104 bytes on macOS, so that of a home with a long name lies in a private folder in
/// `/tmp`. It depends on the home alone: a service, a terminal and an ssh session have different
/// environments, and must find the same node.
pub fn socket_path(home: &Path) -> io::Result<PathBuf> {
    let home = fs::canonicalize(home)?;
    let within = home.join(SOCKET);
    if within.as_os_str().len() < SOCKET_PATH_BYTES_MAX {
        return Ok(within);
    }
    let hash = fnv1a(home.as_os_str().as_encoded_bytes());
    let owner = fs::metadata(&home)?.uid();
    let dir = PathBuf::from(format!("/tmp/daisy-{owner}-{hash:016x}"));
    match fs::DirBuilder::new().mode(0o700).create(&dir) {
        Ok(()) => {}
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
        Err(error) => return Err(error),
    }
    // Another user may have made the folder first, to listen in our place.
    let found = fs::symlink_metadata(&dir)?;
    if !found.is_dir() || found.uid() != owner || found.permissions().mode() & 0o077 != 0 {
        return Err(io::Error::other(format!(
            "{} is not a private folder of this user; remove it",
            dir.display()
        )));
    }
    Ok(dir.join(SOCKET))
}

/// Takes the socket away after its node has ended, and the folder that was made for it alone.
pub fn remove_socket(socket: &Path) {
    let _ = fs::remove_file(socket);
    if let Some(dir) = socket.parent().filter(|dir| dir.starts_with("/tmp")) {
        // A home is never empty, so this takes nothing else.
        let _ = fs::remove_dir(dir);
    }
}

/// FNV-1a: the name must be the same in every process of every build, which std's hasher is not.
fn fnv1a(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

const READ_BYTES: usize = 16 * 1024;
const SOCKET: &str = "node.sock";
/// With the zero at its end.
const SOCKET_PATH_BYTES_MAX: usize = 104;

#[cfg(test)]
mod tests {
    use daisy_proto::SeqId;
    use daisy_proto::local::ToRank;

    use super::*;

    #[tokio::test]
    async fn messages_cross_from_async_to_blocking_and_back() {
        let (ours, theirs) = BlockingStream::pair().expect("a pair");
        ours.set_nonblocking(true).expect("non-blocking");
        let (read, write) = tokio::net::UnixStream::from_std(ours).expect("async").into_split();
        let (mut reader, mut writer) = (Reader::new(read), Writer::new(write));
        let echo = std::thread::spawn(move || {
            let mut out = BlockingWriter::new(theirs.try_clone().expect("clone"));
            let mut input = BlockingReader::new(theirs);
            while let Some(message) = input.read::<ToRank>().expect("whole messages") {
                out.write(&message).expect("written");
            }
        });
        for seq in 0..100 {
            let message = ToRank::Cancel { seq: SeqId(seq) };
            writer.write(&message).await.expect("written");
            assert_eq!(reader.read().await.expect("read"), Some(message));
        }
        drop(writer);
        echo.join().expect("ends at end of file");
        assert_eq!(reader.read::<ToRank>().await.expect("closed"), None);
    }

    #[test]
    fn two_homes_have_two_sockets_and_short_names() {
        let (a, b) = (tempfile::tempdir().expect("dir"), tempfile::tempdir().expect("dir"));
        let (one, two) =
            (socket_path(a.path()).expect("path"), socket_path(b.path()).expect("path"));
        assert_ne!(one, two);
        assert_eq!(one, socket_path(a.path()).expect("the same again"));
        assert!(one.as_os_str().len() < 104);
    }

    #[test]
    fn a_home_with_a_long_name_has_a_socket_elsewhere_that_leaves_nothing() {
        let dir = tempfile::tempdir().expect("dir");
        let home = dir.path().join("x".repeat(120));
        fs::create_dir(&home).expect("home");
        let socket = socket_path(&home).expect("path");
        assert!(socket.as_os_str().len() < 104 && socket.starts_with("/tmp"));
        fs::write(&socket, b"").expect("written");
        remove_socket(&socket);
        assert!(!socket.parent().expect("a folder").exists());
        let socket = socket_path(dir.path()).expect("path");
        remove_socket(&socket);
        assert!(home.exists());
    }
}
