//! How rotary embedding turns: the base and what stretches it over a longer context.
//!
//! The kinds are those of Hugging Face's `rope_scaling` (in newer configs `rope_parameters`). One
//! that is not known here is refused by name, because a model turned wrongly still talks, badly.
//! Knows no arrays: the engine asks for [`Rope::wavelengths`].

use super::config::ConfigError;
use super::fields::Fields;

/// Rotary embedding of a model.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Rope {
    pub theta: f32,
    pub scaling: RopeScaling,
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub enum RopeScaling {
    None,
    /// Positions are divided by the factor.
    Linear {
        factor: f32,
    },
    /// Llama 3.1's: slow turns are slowed further, quick ones stay, and between the two it blends.
    Llama3 {
        factor: f32,
        low_freq_factor: f32,
        high_freq_factor: f32,
        original_max_positions: u32,
    },
}

impl Rope {
    pub(super) fn parse(fields: &Fields<'_>) -> Result<Self, ConfigError> {
        let mut theta = fields.positive("rope_theta")?;
        let mut scaling = RopeScaling::None;
        for key in ["rope_parameters", "rope_scaling"] {
            let Some(object) = fields.object(key)? else { continue };
            let nested = Fields::new(object, key);
            theta = nested.positive("rope_theta")?.or(theta);
            match RopeScaling::parse(&nested)? {
                RopeScaling::None => {}
                found => scaling = found,
            }
        }
        if fields.flag("rope_traditional", false)? {
            return Err(ConfigError::Unsupported {
                field: "rope_traditional".to_owned(),
                got: "true".to_owned(),
                supported: "false".to_owned(),
            });
        }
        Ok(Self { theta: theta.unwrap_or(THETA), scaling })
    }

    /// What positions are multiplied by before they turn anything.
    pub fn position_scale(&self) -> f32 {
        match self.scaling {
            RopeScaling::Linear { factor } => factor.recip(),
            _ => 1.0,
        }
    }

    /// Positions per radian of each pair of `dims` elements; none: `theta^(2 pair / dims)`.
    ///
    /// Llama 3's formula is that of Meta's reference code (llama-models, `apply_scaling`).
    pub fn wavelengths(&self, dims: u32) -> Option<Vec<f32>> {
        let RopeScaling::Llama3 {
            factor,
            low_freq_factor,
            high_freq_factor,
            original_max_positions,
        } = self.scaling
        else {
            return None;
        };
        let [factor, low, high] = [factor, low_freq_factor, high_freq_factor].map(f64::from);
        let scaled = |pair: u32| {
            let plain = f64::from(self.theta).powf(f64::from(2 * pair) / f64::from(dims));
            // Full turns within the context that the model was first trained on.
            let turns = f64::from(original_max_positions) / (std::f64::consts::TAU * plain);
            if turns < low {
                plain * factor
            } else if turns > high {
                plain
            } else {
                let smooth = (turns - low) / (high - low);
                plain / ((1.0 - smooth) / factor + smooth)
            }
        };
        #[expect(clippy::cast_possible_truncation, reason = "f32 is what turns the heads")]
        Some((0..dims / 2).map(|pair| scaled(pair) as f32).collect())
    }
}

impl RopeScaling {
    fn parse(fields: &Fields<'_>) -> Result<Self, ConfigError> {
        let mut named = None;
        // Older configs say `type`, newer ones `rope_type`, and some both.
        for field in ["type", "rope_type"] {
            let Some(kind) = fields.text(field)? else { continue };
            if named.is_some_and(|(_, other)| other != kind) {
                return Err(ConfigError::Wrong {
                    field: fields.named(field),
                    expected: "the same as type",
                    got: format!("`{kind}`"),
                });
            }
            named = Some((field, kind));
        }
        match named {
            None | Some((_, "default" | "none")) => Ok(Self::None),
            Some((_, "linear")) => Ok(Self::Linear { factor: required(fields, "factor")? }),
            Some((_, "llama3")) => Self::llama3(fields),
            Some((field, other)) => Err(ConfigError::Unsupported {
                field: fields.named(field),
                got: other.to_owned(),
                supported: "default, linear, llama3".to_owned(),
            }),
        }
    }

    fn llama3(fields: &Fields<'_>) -> Result<Self, ConfigError> {
        let low_freq_factor = required(fields, "low_freq_factor")?;
        let high_freq_factor = required(fields, "high_freq_factor")?;
        if high_freq_factor <= low_freq_factor {
            return Err(ConfigError::Wrong {
                field: fields.named("high_freq_factor"),
                expected: "more than low_freq_factor",
                got: format!("{high_freq_factor}, where that is {low_freq_factor}"),
            });
        }
        Ok(Self::Llama3 {
            factor: required(fields, "factor")?,
            low_freq_factor,
            high_freq_factor,
            original_max_positions: fields.size("original_max_position_embeddings")?,
        })
    }
}

