//! Qwen2 (Yang et al. 2024, arXiv 2407.10671), also 2.5: a llama whose queries, keys and values have
//! biases.
//!
//! ```text
//! h   = x + attention(norm(x))
//! out = h + mlp(norm(h))
//! ```

use super::llama;

/// The config says where biases are.
pub(in crate::engine) type Block = llama::Block;
