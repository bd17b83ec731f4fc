//! Names of things: nodes, pipelines, ranks, sequences, layer ranges.

use std::fmt;
use std::str::FromStr;

use data_encoding::BASE32_NOPAD;
use serde::{Deserialize, Serialize};

/// A node's identity: its Ed25519 public key. Written as 52 letters of lower-case base32, which
/// fits a DNS label (hexadecimal would not).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct NodeId(pub [u8; 32]);

impl NodeId {
    /// The first eight letters: enough to tell a home's nodes apart in logs and tables.
    #[must_use]
    pub fn short(&self) -> String {
        self.to_string()[..8].to_owned()
    }
}

impl fmt::Display for NodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&BASE32_NOPAD.encode(&self.0).to_ascii_lowercase())
    }
}

impl fmt::Debug for NodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "NodeId({})", self.short())
    }
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{0}` is not a node id: expected 52 letters and digits, as `daisy cluster id` prints them"
)]
pub struct NodeIdError(String);

impl FromStr for NodeId {
    type Err = NodeIdError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let bytes = BASE32_NOPAD
            .decode(text.to_ascii_uppercase().as_bytes())
            .map_err(|_| NodeIdError(text.to_owned()))?;
        bytes.try_into().map(Self).map_err(|_| NodeIdError(text.to_owned()))
    }
}

/// A loaded plan. New at each load, so that stale frames are refused.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct PipelineId(pub u64);

impl fmt::Display for PipelineId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

impl fmt::Debug for PipelineId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PipelineId({self})")
    }
}

/// Position in the chain, from 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Rank(pub u32);

impl fmt::Display for Rank {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// One token run inside the pipeline.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct SeqId(pub u64);

impl fmt::Display for SeqId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// Half-open range of layers `[start, end)`; shown to people as `0-29`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct LayerRange {
    pub start: u32,
    pub end: u32,
}

impl LayerRange {
    #[must_use]
    pub const fn new(start: u32, end: u32) -> Self {
        Self { start, end }
    }

    #[must_use]
    pub const fn len(&self) -> u32 {
        self.end.saturating_sub(self.start)
    }

    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len() == 0
    }

    #[must_use]
    pub const fn contains(&self, layer: u32) -> bool {
        self.start <= layer && layer < self.end
    }

    pub fn iter(&self) -> std::ops::Range<u32> {
        self.start..self.end
    }
}

impl IntoIterator for &LayerRange {
    type Item = u32;
    type IntoIter = std::ops::Range<u32>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

impl fmt::Display for LayerRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_empty() {
            f.write_str("none")
        } else {
            write!(f, "{}-{}", self.start, self.end - 1)
        }
    }
}

/// What a rank holds. Rank 0 has the embedding *and* the head: it samples.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Shard {
    pub layers: LayerRange,
    pub has_embedding: bool,
    pub has_head: bool,
}

impl Shard {
    /// The shard of `rank` for `layers`: rank 0 holds embedding, final norm and head.
    #[must_use]
    pub const fn of(rank: Rank, layers: LayerRange) -> Self {
        let first = rank.0 == 0;
        Self { layers, has_embedding: first, has_head: first }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn node_id_is_a_dns_label_and_reads_back() {
        let id = NodeId([0xa7; 32]);
        let text = id.to_string();
        assert_eq!(text.len(), 52);
        assert_eq!(text.parse(), Ok(id));
        assert_eq!(text.to_ascii_uppercase().parse(), Ok(id));
    }

    #[test]
    fn a_bad_node_id_is_named() {
        for bad in ["", "abc", "!", &"a".repeat(53)] {
            let error = bad.parse::<NodeId>().expect_err("must be refused");
            assert!(error.to_string().contains(&format!("`{bad}`")), "{error}");
        }
    }

    #[test]
    fn layer_ranges_are_shown_inclusive() {
        assert_eq!(LayerRange::new(0, 30).to_string(), "0-29");
        assert_eq!(LayerRange::new(3, 3).to_string(), "none");
    }
}
