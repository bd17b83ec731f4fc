//! Daisy runs one language model across several machines, behind one OpenAI-compatible endpoint.
//!
//! Modules in reading order. Layer 1 is pure: no async, no IO, no clock, no randomness of its own.
//! Adapters wrap one outside thing each and do not import one another. Shells wire both together.
//! A test reads the `use` lines and holds this; `docs/architecture.md` says why.

// 1. pure
pub mod doctor;
pub mod facts;
pub mod guard;
pub mod links;
pub mod model;
pub mod pipeline;
pub mod plan;
pub mod preflight;
pub mod schedule;
pub mod units;
// 2. adapters
pub mod discovery;
pub mod engine;
pub mod identity;
pub mod ipc;
pub mod logs;
pub mod machine;
pub mod net;
pub mod pake;
pub mod ssh;
pub mod store;
pub mod text;
// 3. shells
pub mod api;
pub mod cli;
pub mod node;
pub mod rank;
