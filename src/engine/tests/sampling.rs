//! Draws: greedy, cut by top-k and top-p, seeded, and the same whatever else is in the batch.

use mlx_rs::Array;

use super::super::sample::sample;
use super::*;

const HOT: Sampling = Sampling { temperature: 1.0, top_p: 1.0, top_k: 0, seed: 3 };

/// Draws from the same logits at positions 0, 1, 2 …
fn drawn(logits: &[f32], sampling: Sampling, count: u32) -> Vec<u32> {
    let vocab = i32::try_from(logits.len()).expect("small");
    let rows = Array::from_slice(&logits.repeat(count as usize), &[count.cast_signed(), vocab]);
    let draws: Vec<_> = (0..count).map(|position| (sampling, position)).collect();
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
        Sampling { temperature: 3.0, top_p: 0.95, top_k: 30, seed: 0 },
    ];
    let rows: Vec<Vec<f32>> = (0..5).map(logits).collect();
    let draws: Vec<_> = samplings.into_iter().map(|sampling| (sampling, 17)).collect();
    let together = sample(&Array::from_slice(&rows.concat(), &[5, 40]), &draws).expect("draws");
    let together = together.try_as_slice::<u32>().expect("ids");
    for ((row, draw), expected) in rows.iter().zip(&draws).zip(together) {
        let alone = sample(&Array::from_slice(row, &[1, 40]), &[*draw]).expect("draws");
        assert_eq!(alone.try_as_slice::<u32>().expect("ids"), [*expected], "{draw:?}");
    }
}
