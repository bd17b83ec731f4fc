//! Draws: greedy, cut by top-k, top-p and min-p, penalised, biased, seeded, and the same whatever
//! else is in the batch. Log probabilities.

use mlx_rs::Array;

use super::super::logprobs::Computed;
use super::super::sample::sample;
use super::*;

const HOT: Sampling = Sampling { temperature: 1.0, seed: 3, ..Sampling::greedy() };

/// Draws from the same logits at positions 0, 1, 2 …
fn drawn(logits: &[f32], sampling: Sampling, count: u32) -> Vec<u32> {
    drawn_as(logits, Draw { sampling, ..draw(1, 0) }, count)
}

fn drawn_as(logits: &[f32], draw: Draw<'_>, count: u32) -> Vec<u32> {
    let vocab = i32::try_from(logits.len()).expect("small");
    let rows = Array::from_slice(&logits.repeat(count as usize), &[count.cast_signed(), vocab]);
    let draws: Vec<_> = (0..count).map(|position| Draw { position, ..draw }).collect();
    sample(&rows, &draws).expect("draws").try_as_slice::<u32>().expect("ids").to_vec()
}

/// A row of logits that depends on `seed`.
fn logits(seed: u8) -> Vec<f32> {
    (0..40_u8).map(|i| (f32::from(i) * 1.7 + f32::from(seed)).sin() * 3.0).collect()
}

#[test]
fn greedy_takes_the_largest_and_the_first_of_equals() {
    let logits = [0.0, 4.0, -1.0, 4.0];
    assert_eq!(drawn(&logits, Sampling::greedy(), 2), [1, 1]);
    assert_eq!(drawn(&logits, Sampling { top_k: 1, ..HOT }, 2), [1, 1]);
    assert_eq!(drawn(&logits, Sampling { top_k: 1, top_p: 0.3, ..HOT }, 2), [1, 1]);
    assert_eq!(drawn(&[1.0, 2.0, 0.0], Sampling { top_p: 0.0, ..HOT }, 8), [1; 8]);
    assert_eq!(drawn(&[30.0, 31.0, 0.0], Sampling { temperature: 1e-30, ..HOT }, 8), [1; 8]);
}

#[test]
fn frequencies_follow_the_probabilities() {
    let logits = [0.2_f32, 0.5, 0.0001, 0.2999].map(f32::ln);
    let share = |sampling, token| {
        let drawn = drawn(&logits, sampling, 1000);
        drawn.iter().filter(|&&id| id == token).count()
    };
    // Three standard deviations of a thousand draws are at most 48.
    for (token, expected) in [(0, 200), (1, 500), (3, 300)] {
        assert!(share(HOT, token).abs_diff(expected) < 48, "token {token}");
    }
    let top_2 = Sampling { top_k: 2, ..HOT };
    assert_eq!(share(top_2, 0), 0);
    assert!(share(top_2, 1).abs_diff(625) < 48);
    // 0.5 does not reach 0.6, so the next one stays too.
    let top_p = Sampling { top_p: 0.6, ..HOT };
    assert_eq!(share(top_p, 0), 0);
    assert!(share(top_p, 1).abs_diff(625) < 48);
    // Of the two that top_k leaves, the first has 0.625.
    assert_eq!(share(Sampling { top_k: 2, ..top_p }, 1), 1000);
    // A temperature of 0.5 squares the probabilities: 0.04, 0.25 and 0.09.
    assert!(share(Sampling { temperature: 0.5, ..HOT }, 1).abs_diff(658) < 48);
}

#[test]
fn seed_and_position_decide() {
    let first = drawn(&logits(1), HOT, 50);
    assert_eq!(first, drawn(&logits(1), HOT, 50));
    assert_ne!(first, drawn(&logits(1), Sampling { seed: 4, ..HOT }, 50));
    assert!(first.iter().any(|id| *id != first[0]), "all positions draw alike");
    // Seed 4 is not seed 3 shifted by a position.
    let other = drawn(&logits(1), Sampling { seed: 4, ..HOT }, 51);
    assert_ne!(first[1..], other[..49]);
    assert_ne!(first[..50], other[1..]);
}

#[test]
fn a_draw_does_not_depend_on_its_batch() {
    let samplings = [
        Sampling::greedy(),
        HOT,
        Sampling { top_k: 5, ..HOT },
        Sampling { top_p: 0.5, seed: u64::MAX, ..HOT },
        Sampling { temperature: 3.0, top_p: 0.95, top_k: 30, seed: 0, ..HOT },
        Sampling { min_p: 0.1, ..HOT },
        Sampling { repetition_penalty: 1.3, frequency_penalty: 0.5, ..HOT },
        Sampling { presence_penalty: 2.0, ..Sampling::greedy() },
    ];
    let rows: Vec<Vec<f32>> = (0..8).map(logits).collect();
    let past = [(1, 0), (4, 2), (39, 1)];
    let draws: Vec<_> = samplings
        .into_iter()
        .map(|sampling| Draw { sampling, past: &past, bias: &[(4, 0.5)], ..draw(1, 17) })
        .collect();
    let together = sample(&Array::from_slice(&rows.concat(), &[8, 40]), &draws).expect("draws");
    let together = together.try_as_slice::<u32>().expect("ids");
    for ((row, draw), expected) in rows.iter().zip(&draws).zip(together) {
        let alone = sample(&Array::from_slice(row, &[1, 40]), &[*draw]).expect("draws");
        assert_eq!(alone.try_as_slice::<u32>().expect("ids"), [*expected], "{draw:?}");
    }
}

