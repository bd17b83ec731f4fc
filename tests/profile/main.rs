//! Where the time of a decoded token goes in one rank, seen from outside the engine. It judges
//! nothing: `scripts/gpu-check` runs it on a GPU, where the host's share is what counts.

use std::io::{self, Write};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use daisy::engine::{Draw, Engine, LoadRequest};
use daisy::model::ModelConfig;
use daisy::store::Checkpoint;
use daisy_proto::{LayerRange, Rank, Row, Sampling, SeqId, Shard};

#[test]
#[ignore = "measures; scripts/gpu-check runs it"]
fn where_a_token_goes() {
    let dir = PathBuf::from(std::env::var_os(MODEL_ENV).expect("DAISY_PROFILE_MODEL is set"));
    let checkpoint = Checkpoint::open(&dir).expect("the checkpoint opens");
    let config = ModelConfig::parse(&checkpoint.config_json).expect("the config is understood");
    for layers in [config.layers, config.layers / 2, 1] {
        let mut engine = load(&checkpoint, &config, layers);
        let phases = decode(&mut engine);
        print(&format!("{layers} layers and the head on {}", engine.device()), &phases);
    }
}

/// Rank 0 with the first `layers` layers, as if another rank held the rest.
fn load(checkpoint: &Checkpoint, config: &ModelConfig, layers: u32) -> Engine {
    let request = LoadRequest {
        files: checkpoint.files.clone(),
        config: config.clone(),
        shard: Shard::of(Rank(0), LayerRange::new(0, layers)),
        is_last: layers == config.layers,
        dtype: None,
    };
    Engine::load(&request, &mut |_| ()).expect("the shard loads")
}

/// Decodes greedily; what a rank of its own would send on comes straight back to the head.
fn decode(engine: &mut Engine) -> [Vec<Duration>; 3] {
    let prompt: Vec<u32> = (0..CONTEXT).map(|i| i % 64 + 32).collect();
    let row = Row { seq: SEQ, first: 0, count: CONTEXT, logits: true };
    let whole = engine.embed_forward(&[row], &prompt).expect("a prompt");
    let row_bytes = whole.width as usize * whole.dtype.size_bytes();
    let last = whole.data.slice(whole.data.len() - row_bytes..);
    let mut hidden = daisy_proto::Hidden::new(whole.dtype, 1, whole.width, last).expect("a row");
    let mut phases = [const { Vec::new() }; 3];
    for position in CONTEXT..CONTEXT + STEPS {
        let draw = Draw::new(SEQ, position, Sampling::greedy());
        let began = Instant::now();
        let sampled = engine.sample(hidden, &[draw]).expect("a step");
        let submitted = Instant::now();
        sampled.tokens().expect("a token");
        let drawn = Instant::now();
        hidden = sampled.hidden().expect("a hidden state");
        let ended = Instant::now();
        let times = [submitted - began, drawn - submitted, ended - drawn];
        for (phase, time) in phases.iter_mut().zip(times) {
            phase.push(time);
        }
    }
    phases
}

fn print(what: &str, phases: &[Vec<Duration>; 3]) {
    let names = ["build and submit", "wait for the token", "wait for the hidden state, copy it"];
    let medians = phases.each_ref().map(|times| median(times));
    let mut out = io::stdout();
    let _ = writeln!(out, "PROFILE {what}: {:.3} ms a step", medians.iter().sum::<f64>());
    for (name, median) in names.iter().zip(medians) {
        let _ = writeln!(out, "PROFILE   {median:.3} ms {name}");
    }
}

fn median(times: &[Duration]) -> f64 {
    let mut times = times.get(WARM..).unwrap_or_default().to_vec();
    times.sort_unstable();
    times.get(times.len() / 2).map_or(f64::NAN, |time| time.as_secs_f64() * 1e3)
}

const MODEL_ENV: &str = "DAISY_PROFILE_MODEL";
const SEQ: SeqId = SeqId(1);
const CONTEXT: u32 = 64;
const STEPS: u32 = 128;
/// Steps before the counted ones, in which kernels are compiled and graphs recorded.
const WARM: usize = 32;
