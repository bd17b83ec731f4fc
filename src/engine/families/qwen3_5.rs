//! Qwen3.5, dense: Qwen3-Next's layers with an ordinary feed-forward network. Checkpoints hold the
//! projections of their delta nets apart, and a vision tower that is passed over: of text the three
//! numbers of a position are one, and heads turn as ever.
//!
//! ```text
//! h   = x + delta net(norm(x))        or gated attention(norm(x)), in each period's last layer
//! out = h + mlp(norm(h))
//! ```

use super::qwen3_next;

/// The config says that no layer has experts.
pub(in crate::engine) type Block = qwen3_next::Block;
