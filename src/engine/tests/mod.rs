//! The engine against tiny random checkpoints, which are written when a test runs.

mod checkpoint;
mod families;
mod inputs;
mod loading;
mod sampling;
mod speed;
mod splits;

use std::process::Command;

use daisy_proto::{Dtype, Hidden, LayerRange, Rank, Row, Sampling, SeqId, Shard};

use super::{Draw, Engine, EngineError, LoadRequest};
use checkpoint::Checkpoint;

/// Ranks of one pipeline, in one thread: what a step's frames would carry is passed along.
struct Chain {
    ranks: Vec<Engine>,
}

impl Chain {
    /// Loads `checkpoint` with so many layers on each rank.
    fn load(checkpoint: &Checkpoint, layers: &[u32], dtype: Option<Dtype>) -> Self {
        let mut start = 0;
        let ranks = (0..).zip(layers).map(|(rank, count)| {
            let range = LayerRange::new(start, start + count);
            start = range.end;
            let shard = Shard::of(Rank(rank), range);
            let is_last = rank as usize + 1 == layers.len();
            load_shard(checkpoint, shard, is_last, dtype).expect("the checkpoint is complete")
        });
        Self { ranks: ranks.collect() }
    }

    /// Runs rows of prompt tokens through all ranks; gives the rows for the head.
    fn prefill(&mut self, rows: &[Row], tokens: &[u32]) -> Hidden {
        let hidden = self.ranks[0].embed_forward(rows, tokens).expect("valid rows");
        self.pass_on(rows, hidden)
    }

    /// Draws from `hidden` and runs the sequences that go on through all ranks.
    fn decode(&mut self, hidden: Hidden, draws: &[Draw<'_>]) -> (Vec<u32>, Hidden) {
        let sampled = self.ranks[0].sample(hidden, draws).expect("valid draws");
        let tokens = sampled.tokens().expect("tokens");
        let hidden = sampled.advanced().into_bytes().expect("a hidden state");
        let rows: Vec<Row> = draws
            .iter()
            .filter(|draw| draw.advance)
            .map(|draw| row(draw.seq.0, draw.position, 1))
            .collect();
        (tokens, self.pass_on(&rows, hidden))
    }

    fn logits(&mut self, hidden: &Hidden) -> Vec<f32> {
        self.ranks[0].logits(hidden.clone()).expect("logits")
    }

    fn pass_on(&mut self, rows: &[Row], hidden: Hidden) -> Hidden {
        let later = self.ranks[1..].iter_mut();
        later.fold(hidden, |hidden, rank| rank.forward(rows, hidden).expect("valid rows"))
    }
}

fn load_shard(
    checkpoint: &Checkpoint,
    shard: Shard,
    is_last: bool,
    dtype: Option<Dtype>,
) -> Result<Engine, EngineError> {
    let (files, config) = (checkpoint.files.clone(), checkpoint.config.clone());
    Engine::load(&LoadRequest { files, config, shard, is_last, dtype }, &mut |_| {})
}

fn row(seq: u64, first: u32, count: u32) -> Row {
    Row { seq: SeqId(seq), first, count, logits: true }
}

fn draw(seq: u64, position: u32) -> Draw<'static> {
    Draw::new(SeqId(seq), position, Sampling::greedy())
}

/// A prompt that differs by `seed`.
fn prompt(length: u32, seed: u32) -> Vec<u32> {
    (0..length).map(|i| (i * 7 + seed * 13 + 3) % checkpoint::VOCAB).collect()
}

/// Bits, because -0.0 equals 0.0 and NaN nothing.
fn bits(logits: &[f32]) -> Vec<u32> {
    assert!(logits.iter().all(|logit| logit.is_finite()), "a logit is not finite");
    logits.iter().map(|logit| logit.to_bits()).collect()
}

/// The reference BLAS computes each row alike whatever stands beside it; others need not.
fn assert_same_rows(a: &[f32], b: &[f32], what: &str) {
    if !super::on_gpu().expect("a device") && super::blas_name() == "reference BLAS" {
        assert_eq!(bits(a), bits(b), "{what}");
    } else {
        assert_close(a, b, 1e-4, what);
    }
}

fn assert_close(a: &[f32], b: &[f32], tolerance: f32, what: &str) {
    assert_eq!(a.len(), b.len(), "{what}");
    let largest = a.iter().fold(0.0_f32, |max, logit| max.max(logit.abs()));
    for (a, b) in a.iter().zip(b) {
        assert!((a - b).abs() <= tolerance * largest, "{what}: {a} and {b}, largest {largest}");
    }
}

/// Whether the test `path` has this process to itself; if not, one is started for it and must pass.
fn alone(path: &str) -> bool {
    if std::env::var_os(ALONE).is_some() {
        return true;
    }
    let this = std::env::current_exe().expect("a test binary");
    let (_, test) = path.split_once("::").expect("the crate's name comes first");
    let child = Command::new(this).args(["--exact", test]).env(ALONE, "1").output();
    let child = child.expect("started");
    let said = String::from_utf8_lossy(&child.stdout);
    assert!(child.status.success() && said.contains("1 passed"), "{said}");
    false
}

const ALONE: &str = "DAISY_TEST_ALONE";
