//! The identity contract: a split changes nothing, and the arithmetic is the reference's.
//!
//! Tiny checkpoints with random weights (`tests/data/tiny`, made by `scripts/fixtures`) are cut in
//! every way into one to four ranks; the small real model in five ways. Ranks run in one thread
//! here and hand hidden states on by value: processes and sockets have tests of their own.
//!
//! On a GPU (`scripts/gpu-check`) splits are bit-equal too; shapes and the reference, which was
//! computed on a CPU, then agree within tolerances. What is bit-equal only with MLX's own BLAS is
//! asked only there; the first line of output says what computes. Start at `tiny.rs`.

mod chain;
mod logits;
mod reference;
mod smollm2;
mod tiny;

use std::io::{self, Write};
use std::sync::Once;

/// Whether a row of a product has the same bits for any number of rows: on a CPU with the reference
/// BLAS, not on a GPU.
fn rows_are_independent() -> bool {
    static ANNOUNCED: Once = Once::new();
    let computes = if on_gpu() { "gpu".to_owned() } else { daisy::engine::blas_name() };
    ANNOUNCED.call_once(|| say(&format!("parity: {computes}")));
    computes.contains("reference")
}

fn on_gpu() -> bool {
    daisy::engine::on_gpu().expect("MLX has a device")
}

/// Prints a line that the test harness does not swallow.
fn say(line: &str) {
    // A closed stdout must not fail a test.
    let _ = writeln!(io::stdout(), "{line}");
}
