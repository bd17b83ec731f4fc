//! How a checkpoint's modules are quantised: the `quantization` object of `config.json`.
//!
//! It gives a group size and a number of bits for all modules, and may override either for single
//! modules by their path, or say `false` for one that stays unquantised. Only MLX's affine mode is
//! known; every other one is refused by its name.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use super::config::ConfigError;
use super::fields::{Fields, shown};

/// Affine quantisation of one module: `w = scale × q + bias` per group of `group_size` columns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ModuleQuantisation {
    pub group_size: u32,
    pub bits: u32,
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
    pub(super) fn parse(key: &str, object: &Map<String, Value>) -> Result<Self, ConfigError> {
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
            overrides.insert(path.clone(), module);
        }
        Ok(Self { default, overrides })
    }
}

fn settings(fields: &Fields<'_>) -> Result<ModuleQuantisation, ConfigError> {
    // A quantisation of another kind would also fail on its bits or groups, so its mode goes first.
    for field in ["mode", "quant_method"] {
        if let Some(mode) = fields.text(field)?.filter(|mode| *mode != "affine") {
            return Err(ConfigError::Unsupported {
                field: fields.named(field),
                got: mode.to_owned(),
                supported: "affine".to_owned(),
            });
        }
    }
    Ok(ModuleQuantisation {
        group_size: one_of(fields, "group_size", GROUP_SIZES)?,
        bits: one_of(fields, "bits", BITS)?,
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

/// What MLX's affine kernels exist for.
const GROUP_SIZES: &[u32] = &[32, 64, 128];
const BITS: &[u32] = &[2, 3, 4, 5, 6, 8];
/// Keys of the object that are no module paths. `linear_class` and `quantization_mode` are left
/// behind by older converters.
const SETTINGS: &[&str] =
    &["group_size", "bits", "mode", "quant_method", "linear_class", "quantization_mode"];

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(json: &str) -> Result<Quantisation, String> {
        let Value::Object(object) = serde_json::from_str(json).expect("test JSON") else {
            panic!("not an object")
        };
        Quantisation::parse("quantization", &object).map_err(|error| error.to_string())
    }

    #[test]
    fn modules_override_the_default() {
        let read = parse(
            r#"{"group_size": 64, "bits": 4, "mode": "affine",
                "model.embed_tokens": {"group_size": 32, "bits": 8}, "lm_head": false}"#,
        )
        .expect("valid");
        let default = ModuleQuantisation { group_size: 64, bits: 4 };
        assert_eq!(read.of("model.layers.0.mlp.up_proj"), Some(default));
        let embedding = ModuleQuantisation { group_size: 32, bits: 8 };
        assert_eq!(read.of("model.embed_tokens"), Some(embedding));
        assert_eq!(read.of("lm_head"), None);
    }

    #[test]
    fn every_affine_form_is_read_and_no_other() {
        for group_size in [32, 64, 128] {
            for bits in 1..=9 {
                let json = format!(r#"{{"group_size": {group_size}, "bits": {bits}}}"#);
                assert_eq!(parse(&json).is_ok(), BITS.contains(&bits), "{json}");
            }
        }
    }

    #[test]
    fn refusals_name_the_field() {
        for (json, said) in [
            (r#"{"group_size": 64, "bits": 7}"#, "quantization.bits"),
            (r#"{"group_size": 48, "bits": 4}"#, "quantization.group_size"),
            (r#"{"group_size": 32, "bits": 4, "mode": "mxfp4"}"#, "mxfp4"),
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
