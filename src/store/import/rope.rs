//! Llama 3's stretched rotation, found again from what llama.cpp made of it.
//!
//! A GGUF file of Llama 3.1 or later has no word on the scaling, only the number by which each
//! pair's frequency is divided. Those follow from one factor and three constants, which all such
//! models share; so the factor is read off, the rest computed, and any other table is refused.

use serde_json::{Value as Json, json};

use super::ImportError;

/// The tensor of one divisor per pair.
pub(super) const FACTORS: &str = "rope_freqs.weight";

/// `rope_scaling` of type `llama3`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Scaling {
    factor: f32,
}

impl Scaling {
    /// None where nothing is stretched.
    pub fn of(divisors: &[f32], head_dim: u64, theta: f32) -> Result<Option<Self>, ImportError> {
        let fault = |reason: String| ImportError::Tensor { tensor: FACTORS.to_owned(), reason };
        if divisors.len() as u64 != head_dim / 2 {
            return Err(fault(format!("has {} values, not half of {head_dim}", divisors.len())));
        }
        let factor = divisors.iter().copied().fold(1.0, f32::max);
        let scaling = Self { factor };
        let expected = (0_u8..=u8::MAX).map(f32::from).map(|pair| {
            #[expect(clippy::cast_precision_loss, reason = "a head has some hundred values")]
            scaling.divisor(theta.powf(2.0 * pair / head_dim as f32))
        });
        let differs = |(got, expected): (&f32, f32)| (got / expected - 1.0).abs() > TOLERANCE;
        let is_unknown = divisors.iter().zip(expected).any(differs)
            || divisors.len() > usize::from(u8::MAX)
            || divisors.iter().any(|divisor| !divisor.is_finite());
        if is_unknown {
            return Err(fault(
                "is not the scaling of Llama 3, which alone is supported".to_owned(),
            ));
        }
        Ok((factor > 1.0).then_some(scaling))
    }

    pub fn json(self) -> Json {
        json!({
            "rope_type": "llama3",
            "factor": self.factor,
            "low_freq_factor": LOW,
            "high_freq_factor": HIGH,
            "original_max_position_embeddings": CONTEXT,
        })
    }

    /// Of a pair that turns by one in `period` positions: none for fast ones, the whole factor for
    /// slow ones, and a smooth way between (Hugging Face's `_compute_llama3_parameters`).
    fn divisor(self, period: f32) -> f32 {
        let turns = f32::from(CONTEXT) / (std::f32::consts::TAU * period);
        let smooth = ((turns - LOW) / (HIGH - LOW)).clamp(0.0, 1.0);
        1.0 / ((1.0 - smooth) / self.factor + smooth)
    }
}

/// What Llama 3.1, 3.2 and 3.3 share.
const LOW: f32 = 1.0;
const HIGH: f32 = 4.0;
const CONTEXT: u16 = 8192;
const TOLERANCE: f32 = 1e-3;

#[cfg(test)]
mod tests {
    use super::*;

    const THETA: f32 = 500_000.0;

    fn divisors(factor: f32) -> Vec<f32> {
        let periods = (0..32_u8).map(|pair| THETA.powf(f32::from(pair) / 32.0));
        periods.map(|period| Scaling { factor }.divisor(period)).collect()
    }

    #[test]
    fn a_factor_is_found_again() {
        for factor in [8.0, 32.0] {
            let got = Scaling::of(&divisors(factor), 64, THETA).expect("known");
            assert_eq!(got, Some(Scaling { factor }));
            let json = Scaling { factor }.json();
            assert_eq!(
                (json["factor"].as_f64(), json["rope_type"].as_str()),
                (Some(factor.into()), Some("llama3"))
            );
        }
        assert_eq!(Scaling::of(&[1.0; 32], 64, THETA).expect("none"), None);
        // Llama 3.2 1B, 32 pairs: pair 15 turns by one in 2950 positions, in 2.777 of the context,
        // which is 0.592 of the way from slow to fast.
        let table = divisors(32.0);
        assert_eq!((table[0], table[14], table[31]), (1.0, 1.0, 32.0));
        assert!((table[15] - 1.652).abs() < 0.003, "{}", table[15]);
    }

    #[test]
    fn other_tables_are_refused() {
        let mut wrong = divisors(8.0);
        wrong[16] *= 1.1;
        for divisors in [
            wrong,
            divisors(8.0)[1..].to_vec(),
            vec![f32::NAN; 32],
            vec![f32::INFINITY; 32],
            vec![0.0; 32],
            vec![2.0; 32],
        ] {
            let error = Scaling::of(&divisors, 64, THETA).expect_err("unknown").to_string();
            assert!(error.contains(FACTORS), "{error}");
        }
    }
}
