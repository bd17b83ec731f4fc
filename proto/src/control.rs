//! Node ↔ node. After the fixed first message ([`crate::hello`]) both sides send frames with one of
//! these messages each. The driver asks; the other node answers by `call` number or sends events.

use std::net::{IpAddr, SocketAddr, SocketAddrV6};
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::local::{FromNode, RankStart, Refusal, ToNode};
use crate::{
    Cable, Device, Dtype, Facts, Interface, NodeId, NodeLink, NodeName, PathEnd, PipelineId, Rank,
    Trial,
};

/// One-time public key of a rank, made for one pipeline. A rank never holds its node's identity.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct RankKey(pub [u8; 32]);

/// How far a rank has loaded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct LoadProgress {
    pub layers_done: u32,
    pub layers_total: u32,
    pub resident_bytes: u64,
}

/// What one node asks of another.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum Request {
    /// What are you, and what can you spare?
    Facts,
    /// Can you read this checkpoint?
    Checkpoint { path: PathBuf },
    /// Measure every pair of addresses that may lead to the one who asks and leads.
    Probe { interfaces: Vec<Interface>, probe_port: u16 },
    /// Both ends of the link keep this record of it.
    Agree(NodeLink),
    /// The link between you and this node, which may be the one who asks; measured if it is not known, and
    /// with `insists` also if it is known as a bad one: what was wrong may have been put right.
    LinkTo { node: NodeId, about: Box<NodeFacts>, insists: bool },
    /// Start a rank; it listens before it loads.
    Stage(RankStart),
    /// Connect the rank's edges and load.
    Connect {
        pipeline: PipelineId,
        previous: RankKey,
        next: RankKey,
        /// Best first.
        ways: Vec<Way>,
    },
    /// Better ways from the pipeline's rank to the next one.
    Reroute { pipeline: PipelineId, ways: Vec<Way> },
    /// The connection over which the pipeline's rank was staged broke off: this one holds it now.
    Resume { pipeline: PipelineId },
    /// End the pipeline's rank. Answered when the process is gone.
    Stop { pipeline: PipelineId },
    /// Pass on by this way what comes to the port that you answer, and what comes back: two ranks have no fast link
    /// of their own, and you have one to each.
    Relay { pipeline: PipelineId, to: Way },
    /// The last lines of the node's log; cut to what a control message holds.
    Logs { lines: u32 },
    /// Hear this as if a command line of your machine said it, and say what you would answer there, by
    /// [`Event::Said`]. The conversation ends with the connection.
    Attend(Box<ToNode>),
}

/// What the other node answers.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum Response {
    Facts(Box<NodeFacts>),
    /// Digest of the checkpoint's config and safetensors headers, or why it cannot be read.
    Checkpoint(Result<[u8; 32], String>),
    Probed(Vec<Trial>),
    Link(NodeLink),
    Staged {
        pid: u32,
        key: RankKey,
        port: u16,
    },
    Relaying {
        port: u16,
    },
    Done,
    Refused(Refusal),
    Logs(String),
}

/// A node's machine, and how it is reached. Its id is the key that it has proved.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeFacts {
    pub name: NodeName,
    pub facts: Facts,
    /// Those on which the node listens.
    pub interfaces: Vec<Interface>,
    pub cables: Vec<Cable>,
    pub control_port: u16,
    pub probe_port: u16,
}

/// How to dial something: where to, and by which of the dialler's own interfaces.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Way {
    #[serde(with = "crate::addr::one")]
    pub addr: SocketAddr,
    /// None: the system's routes decide.
    pub device: Option<Device>,
}

impl From<SocketAddr> for Way {
    fn from(addr: SocketAddr) -> Self {
        Self { addr, device: None }
    }
}

impl Way {
    /// From one end of a path to a port at the other.
    #[must_use]
    pub fn between(own: &PathEnd, other: &PathEnd, port: u16) -> Self {
        let addr = match other.ip {
            IpAddr::V6(ip) if ip.is_unicast_link_local() => {
                // A scope is the dialler's own.
                SocketAddrV6::new(ip, port, 0, own.device.index).into()
            }
            ip => SocketAddr::new(ip, port),
        };
        // A machine's own addresses all lead over loopback.
        let is_here = own.ip == other.ip || other.ip.is_loopback();
        Self { addr, device: (!is_here).then(|| own.device.clone()) }
    }
}

/// What a node tells the driver unasked.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum Event {
    Loading {
        pipeline: PipelineId,
        rank: Rank,
        progress: LoadProgress,
    },
    Ready {
        pipeline: PipelineId,
        rank: Rank,
        resident_bytes: u64,
        device: String,
        dtype: Dtype,
    },
    /// The rank sends hidden states by another way from here on, and why.
    Moved {
        pipeline: PipelineId,
        rank: Rank,
        way: Way,
        cause: String,
    },
    /// The rank's process ended or reported that it cannot go on.
    Exited {
        pipeline: PipelineId,
        rank: Rank,
        reason: String,
        blame: Option<Rank>,
    },
    /// The rank's machine is short of memory, so it should get no new requests; none: there is enough.
    Memory {
        pipeline: PipelineId,
        rank: Rank,
        short: Option<String>,
    },
    /// Heard at an attended command line; none: it has ended.
    Said(Option<Box<FromNode>>),
}

/// Everything that a control stream carries after the first message.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum Message {
    Request { call: u64, request: Request },
    Response { call: u64, response: Response },
    Event(Event),
}
