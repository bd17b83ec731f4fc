//! Checkpoints on disk: opening one, and making one from a GGUF file.
//!
//! The store knows files and their headers. It does not know what the tensors are for (that is
//! `model`), never computes with weights, and never opens a socket.
//!
//! Start at [`checkpoint`] (what is served), then [`import`] (where one may come from) and
//! [`gguf`] (the reader beneath it).

pub mod checkpoint;
pub mod gguf;
pub mod import;

pub use checkpoint::{Checkpoint, CheckpointError};
pub use import::{ImportError, Imported, Progress, Quantise, Wish, import_gguf};
