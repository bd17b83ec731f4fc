//! What a checkpoint is: its config, its quantisation, its tensors and their bytes.
//!
//! Pure: text and bytes come in as arguments, nothing here opens a file, and MLX is unknown. So the
//! planner, the preflight and the engine judge a checkpoint by one and the same description.
//!
//! Start at [`config`] (what `config.json` says), then [`spec`] (which tensors follow from it and
//! to which part of the model each belongs). [`headers`] reads what a safetensors file holds.

pub mod config;
mod fields;
pub mod headers;
pub mod quantisation;
pub mod rope;
pub mod spec;

pub use config::{ConfigError, Family, ModelConfig};
pub use headers::{Header, HeaderError, StoredDtype, TensorEntry};
pub use quantisation::{ModuleQuantisation, Quantisation};
pub use rope::{Rope, RopeScaling};
pub use spec::{Expected, ModelSpec, Module, ModuleKind, Part, PartBytes, SpecError};
