//! Node ↔ node: one endpoint per node that dials and accepts, one stream of messages per connection.
//!
//! A connection counts as made after a round trip of [`Hello`]s, not after the TLS handshake: a
//! dialer's handshake ends before the other side has looked at its key. So a refusal has one of three
//! clear causes: we do not trust them, they do not trust us, or the versions differ.
//!
//! This module does not know what the messages ask for. Start at [`ControlEndpoint::bind`]; what can be
//! done with a connection is in `connection`.

mod connection;

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use daisy_proto::frame::{Decoder, Limits};
use daisy_proto::hello::{Hello, HelloError, MAX_HELLO_BYTES, VersionMismatch};
use daisy_proto::{ALPN_CONTROL, CloseReason, NodeId, PROTOCOL_VERSION};
use quinn::{Connection, ConnectionError, RecvStream, VarInt};
use tokio::net::UdpSocket;
use tokio::sync::{Mutex, mpsc};
use tokio::task::AbortHandle;

use self::connection::READ_BYTES;
pub use self::connection::{
    ConnectionLost, ControlConnection, ControlReceiver, ControlSender, LostCause,
};
use super::NetError;
use super::door::{Door, Refusals};
use super::ending::{IntoLost, close, is_access_denied, is_turned_away, reason_of};
use super::tls::{self, KeyPair, Pin, Trust};
use super::transport::{self, Open, SERVER_NAME, Use, canonical};

/// A node's place on the network.
pub struct ControlEndpoint {
    open: Open,
    local: SocketAddr,
    key: KeyPair,
    trust: Trust,
    hello: Hello,
    refusals: Arc<Refusals>,
    guests: Mutex<mpsc::Receiver<ControlConnection>>,
    door: AbortHandle,
}

impl ControlEndpoint {
    /// Listens on `addr` and starts to let trusted nodes in. `build` is this program's version as
    /// other nodes show it. Must be called within a Tokio runtime.
    pub fn bind(
        addr: SocketAddr,
        key: &KeyPair,
        trust: Arc<dyn Fn(&NodeId) -> bool + Send + Sync>,
        build: &str,
    ) -> Result<Self, NetError> {
        Self::bind_as(addr, key, trust, Hello::new(PROTOCOL_VERSION, build)?)
    }

    fn bind_as(
        addr: SocketAddr,
        key: &KeyPair,
        trust: Arc<dyn Fn(&NodeId) -> bool + Send + Sync>,
        hello: Hello,
    ) -> Result<Self, NetError> {
        let own = key.public();
        // A node never talks to itself, nor to another that has its key.
        let trust: Trust = Arc::new(move |key| *key != own && trust(&NodeId(*key)));
        let door = Door::new(key, ALPN_CONTROL, Arc::clone(&trust))?;
        let refusals = door.refusals();
        let failed = |error| NetError::bind(addr, error);
        let socket = transport::bind(addr, None).map_err(failed)?;
        let open =
            transport::open(socket, Use::Control, Some(door.server_config())).map_err(failed)?;
        let local = open.endpoint.local_addr().map_err(failed)?;
        let (sender, guests) = mpsc::channel(GUESTS_MAX);
        let welcome = {
            let (hello, refusals) = (hello.clone(), Arc::clone(&refusals));
            move |connection, key| {
                welcome(connection, NodeId(key), hello.clone(), Arc::clone(&refusals))
            }
        };
        let door = tokio::spawn(door.run(open.clone(), welcome, sender)).abort_handle();
        let guests = Mutex::new(guests);
        Ok(Self { open, local, key: key.clone(), trust, hello, refusals, guests, door })
    }

    pub fn local_addr(&self) -> SocketAddr {
        self.local
    }

    /// Dialers that were turned away since the start.
    pub fn refused(&self) -> u64 {
        self.refusals.count()
    }

    /// Connects to the node at `addr`; done when it has answered the first message.
    pub async fn dial(
        &self,
        addr: SocketAddr,
        timeout: Duration,
    ) -> Result<ControlConnection, DialError> {
        let started = Instant::now();
        let pin = Pin::new(Arc::clone(&self.trust));
        let attempt = tokio::time::timeout(timeout, self.introduce(addr, &pin));
        let failure = match attempt.await {
            Ok(Ok(connection)) => return Ok(connection),
            Ok(Err(failure)) => failure,
            Err(_) => Failure::Connection(ConnectionError::TimedOut),
        };
        if matches!(failure, Failure::Connection(ConnectionError::TimedOut)) {
            let after = started.elapsed();
            return Err(DialError::Unreachable { addr, after, cause: probe(addr).await });
        }
        Err(self.explain(addr, &pin, failure))
    }

