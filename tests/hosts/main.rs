//! Whole nodes as processes: real QUIC, real ranks, real network namespaces, real kills.
//!
//! Every cluster here is made of the binary itself; the library serves no test in this file. The
//! tests take turns, since two of them at once on two cores would only measure each other.

#![expect(
    clippy::print_stdout,
    reason = "a skipped test says so, and a failed one shows what its nodes said"
)]

#[path = "../bench/cable.rs"]
mod cable;
mod cluster;
mod discovery;
mod faults;
mod lifecycle;
mod links;
mod loading;
mod memory;
mod obstacles;
mod planning;
mod rig;
mod ring;
mod split;
mod ssh;
mod sshd;
mod terminal;

/// Ends the test early, counted as skipped by `scripts/check`.
macro_rules! skip {
    ($name:literal, $why:expr) => {{
        println!("SKIP hosts {}: {}", $name, $why);
        return;
    }};
}
pub(crate) use skip;
