//! Whole files of checkpoints from node to node: TLS over TCP with ALPN [`crate::ALPN_FILES`], both keys
//! pinned, framed as everything else ([`crate::frame`]).
//!
//! ```text
//! taker → giver   Ask::List    giver: Answer::Files
//! taker → giver   Ask::Get     giver: Answer::Chunk with bytes as its payload, as often as it takes,
//!                              then Answer::End
//! ```
//!
//! One ask at a time; a connection may ask as often as it likes. Instead of any answer there may come
//! [`Answer::Refused`]. A name counts only if the list has it, letter for letter, so none leads elsewhere.

use serde::{Deserialize, Serialize};

/// Which checkpoint is meant.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Which {
    /// A commit of a repository of the hub.
    Commit { repo: String, commit: String },
    /// The one whose config and headers have this digest.
    Digest([u8; 32]),
}

/// A file that a node has of a checkpoint.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileEntry {
    pub name: String,
    pub bytes: u64,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Ask {
    /// What do you have of it?
    List(Which),
    /// The bytes of one file from `from` on, and with `sealed` what the whole file hashes to.
    Get { which: Which, name: String, from: u64, sealed: bool },
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Answer {
    /// None: nothing at all.
    Files(Vec<FileEntry>),
    /// The payload is the next bytes. An empty one says that there is more to come.
    Chunk,
    /// That was the last one. SHA-256 of the whole file, if it was asked for.
    End { sha256: Option<[u8; 32]> },
    /// The sentence says why.
    Refused(String),
}

/// Bytes of a chunk's payload, at most.
pub const CHUNK_BYTES_MAX: usize = 1 << 20;
