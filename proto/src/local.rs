//! Node ↔ its rank, and command line ↔ node. Both run over Unix sockets on one machine, framed like
//! the wire ([`crate::frame`]) with postcard bodies.

use std::net::SocketAddr;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::control::{LoadProgress, NodeFacts, RankKey, Way};
use crate::plan::PlanReport;
use crate::{
    Dtype, Facts, LinkKind, Logprobs, NodeId, NodeLink, NodeName, PipelineId, Rank, Sample,
    Sampling, SeqId, Shard,
};

/// What a rank is told by its node.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum ToRank {
    /// First message: who the rank is and where it listens. Answered by [`FromRank::Listening`].
    Start(RankStart),
    /// Keys and addresses of the neighbours are known: connect both edges, then load.
    Connect {
        previous: RankKey,
        next: RankKey,
        /// Best first.
        ways: Vec<Way>,
    },
    /// Better ways to the next rank than those that the edge has.
    Reroute { ways: Vec<Way> },
    /// Rank 0 only: compute this sequence until it ends.
    Admit(Admit),
    /// Rank 0 only: stop within a step and free the KV on every rank.
    Cancel { seq: SeqId },
    /// Give back memory that only saves time.
    Shrink,
    /// Finish nothing more, say goodbye on the edges and exit.
    Unload,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RankStart {
    pub pipeline: PipelineId,
    pub rank: Rank,
    pub world: u32,
    pub shard: Shard,
    /// Directory with config.json and the safetensors.
    pub checkpoint: PathBuf,
    /// Overrides the compute type; none: what fits the device.
    pub dtype: Option<Dtype>,
    /// Where the rank's data endpoint binds (port 0: any free one).
    #[serde(with = "crate::addr::one")]
    pub bind: SocketAddr,
    /// Longest prefill chunk in tokens.
    pub chunk: u32,
    pub budget: Budget,
    /// What the plan says that the rank takes, weights and all.
    pub needs_bytes: u64,
}

/// What the sequences that run at once may take together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Budget {
    pub sequences: u32,
    /// Positions that are cached, of all of them.
    pub tokens: u64,
}

/// One sequence for rank 0.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Admit {
    pub seq: SeqId,
    pub prompt: Vec<u32>,
    /// New tokens at most, at least 1.
    pub max_tokens: u32,
    /// Token ids that end the sequence.
    pub eos: Vec<u32>,
    pub sampling: Sampling,
    /// Added to the logits of these tokens.
    pub bias: Vec<(u32, f32)>,
    /// With each token its log probability and those of this many of the likeliest; none: neither.
    pub logprobs: Option<u32>,
}

/// What a rank tells its node.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum FromRank {
    Listening {
        key: RankKey,
        port: u16,
    },
    Loading(LoadProgress),
    /// Both edges are open and every weight is evaluated.
    Ready {
        resident_bytes: u64,
        device: String,
        dtype: Dtype,
    },
    /// Hidden states go to the next rank by another way from here on, and why.
    Moved {
        way: Way,
        cause: String,
    },
    /// The next token of a sequence. `index` counts new tokens from 0.
    Token {
        seq: SeqId,
        index: u32,
        token: u32,
        /// As [`Admit::logprobs`] asked.
        logprobs: Option<Logprobs>,
    },
    /// The sequence ended; its KV is free on this rank and its release is on the way to the others.
    Finished {
        seq: SeqId,
        reason: FinishReason,
        timings: Timings,
    },
    /// The rank cannot go on; it exits after this. `blame` names the neighbour whose edge failed.
    Failed {
        message: String,
        blame: Option<Rank>,
    },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum FinishReason {
    /// One of the eos tokens (it was sent as the last token).
    Stop,
    /// `max_tokens` reached.
    Length,
    Cancelled,
}

/// Where a request's time went, in microseconds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Timings {
    pub queue_us: u64,
    pub prefill_us: u64,
    pub decode_us: u64,
}

