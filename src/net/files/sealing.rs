//! SHA-256 of bytes that pass by, on a thread of its own: hashing costs as much as sending.

use std::io::{self, Read};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::thread::JoinHandle;

use aws_lc_rs::digest::{Context, SHA256};

/// What was before comes from a reader; what follows is pushed.
#[derive(Debug)]
pub struct Sealing {
    chunks: SyncSender<Arc<Vec<u8>>>,
    hashing: JoinHandle<io::Result<[u8; 32]>>,
}

impl Sealing {
    /// Begins with all that `before` has.
    pub fn after(before: impl Read + Send + 'static) -> io::Result<Self> {
        let (chunks, pushed) = sync_channel(CHUNKS_MAX);
        let thread = std::thread::Builder::new().name("sealing".to_owned());
        Ok(Self { chunks, hashing: thread.spawn(move || hash(before, &pushed))? })
    }

    /// Gives the chunk back while there is no room for it.
    pub fn try_push(&self, chunk: Arc<Vec<u8>>) -> Option<Arc<Vec<u8>>> {
        match self.chunks.try_send(chunk) {
            // One that ended early says why in the end.
            Ok(()) | Err(TrySendError::Disconnected(_)) => None,
            Err(TrySendError::Full(chunk)) => Some(chunk),
        }
    }

    /// Waits while there is no room.
    pub fn push(&self, chunk: Arc<Vec<u8>>) {
        let _ = self.chunks.send(chunk);
    }

    /// Waits for the last chunk.
    pub fn end(self) -> io::Result<[u8; 32]> {
        drop(self.chunks);
        self.hashing.join().map_err(|_| io::Error::other("the hashing thread ended early"))?
    }
}

fn hash(mut before: impl Read, pushed: &Receiver<Arc<Vec<u8>>>) -> io::Result<[u8; 32]> {
    let mut context = Context::new(&SHA256);
    let mut buffer = vec![0; READ_BYTES];
    loop {
        match before.read(&mut buffer) {
            Ok(0) => break,
            Ok(count) => context.update(&buffer[..count]),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    drop(before);
    for chunk in pushed {
        context.update(&chunk);
    }
    let mut sha256 = [0; 32];
    sha256.copy_from_slice(context.finish().as_ref());
    Ok(sha256)
}

/// Of at most 1 MiB each.
const CHUNKS_MAX: usize = 8;
const READ_BYTES: usize = 1 << 20;
