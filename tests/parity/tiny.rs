//! Every tiny checkpoint against the reference, and every cut of it against one rank.

use std::collections::BTreeSet;
use std::fs;

use daisy_proto::{Dtype, Row, Sampling, SeqId};

use crate::chain::{Chain, Cut, Decoded, cuts, length};
use crate::logits::{Tolerance, assert_close, assert_same_bits, best};
use crate::reference::{Tiny, data};
use crate::{rows_are_independent, say};

/// The checkpoints of `tests/data/tiny`, a module each: its cuts, and its steps of other shapes.
macro_rules! checkpoints {
    ($($module:ident $name:literal)*) => {
        const NAMES: &[&str] = &[$($name),*];
        $(mod $module {
            #[test]
            fn every_cut_is_one_rank_and_the_reference() {
                super::every_cut(&super::Tiny::open($name));
            }

            #[test]
            fn steps_of_other_shapes_change_nothing() {
                super::other_shapes(&super::Tiny::open($name));
            }
        })*
    };
}

checkpoints! {
    llama_f32 "llama-f32"
    llama_bf16 "llama-bf16"
    llama_f16 "llama-f16"
    llama_4bit_f32 "llama-4bit-f32"
    llama_tied_f32 "llama-tied-f32"
    llama_tied_bf16 "llama-tied-bf16"
    llama_tied_f16 "llama-tied-f16"
    llama_tied_4bit_f32 "llama-tied-4bit-f32"
    llama_rope_llama3_f32 "llama-rope-llama3-f32"
    llama_rope_linear_f32 "llama-rope-linear-f32"
    qwen3_f32 "qwen3-f32"
    qwen3_bf16 "qwen3-bf16"
    qwen3_f16 "qwen3-f16"
    qwen3_4bit_f32 "qwen3-4bit-f32"
    qwen3_tied_f32 "qwen3-tied-f32"
    qwen3_tied_bf16 "qwen3-tied-bf16"
    qwen3_tied_f16 "qwen3-tied-f16"
    qwen3_tied_4bit_f32 "qwen3-tied-4bit-f32"
    qwen3_tied_4bit_bf16 "qwen3-tied-4bit-bf16"
    qwen2_f32 "qwen2-f32"
    qwen2_bf16 "qwen2-bf16"
    qwen2_tied_4bit_f32 "qwen2-tied-4bit-f32"
    qwen2_tied_mxfp8_f32 "qwen2-tied-mxfp8-f32"
    qwen3_moe_f32 "qwen3_moe-f32"
    qwen3_moe_4bit_f32 "qwen3_moe-4bit-f32"
    qwen3_moe_nvfp4_f32 "qwen3_moe-nvfp4-f32"
    qwen3_next_f32 "qwen3_next-f32"
    qwen3_next_4bit_f32 "qwen3_next-4bit-f32"
    qwen3_5_f32 "qwen3_5-f32"
    qwen3_5_tied_4bit_f32 "qwen3_5-tied-4bit-f32"
    qwen3_5_moe_original_f32 "qwen3_5_moe-original-f32"
    qwen3_5_moe_4bit_f32 "qwen3_5_moe-4bit-f32"
    qwen3_5_moe_mxfp4_f32 "qwen3_5_moe-mxfp4-f32"
}

#[test]
fn every_checkpoint_has_its_tests() {
    let entries = fs::read_dir(data().join("tiny")).expect("tests/data/tiny is there");
    let found: BTreeSet<String> = entries
        .map(|entry| entry.expect("an entry").file_name().to_string_lossy().into_owned())
        .collect();
    assert_eq!(found, NAMES.iter().map(|name| (*name).to_owned()).collect());
}

/// What a chain computes for a checkpoint, in steps of the same shapes for every cut.
#[derive(PartialEq)]
struct Computed {
    /// Of every position of the prompt.
    prompt: Vec<Vec<f32>>,
    greedy: Decoded,
    seeded: Vec<u32>,
    long: Vec<f32>,
}

fn every_cut(tiny: &Tiny) {
    rows_are_independent();
    let whole = compute(tiny, &vec![tiny.config.layers]);
    // Every cut into two; of more ranks some, where there are many.
    let some = |ranks| {
        let cuts = cuts(tiny.config.layers, ranks);
        let every = if ranks > 2 { cuts.len().div_ceil(CUTS_MAX).max(1) } else { 1 };
        cuts.into_iter().step_by(every)
    };
    for cut in (2..=RANKS_MAX).flat_map(some) {
        assert_one_rank(tiny, &cut, &whole);
    }
    against_reference(tiny, &whole);
}

