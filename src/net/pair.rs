//! An open line to a node that is not trusted yet: messages of one size, for the few that pairing
//! takes. Both keys are proved by the handshake; whether they are welcome is not decided here.
//!
//! It knows no codes and no cryptography beyond the connection's own. Start at
//! [`super::ControlEndpoint::dial_pair`] and [`super::ControlEndpoint::accept_pair`].

use std::net::SocketAddr;
use std::time::Duration;

use daisy_proto::pair::{PAIR_BYTES, PairMessage};
use daisy_proto::{CloseReason, NodeId};
use quinn::{Connection, RecvStream, SendStream};
use tokio::time::timeout;

use super::ending::close;
use super::transport::canonical;

/// A stranger on the line.
#[derive(Debug)]
pub struct PairConnection {
    pub peer: NodeId,
    pub remote: SocketAddr,
    connection: Connection,
    send: SendStream,
    recv: RecvStream,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum PairLost {
    #[error("it closed the connection")]
    Closed,
    #[error("it did not answer in time")]
    Late,
    #[error("it does not speak the pairing protocol")]
    Nonsense,
}

impl PairConnection {
    pub(super) fn new(
        connection: Connection,
        peer: NodeId,
        send: SendStream,
        recv: RecvStream,
    ) -> Self {
        let remote = canonical(connection.remote_address());
        Self { peer, remote, connection, send, recv }
    }

    /// The same bytes at both ends of this connection and of no other one: somebody in the middle has
    /// two connections, with different ones.
    pub fn binding(&self) -> Result<[u8; 32], PairLost> {
        let mut bytes = [0; 32];
        let exported = self.connection.export_keying_material(&mut bytes, BINDING_LABEL, &[]);
        exported.map(|()| bytes).map_err(|_| PairLost::Nonsense)
    }

    /// Gives the bytes that were sent.
    pub async fn send(&mut self, message: &PairMessage) -> Result<[u8; PAIR_BYTES], PairLost> {
        let bytes = message.encode();
        timeout(STEP_MAX, self.send.write_all(&bytes))
            .await
            .map_err(|_| PairLost::Late)?
            .map_err(|_| PairLost::Closed)?;
        Ok(bytes)
    }

    pub async fn recv(&mut self) -> Result<PairMessage, PairLost> {
        let mut bytes = [0; PAIR_BYTES];
        timeout(STEP_MAX, self.recv.read_exact(&mut bytes))
            .await
            .map_err(|_| PairLost::Late)?
            .map_err(|_| PairLost::Closed)?;
        PairMessage::parse(&bytes).map_err(|_| PairLost::Nonsense)
    }

    /// Waits until the other side has read everything and closed.
    pub async fn drained(&self) {
        let _ = timeout(DRAIN_MAX, self.connection.closed()).await;
    }

    pub fn close(&self, reason: CloseReason) {
        close(&self.connection, reason);
    }
}

const BINDING_LABEL: &[u8] = b"EXPORTER-daisy-pair";
/// Neither side asks a person between two messages.
const STEP_MAX: Duration = Duration::from_secs(5);
const DRAIN_MAX: Duration = Duration::from_secs(1);
