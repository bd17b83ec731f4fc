//! Why the engine could not do something. Input that does not fit the model or the cache leaves the
//! engine as it was; after [`EngineError::Mlx`] its caches are undefined and the process should end.

use std::path::PathBuf;

use daisy_proto::SeqId;

use super::ffi::Failed;
use crate::model::{HeaderError, SpecError};

#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    #[error("{}: {error}", path.display())]
    Io { path: PathBuf, error: std::io::Error },
    #[error("{}: {error}", path.display())]
    Header { path: PathBuf, error: HeaderError },
    #[error("the checkpoint does not fit its config: {0}")]
    Spec(#[from] SpecError),
    #[error("{} changed while it was loaded", path.display())]
    Changed { path: PathBuf },
    #[error("this shard has {0}, which the request needs")]
    NotThisShard(&'static str),
    #[error("token id {token} is outside of the vocabulary of {vocab}")]
    Token { token: u32, vocab: u32 },
    #[error("{what}: expected {expected}, got {got}")]
    Count { what: &'static str, expected: u64, got: u64 },
    #[error("sequence {seq} continues at position {first}, but {cached} positions are cached")]
    Gap { seq: SeqId, first: u32, cached: u32 },
    #[error(
        "sequence {seq} goes back to position {first} of {cached}; with this model it can only go \
         on or start anew"
    )]
    Rewind { seq: SeqId, first: u32, cached: u32 },
    #[error("sequence {seq} has a row without positions")]
    EmptyRow { seq: SeqId },
    #[error("sequence {seq} reaches position {end}; the model has {max}")]
    BeyondContext { seq: SeqId, end: u64, max: u32 },
    #[error("sequence {seq} appears twice in one step")]
    Twice { seq: SeqId },
    #[error("sequence {seq}: sampling {field} must be {expected}, got {got}")]
    Sampling { seq: SeqId, field: &'static str, expected: &'static str, got: f32 },
    #[error(transparent)]
    Kernels(#[from] super::KernelsError),
    #[error("MLX: {0}")]
    Mlx(String),
    /// A bug.
    #[error("internal: {0}")]
    Internal(&'static str),
}

impl From<mlx_rs::error::Exception> for EngineError {
    fn from(error: mlx_rs::error::Exception) -> Self {
        Self::Mlx(error.what().to_owned())
    }
}

impl From<Failed> for EngineError {
    fn from(Failed(doing): Failed) -> Self {
        Self::Mlx(format!("{doing} failed"))
    }
}
