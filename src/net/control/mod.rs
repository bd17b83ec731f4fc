//! Node ↔ node: one endpoint per node that dials and accepts, one stream of messages per connection.
//! Trusted nodes come in for control; strangers for pairing alone, and only while a window is open.
//!
//! A connection counts as made after a round trip of [`Hello`]s, not after the TLS handshake: a
//! dialer's handshake ends before the other side has looked at its key. So a refusal has one of three
//! clear causes: we do not trust them, they do not trust us, or the versions differ.
//!
//! This module does not know what the messages ask for. Start at [`ControlEndpoint::bind`]; what can be
//! done with a connection is in `connection`.

mod connection;
mod error;
mod guests;
mod race;

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use daisy_proto::frame::{Decoder, Limits};
use daisy_proto::hello::{Hello, HelloError, MAX_HELLO_BYTES};
use daisy_proto::{ALPN_CONTROL, ALPN_PAIR, CloseReason, NodeId, PROTOCOL_VERSION};
use quinn::{Connection, ConnectionError, RecvStream, VarInt};
use tokio::net::UdpSocket;
use tokio::sync::{Mutex, mpsc};
use tokio::task::AbortHandle;

use self::connection::READ_BYTES;
pub use self::connection::{
    ConnectionLost, ControlConnection, ControlReceiver, ControlSender, LostCause,
};
pub use self::error::DialError;
use self::error::Failure;
use self::guests::{Lines, Pace, STRANGERS_MAX, receive};
use self::race::race;
use super::NetError;
use super::door::{Door, Refusals};
use super::ending::{IntoLost, close, is_access_denied, is_turned_away, reason_of};
use super::pair::PairConnection;
use super::tls::{self, Gate, KeyPair, Pin, Shown, Trust};
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
    strangers: Mutex<mpsc::Receiver<PairConnection>>,
    lines: Lines,
    door: AbortHandle,
}

impl ControlEndpoint {
    /// Listens on `addr` and starts to let trusted nodes in, and strangers for pairing while
    /// `pairs` says so. `build` is this program's version as other nodes show it. Must be called
    /// within a Tokio runtime.
    pub fn bind(
        addr: SocketAddr,
        key: &KeyPair,
        trust: Arc<dyn Fn(&NodeId) -> bool + Send + Sync>,
        pairs: Arc<dyn Fn() -> bool + Send + Sync>,
        build: &str,
    ) -> Result<Self, NetError> {
        Self::bind_as(addr, key, trust, pairs, Hello::new(PROTOCOL_VERSION, build)?)
    }

    fn bind_as(
        addr: SocketAddr,
        key: &KeyPair,
        trust: Arc<dyn Fn(&NodeId) -> bool + Send + Sync>,
        pairs: Arc<dyn Fn() -> bool + Send + Sync>,
        hello: Hello,
    ) -> Result<Self, NetError> {
        let own = key.public();
        // A node never talks to itself, nor to another that has its key.
        let trust: Trust = Arc::new(move |key| *key != own && trust(&NodeId(*key)));
        let anyone: Trust = Arc::new(move |key| *key != own);
        let gates = vec![
            Gate::always(ALPN_CONTROL, Arc::clone(&trust)),
            Gate { alpn: ALPN_PAIR, trust: anyone, is_open: pairs },
        ];
        let door = Door::new(key, gates)?;
        let refusals = door.refusals();
        let failed = |error| NetError::bind(addr, error);
        let socket = transport::bind(addr, None).map_err(failed)?;
        let open =
            transport::open(socket, Use::Control, Some(door.server_config())).map_err(failed)?;
        let local = open.endpoint.local_addr().map_err(failed)?;
        let (sender, guests) = mpsc::channel(GUESTS_MAX);
        let (strangers_in, strangers) = mpsc::channel(STRANGERS_MAX);
        let lines = Lines::default();
        let welcome = {
            let (hello, refusals, lines) = (hello.clone(), Arc::clone(&refusals), lines.clone());
            let pace = Arc::new(Pace::default());
            move |connection: Connection, shown: Shown| {
                let (hello, refusals, lines) =
                    (hello.clone(), Arc::clone(&refusals), lines.clone());
                let (strangers, pace) = (strangers_in.clone(), Arc::clone(&pace));
                async move {
                    let peer = NodeId(shown.key);
                    if shown.alpn == ALPN_PAIR {
                        receive(connection, peer, &strangers, &pace, &refusals).await;
                        return None;
                    }
                    let guest = welcome(connection, peer, hello, refusals).await?;
                    lines.add(guest.line());
                    Some(guest)
                }
            }
        };
        let door = tokio::spawn(door.run(open.clone(), welcome, sender)).abort_handle();
        let (guests, strangers) = (Mutex::new(guests), Mutex::new(strangers));
        let key = key.clone();
        Ok(Self { open, local, key, trust, hello, refusals, guests, strangers, lines, door })
    }

    pub fn local_addr(&self) -> SocketAddr {
        self.local
    }

    /// Dialers that were turned away since the start.
    pub fn refused(&self) -> u64 {
        self.refusals.count()
    }

    /// Connects to the node at `addr`, whichever trusted one it is; done when it has answered the
    /// first message.
    pub async fn dial(
        &self,
        addr: SocketAddr,
        timeout: Duration,
    ) -> Result<ControlConnection, DialError> {
        let pin = Pin::for_dial(ALPN_CONTROL, Arc::clone(&self.trust));
        self.attempt(addr, timeout, &pin, self.introduce(addr, &pin)).await
    }