    /// The next node that came in; none after [`Self::close`].
    pub async fn accept(&self) -> Option<ControlConnection> {
        self.guests.lock().await.recv().await
    }

    /// Closes every connection with a reason and waits until the peers have it, at most 500 ms.
    pub async fn close(&self) {
        let reason = CloseReason::Draining;
        self.open.endpoint.close(VarInt::from_u32(reason.code()), reason.sentence().as_bytes());
        // A peer that is gone does not answer: it finds out by its own timeout.
        let _ = tokio::time::timeout(CLOSE_WAIT, self.open.endpoint.wait_idle()).await;
    }

    async fn introduce(
        &self,
        addr: SocketAddr,
        pin: &Arc<Pin>,
    ) -> Result<ControlConnection, Failure> {
        if self.local.is_ipv4() && addr.is_ipv6() {
            let cause = format!("this node listens on IPv4 alone ({})", self.local);
            return Err(Failure::Local(cause));
        }
        let crypto = tls::client(&self.key, ALPN_CONTROL, Arc::clone(pin))
            .map_err(|error| Failure::Local(error.to_string()))?;
        let mut config = quinn::ClientConfig::new(crypto);
        config.transport_config(Arc::clone(&self.open.transport));
        let connecting = self
            .open
            .endpoint
            .connect_with(config, addr, SERVER_NAME)
            .map_err(|error| Failure::Local(error.to_string()))?;
        let connection = connecting.await.map_err(Failure::Connection)?;
        let lost = |error: ConnectionError| Failure::Connection(error);
        let (mut send, mut recv) = connection.open_bi().await.map_err(lost)?;
        send.write_chunk(self.hello.encode()).await.map_err(|error| lost(error.into_lost()))?;
        let (theirs, decoder) = read_hello(&mut recv).await?;
        let shown = pin
            .shown()
            .ok_or_else(|| Failure::Local("the handshake ended without a key".to_owned()))?;
        if let Err(mismatch) = theirs.check(&self.hello) {
            close(&connection, CloseReason::ProtocolVersion);
            return Err(Failure::Version(Box::new(mismatch)));
        }
        let peer = NodeId(shown.key);
        Ok(ControlConnection::new(connection, peer, theirs.build(), send, recv, decoder))
    }

    fn explain(&self, addr: SocketAddr, pin: &Pin, failure: Failure) -> DialError {
        let us = NodeId(self.key.public());
        let shown = pin.shown();
        match shown {
            Some(shown) if shown.key == us.0 => return DialError::ItIsMe { addr },
            Some(shown) if !shown.trusted => {
                return DialError::Untrusted { addr, peer: NodeId(shown.key) };
            }
            _ => {}
        }
        let peer = shown.map(|shown| NodeId(shown.key));
        match failure {
            Failure::Connection(error) => match (&error, peer) {
                (error, Some(peer)) if is_access_denied(error) => {
                    DialError::NotTrustedByPeer { addr, peer, us }
                }
                (ConnectionError::ApplicationClosed(closed), Some(peer)) => {
                    DialError::Closed { addr, peer, reason: reason_of(closed.error_code) }
                }
                (error, _) if is_turned_away(error) => DialError::Busy { addr },
                _ => DialError::NotANode { addr, cause: error.to_string() },
            },
            Failure::Hello(error) => DialError::NotANode { addr, cause: error.to_string() },
            Failure::Local(cause) => DialError::Local { addr, cause },
            Failure::Version(mismatch) => {
                let name = peer.map_or_else(|| addr.to_string(), |peer| peer.short());
                DialError::Version { addr, mismatch: Box::new(mismatch.with_peer(name)) }
            }
        }
    }
}

impl Drop for ControlEndpoint {
    fn drop(&mut self) {
        // The door holds the endpoint, and with it the port.
        self.door.abort();
    }
}

impl std::fmt::Debug for ControlEndpoint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ControlEndpoint")
            .field("local", &self.local)
            .field("key", &self.key)
            .finish_non_exhaustive()
    }
}

