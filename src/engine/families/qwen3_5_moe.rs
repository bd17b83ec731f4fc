//! Qwen3.5 with mixtures of experts in every layer, a shared one among them.
//!
//! ```text
//! h   = x + delta net(norm(x))        or gated attention(norm(x)), in each period's last layer
//! out = h + experts(norm(h))
//! ```

use super::qwen3_next;

/// The config says that every layer has experts.
pub(in crate::engine) type Block = qwen3_next::Block;
