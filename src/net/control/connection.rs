//! An open line to a trusted node: whole messages in both directions until one side ends it.
//!
//! Start at [`ControlConnection::split`].

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use daisy_proto::control::Message;
use daisy_proto::frame::{self, Decoder, FrameError, Limits};
use daisy_proto::{CloseReason, NodeId};
use quinn::{Connection, ConnectionError, RecvStream, SendStream};
use tokio::sync::Mutex;

use crate::net::ending::{IntoLost, close, reason_of};
use crate::net::transport;

/// A trusted node on the line, its first message read.
#[derive(Debug)]
pub struct ControlConnection {
    pub peer: NodeId,
    pub remote: SocketAddr,
    /// Version of the program there.
    pub build: String,
    sender: ControlSender,
    receiver: ControlReceiver,
}

impl ControlConnection {
    pub(super) fn new(
        connection: Connection,
        peer: NodeId,
        build: &str,
        send: SendStream,
        recv: RecvStream,
        decoder: Decoder,
    ) -> Self {
        let remote = transport::canonical(connection.remote_address());
        let line = Arc::new(Line { connection, peer, remote });
        let sender = ControlSender {
            line: Arc::clone(&line),
            stream: Arc::new(Mutex::new(send)),
            is_cut: Arc::default(),
        };
        let receiver = ControlReceiver { line, stream: recv, decoder };
        Self { peer, remote, build: build.to_owned(), sender, receiver }
    }

    pub(super) fn line(&self) -> &Arc<Line> {
        &self.sender.line
    }

    /// Both directions, for two tasks. The connection lives as long as one of them does.
    pub fn split(self) -> (ControlSender, ControlReceiver) {
        (self.sender, self.receiver)
    }

    pub async fn send(&self, message: &Message) -> Result<(), ConnectionLost> {
        self.sender.send(message).await
    }

    pub async fn recv(&mut self) -> Result<Message, ConnectionLost> {
        self.receiver.recv().await
    }

    pub fn close(&self, reason: CloseReason) {
        self.sender.close(reason);
    }
}

/// Sends messages; clones share the stream, whole messages at a time.
#[derive(Debug, Clone)]
pub struct ControlSender {
    line: Arc<Line>,
    stream: Arc<Mutex<SendStream>>,
    /// A send that was dropped half-way has left half a frame: nothing can follow it.
    is_cut: Arc<AtomicBool>,
}

impl ControlSender {
    pub fn peer(&self) -> NodeId {
        self.line.peer
    }

    pub async fn send(&self, message: &Message) -> Result<(), ConnectionLost> {
        let bytes = frame::encode_within(Limits::CONTROL, message, 0)
            .map_err(|error| self.line.lost(LostCause::Frame(error)))?;
        let mut stream = self.stream.lock().await;
        if self.is_cut.swap(true, Ordering::Relaxed) {
            close(&self.line.connection, CloseReason::Internal);
            return Err(self.line.lost(LostCause::HalfSent));
        }
        let written = stream.write_chunk(bytes).await;
        self.is_cut.store(false, Ordering::Relaxed);
        written.map_err(|error| self.line.lost_by(error.into_lost()))
    }

    /// Ends the connection in both directions; what was sent just before may not arrive.
    pub fn close(&self, reason: CloseReason) {
        close(&self.line.connection, reason);
    }

    /// Waits until the connection has ended, for whatever reason.
    pub async fn closed(&self) -> ConnectionLost {
        let error = self.line.connection.closed().await;
        self.line.lost_by(error)
    }
}

#[derive(Debug)]
pub struct ControlReceiver {
    line: Arc<Line>,
    stream: RecvStream,
    decoder: Decoder,
}

impl ControlReceiver {
    pub fn peer(&self) -> NodeId {
        self.line.peer
    }

    /// The next message. May be dropped and called again without losing one.
    pub async fn recv(&mut self) -> Result<Message, ConnectionLost> {
        loop {
            match self.next_message() {
                Ok(Some(message)) => return Ok(message),
                Ok(None) => {}
                Err(error) => {
                    close(&self.line.connection, CloseReason::BadFrame);
                    return Err(self.line.lost(LostCause::Frame(error)));
                }
            }
            match self.stream.read_chunk(READ_BYTES, true).await {
                Ok(Some(chunk)) => self.decoder.push(chunk.bytes),
                Ok(None) => return Err(self.line.lost(LostCause::Ended)),
                Err(error) => return Err(self.line.lost_by(error.into_lost())),
            }
        }
    }

    pub fn close(&self, reason: CloseReason) {
        close(&self.line.connection, reason);
    }

    fn next_message(&mut self) -> Result<Option<Message>, FrameError> {
        self.decoder.next()?.map(|frame| frame::decode(&frame.header)).transpose()
    }
}

/// A control connection ended.
#[derive(Debug, Clone, thiserror::Error)]
#[error("connection to node {peer} at {remote} lost: {cause}", peer = .peer.short())]
pub struct ConnectionLost {
    pub peer: NodeId,
    pub remote: SocketAddr,
    pub cause: LostCause,
}

impl ConnectionLost {
    /// Whether one side wanted this end and said so.
    pub fn is_orderly(&self) -> bool {
        match &self.cause {
            LostCause::Closed(reason) => reason.is_orderly(),
            LostCause::ClosedHere => true,
            _ => false,
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LostCause {
    #[error("{0}")]
    Closed(CloseReason),
    #[error("closed by this node")]
    ClosedHere,
    #[error("nothing was heard for {:.1} s", transport::CONTROL_IDLE.as_secs_f32())]
    Silent,
    #[error("the node there has restarted")]
    Restarted,
    #[error("the other side ended its stream")]
    Ended,
    #[error("an earlier message was sent only in part")]
    HalfSent,
    #[error(transparent)]
    Frame(FrameError),
    #[error("{0}")]
    Transport(String),
}

/// What both halves share.
#[derive(Debug)]
pub(super) struct Line {
    pub(super) connection: Connection,
    pub(super) peer: NodeId,
    remote: SocketAddr,
}

impl Line {
    fn lost(&self, cause: LostCause) -> ConnectionLost {
        ConnectionLost { peer: self.peer, remote: self.remote, cause }
    }

    fn lost_by(&self, error: ConnectionError) -> ConnectionLost {
        self.lost(match error {
            ConnectionError::ApplicationClosed(closed) => {
                LostCause::Closed(reason_of(closed.error_code))
            }
            ConnectionError::LocallyClosed => LostCause::ClosedHere,
            ConnectionError::TimedOut => LostCause::Silent,
            ConnectionError::Reset => LostCause::Restarted,
            other => LostCause::Transport(other.to_string()),
        })
    }
}

pub(super) const READ_BYTES: usize = 64 << 10;