/// Any checkpoint with its reference (scripts/parity), in one rank and cut at random.
#[test]
fn a_given_checkpoint_is_the_reference() {
    let given = std::env::var_os("DAISY_PARITY_MODEL");
    let tiny =
        given.map_or_else(|| Tiny::open("qwen3_5-tied-4bit-f32"), |dir| Tiny::at(dir.as_ref()));
    let seed = std::env::var("DAISY_PARITY_SEED").ok().and_then(|seed| seed.parse().ok());
    let layers = tiny.config.layers;
    let all: Vec<Cut> = (2..=RANKS_MAX).flat_map(|ranks| cuts(layers, ranks)).collect();
    let whole = compute(&tiny, &vec![layers]);
    against_reference(&tiny, &whole);
    if let Some(cut) = all.get(seed.unwrap_or(0_usize) % all.len().max(1)) {
        say(&format!("{} in 1 rank and cut {cut:?}", tiny.checkpoint.name));
        assert_one_rank(&tiny, cut, &whole);
    }
    other_shapes(&tiny);
}

/// Panics unless `cut` gives the bits of `whole`, one rank.
fn assert_one_rank(tiny: &Tiny, cut: &Cut, whole: &Computed) {
    let split = compute(tiny, cut);
    let label = |what: &str| format!("{} cut {cut:?}, {what}", tiny.checkpoint.name);
    for (position, (got, want)) in split.prompt.iter().zip(&whole.prompt).enumerate() {
        assert_same_bits(&label(&format!("prompt position {position}")), got, want);
    }
    for (step, (got, want)) in split.greedy.logits.iter().zip(&whole.greedy.logits).enumerate() {
        assert_same_bits(&label(&format!("decode step {step}")), got, want);
    }
    assert_same_bits(&label("long prompt"), &split.long, &whole.long);
    assert!(split == *whole, "{}", label("tokens"));
}

fn compute(tiny: &Tiny, cut: &Cut) -> Computed {
    let Tiny { checkpoint, config, dtype, prompt, long_prompt, .. } = tiny;
    let count = length(&tiny.greedy);
    let mut chain = Chain::load(checkpoint, config, cut, *dtype);
    let greedy = chain.answer(FIRST, prompt, count);

    // The prompt is still cached: its last token again, and other draws from there.
    let hidden = if tiny.goes_back() {
        chain.prefill(FIRST, length(prompt) - 1, &prompt[prompt.len() - 1..], 1)
    } else {
        chain.prefill(FIRST, 0, prompt, prompt.len())
    };
    let seeded = chain.decode(FIRST, length(prompt), hidden, SEEDED, count).tokens;
    chain.release(FIRST);

    let hidden = chain.prefill(FIRST, 0, long_prompt, long_prompt.len());
    let long = chain.logits(&hidden);

    let mut chain = Chain::load_untrimmed(checkpoint, config, cut, *dtype);
    let row = Row { seq: FIRST, first: 0, count: length(prompt), logits: true };
    let hidden = chain.step(&[row], prompt);
    let all = chain.logits(&hidden);
    let prompt = all.chunks(config.vocab as usize).map(<[f32]>::to_vec).collect();
    Computed { prompt, greedy, seeded, long }
}

fn against_reference(tiny: &Tiny, computed: &Computed) {
    let Tiny { tolerance, .. } = *tiny;
    let label = |what: &str| format!("{} against the reference, {what}", tiny.checkpoint.name);
    assert_eq!(computed.prompt.len(), tiny.prompt_logits.len(), "{}", label("positions"));
    for (position, (got, want)) in computed.prompt.iter().zip(&tiny.prompt_logits).enumerate() {
        assert_close(&label(&format!("prompt position {position}")), got, want, tolerance);
    }
    assert_close(&label("long prompt"), &computed.long, &tiny.long_logits, tolerance);
    assert_ne!(computed.seeded, tiny.greedy, "{}", label("seeded ids are greedy ones"));
    if !tiny.same_sums {
        return;
    }
    let [after_prompt, after_tokens @ ..] = computed.greedy.logits.as_slice() else {
        panic!("{}", label("no logits"));
    };
    let want = tiny.prompt_logits.last().expect("a prompt has positions");
    assert_close(&label("end of the prompt"), after_prompt, want, tolerance);
    assert_eq!(after_tokens.len(), tiny.step_logits.len(), "{}", label("steps"));
    for (step, (got, want)) in after_tokens.iter().zip(&tiny.step_logits).enumerate() {
        assert_close(&label(&format!("decode step {step}")), got, want, tolerance);
    }
    let end = after_tokens.last().expect("decoding had steps");
    assert_close(&label("without a cache"), end, &tiny.nocache_logits, tolerance);
    assert_eq!(computed.greedy.tokens, tiny.greedy, "{}", label("greedy ids"));
}

/// How alike two results of steps of other shapes must be.
struct Judge<'a> {
    name: &'a str,
    exact: bool,
    tolerance: Tolerance,
}

