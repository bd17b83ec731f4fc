//! How rotary embedding turns: the base and what stretches it over a longer context.
//!
//! The kinds are those of Hugging Face's `rope_scaling` (in newer configs `rope_parameters`). One
//! that is not known here is refused by name, because a model turned wrongly still talks, badly.
//! Knows no arrays: the engine asks for [`Rope::wavelengths`].

use serde_json::Value;

use super::config::ConfigError;
use super::fields::{Fields, shown};

/// Rotary embedding of a model.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Rope {
    pub theta: f32,
    /// Elements of a head that turn, the first ones; even.
    pub dims: u32,
    pub scaling: RopeScaling,
}

/// What an architecture has where its config does not say.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct RotaryDefaults {
    /// None: the config must say.
    pub(super) theta: Option<f32>,
    /// The part of a head that turns; none: the whole, and the config may not say otherwise.
    pub(super) part: Option<f64>,
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
    pub(super) fn parse(
        fields: &Fields<'_>,
        head_dim: u32,
        defaults: RotaryDefaults,
    ) -> Result<Self, ConfigError> {
        let mut theta = fields.positive("rope_theta")?;
        let mut part = rotary_part(fields, defaults)?;
        let mut scaling = RopeScaling::None;
        for key in ["rope_parameters", "rope_scaling"] {
            let Some(object) = fields.object(key)? else { continue };
            let path = fields.named(key);
            let nested = Fields::new(object, &path);
            theta = nested.positive("rope_theta")?.or(theta);
            part = rotary_part(&nested, defaults)?.or(part);
            match RopeScaling::parse(&nested)? {
                RopeScaling::None => {}
                found => scaling = found,
            }
        }
        if fields.flag("rope_traditional", false)? {
            return Err(ConfigError::Unsupported {
                field: fields.named("rope_traditional"),
                got: "true".to_owned(),
                supported: "false".to_owned(),
            });
        }
        let missing = || ConfigError::Missing { field: fields.named("rope_theta") };
        let part = part.or(defaults.part).unwrap_or(1.0);
        let dims = rotary_dims(fields, head_dim, part)?;
        for key in ["rope_parameters", "rope_scaling"] {
            let path = fields.named(key);
            let nested = fields.object(key)?.map(|object| Fields::new(object, &path));
            nested.map_or(Ok(()), |nested| check_sections(&nested, dims))?;
        }
        Ok(Self { theta: theta.or(defaults.theta).ok_or_else(missing)?, dims, scaling })
    }

    /// What positions are multiplied by before they turn anything.
    pub fn position_scale(&self) -> f32 {
        match self.scaling {
            RopeScaling::Linear { factor } => factor.recip(),
            _ => 1.0,
        }
    }

    /// Positions per radian of each pair that turns; none: `theta^(2 pair / dims)`.
    ///
    /// Llama 3's formula is that of Meta's reference code (llama-models, `apply_scaling`).
    pub fn wavelengths(&self) -> Option<Vec<f32>> {
        let RopeScaling::Llama3 {
            factor,
            low_freq_factor,
            high_freq_factor,
            original_max_positions,
        } = self.scaling
        else {
            return None;
        };
        let dims = self.dims;
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
        let known = |own: &[&str]| match fields
            .names()
            .find(|name| !own.contains(name) && !ANY_KIND.contains(name))
        {
            None => Ok(()),
            Some(other) => Err(ConfigError::Unsupported {
                field: fields.named(other),
                got: fields.value(other).map(shown).unwrap_or_default(),
                supported: "no such field".to_owned(),
            }),
        };
        match named {
            None | Some((_, "default" | "none")) => known(&[]).map(|()| Self::None),
            Some((_, "linear")) => {
                known(&["factor"])?;
                Ok(Self::Linear { factor: required(fields, "factor")? })
            }
            Some((_, "llama3")) => {
                known(LLAMA3)?;
                Self::llama3(fields)
            }
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

/// The part of a head that turns, from 0 to 1, where it is said.
fn rotary_part(fields: &Fields<'_>, defaults: RotaryDefaults) -> Result<Option<f64>, ConfigError> {
    const FIELD: &str = "partial_rotary_factor";
    let part = fields.optional(FIELD, "from 0 to 1, without 0", |value| {
        value.as_f64().filter(|part| *part > 0.0 && *part <= 1.0)
    })?;
    match part {
        Some(part) if defaults.part.is_none() && part < 1.0 => Err(ConfigError::Unsupported {
            field: fields.named(FIELD),
            got: part.to_string(),
            supported: "1".to_owned(),
        }),
        part => Ok(part),
    }
}

fn rotary_dims(fields: &Fields<'_>, head_dim: u32, part: f64) -> Result<u32, ConfigError> {
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "at most head_dim")]
    let dims = (f64::from(head_dim) * part) as u32;
    if dims > 0 && dims.is_multiple_of(2) {
        return Ok(dims);
    }
    Err(ConfigError::Wrong {
        field: fields.named("partial_rotary_factor"),
        expected: "one that turns an even number of elements",
        got: format!("{part} of {head_dim}"),
    })
}

