//! The parts that families are built of. Activations are `[tokens, width]`: the rows of a step
//! stand one behind the other, and only attention tells sequences apart.
//!
//! What holds arrays has no `Debug`: MLX's would evaluate and print them.

mod attention;
mod compiled;
mod delta;
mod delta_net;
mod embedding;
mod experts;
mod gated_attention;
mod joined;
mod linear;
mod mlp;
mod norm;
mod quantised;
mod rope;

pub(super) use attention::{Heads, Span, attend};
pub(super) use delta_net::GatedDeltaNet;
pub(super) use embedding::Embedding;
pub(super) use experts::FeedForward;
pub(super) use gated_attention::GatedAttention;
pub(super) use joined::Joined;
pub(super) use linear::Linear;
pub(super) use norm::RmsNorm;
pub(super) use quantised::Quantised;
pub(super) use rope::Rope;
