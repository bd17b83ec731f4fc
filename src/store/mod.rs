//! Checkpoints on disk: opening one, finding or fetching one of the hub's, and making one from a GGUF file.
//!
//! The store knows files, their headers and their hashes. It does not know what the tensors are for (that is
//! `model`), never computes with weights, and of the network only the hub.
//!
//! Start at [`checkpoint`] (what is served), then [`source`] (what `--model` may name), [`cache`] (where the
//! hub's files lie), [`import`] (where one may come from) and [`gguf`] (the reader beneath it).

pub mod cache;
pub mod checkpoint;
pub mod content;
pub mod gguf;
pub mod import;
pub mod incoming;
pub mod revision;
pub mod settings;
pub mod source;

pub use cache::{Begun, Cache, CacheError, Snapshot};
pub use checkpoint::{Checkpoint, CheckpointError};
pub use content::Content;
pub use import::{ImportError, Imported, Progress, Quantise, Wish, import_gguf};
pub use incoming::Incoming;
pub use revision::{RemoteFile, Revision};
pub use settings::{HubSettings, SettingsError, Token};
pub use source::{RepoId, Source, SourceError};
