//! What a checkpoint is: its config, its quantisation, its tensors and their bytes.
//!
//! Pure: text and bytes come in as arguments, nothing here opens a file, and MLX is unknown. So the
//! planner, the preflight and the engine judge a checkpoint by one and the same description.
//!
//! Start at [`config`] (what `config.json` says), then [`spec`] (which tensors follow from it and
//! to which part of the model each belongs); [`names`] tells how checkpoints call them. [`headers`]
//! reads what a safetensors file holds.

pub mod config;
mod costs;
pub mod family;
mod fields;
pub mod headers;
pub mod layers;
pub mod modules;
pub mod names;
pub mod quantisation;
pub mod rope;
pub mod spec;

pub use config::{ConfigError, ModelConfig};
pub use costs::compute_dtype;
pub use family::{AttentionBias, Family};
pub use headers::{Header, HeaderError, StoredDtype, TensorEntry};
pub use layers::{Experts, GatedDelta};
pub use modules::{Module, ModuleKind};
pub use names::{ExpertForm, Layout};
pub use quantisation::{ModuleQuantisation, Quantisation, QuantisationMode};
pub use rope::{Rope, RopeScaling};
pub use spec::{Expected, ModelSpec, Part, PartBytes, SpecError};