/// Positions of a picture turn pairs by three numbers, which pairs in which is said in sections. The
/// positions of text are three times the same number, so the sections only have to fit.
fn check_sections(fields: &Fields<'_>, dims: u32) -> Result<(), ConfigError> {
    let _ = fields.flag("mrope_interleaved", false)?;
    let sections = fields.optional("mrope_section", "a list of three numbers", |value| {
        let numbers: Option<Vec<u64>> = value.as_array()?.iter().map(Value::as_u64).collect();
        numbers.filter(|numbers| numbers.len() == 3)
    })?;
    let Some(sections) = sections else { return Ok(()) };
    if sections.iter().fold(0_u64, |sum, pairs| sum.saturating_add(*pairs)) == u64::from(dims / 2) {
        return Ok(());
    }
    Err(ConfigError::Unsupported {
        field: fields.named("mrope_section"),
        got: format!("{sections:?}"),
        supported: format!("three numbers that add up to the {} pairs that turn", dims / 2),
    })
}

/// Fields that may stand beside any kind.
const ANY_KIND: &[&str] = &[
    "type",
    "rope_type",
    "rope_theta",
    "partial_rotary_factor",
    "mrope_section",
    "mrope_interleaved",
];
const LLAMA3: &[&str] =
    &["factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"];

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const WHOLE: RotaryDefaults = RotaryDefaults { theta: Some(1e4), part: None };
    const QUARTER: RotaryDefaults = RotaryDefaults { theta: None, part: Some(0.25) };

    fn parse(config: &Value) -> Result<Rope, String> {
        parse_as(config, WHOLE)
    }

    fn parse_as(config: &Value, defaults: RotaryDefaults) -> Result<Rope, String> {
        let object = config.as_object().expect("an object");
        Rope::parse(&Fields::new(object, ""), 128, defaults).map_err(|error| error.to_string())
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
        let plain = |theta| Rope { theta, dims: 128, scaling: RopeScaling::None };
        let linear = Rope { theta: 1e4, dims: 128, scaling: RopeScaling::Linear { factor: 4.0 } };
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
        assert!((linear.position_scale() - 0.25).abs() < 1e-9 && linear.wavelengths().is_none());
    }

    #[test]
    fn a_part_of_a_head_turns() {
        let sections = json!([6, 5, 5]);
        for (config, dims) in [
            (json!({"rope_theta": 1e7}), 32),
            (json!({"rope_theta": 1e7, "partial_rotary_factor": 0.5}), 64),
            (
                json!({"rope_parameters": {"rope_type": "default", "rope_theta": 1e7,
                    "partial_rotary_factor": 0.25, "mrope_section": sections,
                    "mrope_interleaved": true}}),
                32,
            ),
        ] {
            assert_eq!(parse_as(&config, QUARTER).expect("valid").dims, dims, "{config}");
        }
        for (config, said) in [
            (json!({}), "lacks `rope_theta`"),
            (json!({"rope_theta": 1, "partial_rotary_factor": 0}), "`partial_rotary_factor` must"),
            (json!({"rope_theta": 1, "partial_rotary_factor": 0.01}), "an even number"),
            (
                json!({"rope_parameters": {"rope_theta": 1, "mrope_section": [8, 8, 8]}}),
                "`rope_parameters.mrope_section` is [8, 8, 8]",
            ),
            (
                json!({"rope_parameters": {"rope_theta": 1, "mrope_section": [16]}}),
                "`rope_parameters.mrope_section` must be a list of three numbers",
            ),
        ] {
            let error = parse_as(&config, QUARTER).expect_err(said);
            assert!(error.contains(said), "{config}: {error}");
        }
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
            (json!({"partial_rotary_factor": 0.5}), "`partial_rotary_factor` is 0.5"),
            (
                json!({"rope_parameters": {"partial_rotary_factor": 0.5}}),
                "`rope_parameters.partial_rotary_factor` is 0.5",
            ),
            (
                json!({"rope_parameters": {"attention_factor": 2}}),
                "`rope_parameters.attention_factor` is 2",
            ),
            (
                json!({"rope_parameters": {"full_attention": {"rope_theta": 1}}}),
                "`rope_parameters.full_attention`",
            ),
            (
                json!({"rope_scaling": {"type": "mrope", "mrope_section": [16, 24, 24]}}),
                "`rope_scaling.type` is mrope",
            ),
        ] {
            let error = parse(&config).expect_err(said);
            assert!(error.contains(said), "{config}: {error}");
        }
    }

    /// Llama 3.1 8B: quick pairs as they were, slow ones eight times as slow, and a blend between.
    #[test]
    fn llama_3_stretches_slow_pairs_alone() {
        let rope = parse(&llama3(&json!({}))).expect("valid");
        let got = rope.wavelengths().expect("scaled");
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
