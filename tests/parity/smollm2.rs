//! The small real model: greedy ids are those that the reference library gives, and every cut gives
//! the tokens of one rank. `DAISY_TEST_MODEL` names its directory; `scripts/check parity` sets it.

use std::env;
use std::fs;
use std::path::PathBuf;

use daisy::model::ModelConfig;
use daisy::store::Checkpoint;
use daisy_proto::{Dtype, Sampling, SeqId};
use serde::Deserialize;

use crate::chain::{Chain, Decoded, length};
use crate::reference::data;
use crate::{rows_are_independent, say};

#[derive(Deserialize)]
struct Recorded {
    conversations: Vec<Conversation>,
}

#[derive(Deserialize)]
struct Conversation {
    prompt: Vec<u32>,
    greedy: Vec<u32>,
}

#[test]
fn one_rank_gives_the_recorded_ids() {
    let Some((checkpoint, config)) = model("smollm2") else { return };
    let mut chain = Chain::load(&checkpoint, &config, &[config.layers], Dtype::F32);
    for (number, Conversation { prompt, greedy }) in recorded().iter().enumerate() {
        let seq = SeqId(number as u64);
        let count = if number == 0 { FIRST_ANSWER } else { OTHER_ANSWERS };
        let Decoded { tokens, .. } = chain.answer(seq, prompt, count);
        assert_eq!(tokens, greedy[..count as usize], "conversation {number}");
        chain.release(seq);
    }
}

#[test]
fn every_cut_gives_the_tokens_of_one_rank() {
    let Some((checkpoint, config)) = model("smollm2 cuts") else { return };
    let recorded = recorded();
    let Conversation { prompt, greedy } = &recorded[0];
    let whole = answers(&checkpoint, &config, &[config.layers], prompt);
    assert_eq!(whole.0.tokens, greedy[..CUT_ANSWER as usize], "one rank");
    for cut in CUTS {
        let split = answers(&checkpoint, &config, cut, prompt);
        assert_eq!(split.0.tokens, whole.0.tokens, "cut {cut:?}, greedy");
        assert_eq!(split.1.tokens, whole.1.tokens, "cut {cut:?}, seeded");
        assert!(split == whole, "cut {cut:?}: other logits behind the same tokens");
    }
}

/// Greedy and seeded. The prompt runs once: the seeded draws start at its last token again.
fn answers(
    checkpoint: &Checkpoint,
    config: &ModelConfig,
    cut: &[u32],
    prompt: &[u32],
) -> (Decoded, Decoded) {
    let seq = SeqId(1);
    let mut chain = Chain::load(checkpoint, config, cut, Dtype::F32);
    let greedy = chain.answer(seq, prompt, CUT_ANSWER);
    let hidden = chain.prefill(seq, length(prompt) - 1, &prompt[prompt.len() - 1..], 1);
    let seeded = chain.decode(seq, length(prompt), hidden, SEEDED, CUT_ANSWER);
    (greedy, seeded)
}

/// Nothing where the model is not there: a skip, which CI does not allow.
fn model(test: &str) -> Option<(Checkpoint, ModelConfig)> {
    rows_are_independent();
    let Some(dir) = env::var_os(MODEL_ENV).filter(|dir| !dir.is_empty()) else {
        assert!(
            env::var("CI").as_deref() != Ok("true"),
            "{MODEL_ENV} is not set, and CI may not skip"
        );
        say(&format!("SKIP parity {test}: {MODEL_ENV} is not set"));
        return None;
    };
    let checkpoint = Checkpoint::open(&PathBuf::from(dir)).expect("the checkpoint opens");
    let config = ModelConfig::parse(&checkpoint.config_json).expect("the config is understood");
    Some((checkpoint, config))
}

fn recorded() -> Vec<Conversation> {
    let text = fs::read_to_string(data().join("smollm2.json")).expect("smollm2.json is there");
    serde_json::from_str::<Recorded>(&text).expect("smollm2.json is as recorded").conversations
}

const MODEL_ENV: &str = "DAISY_TEST_MODEL";
const CUTS: &[&[u32]] = &[&[15, 15], &[1, 29], &[29, 1], &[10, 10, 10], &[7, 8, 7, 8]];
const SEEDED: Sampling = Sampling { temperature: 0.8, top_p: 0.95, seed: 7, ..Sampling::greedy() };
/// Tokens to decode: a real model on a slow BLAS gives a few per second.
const FIRST_ANSWER: u32 = 24;
const OTHER_ANSWERS: u32 = 12;
const CUT_ANSWER: u32 = 8;