fn required(fields: &Fields<'_>, field: &'static str) -> Result<f32, ConfigError> {
    let missing = || ConfigError::Missing { field: fields.named(field) };
    fields.positive(field)?.ok_or_else(missing)
}

/// What the reference implementations assume where a config gives no base.
const THETA: f32 = 10_000.0;

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn parse(config: &Value) -> Result<Rope, String> {
        let object = config.as_object().expect("an object");
        Rope::parse(&Fields::new(object, "")).map_err(|error| error.to_string())
    }

    fn llama3(changes: &Value) -> Value {
        let mut scaling = json!({
            "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
            "original_max_position_embeddings": 8192,
        });
        for (field, value) in changes.as_object().expect("an object") {
            scaling[field] = value.clone();
        }
        json!({"rope_theta": 500_000.0, "rope_scaling": scaling})
    }

    #[test]
    fn kinds_are_read() {
        let plain = |theta| Rope { theta, scaling: RopeScaling::None };
        let linear = Rope { theta: 1e4, scaling: RopeScaling::Linear { factor: 4.0 } };
        for (config, expected) in [
            (json!({}), plain(1e4)),
            (json!({"rope_theta": 7, "rope_scaling": null}), plain(7.0)),
            (json!({"rope_parameters": {"rope_theta": 5, "rope_type": "default"}}), plain(5.0)),
            (json!({"rope_scaling": {"type": "linear", "factor": 4}}), linear),
            (
                json!({"rope_scaling": {"type": "linear", "rope_type": "linear", "factor": 4}}),
                linear,
            ),
        ] {
            assert_eq!(parse(&config), Ok(expected), "{config}");
        }
        assert!((linear.position_scale() - 0.25).abs() < 1e-9 && linear.wavelengths(64).is_none());
    }

    #[test]
    fn refusals_name_the_field() {
        for (config, said) in [
            (
                json!({"rope_scaling": {"rope_type": "yarn", "factor": 4}}),
                "`rope_scaling.rope_type` is yarn",
            ),
            (
                json!({"rope_scaling": {"type": "dynamic", "factor": 4}}),
                "`rope_scaling.type` is dynamic",
            ),
            (
                json!({"rope_parameters": {"rope_type": "longrope"}}),
                "`rope_parameters.rope_type` is longrope",
            ),
            (json!({"rope_scaling": {"type": "linear"}}), "lacks `rope_scaling.factor`"),
            (
                json!({"rope_scaling": {"type": "linear", "rope_type": "llama3"}}),
                "the same as type",
            ),
            (
                json!({"rope_scaling": {"type": "linear", "factor": 0}}),
                "`rope_scaling.factor` must be",
            ),
            (llama3(&json!({"factor": null})), "lacks `rope_scaling.factor`"),
            (llama3(&json!({"low_freq_factor": "low"})), "`rope_scaling.low_freq_factor` must be"),
            (llama3(&json!({"high_freq_factor": 1})), "more than low_freq_factor"),
            (
                llama3(&json!({"original_max_position_embeddings": null})),
                "lacks `rope_scaling.original_max_position_embeddings`",
            ),
            (json!({"rope_traditional": true}), "`rope_traditional`"),
        ] {
            let error = parse(&config).expect_err(said);
            assert!(error.contains(said), "{config}: {error}");
        }
    }

    /// Llama 3.1 8B: quick pairs as they were, slow ones eight times as slow, and a blend between.
    #[test]
    fn llama_3_stretches_slow_pairs_alone() {
        let rope = parse(&llama3(&json!({}))).expect("valid");
        let got = rope.wavelengths(128).expect("scaled");
        let plain: Vec<f64> = (0..64).map(|pair| 5e5_f64.powf(f64::from(pair) / 64.0)).collect();
        assert_eq!(got.len(), 64);
        let ratio: Vec<f64> =
            got.iter().zip(&plain).map(|(got, plain)| f64::from(*got) / plain).collect();
        // 8192 positions hold 4 turns up to pair 28 and less than one from pair 35 on.
        assert!(ratio[..=28].iter().all(|ratio| (ratio - 1.0).abs() < 1e-6), "{ratio:?}");
        assert!(ratio[35..].iter().all(|ratio| (ratio - 8.0).abs() < 1e-5), "{ratio:?}");
        assert!(ratio[28..36].is_sorted() && ratio[30] > 1.01 && ratio[34] < 7.9, "{ratio:?}");
    }
}
