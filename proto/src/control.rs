//! Node ↔ node. After the fixed first message ([`crate::hello`]) both sides send frames with one of
//! these messages each. The driver asks; the other node answers by `call` number or sends events.

use std::net::SocketAddr;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::local::{RankStart, Refusal};
use crate::{Dtype, NodeId, NodeName, PipelineId, Rank};

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

/// What one node asks of another. Only the driver of a pipeline sends these.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum Request {
    /// Who are you, and can you read this checkpoint?
    Facts { checkpoint: Option<PathBuf> },
    /// Start a rank; it listens before it loads.
    Stage(RankStart),
    /// Connect the rank's edges and load.
    Connect {
        pipeline: PipelineId,
        previous: RankKey,
        next: RankKey,
        #[serde(with = "crate::addr::many")]
        next_addrs: Vec<SocketAddr>,
    },
    /// End the pipeline's rank. Answered when the process is gone.
    Stop { pipeline: PipelineId },
    /// The last lines of the node's log; cut to what a control message holds.
    Logs { lines: u32 },
}

/// What the other node answers.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum Response {
    Facts(Facts),
    Staged {
        pid: u32,
        key: RankKey,
        #[serde(with = "crate::addr::many")]
        addrs: Vec<SocketAddr>,
    },
    Done,
    Refused(Refusal),
    Logs(String),
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Facts {
    pub id: NodeId,
    pub name: NodeName,
    /// Digest of the checkpoint's config and safetensors headers, or why it cannot be read.
    pub checkpoint: Option<Result<[u8; 32], String>>,
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
    /// The rank's process ended or reported that it cannot go on.
    Exited {
        pipeline: PipelineId,
        rank: Rank,
        reason: String,
        blame: Option<Rank>,
    },
}

/// Everything that a control stream carries after the first message.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum Message {
    Request { call: u64, request: Request },
    Response { call: u64, response: Response },
    Event(Event),
}
