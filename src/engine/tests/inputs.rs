//! Input that does not fit is refused with its reason, and leaves the caches as they were.

use super::checkpoint::{Checkpoint, LAYERS, VOCAB, styles};
use super::*;

fn whole() -> (Engine, Hidden) {
    let checkpoint = Checkpoint::write(&styles()[0].1);
    let mut chain = Chain::load(&checkpoint, &[LAYERS], None);
    let hidden = chain.prefill(&[row(1, 0, 4)], &prompt(4, 1));
    (chain.ranks.remove(0), hidden)
}

#[test]
fn rows_that_do_not_fit_are_refused() {
    let (mut engine, _) = whole();
    let far = 16_384 - 1;
    for (rows, tokens, said) in [
        (vec![row(1, 5, 1)], vec![1], "sequence 1 continues at position 5, but 4 positions"),
        (vec![row(9, 1, 1)], vec![1], "sequence 9 continues at position 1, but 0 positions"),
        (vec![row(2, 0, 1), row(1, 9, 1)], vec![1, 1], "sequence 1 continues"),
        (vec![row(2, 0, 1), row(2, 1, 1)], vec![1, 1], "sequence 2 appears twice"),
        (vec![row(2, 0, 0)], vec![], "sequence 2 has a row without positions"),
        (vec![row(2, far, 2)], vec![1, 1], "sequence 2 reaches position 16385"),
        (vec![row(2, u32::MAX, u32::MAX)], vec![1], "tokens of a step"),
        (vec![row(2, 0, 2)], vec![1], "tokens of a step: expected 2, got 1"),
        (vec![], vec![1], "tokens of a step: expected 0, got 1"),
        (vec![row(2, 0, 1)], vec![VOCAB], "token id 61 is outside"),
    ] {
        let error = engine.embed_forward(&rows, &tokens).expect_err(said).to_string();
        assert!(error.contains(said), "{error}");
        assert_eq!((engine.cached(SeqId(1)), engine.cached(SeqId(2))), (4, 0), "{said}");
    }
    assert_eq!(engine.embed_forward(&[], &[]).expect("nothing to do").tokens, 0);
    assert_eq!(engine.submissions(), 1);
}

#[test]
fn hidden_states_that_do_not_fit_are_refused() {
    let (mut engine, hidden) = whole();
    let rows = [row(2, 0, 1)];
    let narrow = Hidden { width: 32, tokens: 2, ..hidden.clone() };
    let short = Hidden { data: hidden.data.slice(..8), ..hidden.clone() };
    let double = [row(2, 0, 2)];
    for (rows, hidden, said) in [
        (&rows[..], short, "bytes of a hidden state: expected 256, got 8"),
        (&double[..], narrow, "width of a hidden state: expected 64, got 32"),
        (&double[..], hidden.clone(), "positions of a hidden state: expected 2, got 1"),
    ] {
        let error = engine.forward(rows, hidden).expect_err(said).to_string();
        assert!(error.contains(said), "{error}");
        assert_eq!(engine.cached(SeqId(2)), 0);
    }
    let with = |sampling| engine_sample(&mut whole().0, &hidden, Draw { sampling, ..draw(1, 4) });
    let greedy = Sampling::greedy();
    for (sampling, said) in [
        (Sampling { temperature: f32::NAN, ..greedy }, "temperature"),
        (Sampling { temperature: -1.0, ..greedy }, "temperature"),
        (Sampling { top_p: 1.5, ..greedy }, "top_p"),
        (Sampling { top_p: f32::NAN, ..greedy }, "top_p"),
        (Sampling { min_p: -0.1, ..greedy }, "min_p"),
        (Sampling { min_p: f32::NAN, ..greedy }, "min_p"),
        (Sampling { repetition_penalty: 0.0, ..greedy }, "repetition_penalty"),
        (Sampling { repetition_penalty: f32::INFINITY, ..greedy }, "repetition_penalty"),
        (Sampling { presence_penalty: f32::NAN, ..greedy }, "presence_penalty"),
        (Sampling { frequency_penalty: f32::INFINITY, ..greedy }, "frequency_penalty"),
    ] {
        let error = with(sampling).expect_err(said);
        assert!(error.contains("sequence 1") && error.contains(said), "{error}");
    }
    let wrong = [(1, 0.5), (VOCAB, 1.0)];
    for (draw, said) in [
        (Draw { bias: &wrong, ..draw(1, 4) }, "token id 61"),
        (Draw { past: &[(VOCAB, 1)], ..draw(1, 4) }, "token id 61"),
        (Draw { bias: &[(1, f32::NAN)], ..draw(1, 4) }, "sampling bias"),
    ] {
        let error = engine_sample(&mut engine, &hidden, draw).expect_err(said);
        assert!(error.contains(said), "{error}");
    }
    let error = engine_sample(&mut engine, &hidden, draw(1, 5)).expect_err("a gap");
    assert!(error.contains("sequence 1 continues at position 5"), "{error}");
    let error = engine.sample(hidden, &[]).expect_err("a row without a draw").to_string();
    assert!(error.contains("draws of a hidden state"), "{error}");
    let nothing = engine.sample(Hidden::empty(Dtype::F32, 64), &[]).expect("nothing to draw");
    assert_eq!(nothing.tokens().expect("no tokens"), [0_u32; 0]);
    assert_eq!(nothing.advanced().tokens(), 0);
}

