//! A split changes nothing: every cut gives the same bits. Nor do chunks and batches, on the
//! reference BLAS.

use super::super::Carried;
use super::checkpoint::{Checkpoint, LAYERS, styles};
use super::*;

/// Two sequences, one prefilled in chunks, then decoded together; the logits of every step.
fn story(chain: &mut Chain) -> Vec<Vec<u32>> {
    let (one, two) = (prompt(11, 1), prompt(3, 2));
    let start = Row { logits: false, ..row(1, 0, 5) };
    assert_eq!(chain.prefill(&[start], &one[..5]).tokens, 0);
    let tokens = [&one[5..], &two[..]].concat();
    let mut hidden = chain.prefill(&[row(1, 5, 6), row(2, 0, 3)], &tokens);
    let mut seen = vec![bits(&chain.logits(&hidden))];
    let past = [(3, 0), (9, 2), (40, 1)];
    for step in 0..4 {
        let seeded = Sampling {
            temperature: 1.0,
            top_p: 0.9,
            top_k: 20,
            min_p: 0.01,
            repetition_penalty: 1.2,
            frequency_penalty: 0.3,
            seed: 7,
            ..Sampling::greedy()
        };
        let draws =
            [draw(1, 11 + step), Draw { sampling: seeded, past: &past, ..draw(2, 3 + step) }];
        let (tokens, next) = chain.decode(hidden, &draws);
        hidden = next;
        seen.push(tokens);
        seen.push(bits(&chain.logits(&hidden)));
    }
    seen
}

/// Every way to write `layers` as a sum of at least 1 each.
fn cuts(layers: u32) -> Vec<Vec<u32>> {
    if layers == 0 {
        return vec![Vec::new()];
    }
    let first = 1..=layers;
    let mut cuts = Vec::new();
    for first in first {
        for rest in self::cuts(layers - first) {
            cuts.push([&[first], rest.as_slice()].concat());
        }
    }
    cuts
}

#[test]
fn every_cut_gives_the_bits_of_one_rank() {
    assert_eq!(cuts(LAYERS).len(), 8);
    for (name, style) in styles() {
        let checkpoint = Checkpoint::write(&style);
        let whole = story(&mut Chain::load(&checkpoint, &[LAYERS], None));
        assert!(whole[0] != whole[2], "{name}: the logits never change");
        let head_only = vec![0, LAYERS];
        for cut in cuts(LAYERS).into_iter().chain([head_only]) {
            let split = story(&mut Chain::load(&checkpoint, &cut, None));
            assert!(whole == split, "{name} cut into {cut:?}");
        }
    }
}

#[test]
fn half_types_are_cut_alike_and_close_to_f32() {
    for (name, style) in styles() {
        let checkpoint = Checkpoint::write(&style);
        let tokens = prompt(9, 1);
        let answer = |cut: &[u32], dtype| {
            let mut chain = Chain::load(&checkpoint, cut, Some(dtype));
            let hidden = chain.prefill(&[row(1, 0, 9)], &tokens);
            assert_eq!(hidden.dtype, dtype);
            chain.logits(&hidden)
        };
        let exact = answer(&[LAYERS], Dtype::F32);
        // MLX's quantised kernels for a CPU sum up in the type itself.
        for (dtype, tolerance) in [(Dtype::F16, 1e-2), (Dtype::Bf16, 0.15)] {
            let half = answer(&[LAYERS], dtype);
            assert_close(&exact, &half, tolerance, &format!("{name} in {dtype:?}"));
            assert_eq!(bits(&half), bits(&answer(&[1, 3], dtype)), "{name} in {dtype:?}");
        }
    }
}

#[test]
fn chunks_and_batches_give_the_rows_of_one_alone() {
    for (name, style) in styles() {
        let checkpoint = Checkpoint::write(&style);
        let mut chain = Chain::load(&checkpoint, &[LAYERS], None);
        let tokens = prompt(23, 1);
        let at_once = chain.prefill(&[row(1, 0, 23)], &tokens);
        let at_once = chain.logits(&at_once);
        for chunk in [1_u32, 4, 16] {
            let seq = 100 + u64::from(chunk);
            let mut hidden = None;
            for first in (0..23).step_by(chunk as usize) {
                let count = chunk.min(23 - first);
                let part = &tokens[first as usize..(first + count) as usize];
                hidden = Some(chain.prefill(&[row(seq, first, count)], part));
            }
            let logits = chain.logits(&hidden.expect("at least one chunk"));
            assert_same_rows(&at_once, &logits, &format!("{name} in chunks of {chunk}"));
        }
        let beside = [&prompt(6, 5), &tokens[..], &prompt(1, 9)].concat();
        let rows = [row(2, 0, 6), row(3, 0, 23), row(4, 0, 1)];
        let hidden = chain.prefill(&rows, &beside);
        let logits = chain.logits(&hidden);
        let vocab = at_once.len();
        assert_same_rows(&at_once, &logits[vocab..2 * vocab], &format!("{name} in a batch"));
    }
}

