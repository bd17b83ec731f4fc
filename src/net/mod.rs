//! What nodes and ranks say to each other, over QUIC and, for files, TCP; with every key pinned.
//!
//! [`control`] is what nodes say to each other: dial, accept, one stream of messages. [`edge`] carries
//! hidden states from rank to rank by driving a [`daisy_proto::link::Link`]. [`probe`] measures a path as an
//! edge would use it, [`udp_relay`] passes datagrams on for two others, [`files`] carries checkpoints' files over
//! TCP. All stand on [`tls`]
//! (raw public keys), `transport` (settings, each with its reason) and `door` (who may come in).
//!
//! This module does not know pipelines' meaning, tensors, files or the list of trusted nodes: whom to
//! trust is a question to the caller. Start at [`ControlEndpoint`] or [`edge::dial`].

pub mod control;
mod door;
pub mod edge;
mod ending;
pub mod files;
pub mod pair;
pub mod probe;
pub mod tls;
mod transport;
pub mod udp_relay;

use std::io;
use std::net::SocketAddr;

pub use control::{
    ConnectionLost, ControlConnection, ControlEndpoint, ControlReceiver, ControlSender, DialError,
    LostCause,
};
pub use edge::{
    EdgeClosed, EdgeConfig, EdgeEvent, EdgeListener, Inbox, IncomingEdge, OutgoingEdge, Post,
    Reactor,
};
pub use pair::{PairConnection, PairLost};
pub use probe::{Depth, ProbeListener};
pub use tls::{KeyError, KeyPair};
pub use udp_relay::UdpRelay;

/// Why an endpoint cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum NetError {
    #[error(
        "UDP {addr} is taken by another process; stop it (is a node running already?) or choose another port"
    )]
    PortTaken { addr: SocketAddr },
    #[error("{addr} is not an address of this machine; choose one of its own, or 0.0.0.0 for all")]
    NotMyAddress { addr: SocketAddr },
    #[error("cannot listen on UDP {addr}: {source}")]
    Bind { addr: SocketAddr, source: io::Error },
    #[error("TLS cannot be set up: {0}")]
    Tls(#[from] rustls::Error),
    #[error("this build's name cannot be sent: {0}")]
    Build(#[from] daisy_proto::hello::HelloError),
}

impl NetError {
    fn bind(addr: SocketAddr, source: io::Error) -> Self {
        match source.kind() {
            io::ErrorKind::AddrInUse => Self::PortTaken { addr },
            io::ErrorKind::AddrNotAvailable => Self::NotMyAddress { addr },
            _ => Self::Bind { addr, source },
        }
    }
}