    /// Connects to one node by any of its addresses. None: no address was given.
    pub async fn dial_node(
        &self,
        id: NodeId,
        addrs: &[SocketAddr],
        timeout: Duration,
    ) -> Option<Result<ControlConnection, DialError>> {
        let dial = |addr| {
            let trust = Arc::clone(&self.trust);
            // Asked again: the key may have been unpaired meanwhile.
            let pin = Pin::for_dial(ALPN_CONTROL, Arc::new(move |key| *key == id.0 && trust(key)));
            async move {
                let dialled = self.attempt(addr, timeout, &pin, self.introduce(addr, &pin)).await;
                dialled.map_err(|error| match error {
                    DialError::Untrusted { addr, peer } if peer != id => {
                        DialError::OtherNode { addr, peer, wanted: id }
                    }
                    error => error,
                })
            }
        };
        race(addrs, dial).await
    }

    /// Connects to a node for pairing: to the one of this id, or to whichever is there. None: no
    /// address was given.
    pub async fn dial_pair(
        &self,
        id: Option<NodeId>,
        addrs: &[SocketAddr],
        timeout: Duration,
    ) -> Option<Result<PairConnection, DialError>> {
        let own = self.key.public();
        let dial = |addr| {
            let welcome = move |key: &[u8; 32]| *key != own && id.is_none_or(|id| id.0 == *key);
            let pin = Pin::for_dial(ALPN_PAIR, Arc::new(welcome));
            async move {
                let opened = async {
                    let (connection, shown) = self.connect(addr, &pin).await?;
                    let lost = |error: ConnectionError| Failure::Connection(error);
                    let (send, recv) = connection.open_bi().await.map_err(lost)?;
                    Ok(PairConnection::new(connection, NodeId(shown.key), send, recv))
                };
                self.attempt(addr, timeout, &pin, opened).await
            }
        };
        race(addrs, dial).await
    }

    /// The next node that came in; none after [`Self::close`].
    pub async fn accept(&self) -> Option<ControlConnection> {
        self.guests.lock().await.recv().await
    }

    /// The next stranger that wants to be paired; none after [`Self::close`].
    pub async fn accept_pair(&self) -> Option<PairConnection> {
        self.strangers.lock().await.recv().await
    }

    /// Ends every open connection to a node that is not trusted any more, dialled or come in, and
    /// says to which.
    pub fn close_untrusted(&self) -> Vec<NodeId> {
        let mut ended = Vec::new();
        for line in self.lines.open() {
            if !(self.trust)(&line.peer.0) {
                close(&line.connection, CloseReason::NotTrusted);
                ended.push(line.peer);
            }
        }
        ended
    }

    /// Closes every connection with a reason and waits until the peers have it, at most 500 ms.
    pub async fn close(&self) {
        let reason = CloseReason::Draining;
        self.open.endpoint.close(VarInt::from_u32(reason.code()), reason.sentence().as_bytes());
        // A peer that is gone does not answer: it finds out by its own timeout.
        let _ = tokio::time::timeout(CLOSE_WAIT, self.open.endpoint.wait_idle()).await;
    }

    /// Runs one attempt within its time and says in words why it failed.
    async fn attempt<T>(
        &self,
        addr: SocketAddr,
        timeout: Duration,
        pin: &Pin,
        attempt: impl Future<Output = Result<T, Failure>>,
    ) -> Result<T, DialError> {
        let started = Instant::now();
        let failure = match tokio::time::timeout(timeout, attempt).await {
            Ok(Ok(connected)) => return Ok(connected),
            Ok(Err(failure)) => failure,
            Err(_) => Failure::Connection(ConnectionError::TimedOut),
        };
        if matches!(failure, Failure::Connection(ConnectionError::TimedOut)) {
            let after = started.elapsed();
            return Err(DialError::Unreachable { addr, after, cause: probe(addr).await });
        }
        Err(self.explain(addr, pin, failure))
    }

    /// A handshake. The other side may still refuse this node's key.
    async fn connect(
        &self,
        addr: SocketAddr,
        pin: &Arc<Pin>,
    ) -> Result<(Connection, Shown), Failure> {
        if self.local.is_ipv4() && addr.is_ipv6() {
            let cause = format!("this node listens on IPv4 alone ({})", self.local);
            return Err(Failure::Local(cause));
        }
        let crypto = tls::client(&self.key, Arc::clone(pin))
            .map_err(|error| Failure::Local(error.to_string()))?;
        let mut config = quinn::ClientConfig::new(crypto);
        config.transport_config(Arc::clone(&self.open.transport));
        let connecting = self
            .open
            .endpoint
            .connect_with(config, addr, SERVER_NAME)
            .map_err(|error| Failure::Local(error.to_string()))?;
        let connection = connecting.await.map_err(Failure::Connection)?;
        let shown = pin
            .shown()
            .ok_or_else(|| Failure::Local("the handshake ended without a key".to_owned()))?;
        Ok((connection, shown))
    }

    async fn introduce(
        &self,
        addr: SocketAddr,
        pin: &Arc<Pin>,
    ) -> Result<ControlConnection, Failure> {
        let (connection, shown) = self.connect(addr, pin).await?;
        let lost = |error: ConnectionError| Failure::Connection(error);
        let (mut send, mut recv) = connection.open_bi().await.map_err(lost)?;
        send.write_chunk(self.hello.encode()).await.map_err(|error| lost(error.into_lost()))?;
        let (theirs, decoder) = read_hello(&mut recv).await?;
        if let Err(mismatch) = theirs.check(&self.hello) {
            close(&connection, CloseReason::ProtocolVersion);
            return Err(Failure::Version(Box::new(mismatch)));
        }
        let peer = NodeId(shown.key);
        let guest = ControlConnection::new(connection, peer, theirs.build(), send, recv, decoder);
        self.lines.add(guest.line());
        Ok(guest)
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
mod strangers_tests;
#[cfg(test)]
mod tests;