#[test]
fn a_fused_step_equals_two() {
    let checkpoint = Checkpoint::write(&styles()[0].1);
    let mut chain = Chain::load(&checkpoint, &[2, 2], None);
    let hidden = chain.prefill(&[row(1, 0, 7)], &prompt(7, 1));
    let (drawn, next) = chain.decode(hidden.clone(), &[draw(1, 7)]);
    let fused = chain.logits(&next);
    let alone = Draw { advance: false, ..draw(1, 7) };
    let (again, nothing) = chain.decode(hidden, &[alone]);
    assert_eq!((&drawn, nothing.tokens), (&again, 0));
    // The row computed ahead is overwritten: the cache is trimmed to the row's first position.
    let next = chain.prefill(&[row(1, 7, 1)], &drawn);
    assert_eq!(bits(&fused), bits(&chain.logits(&next)));
}

#[test]
fn only_those_that_go_on_are_advanced() {
    let checkpoint = Checkpoint::write(&styles()[0].1);
    let mut chain = Chain::load(&checkpoint, &[2, 2], None);
    let tokens = [prompt(4, 1), prompt(5, 2), prompt(6, 3)].concat();
    let rows = [row(1, 0, 4), row(2, 0, 5), row(3, 0, 6)];
    let hidden = chain.prefill(&rows, &tokens);
    let all = [draw(1, 4), draw(2, 5), draw(3, 6)];
    let (drawn, next) = chain.decode(hidden.clone(), &all);
    let together = chain.logits(&next);
    let mut some = all;
    some[1].advance = false;
    let (again, next) = chain.decode(hidden, &some);
    assert_eq!((&drawn, next.tokens), (&again, 2));
    let vocab = together.len() / 3;
    let expected = [&together[..vocab], &together[2 * vocab..]].concat();
    assert_same_rows(&expected, &chain.logits(&next), "without the second");
}

#[test]
fn a_trimmed_sequence_goes_on_as_if_never_longer() {
    let checkpoint = Checkpoint::write(&styles()[0].1);
    let mut chain = Chain::load(&checkpoint, &[1, 3], None);
    // Over the first block's end, so that the cache has grown before it is trimmed.
    let tokens = prompt(300, 1);
    let first = chain.prefill(&[row(1, 0, 300)], &tokens);
    let other = prompt(40, 2);
    chain.prefill(&[row(1, 250, 40)], &other);
    assert_eq!(chain.ranks[0].cached(SeqId(1)), 290);
    let again = chain.prefill(&[row(1, 250, 50)], &tokens[250..]);
    assert_same_rows(&chain.logits(&first), &chain.logits(&again), "after trimming");
}

/// What reaches the device, counted where it is handed over; the types let nothing else be read.
#[test]
fn each_step_is_one_submission_per_rank_and_tokens_one_more() {
    let checkpoint = Checkpoint::write(&styles()[0].1);
    let mut chain = Chain::load(&checkpoint, &[2, 1, 1], None);
    let counts = |chain: &Chain| chain.ranks.iter().map(Engine::submissions).collect::<Vec<_>>();
    assert_eq!(counts(&chain), [0, 0, 0]);
    let mut hidden = chain.prefill(&[row(1, 0, 5)], &prompt(5, 1));
    assert_eq!(counts(&chain), [1, 1, 1]);
    for step in 0..3 {
        hidden = chain.decode(hidden, &[draw(1, 5 + step)]).1;
        let steps = u64::from(step) + 1;
        assert_eq!(counts(&chain), [1 + 2 * steps, 1 + steps, 1 + steps]);
    }
    let logits = chain.logits(&hidden);
    assert!(!logits.is_empty());
    assert_eq!(counts(&chain), [8, 4, 4]);
    // The last token goes nowhere: only the tokens are computed.
    chain.decode(hidden, &[Draw { advance: false, ..draw(1, 8) }]);
    assert_eq!(counts(&chain), [9, 4, 4]);
}

#[test]
fn neither_pieces_nor_rows_that_stay_on_the_device_change_a_bit() {
    let checkpoint = Checkpoint::write(&styles()[0].1);
    let answer = |in_pieces: bool, on_device: bool| {
        let mut engine = Chain::load(&checkpoint, &[LAYERS], None).ranks.remove(0);
        engine.in_pieces = in_pieces;
        let rows = [row(1, 0, 7), row(2, 0, 3)];
        let mut hidden = Carried::from(engine.embed_forward(&rows, &prompt(10, 1)).expect("rows"));
        let mut tokens = Vec::new();
        for step in 0..6 {
            // One of the two ends, after its row went on.
            let draws = [draw(1, 7 + step), draw(2, 3 + step)];
            let draws = if step < 3 { &draws[..] } else { &draws[..1] };
            let sampled = engine.sample(hidden, draws).expect("draws");
            tokens.extend(sampled.tokens().expect("tokens"));
            hidden = sampled.advanced();
            if step == 2 {
                hidden = hidden.keep(&[true, false]);
            }
            if !on_device {
                hidden = hidden.into_bytes().expect("rows").into();
            }
        }
        let submissions = engine.submissions();
        let last = hidden.into_bytes().expect("rows");
        (tokens, bits(&engine.logits(last).expect("logits")), submissions)
    };
    let (tokens, logits, submissions) = answer(false, false);
    assert_eq!(submissions, 1 + 2 * 6);
    // Four layers are two pieces, while the device has nothing else to do.
    for (in_pieces, on_device, submissions) in
        [(true, false, 2 + 3 * 6), (false, true, 1 + 2 * 6), (true, true, 2 + 3 + 2 * 5)]
    {
        let expected = (tokens.clone(), logits.clone(), submissions);
        assert_eq!(answer(in_pieces, on_device), expected, "{in_pieces} {on_device}");
    }
}