/// What the command line asks of its node.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum ToNode {
    /// Load a model and serve it. The connection is the attachment: events follow on it, and when
    /// it closes the node drains and unloads.
    Serve(Box<Serve>),
    /// How that would be split, with nothing loaded or changed.
    Plan(Box<Serve>),
    /// On a connection that serves: go on without this command line.
    Detach,
    /// End what is served, whoever began it: running requests get `grace_ms`.
    Stop {
        grace_ms: u64,
    },
    /// First Ctrl+C: refuse new requests, let running ones end within `grace_ms`, unload.
    Drain {
        grace_ms: u64,
    },
    Status,
    /// The machines and links of this node and of the peers that it knows.
    Survey,
    /// The last lines of another node's log, the node by name or address.
    Logs {
        node: String,
        lines: u32,
    },
    /// Which nodes are there?
    Peers,
    /// Make this node and another one know each other. The connection is the attachment: when it
    /// closes the window closes.
    Pair(Pairing),
    /// Make a token with which one machine can pair itself within this time.
    Invite {
        ttl_s: u32,
    },
    /// End the node, and all that it serves and hosts.
    Down,
}

/// How this node should come to know another one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Pairing {
    /// Show a code and wait for the node where it is entered.
    Show,
    /// The code that another node shows.
    Enter {
        code: String,
        /// Where to look besides what this node sees.
        #[serde(with = "crate::addr::many")]
        peers: Vec<SocketAddr>,
    },
    /// The token that another node made.
    Join {
        token: String,
        #[serde(with = "crate::addr::many")]
        peers: Vec<SocketAddr>,
    },
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Serve {
    /// Absolute path of the checkpoint.
    pub model: PathBuf,
    /// Which node holds rank 0 and the endpoint, by its name; none: the one that is asked.
    pub driver: Option<String>,
    /// Where the endpoint listens; none: where the command line reaches it.
    pub host: Option<String>,
    pub port: u16,
    /// Peers to dial besides those that the node knows.
    #[serde(with = "crate::addr::many")]
    pub peers: Vec<SocketAddr>,
    /// Layers per rank in rank order; empty: as is fastest.
    pub layers: Vec<u32>,
    pub nodes: Nodes,
    /// Names of nodes that take no part.
    pub exclude: Vec<String>,
    pub links: LinkWish,
    /// Context in tokens; none: what fits, at most the model's own.
    pub context: Option<u32>,
    /// How many sequences of that length should fit at once.
    pub sequences: u32,
    pub headroom: Headroom,
    pub chunk: u32,
    pub dtype: Option<Dtype>,
}

/// What nodes keep free to run. Sizes are bytes.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Headroom {
    /// The same, everywhere.
    #[default]
    Usual,
    /// In the order of nodes, this one first; the last value holds for all that follow.
    InOrder(Vec<u64>),
    /// By the names of nodes; the others keep the usual.
    ByName(Vec<(String, u64)>),
}

/// Which nodes hold ranks, besides this one.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Nodes {
    /// This one alone where the model fits it, else as is fastest.
    #[default]
    Best,
    /// Every one that answers.
    All,
    /// This many ranks.
    Count(u32),
    /// In the order of ranks.
    Named(Vec<String>),
}

/// Which links may carry hidden states.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LinkWish {
    /// Slow ones too.
    pub any: bool,
    /// Names of interfaces, at either end; empty: all.
    pub interfaces: Vec<String>,
    pub exclude_interfaces: Vec<String>,
}

/// What a node answers to its command line.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum FromNode {
    /// Before anything starts; to [`ToNode::Plan`] the only answer.
    Plan(Box<PlanReport>),
    Progress {
        rank: Rank,
        node: String,
        progress: LoadProgress,
    },
    Ready {
        url: String,
        model: String,
        ranks: Vec<RankStatus>,
        context: u32,
    },
    /// The pipeline failed after it was ready; the endpoint answers 503 with this reason.
    Degraded {
        reason: String,
    },
    /// The endpoint is closed and every rank is gone.
    Stopped,
    Refused(Refusal),
    Status(NodeStatus),
    Survey(Box<Survey>),
    Logs(String),
    /// Something that the user should know; serving goes on.
    Note(String),
    Peers(PeersView),
    /// Type this on the other machine, within this time.
    PairCode {
        code: String,
        expires_s: u32,
    },
    /// A node was paired. The last answer.
    Paired {
        id: NodeId,
        name: NodeName,
    },
    Invitation {
        token: String,
        expires_s: u32,
    },
    /// The node ends now.
    Stopping,
}

