//! The parts that families are built of. Activations are `[tokens, width]`: the rows of a step
//! stand one behind the other, and only attention tells sequences apart.
//!
//! What holds arrays has no `Debug`: MLX's would evaluate and print them.

mod attention;
mod embedding;
mod joined;
mod linear;
mod mlp;
mod norm;
mod rope;

pub(super) use attention::{Heads, Span, attend};
pub(super) use embedding::Embedding;
pub(super) use joined::Joined;
pub(super) use linear::Linear;
pub(super) use mlp::Mlp;
pub(super) use norm::RmsNorm;
pub(super) use rope::Rope;
