//! The side that asks for files.

use std::fmt;
use std::io;
use std::net::TcpStream;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

use daisy_proto::control::Way;
use daisy_proto::files::{Answer, Ask, FileEntry, Which};
use daisy_proto::{ALPN_FILES, NodeId};
use rustls::pki_types::ServerName;
use rustls::{ClientConnection, StreamOwned};
use socket2::{Domain, Protocol, SockAddr, Socket, Type};

use super::wire::{self, WireError};
use crate::net::tls::{self, KeyPair, Pin};
use crate::net::transport::{SERVER_NAME, bind_device};

/// A connection to a node that may have files; every call blocks.
pub struct Taker {
    stream: StreamOwned<ClientConnection, TcpStream>,
    payload: Vec<u8>,
}

/// Why a file did not come, or not whole. What came before it did.
#[derive(Debug, thiserror::Error)]
pub enum TakeError {
    #[error("its files cannot be reached: {0}")]
    Unreachable(String),
    #[error("the connection broke off: {0}")]
    Cut(io::Error),
    #[error("it answered out of turn: {0}")]
    Protocol(String),
    #[error("it says: {0}")]
    Refused(String),
    #[error("stopped")]
    Stopped,
}

impl From<WireError> for TakeError {
    fn from(error: WireError) -> Self {
        match error {
            WireError::Io(error) => Self::Cut(error),
            WireError::Frame(error) => Self::Protocol(error.to_string()),
        }
    }
}

impl Taker {
    /// Tries one way after the other.
    pub fn connect(key: &KeyPair, giver: NodeId, ways: &[Way]) -> Result<Self, TakeError> {
        let mut faults = Vec::new();
        for way in ways {
            match dial(key, giver, way) {
                Ok(stream) => return Ok(Self { stream, payload: Vec::new() }),
                Err(error) => faults.push(format!("{}: {error}", way.addr)),
            }
        }
        if faults.is_empty() {
            faults.push("no address of it is on a network of this node".to_owned());
        }
        Err(TakeError::Unreachable(faults.join("; ")))
    }

    /// What the other node has of it.
    pub fn list(&mut self, which: &Which) -> Result<Vec<FileEntry>, TakeError> {
        wire::write(&mut self.stream, &Ask::List(which.clone()), &[])?;
        match wire::read(&mut self.stream, &mut self.payload)? {
            Answer::Files(files) => Ok(files),
            Answer::Refused(why) => Err(TakeError::Refused(why)),
            Answer::Chunk | Answer::End { .. } => Err(out_of_turn("a file")),
        }
    }

    /// Hands over the file's bytes from `from` on, in order. With `sealed`, gives the SHA-256 of the whole
    /// file as the other node has it. After an error the connection is of no more use.
    pub fn take(
        &mut self,
        which: &Which,
        name: &str,
        from: u64,
        sealed: bool,
        into: &mut dyn FnMut(&[u8]) -> ControlFlow<()>,
    ) -> Result<Option<[u8; 32]>, TakeError> {
        let ask = Ask::Get { which: which.clone(), name: name.to_owned(), from, sealed };
        wire::write(&mut self.stream, &ask, &[])?;
        loop {
            match wire::read(&mut self.stream, &mut self.payload)? {
                Answer::Chunk => {
                    if into(&self.payload).is_break() {
                        return Err(TakeError::Stopped);
                    }
                }
                Answer::End { sha256 } if sha256.is_some() == sealed => return Ok(sha256),
                Answer::End { .. } => return Err(out_of_turn("another end")),
                Answer::Refused(why) => return Err(TakeError::Refused(why)),
                Answer::Files(_) => return Err(out_of_turn("a list")),
            }
        }
    }
}

impl fmt::Debug for Taker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Taker").field("stream", &self.stream.sock).finish_non_exhaustive()
    }
}

fn dial(
    key: &KeyPair,
    giver: NodeId,
    way: &Way,
) -> Result<StreamOwned<ClientConnection, TcpStream>, String> {
    let said = |error: io::Error| error.to_string();
    let domain = Domain::for_address(way.addr);
    let socket = Socket::new(domain, Type::STREAM, Some(Protocol::TCP)).map_err(said)?;
    if let Some(device) = &way.device {
        bind_device(&socket, way.addr, device).map_err(said)?;
    }
    // As large as the system allows: a window below the cable's rate times its round trip idles it.
    let _ = socket.set_recv_buffer_size(SOCKET_BUFFER_BYTES);
    socket.connect_timeout(&SockAddr::from(way.addr), CONNECT_MAX).map_err(said)?;
    let mut socket = TcpStream::from(socket);
    socket.set_read_timeout(Some(SILENCE_MAX)).map_err(said)?;
    socket.set_write_timeout(Some(SILENCE_MAX)).map_err(said)?;
    socket.set_nodelay(true).map_err(said)?;
    let pin = Pin::for_dial(ALPN_FILES, Arc::new(move |key| *key == giver.0));
    let config = tls::client_config(key, Arc::clone(&pin)).map_err(|error| error.to_string())?;
    let name = ServerName::try_from(SERVER_NAME).map_err(|error| error.to_string())?;
    let mut tls =
        ClientConnection::new(Arc::new(config), name).map_err(|error| error.to_string())?;
    while tls.is_handshaking() {
        tls.complete_io(&mut socket).map_err(|error| {
            let is_other = pin.shown().is_some_and(|shown| !shown.trusted);
            if is_other { "another node answers".to_owned() } else { error.to_string() }
        })?;
    }
    Ok(StreamOwned::new(tls, socket))
}

fn out_of_turn(what: &str) -> TakeError {
    TakeError::Protocol(what.to_owned())
}

const CONNECT_MAX: Duration = Duration::from_secs(3);
/// The other end says something each second, whatever it does.
const SILENCE_MAX: Duration = Duration::from_secs(15);
const SOCKET_BUFFER_BYTES: usize = 4 << 20;