/// What a node knows of machines and links.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Survey {
    pub id: NodeId,
    pub own: NodeFacts,
    pub peers: Vec<PeerSurvey>,
    /// Addresses that were named and do not answer.
    pub unreached: Vec<Unreached>,
    /// What the node found wrong with its machine and its links.
    pub findings: Vec<Finding>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Unreached {
    #[serde(with = "crate::addr::one")]
    pub addr: SocketAddr,
    pub fault: String,
}

/// One thing that is wrong, and the one thing that helps.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Finding {
    pub what: String,
    pub remedy: String,
}

/// A peer, as this node last heard of it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PeerSurvey {
    pub id: NodeId,
    pub facts: Option<NodeFacts>,
    pub link: Option<NodeLink>,
    /// Why it is not connected now; none: it is.
    pub lost: Option<String>,
}

/// What a node knows of the others.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PeersView {
    pub peers: Vec<PeerStatus>,
    /// Interfaces with an address on which other nodes are looked for.
    pub interfaces: Vec<String>,
    /// Unpaired nodes beyond those listed: somebody floods the network.
    pub hidden: u64,
    /// What is wrong with discovery or with this node's identity, each with its remedy.
    pub faults: Vec<Refusal>,
}

/// The best path to a node, from this one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LinkStatus {
    /// Names of the interfaces at both ends, this machine's first.
    pub devices: [String; 2],
    /// What it leads over.
    pub kind: LinkKind,
    /// Of both directions the slower one.
    pub sample: Sample,
}

/// Another node, as this one sees it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PeerStatus {
    pub id: NodeId,
    /// None: a paired node that has not been seen and has no name on file.
    pub name: Option<NodeName>,
    /// Program version; what the node says of itself.
    pub build: Option<String>,
    pub paired: bool,
    pub state: PeerState,
    #[serde(with = "crate::addr::option")]
    pub addr: Option<SocketAddr>,
    /// This machine's interface towards `addr`.
    pub interface: Option<String>,
    /// Since the node was last heard of; since it was first seen while it is unpaired.
    pub age_ms: Option<u64>,
    /// Why the state is not good.
    pub reason: Option<String>,
    pub remedy: Option<String>,
    /// As the node last told them; none: it never did.
    pub facts: Option<Facts>,
    /// None: nothing was measured yet, nothing comes through, or the node does not answer.
    pub link: Option<LinkStatus>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum PeerState {
    /// Answers.
    Ready,
    /// Seen, and dialled now.
    Connecting,
    /// Paired, and not to be reached.
    Gone,
    /// Seen, but its key is not known here.
    Unpaired,
    /// Paired here, but the other node does not know this one's key.
    OneSided,
    /// Speaks another protocol version.
    OtherVersion,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlannedShard {
    pub rank: Rank,
    pub node: NodeId,
    pub node_name: String,
    pub shard: Shard,
    pub weight_bytes: u64,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RankStatus {
    pub planned: PlannedShard,
    pub pid: u32,
    pub resident_bytes: u64,
    pub device: String,
}

/// Why something could not be done, with what would help.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Refusal {
    pub message: String,
    pub hints: Vec<String>,
    pub kind: RefusalKind,
}

/// Decides the exit code of the command.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum RefusalKind {
    /// Exit 1.
    CannotBeDone,
    /// Exit 2.
    Usage,
    /// Exit 3.
    NotReachable,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeStatus {
    pub id: NodeId,
    pub name: NodeName,
    pub build: String,
    pub control_port: u16,
    pub serving: Option<String>,
    pub ranks: Vec<RankStatus>,
}
