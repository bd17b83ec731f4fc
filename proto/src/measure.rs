//! The measured link between two nodes: one record that both keep.
//!
//! A link has one path for each pair of addresses that may lead from node to node. A path counts only
//! when it was dialled with success from both ends: ranks dial in both directions, and a firewall or a
//! missing route often shows from one end alone.

use std::net::IpAddr;

use serde::{Deserialize, Serialize};

use crate::{Device, LinkKind, NodeId};

/// What both ends of a link agree on.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeLink {
    /// The smaller id first: that node leads the measurements.
    pub nodes: [NodeId; 2],
    /// Counts what the leading node has made of this link since it started.
    pub round: u64,
    /// Those that work, best first; then the others.
    pub paths: Vec<Path>,
}

/// One pair of addresses.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Path {
    /// In the order of [`NodeLink::nodes`].
    pub ends: [PathEnd; 2],
    /// Dialled from each end, in the same order: what was measured, or why nothing came through.
    pub trials: [Result<Sample, String>; 2],
}

/// An interface and an address of one node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PathEnd {
    pub device: Device,
    pub kind: LinkKind,
    pub ip: IpAddr,
}

/// One direction of dialling, measured over QUIC as ranks use it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sample {
    pub rtt_median_us: u32,
    pub rtt_worst_us: u32,
    /// Round trips behind the two figures above.
    pub probes: u16,
    /// From the dialler to the other end, in one burst.
    pub bit_per_s: u64,
}

/// What came of dialling one pair of addresses.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Trial {
    pub own: PathEnd,
    pub other: PathEnd,
    pub outcome: Result<Sample, String>,
}
