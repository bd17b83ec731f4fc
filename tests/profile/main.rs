//! Where the time of a decoded token goes in one rank, seen from outside the engine. It judges
//! nothing: `scripts/gpu-check` runs it on a GPU, where the host's share is what counts.

use std::fmt;
use std::io::{self, Write};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use daisy::engine::{Carried, Draw, Engine, LoadRequest};
use daisy::model::ModelConfig;
use daisy::store::Checkpoint;
use daisy_proto::{Hidden, LayerRange, Rank, Row, Sampling, SeqId, Shard};

/// How a step's hidden state comes to the head: as on a chain of several ranks, or of one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Carry {
    Bytes,
    OnDevice,
}

/// What the host did in each step.
#[derive(Default)]
struct Phases([Vec<Duration>; 3]);

#[test]
#[ignore = "measures; scripts/gpu-check runs it"]
fn where_a_token_goes() {
    let dir = PathBuf::from(std::env::var_os(MODEL_ENV).expect("DAISY_PROFILE_MODEL is set"));
    let checkpoint = Checkpoint::open(&dir).expect("the checkpoint opens");
    let config = ModelConfig::parse(&checkpoint.config_json).expect("the config is understood");
    for layers in [config.layers, config.layers / 2, 1] {
        let mut engine = load(&checkpoint, &config, layers);
        print(&format!("{layers} layers and the head on {}", engine.device()));
        for (seq, (context, carry)) in
            (1..).zip(CONTEXTS.iter().flat_map(|context| CARRIES.map(|carry| (*context, carry))))
        {
            let phases = decode(&mut engine, SeqId(seq), context, carry);
            print(&format!("  {context} positions, {carry:?}: {phases}"));
        }
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

/// Decodes greedily. What a rank of several would send on comes straight back to the head.
fn decode(engine: &mut Engine, seq: SeqId, context: u32, carry: Carry) -> Phases {
    let prompt: Vec<u32> = (0..context).map(|i| i % 64 + 32).collect();
    let row = Row { seq, first: 0, count: context, logits: true };
    let whole = engine.embed_forward(&[row], &prompt).expect("a prompt");
    let row_bytes = whole.width as usize * whole.dtype.size_bytes();
    let last = whole.data.slice(whole.data.len() - row_bytes..);
    let last = Hidden::new(whole.dtype, 1, whole.width, last).expect("a row");
    let mut hidden = Carried::from(last);
    let mut phases = Phases::default();
    for position in context..context + STEPS {
        let draw = Draw::new(seq, position, Sampling::greedy());
        let began = Instant::now();
        let sampled = engine.sample(hidden, &[draw]).expect("a step");
        let submitted = Instant::now();
        sampled.tokens().expect("a token");
        let drawn = Instant::now();
        hidden = sampled.advanced();
        if carry == Carry::Bytes {
            hidden = hidden.into_bytes().expect("a hidden state").into();
        }
        let ended = Instant::now();
        let times = [submitted - began, drawn - submitted, ended - drawn];
        for (phase, time) in phases.0.iter_mut().zip(times) {
            phase.push(time);
        }
    }
    engine.release(&[seq]);
    phases
}

impl fmt::Display for Phases {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [submit, token, hidden] = self.0.each_ref().map(|times| median(times));
        let step = submit + token + hidden;
        write!(
            f,
            "{step:.3} ms a step = {submit:.3} build and submit + {token:.3} wait for the token"
        )?;
        write!(f, " + {hidden:.3} wait for the hidden state and copy it")
    }
}

fn print(line: &str) {
    let _ = writeln!(io::stdout(), "PROFILE {line}");
}

fn median(times: &[Duration]) -> f64 {
    let mut times = times.get(WARM..).unwrap_or_default().to_vec();
    times.sort_unstable();
    times.get(times.len() / 2).map_or(f64::NAN, |time| time.as_secs_f64() * 1e3)
}

const MODEL_ENV: &str = "DAISY_PROFILE_MODEL";
const CONTEXTS: [u32; 3] = [64, 2048, 8192];
const CARRIES: [Carry; 2] = [Carry::Bytes, Carry::OnDevice];
const STEPS: u32 = 96;
/// Steps before the counted ones, in which kernels are compiled and graphs recorded.
const WARM: usize = 32;