#[test]
fn min_p_keeps_what_is_near_the_best() {
    let logits = [0.2_f32, 0.5, 0.0001, 0.2999].map(f32::ln);
    let seen = |sampling| {
        let mut seen = drawn(&logits, sampling, 300);
        seen.sort_unstable();
        seen.dedup();
        seen
    };
    let hot = Sampling { temperature: 3.0, ..HOT };
    assert_eq!(seen(hot), [0, 1, 2, 3]);
    assert_eq!(seen(Sampling { min_p: 0.3, ..hot }), [0, 1, 3]);
    assert_eq!(seen(Sampling { min_p: 0.5, ..hot }), [1, 3]);
    assert_eq!(seen(Sampling { min_p: 1.0, ..hot }), [1]);
    // Together with the others: the smallest set wins.
    assert_eq!(seen(Sampling { min_p: 0.3, top_k: 2, ..hot }), [1, 3]);
    assert_eq!(seen(Sampling { min_p: 0.5, top_p: 0.95, ..hot }), [1, 3]);
}

#[test]
fn penalties_and_bias_change_the_logits() {
    let greedy = Sampling::greedy();
    let logits = [1.0, 2.0, -1.0, 1.9];
    // Token 1 stands in the prompt, token 3 twice in the answer.
    let past = [(1, 0), (3, 2)];
    let repetition = Sampling { repetition_penalty: 2.5, ..greedy };
    let presence = Sampling { presence_penalty: 0.5, ..greedy };
    let frequency = Sampling { frequency_penalty: 0.5, ..greedy };
    let encouraged = Sampling { presence_penalty: -0.5, ..greedy };
    let nowhere: &[(u32, u32)] = &[];
    for (sampling, past, bias, expected) in [
        (greedy, &past[..], &[][..], 1),
        (repetition, nowhere, &[], 1),
        // 2.0 and 1.9 become 0.8 and 0.76.
        (repetition, &past, &[], 0),
        // The prompt is no business of the other two.
        (presence, &past, &[], 1),
        (presence, &[(1, 1)], &[], 3),
        (presence, &[(1, 1), (3, 9)], &[], 1),
        (frequency, &[(1, 1), (3, 2)], &[], 1),
        (frequency, &[(1, 3), (3, 1)], &[], 3),
        (encouraged, &past, &[], 3),
        (greedy, nowhere, &[(2, 3.5)], 2),
        (greedy, nowhere, &[(1, -100.0), (3, -100.0)], 0),
        (repetition, &past, &[(1, 0.3)], 1),
    ] {
        let draw = Draw { sampling, past, bias, ..draw(1, 0) };
        assert_eq!(drawn_as(&logits, draw, 2), [expected; 2], "{draw:?}");
    }
    // A negative logit is made smaller too.
    let draw = Draw { sampling: repetition, past: &[(0, 1)], ..draw(1, 0) };
    assert_eq!(drawn_as(&[-1.0, -2.0], draw, 1), [1]);
    let banned = Draw { sampling: HOT, bias: &[(1, -100.0)], ..draw };
    assert!(!drawn_as(&logits, banned, 200).contains(&1));
}

#[test]
fn log_probabilities_are_the_models_own() {
    let probabilities = [0.2_f32, 0.5, 0.05, 0.25];
    let logits = probabilities.map(|p| p.ln() + 7.0);
    let logits = Array::from_slice(&logits, &[4]);
    let of = |token: u32, count| {
        let computed = Computed::new(&logits, &Array::from_slice(&[token], &[1]), count);
        computed.expect("computes").read().expect("reads")
    };
    for token in 0..4 {
        let drawn = of(token, 0);
        assert!((drawn.drawn - probabilities[token as usize].ln()).abs() < 1e-5, "{drawn:?}");
        assert_eq!(drawn.top, []);
    }
    for (count, expected) in
        [(1, &[1][..]), (3, &[1, 3, 0]), (4, &[1, 3, 0, 2]), (20, &[1, 3, 0, 2])]
    {
        let top = of(2, count).top;
        assert_eq!(top.iter().map(|(id, _)| *id).collect::<Vec<_>>(), expected);
        for (id, logprob) in top {
            assert!((logprob - probabilities[id as usize].ln()).abs() < 1e-5);
        }
    }
}

/// Asking changes no token, and only the rows that ask get an answer.
#[test]
fn log_probabilities_come_with_their_tokens() {
    let checkpoint = Checkpoint::write(&super::checkpoint::styles()[0].1);
    let mut chain = Chain::load(&checkpoint, &[super::checkpoint::LAYERS], None);
    let hidden = chain.prefill(&[row(1, 0, 3), row(2, 0, 5)], &prompt(8, 1));
    let asked = [draw(1, 3), Draw { logprobs: Some(2), ..draw(2, 5) }];
    let sampled = chain.ranks[0].sample(hidden, &asked).expect("valid draws");
    let tokens = sampled.tokens().expect("tokens");
    let [None, Some(of_second)] = &sampled.logprobs().expect("values")[..] else {
        panic!("one row asked");
    };
    assert_eq!(of_second.top.len(), 2);
    // Greedy: the drawn token is the likeliest.
    assert_eq!(of_second.top[0], (tokens[1], of_second.drawn));
    assert!(of_second.top[1].1 <= of_second.drawn && of_second.drawn < 0.0);
}
