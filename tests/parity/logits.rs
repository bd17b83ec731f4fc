//! Comparing logits: bit for bit, or within what another implementation may differ by.

/// What one of two results may differ by from the other.
#[derive(Debug, Clone, Copy)]
pub struct Tolerance {
    /// Largest |Δlogit|, relative to the largest |logit|.
    pub logit: f64,
    /// Largest KL divergence in nats.
    pub kl: f64,
    /// Whether the best token must be the same even where two are close.
    pub same_best: bool,
}

/// Panics unless `got` is `want` to the last bit.
pub fn assert_same_bits(what: &str, got: &[f32], want: &[f32]) {
    assert_eq!(got.len(), want.len(), "{what}: number of logits");
    let differing = got.iter().zip(want).filter(|(g, w)| g.to_bits() != w.to_bits()).count();
    let largest = largest_difference(got, want);
    assert!(differing == 0, "{what}: {differing} of {} differ, by up to {largest:e}", got.len());
}

/// Panics unless `got` is `want` within `tolerance`.
pub fn assert_close(what: &str, got: &[f32], want: &[f32], tolerance: Tolerance) {
    assert_eq!(got.len(), want.len(), "{what}: number of logits");
    assert!(got.iter().all(|logit| logit.is_finite()), "{what}: a logit is not finite");
    let scale = want.iter().fold(0.0, |most: f64, logit| most.max(f64::from(logit.abs())));
    let difference = largest_difference(got, want) / scale;
    assert!(
        difference <= tolerance.logit,
        "{what}: differs by {difference:e} of the largest logit"
    );
    let kl = divergence(want, got);
    assert!(kl <= tolerance.kl, "{what}: diverges by {kl:e} nats");
    if tolerance.same_best {
        assert_eq!(best(got), best(want), "{what}: another best token");
    }
}

/// The index of the largest logit; of equal ones the first.
pub fn best(logits: &[f32]) -> usize {
    let mut best = 0;
    for (token, logit) in logits.iter().enumerate() {
        if *logit > logits[best] {
            best = token;
        }
    }
    best
}

fn largest_difference(left: &[f32], right: &[f32]) -> f64 {
    let differences = left.iter().zip(right).map(|(l, r)| (f64::from(*l) - f64::from(*r)).abs());
    // `max` would pass over a NaN.
    differences.fold(0.0, |most, next| if next.is_nan() || next > most { next } else { most })
}

fn divergence(from: &[f32], to: &[f32]) -> f64 {
    let (from, to) = (log_softmax(from), log_softmax(to));
    from.iter().zip(&to).map(|(p, q)| p.exp() * (p - q)).sum()
}

fn log_softmax(logits: &[f32]) -> Vec<f64> {
    let largest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let shifted: Vec<f64> =
        logits.iter().map(|logit| f64::from(*logit) - f64::from(largest)).collect();
    let normaliser = shifted.iter().map(|logit| logit.exp()).sum::<f64>().ln();
    shifted.into_iter().map(|logit| logit - normaliser).collect()
}

#[test]
fn comparisons_can_fail() {
    let tolerance = Tolerance { logit: 1e-3, kl: 1e-6, same_best: true };
    let want = [1.0, 4.0, 3.999, -2.0];
    assert_close("itself", &want, &want, tolerance);
    for got in [
        [1.0, 4.0, 3.999, -2.1],
        [1.0, 4.0, 3.999, f32::NAN],
        // Within the tolerance, but the best token is another.
        [1.0, 3.999, 4.0, -2.0],
    ] {
        let close = std::panic::catch_unwind(|| assert_close("other", &got, &want, tolerance));
        assert!(close.is_err(), "{got:?} passed as close");
        let same = std::panic::catch_unwind(|| assert_same_bits("other", &got, &want));
        assert!(same.is_err(), "{got:?} passed as the same bits");
    }
}
