//! The identity contract, on a CPU: a split changes nothing, and the arithmetic is the reference's.
//!
//! Tiny checkpoints with random weights (`tests/data/tiny`, made by `scripts/fixtures`) are cut in
//! every way into one to four ranks; the small real model in five ways. Ranks run in one thread
//! here and hand hidden states on by value: processes and sockets have tests of their own.
//!
//! Start at `tiny.rs`. What is bit-equal only with MLX's own BLAS is asked only there; the first
//! line of output says which one is in use.

mod chain;
mod logits;
mod reference;
mod smollm2;
mod tiny;

use std::io::{self, Write};
use std::sync::Once;

/// Whether the BLAS in use gives a row of a product the same bits for any number of rows.
fn rows_are_independent() -> bool {
    static ANNOUNCED: Once = Once::new();
    let blas = daisy::engine::blas_name();
    ANNOUNCED.call_once(|| say(&format!("parity: {blas}")));
    blas.contains("reference")
}

/// Prints a line that the test harness does not swallow.
fn say(line: &str) {
    // A closed stdout must not fail a test.
    let _ = writeln!(io::stdout(), "{line}");
}
