//! Qwen3 with mixtures of experts (Qwen team 2025, arXiv 2505.09388): its attention is that of the
//! dense one.
//!
//! ```text
//! h   = x + attention(norm(x))
//! out = h + experts(norm(h))          or mlp(norm(h)), in layers that the config names
//! ```

use super::qwen3;

/// The config says which layers have experts.
pub(in crate::engine) type Block = qwen3::Block;