fn engine_sample(engine: &mut Engine, hidden: &Hidden, draw: Draw<'_>) -> Result<Vec<u32>, String> {
    let sampled = engine.sample(hidden.clone(), &[draw]).map_err(|error| error.to_string())?;
    sampled.tokens().map_err(|error| error.to_string())
}

#[test]
fn a_shard_does_only_what_it_holds() {
    let checkpoint = Checkpoint::write(&styles()[0].1);
    let shard = Shard::of(Rank(1), LayerRange::new(1, 3));
    let mut engine = load_shard(&checkpoint, shard, false, None).expect("loads");
    let hidden = Hidden::new(Dtype::F32, 1, 64, vec![0; 256].into()).expect("fits");
    assert!(matches!(
        engine.embed_forward(&[row(1, 0, 1)], &[1]),
        Err(EngineError::NotThisShard(_))
    ));
    assert!(matches!(engine.logits(hidden.clone()), Err(EngineError::NotThisShard(_))));
    assert!(matches!(engine.sample(hidden, &[draw(1, 1)]), Err(EngineError::NotThisShard(_))));
}

#[test]
fn hidden_states_come_in_any_type_and_at_any_address() {
    let checkpoint = Checkpoint::write(&styles()[0].1);
    let shard = Shard::of(Rank(1), LayerRange::new(1, 3));
    let mut engine = load_shard(&checkpoint, shard, false, None).expect("loads");
    let rows = [row(1, 0, 1)];
    // 1.0 in bfloat16 and in f32, the latter one byte off.
    let half: Vec<u8> = [0x80, 0x3f].repeat(64);
    let full =
        bytes::Bytes::from([&[0], [0, 0, 0x80, 0x3f].repeat(64).as_slice()].concat()).slice(1..);
    let [half, full] = [(Dtype::Bf16, half.into()), (Dtype::F32, full)].map(|(dtype, data)| {
        let hidden = Hidden::new(dtype, 1, 64, data).expect("fits");
        engine.forward(&rows, hidden).expect("computes")
    });
    assert_eq!(half, full);
    assert_eq!(half.dtype, Dtype::F32);
}

#[test]
fn released_sequences_start_anew() {
    let (mut engine, _) = whole();
    engine.release(&[SeqId(1), SeqId(77)]);
    assert_eq!(engine.cached(SeqId(1)), 0);
    assert!(engine.embed_forward(&[row(1, 4, 1)], &[1]).is_err());
}