impl Judge<'_> {
    fn same(&self, what: &str, got: &[f32], want: &[f32]) {
        let what = format!("{}, {what}", self.name);
        if self.exact {
            assert_same_bits(&what, got, want);
        } else {
            assert_close(&what, got, want, self.tolerance);
        }
    }
}

/// Chunks, single positions and batches: the same bits where the BLAS allows it, in f32 and without
/// gated delta nets, which compute chunks in another way than positions; else within the tolerance.
fn other_shapes(tiny: &Tiny) {
    let Tiny { checkpoint, config, prompt, long_prompt, .. } = tiny;
    let judge = Judge {
        name: &checkpoint.name,
        exact: rows_are_independent() && tiny.dtype == Dtype::F32 && tiny.goes_back(),
        tolerance: tiny.tolerance,
    };
    let cut = if config.layers > 1 { vec![1, config.layers - 1] } else { vec![1] };
    let mut chain = Chain::load(checkpoint, config, &cut, tiny.dtype);
    let mut once = |tokens: &[u32]| {
        let hidden = chain.prefill(FIRST, 0, tokens, tokens.len());
        chain.logits(&hidden)
    };
    let (short_once, long_once) = (once(prompt), once(long_prompt));
    for (tokens, want, chunks) in
        [(prompt, &short_once, [1, 5, 23].as_slice()), (long_prompt, &long_once, &[64, 255, 256])]
    {
        for chunk in chunks {
            let hidden = chain.prefill(SECOND, 0, tokens, *chunk);
            let got = chain.logits(&hidden);
            judge.same(&format!("{} positions in chunks of {chunk}", tokens.len()), &got, want);
            chain.release(SECOND);
        }
    }
    batch(tiny, &mut chain, &judge);
}

/// A step of four rows: one position of three sequences at different places and the prompt of a
/// fourth. Each row gives what it gives alone.
fn batch(tiny: &Tiny, chain: &mut Chain, judge: &Judge<'_>) {
    let prompt = &tiny.prompt;
    let rows: Vec<Row> = (10..)
        .zip([7, 12, 20])
        .map(|(seq, first)| Row { seq: SeqId(seq), first, count: 1, logits: true })
        .chain([Row { seq: SeqId(20), first: 0, count: length(prompt), logits: true }])
        .collect();
    let mut alone = Vec::new();
    let mut tokens = Vec::new();
    for row in &rows {
        let (first, end) = (row.first as usize, (row.first + row.count) as usize);
        let hidden = chain.prefill(FIRST, 0, &prompt[..end], end);
        alone.push(chain.logits(&hidden));
        tokens.extend_from_slice(&prompt[first..end]);
        if first > 0 {
            // Two positions too many, where the step can trim them.
            let end = first + if tiny.goes_back() { 2 } else { 0 };
            chain.prefill(row.seq, 0, &prompt[..end], end);
        }
    }
    let hidden = chain.step(&rows, &tokens);
    assert_eq!(hidden.tokens, 4, "rows that come back");
    let together = chain.logits(&hidden);
    for (place, (got, want)) in together.chunks(tiny.config.vocab as usize).zip(&alone).enumerate()
    {
        judge.same(&format!("row {place} of a batch"), got, want);
        if tiny.tolerance.same_best {
            assert_eq!(best(got), best(want), "row {place} of a batch");
        }
    }
}

/// A checkpoint in a half type is computed in f32 on a CPU unless asked otherwise, and then agrees
/// with the reference that computes those weights in f32.
#[test]
fn half_types_computed_in_f32_agree() {
    for name in NAMES {
        let tiny = Tiny::open(name);
        let Some(widened) = &tiny.widened else { continue };
        let Tiny { checkpoint, config, .. } = &tiny;
        let mut chain = Chain::load(checkpoint, config, &[1, config.layers - 1], Dtype::F32);
        for (tokens, want) in [
            ([tiny.prompt.as_slice(), &tiny.greedy].concat(), &widened.nocache_logits),
            (tiny.long_prompt.clone(), &widened.long_logits),
        ] {
            let hidden = chain.prefill(FIRST, 0, &tokens, tokens.len());
            let got = chain.logits(&hidden);
            assert_close(&format!("{name} in f32"), &got, want, F32_TOLERANCE);
        }
    }
}

const FIRST: SeqId = SeqId(1);
const SECOND: SeqId = SeqId(2);
const SEEDED: Sampling = Sampling { temperature: 0.8, top_p: 0.95, seed: 7, ..Sampling::greedy() };
const RANKS_MAX: u32 = 4;
const CUTS_MAX: usize = 3;
const F32_TOLERANCE: Tolerance = Tolerance { logit: 1e-4, kl: 1e-6, same_best: true };
