//! What crosses a wire between Daisy's processes.
//!
//! No tokio, no clock, no files: types with their encodings, framing, and the state machine of one
//! edge. Five conversations use it:
//!
//! * node ↔ node: [`control`], over QUIC with ALPN [`ALPN_CONTROL`];
//! * rank ↔ rank: [`step`] frames carried by a [`link`], over QUIC with ALPN [`ALPN_DATA`];
//! * node ↔ node: [`files`] of checkpoints, over TCP with ALPN [`ALPN_FILES`];
//! * node ↔ a node that it does not know yet: [`pair`], over QUIC with ALPN [`ALPN_PAIR`];
//! * node ↔ its rank and command line ↔ node: [`local`], over Unix sockets.
//!
//! Start at [`frame`] (how bytes are cut into messages), then [`step`] (what a pipeline sends).

mod addr;
pub mod close;
pub mod control;
pub mod facts;
pub mod files;
pub mod frame;
pub mod hello;
pub mod hidden;
pub mod id;
pub mod link;
pub mod local;
pub mod measure;
mod name;
pub mod pair;
pub mod plan;
pub mod sampling;
pub mod step;

pub use close::CloseReason;
pub use facts::{Address, Cable, Device, Facts, Interface, LinkKind, Power, Pressure};
pub use hidden::{Dtype, Hidden};
pub use id::{LayerRange, NodeId, PipelineId, Rank, SeqId, Shard};
pub use measure::{NodeLink, Path, PathEnd, Sample, Trial};
pub use name::{NameError, NodeName};
pub use sampling::{Logprobs, Sampling};
pub use step::{Row, Step};

/// Version of everything below `daisy-data` and `daisy-control`. A test holds the hash of the
/// golden bytes beside it: whoever changes the format changes this number.
pub const PROTOCOL_VERSION: u32 = 1;

/// Node ↔ node. Never changes, so that two versions can tell each other who is older.
pub const ALPN_CONTROL: &[u8] = b"daisy-control/1";
/// Rank ↔ rank. Carries [`PROTOCOL_VERSION`].
pub const ALPN_DATA: &[u8] = b"daisy-data/1";
/// Node ↔ node: measures a path as a rank's edge would use it.
pub const ALPN_PROBE: &[u8] = b"daisy-probe/1";
/// Node ↔ node: files of checkpoints.
pub const ALPN_FILES: &[u8] = b"daisy-files/1";
/// Answers only while a pairing window is open.
pub const ALPN_PAIR: &[u8] = b"daisy-pair/1";