/// Why a node could not be reached. Each text names the address, the node where it is known, and what
/// helps.
#[derive(Debug, thiserror::Error)]
pub enum DialError {
    #[error(
        "no node answers at {addr} (waited {after_ms} ms{cause}); check that `daisy cluster up` runs there and that UDP port {port} is not blocked",
        after_ms = .after.as_millis(), port = .addr.port(),
        cause = .cause.as_ref().map(|cause| format!(": {cause}")).unwrap_or_default()
    )]
    Unreachable { addr: SocketAddr, after: Duration, cause: Option<String> },
    #[error(
        "node {peer} answers at {addr} but is not trusted here; run `daisy cluster trust {peer}`"
    )]
    Untrusted { addr: SocketAddr, peer: NodeId },
    #[error("node {peer} at {addr} does not trust this node; run there `daisy cluster trust {us}`")]
    NotTrustedByPeer { addr: SocketAddr, peer: NodeId, us: NodeId },
    #[error("node at {addr}: {mismatch}")]
    Version { addr: SocketAddr, mismatch: Box<VersionMismatch> },
    #[error(
        "{addr} is this node itself, or one with the same key; give the address of another node, or delete the copied key there"
    )]
    ItIsMe { addr: SocketAddr },
    #[error("node {peer} at {addr} closed the connection: {reason}")]
    Closed { addr: SocketAddr, peer: NodeId, reason: CloseReason },
    #[error("{addr} takes no more connections at the moment; try again")]
    Busy { addr: SocketAddr },
    #[error("what answers at {addr} is not a Daisy node ({cause}); check the address and port")]
    NotANode { addr: SocketAddr, cause: String },
    #[error("cannot dial {addr}: {cause}")]
    Local { addr: SocketAddr, cause: String },
}

/// Why a dial failed, before the pin has been asked.
enum Failure {
    Connection(ConnectionError),
    Hello(HelloError),
    Version(Box<VersionMismatch>),
    Local(String),
}

/// The listener's side of the first round trip. Always answers, so that a dialer of another version
/// can name both.
async fn welcome(
    connection: Connection,
    peer: NodeId,
    ours: Hello,
    refusals: Arc<Refusals>,
) -> Option<ControlConnection> {
    let remote = canonical(connection.remote_address());
    let (mut send, mut recv) = connection.accept_bi().await.ok()?;
    send.write_chunk(ours.encode()).await.ok()?;
    let Ok((theirs, decoder)) = read_hello(&mut recv).await else {
        refusals.record(remote, "is trusted but does not speak this protocol");
        close(&connection, CloseReason::BadFrame);
        return None;
    };
    if let Err(mismatch) = theirs.check(&ours) {
        let mismatch = mismatch.with_peer(peer.short());
        refusals.record(remote, &format!("is of another version: {mismatch}"));
        // Closing now could overtake our hello; the dialer closes when it has read it.
        let _ = tokio::time::timeout(CLOSE_WAIT, connection.closed()).await;
        close(&connection, CloseReason::ProtocolVersion);
        return None;
    }
    Some(ControlConnection::new(connection, peer, theirs.build(), send, recv, decoder))
}

/// Reads the fixed first message. What follows it goes into the decoder.
async fn read_hello(recv: &mut RecvStream) -> Result<(Hello, Decoder), Failure> {
    let mut bytes = Vec::with_capacity(MAX_HELLO_BYTES);
    loop {
        if let Some((hello, used)) = Hello::parse(&bytes).map_err(Failure::Hello)? {
            let mut decoder = Decoder::new(Limits::CONTROL);
            decoder.push(Bytes::from(bytes.split_off(used)));
            return Ok((hello, decoder));
        }
        match recv.read_chunk(READ_BYTES, true).await {
            Ok(Some(chunk)) => bytes.extend_from_slice(&chunk.bytes),
            Ok(None) => return Err(Failure::Hello(HelloError::Magic)),
            Err(error) => return Err(Failure::Connection(error.into_lost())),
        }
    }
}

/// What the system says about a plain datagram to `addr`. QUIC's socket swallows these errors, so a
/// missing route, a closed port and a privacy denial all look like silence to it.
async fn probe(addr: SocketAddr) -> Option<String> {
    let ask = async {
        let any: SocketAddr = match addr {
            SocketAddr::V4(_) => (Ipv4Addr::UNSPECIFIED, 0).into(),
            SocketAddr::V6(_) => (Ipv6Addr::UNSPECIFIED, 0).into(),
        };
        let socket = UdpSocket::bind(any).await?;
        socket.connect(addr).await?;
        socket.send(&[]).await?;
        socket.recv(&mut [0; 1]).await.map(drop)
    };
    // Silence says nothing.
    let error = tokio::time::timeout(PROBE_WAIT, ask).await.ok()?.err()?;
    match error.kind() {
        io::ErrorKind::ConnectionRefused => Some("nothing listens on that port".to_owned()),
        io::ErrorKind::HostUnreachable if cfg!(target_vendor = "apple") => Some(format!(
            "{error}; if other programs reach it, allow Local Network for this one in System Settings"
        )),
        _ => Some(error.to_string()),
    }
}

/// Guests that wait for [`ControlEndpoint::accept`]; beyond that they wait at the door.
const GUESTS_MAX: usize = 16;
const CLOSE_WAIT: Duration = Duration::from_millis(500);
/// For the system's answer, which is local or one round trip away.
const PROBE_WAIT: Duration = Duration::from_millis(50);

#[cfg(test)]
mod tests;
