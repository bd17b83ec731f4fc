//! Why a dial failed, in words that help.

use std::net::SocketAddr;
use std::time::Duration;

use daisy_proto::hello::{HelloError, VersionMismatch};
use daisy_proto::{CloseReason, NodeId};
use quinn::ConnectionError;

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
        "node {peer} answers at {addr} but is not paired here; run `daisy cluster pair`, or `daisy cluster trust {peer}`"
    )]
    Untrusted { addr: SocketAddr, peer: NodeId },
    #[error(
        "node {peer} at {addr} does not know this node's key; run `daisy cluster pair`, or there `daisy cluster trust {us}`"
    )]
    NotTrustedByPeer { addr: SocketAddr, peer: NodeId, us: NodeId },
    #[error("node at {addr}: {mismatch}")]
    Version { addr: SocketAddr, mismatch: Box<VersionMismatch> },
    #[error(
        "{addr} is this node itself, or one with the same key; give the address of another node, or run `daisy cluster reset-identity` where its home was copied to"
    )]
    ItIsMe { addr: SocketAddr },
    #[error("at {addr} answers node {} where {} was", .peer.short(), .wanted.short())]
    OtherNode { addr: SocketAddr, peer: NodeId, wanted: NodeId },
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
pub(super) enum Failure {
    Connection(ConnectionError),
    Hello(HelloError),
    Version(Box<VersionMismatch>),
    Local(String),
}
