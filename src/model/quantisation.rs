//! How a checkpoint's modules are quantised: the `quantization` object of `config.json`.
//!
//! It gives a mode, a group size and a number of bits for all modules, and may override them for
//! single modules by their path, or say `false` for one that stays unquantised. MLX's modes are
//! known; every other one is refused by its name.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use super::config::ConfigError;
use super::family::Family;
use super::fields::{Fields, shown};
use super::names::canonical;

/// Quantisation of one module, per group of `group_size` columns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ModuleQuantisation {
    pub mode: QuantisationMode,
    pub group_size: u32,
    pub bits: u32,
}

/// What the numbers of a group mean.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum QuantisationMode {
    /// `w = scale × q + bias`, with whole `q`.
    Affine,
    /// `w = scale × q`, with 4-bit floats and a power of two (OCP Microscaling Formats 1.0).
    Mxfp4,
    /// The same with 8-bit floats.
    Mxfp8,
    /// 4-bit floats, with an 8-bit float as the scale.
    Nvfp4,
}

/// The default of a checkpoint and the modules that differ from it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Quantisation {
    pub default: ModuleQuantisation,
    /// By module path, such as `model.layers.0.mlp.up_proj`; `None` is unquantised.
    pub overrides: BTreeMap<String, Option<ModuleQuantisation>>,
}

impl Quantisation {
    /// What `config.json` says of the module at `path`.
    pub fn of(&self, path: &str) -> Option<ModuleQuantisation> {
        self.overrides.get(path).copied().unwrap_or(Some(self.default))
    }

    /// Reads the object that stands at `key` of the config.
    pub(super) fn parse(
        key: &str,
        object: &Map<String, Value>,
        family: Family,
    ) -> Result<Self, ConfigError> {
        let default = settings(&Fields::new(object, key))?;
        let mut overrides = BTreeMap::new();
        for (path, value) in object.iter().filter(|(name, _)| !SETTINGS.contains(&name.as_str())) {
            let named = format!("{key}.{path}");
            let module = match value {
                Value::Bool(false) => None,
                // Some converters write `true` for "as the default".
                Value::Bool(true) => Some(default),
                Value::Object(module) => Some(settings(&Fields::new(module, &named))?),
                other => {
                    let expected = "an object with group_size and bits, or false";
                    return Err(ConfigError::Wrong { field: named, expected, got: shown(other) });
                }
            };
            if let Some(path) = canonical(family, path) {
                overrides.insert(path.into_owned(), module);
            }
        }
        Ok(Self { default, overrides })
    }
}

impl QuantisationMode {
    /// As configs and MLX name it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Affine => "affine",
            Self::Mxfp4 => "mxfp4",
            Self::Mxfp8 => "mxfp8",
            Self::Nvfp4 => "nvfp4",
        }
    }

    /// Whether a group has a bias beside its scale, and both are floats of the weights' type.
    pub const fn is_affine(self) -> bool {
        matches!(self, Self::Affine)
    }

    /// The group sizes and bits that MLX's kernels exist for.
    const fn forms(self) -> (&'static [u32], &'static [u32]) {
        match self {
            Self::Affine => (&[32, 64, 128], &[2, 3, 4, 5, 6, 8]),
            Self::Mxfp4 => (&[32], &[4]),
            Self::Mxfp8 => (&[32], &[8]),
            Self::Nvfp4 => (&[16], &[4]),
        }
    }

    const ALL: [Self; 4] = [Self::Affine, Self::Mxfp4, Self::Mxfp8, Self::Nvfp4];
}

fn settings(fields: &Fields<'_>) -> Result<ModuleQuantisation, ConfigError> {
    // A quantisation of another kind would also fail on its bits or groups, so its mode goes first.
    let mut mode = QuantisationMode::Affine;
    for field in ["quant_method", "mode"] {
        let Some(name) = fields.text(field)? else { continue };
        let known = QuantisationMode::ALL.into_iter().find(|known| known.name() == name);
        mode = known.ok_or_else(|| ConfigError::Unsupported {
            field: fields.named(field),
            got: name.to_owned(),
            supported: QuantisationMode::ALL.map(QuantisationMode::name).join(", "),
        })?;
    }
    if fields.flag("global_scale", false)? {
        return Err(ConfigError::Unsupported {
            field: fields.named("global_scale"),
            got: "true".to_owned(),
            supported: "false".to_owned(),
        });
    }
    let (group_sizes, bits) = mode.forms();
    Ok(ModuleQuantisation {
        mode,
        group_size: one_of(fields, "group_size", group_sizes)?,
        bits: one_of(fields, "bits", bits)?,
    })
}

