//! Checkpoints' files from node to node: TLS over TCP, both keys pinned, as [`daisy_proto::files`] says.
//!
//! A [`Giver`] answers nodes that are trusted, a few at a time, each on a thread of its own; what it has to
//! give is a [`Shelf`]'s to say. A [`Taker`] blocks. Neither knows what a checkpoint is, nor where bytes
//! are kept. TCP, since the system's own is what carries bulk at the least cost; nothing else is on it.

mod giver;
mod sealing;
mod taker;
mod wire;

pub use giver::{Giver, Shelf};
pub use sealing::Sealing;
pub use taker::{TakeError, Taker};

#[cfg(test)]
mod tests;