fn one_of(fields: &Fields<'_>, field: &'static str, known: &[u32]) -> Result<u32, ConfigError> {
    let size = fields.size(field)?;
    if known.contains(&size) {
        return Ok(size);
    }
    let supported = known.iter().map(u32::to_string).collect::<Vec<_>>().join(", ");
    Err(ConfigError::Unsupported { field: fields.named(field), got: size.to_string(), supported })
}

/// Keys of the object that are no module paths. `linear_class` and `quantization_mode` are left
/// behind by older converters.
const SETTINGS: &[&str] = &[
    "group_size",
    "bits",
    "mode",
    "global_scale",
    "quant_method",
    "linear_class",
    "quantization_mode",
];

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(json: &str) -> Result<Quantisation, String> {
        let Value::Object(object) = serde_json::from_str(json).expect("test JSON") else {
            panic!("not an object")
        };
        Quantisation::parse("quantization", &object, Family::Qwen35)
            .map_err(|error| error.to_string())
    }

    #[test]
    fn modules_override_the_default() {
        let read = parse(
            r#"{"group_size": 64, "bits": 4, "mode": "affine",
                "model.embed_tokens": {"group_size": 32, "bits": 8}, "lm_head": false}"#,
        )
        .expect("valid");
        let affine = |group_size, bits| ModuleQuantisation {
            mode: QuantisationMode::Affine,
            group_size,
            bits,
        };
        let default = affine(64, 4);
        assert_eq!(read.of("model.layers.0.mlp.up_proj"), Some(default));
        let embedding = affine(32, 8);
        assert_eq!(read.of("model.embed_tokens"), Some(embedding));
        assert_eq!(read.of("lm_head"), None);
    }

    #[test]
    fn every_affine_form_is_read_and_no_other() {
        for group_size in [32, 64, 128] {
            for bits in 1..=9 {
                let json = format!(r#"{{"group_size": {group_size}, "bits": {bits}}}"#);
                assert_eq!(parse(&json).is_ok(), [2, 3, 4, 5, 6, 8].contains(&bits), "{json}");
            }
        }
    }

    #[test]
    fn the_modes_of_floats_have_one_form_each() {
        for (mode, group_size, bits) in [("mxfp4", 32, 4), ("mxfp8", 32, 8), ("nvfp4", 16, 4)] {
            let json = |group_size: u32, bits: u32| {
                format!(r#"{{"mode": "{mode}", "group_size": {group_size}, "bits": {bits}}}"#)
            };
            let read = parse(&json(group_size, bits)).expect("valid").default;
            assert_eq!((read.mode.name(), read.mode.is_affine()), (mode, false));
            assert!(parse(&json(64, bits)).is_err() && parse(&json(group_size, 6)).is_err());
        }
        // A module of another mode among affine ones.
        let mixed = r#"{"group_size": 64, "bits": 4, "lm_head":
            {"group_size": 32, "bits": 8, "mode": "mxfp8"}}"#;
        let head = parse(mixed).expect("valid").of("lm_head").expect("quantised");
        assert_eq!(head.mode, QuantisationMode::Mxfp8);
    }

    #[test]
    fn paths_are_those_of_the_language_model() {
        let read = parse(
            r#"{"group_size": 64, "bits": 4, "language_model.lm_head": false,
                "language_model.model.layers.0.mlp.up_proj": false, "vision_tower.a": false}"#,
        )
        .expect("valid");
        assert_eq!((read.of("lm_head"), read.of("model.layers.0.mlp.up_proj")), (None, None));
        assert_eq!(read.overrides.len(), 2);
    }

    #[test]
    fn refusals_name_the_field() {
        for (json, said) in [
            (r#"{"group_size": 64, "bits": 7}"#, "quantization.bits"),
            (r#"{"group_size": 48, "bits": 4}"#, "quantization.group_size"),
            (r#"{"group_size": 32, "bits": 4, "mode": "mxfp3"}"#, "mxfp3"),
            (
                r#"{"group_size": 16, "bits": 4, "mode": "nvfp4", "global_scale": true}"#,
                "quantization.global_scale",
            ),
            (r#"{"quant_method": "gptq", "bits": 4}"#, "gptq"),
            (r#"{"bits": 4}"#, "quantization.group_size"),
            (r#"{"group_size": 64, "bits": 4, "lm_head": 3}"#, "quantization.lm_head"),
            (
                r#"{"group_size": 64, "bits": 4, "a.b": {"bits": 1, "group_size": 64}}"#,
                "quantization.a.b.bits",
            ),
        ] {
            let error = parse(json).expect_err(json);
            assert!(error.contains(said), "{json}: {error}");
        }
    }
}
