//! What `config.json` says of a model, as far as Daisy computes with it.
//!
//! A config is read once into a [`ModelConfig`] that holds only what is supported: whatever would
//! change the arithmetic and is not known here is refused by name, never passed over. Field names
//! are those of Hugging Face's configs, which MLX's checkpoints keep.

use daisy_proto::Dtype;
use serde_json::Value;

use super::fields::{Fields, shown};
use super::quantisation::Quantisation;
use super::rope::Rope;

/// An architecture that the engine has a file for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Family {
    Llama,
    Qwen3,
}

/// A model's shape. All sizes are at least 1, and `heads` is a multiple of `kv_heads`.
#[derive(Debug, Clone, PartialEq)]
pub struct ModelConfig {
    pub family: Family,
    /// As the config says, such as `mistral`.
    pub model_type: String,
    pub hidden: u32,
    pub layers: u32,
    pub heads: u32,
    pub kv_heads: u32,
    pub head_dim: u32,
    pub intermediate: u32,
    pub vocab: u32,
    pub rms_eps: f32,
    pub rope: Rope,
    pub max_positions: u32,
    /// The head is the embedding's matrix.
    pub tied: bool,
    pub attention_bias: bool,
    pub mlp_bias: bool,
    /// The type the weights were trained in; none: the config does not say.
    pub dtype: Option<Dtype>,
    /// Token ids that end an answer; may be empty.
    pub eos: Vec<u32>,
    pub quantisation: Option<Quantisation>,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    #[error("config.json is not a JSON object: {0}")]
    NotAnObject(String),
    #[error("config.json lacks `{field}`")]
    Missing { field: String },
    #[error("config.json: `{field}` must be {expected}, got {got}")]
    Wrong { field: String, expected: &'static str, got: String },
    #[error("model_type `{model_type}` is not supported; supported are {supported}")]
    Architecture { model_type: String, supported: String },
    #[error("config.json: `{field}` is {got}, which is not supported; supported: {supported}")]
    Unsupported { field: String, got: String, supported: String },
}

impl ModelConfig {
    /// Reads the text of a `config.json`.
    pub fn parse(json: &str) -> Result<Self, ConfigError> {
        let value: Value = serde_json::from_str(json)
            .map_err(|error| ConfigError::NotAnObject(error.to_string()))?;
        let object = value.as_object().ok_or_else(|| ConfigError::NotAnObject(shown(&value)))?;
        let fields = Fields::new(object, "");

        // The architecture goes first: of an unknown one no other field means anything.
        let (model_type, family) = family(&fields)?;
        let (heads, hidden) = (fields.size("num_attention_heads")?, fields.size("hidden_size")?);
        let kv_heads = fields.optional_size("num_key_value_heads")?.unwrap_or(heads);
        if !heads.is_multiple_of(kv_heads) {
            return Err(ConfigError::Wrong {
                field: "num_key_value_heads".to_owned(),
                expected: "a divisor of num_attention_heads",
                got: format!("{kv_heads} of {heads}"),
            });
        }
        let max_positions = fields.size("max_position_embeddings")?;
        only_silu(&fields)?;
        full_attention(&fields, max_positions)?;
        let config = Self {
            family,
            model_type,
            hidden,
            layers: fields.size("num_hidden_layers")?,
            heads,
            kv_heads,
            head_dim: head_dim(&fields, hidden, heads)?,
            intermediate: fields.size("intermediate_size")?,
            vocab: fields.size("vocab_size")?,
            rms_eps: fields.positive("rms_norm_eps")?.ok_or_else(|| missing("rms_norm_eps"))?,
            rope: Rope::parse(&fields)?,
            max_positions,
            tied: fields.flag("tie_word_embeddings", false)?,
            attention_bias: fields.flag("attention_bias", false)?,
            mlp_bias: fields.flag("mlp_bias", false)?,
            dtype: dtype(&fields)?,
            eos: eos(&fields)?,
            quantisation: quantisation(&fields)?,
        };
        config.check_extent()?;
        Ok(config)
    }

    /// Width of all query heads together.
    pub const fn query_width(&self) -> u32 {
        self.heads * self.head_dim
    }

    /// Width of all key (or value) heads together.
    pub const fn kv_width(&self) -> u32 {
        self.kv_heads * self.head_dim
    }

    /// Sizes that are sane one by one may still not multiply: MLX's shapes are 32-bit signed.
    fn check_extent(&self) -> Result<(), ConfigError> {
        let too_large = |field: &str, got: u32| ConfigError::Wrong {
            field: field.to_owned(),
            expected: "a size within reason",
            got: got.to_string(),
        };
        if self.layers > LAYERS_MAX {
            return Err(too_large("num_hidden_layers", self.layers));
        }
        let width = u64::from(self.heads) * u64::from(self.head_dim);
        if width > u64::from(WIDTH_MAX) {
            return Err(too_large("head_dim", self.head_dim));
        }
        for (field, size) in [
            ("hidden_size", self.hidden),
            ("intermediate_size", self.intermediate),
            ("vocab_size", self.vocab),
        ] {
            if size > WIDTH_MAX {
                return Err(too_large(field, size));
            }
        }
        Ok(())
    }
}

fn family(fields: &Fields<'_>) -> Result<(String, Family), ConfigError> {
    let model_type = fields.text("model_type")?.ok_or_else(|| missing("model_type"))?;
    match FAMILIES.iter().find(|(name, _)| *name == model_type) {
        Some((_, family)) => Ok((model_type.to_owned(), *family)),
        None => Err(ConfigError::Architecture {
            model_type: model_type.to_owned(),
            supported: FAMILIES.iter().map(|(name, _)| *name).collect::<Vec<_>>().join(", "),
        }),
    }
}

fn head_dim(fields: &Fields<'_>, hidden: u32, heads: u32) -> Result<u32, ConfigError> {
    let head_dim = match fields.optional_size("head_dim")? {
        Some(head_dim) => head_dim,
        None if hidden.is_multiple_of(heads) => hidden / heads,
        None => return Err(missing("head_dim")),
    };
    // Rotary embedding turns pairs of elements.
    if head_dim.is_multiple_of(2) {
        return Ok(head_dim);
    }
    Err(ConfigError::Wrong {
        field: "head_dim".to_owned(),
        expected: "an even number",
        got: head_dim.to_string(),
    })
}

/// Refuses attention that does not see the whole context.
fn full_attention(fields: &Fields<'_>, max_positions: u32) -> Result<(), ConfigError> {
    // Qwen's configs give a window and then switch it off.
    let windowed = fields.flag("use_sliding_window", true)?;
    if let Some(window) = fields.optional_size("sliding_window")?.filter(|_| windowed)
        && window < max_positions
    {
        let supported = format!("null, or at least max_position_embeddings ({max_positions})");
        return Err(ConfigError::Unsupported {
            field: "sliding_window".to_owned(),
            got: window.to_string(),
            supported,
        });
    }
    let kinds = fields.optional("layer_types", "a list", Value::as_array)?;
    match kinds.into_iter().flatten().find(|kind| kind.as_str() != Some("full_attention")) {
        Some(kind) => Err(unsupported("layer_types".to_owned(), &shown(kind), "full_attention")),
        None => Ok(()),
    }
}

fn only_silu(fields: &Fields<'_>) -> Result<(), ConfigError> {
    match fields.text("hidden_act")? {
        None | Some("silu") => Ok(()),
        Some(other) => Err(unsupported("hidden_act".to_owned(), other, "silu")),
    }
}

fn dtype(fields: &Fields<'_>) -> Result<Option<Dtype>, ConfigError> {
    for field in ["torch_dtype", "dtype"] {
        match fields.text(field)? {
            None => {}
            Some("float32") => return Ok(Some(Dtype::F32)),
            Some("float16") => return Ok(Some(Dtype::F16)),
            Some("bfloat16") => return Ok(Some(Dtype::Bf16)),
            Some(other) => {
                return Err(unsupported(field.to_owned(), other, "float32, float16, bfloat16"));
            }
        }
    }
    Ok(None)
}

fn eos(fields: &Fields<'_>) -> Result<Vec<u32>, ConfigError> {
    let id = |value: &Value| value.as_u64().and_then(|id| u32::try_from(id).ok());
    let ids =
        fields.optional("eos_token_id", "a token id or a list of them", |value| match value {
            Value::Array(ids) => ids.iter().map(id).collect(),
            one => id(one).map(|id| vec![id]),
        })?;
    Ok(ids.unwrap_or_default())
}

fn quantisation(fields: &Fields<'_>) -> Result<Option<Quantisation>, ConfigError> {
    for key in ["quantization", "quantization_config"] {
        if let Some(object) = fields.object(key)? {
            return Quantisation::parse(key, object).map(Some);
        }
    }
    Ok(None)
}

fn missing(field: &str) -> ConfigError {
    ConfigError::Missing { field: field.to_owned() }
}

fn unsupported(field: String, got: &str, supported: &str) -> ConfigError {
    ConfigError::Unsupported { field, got: got.to_owned(), supported: supported.to_owned() }
}

/// Mistral's 7B models are llamas by another name.
const FAMILIES: &[(&str, Family)] =
    &[("llama", Family::Llama), ("mistral", Family::Llama), ("qwen3", Family::Qwen3)];
const LAYERS_MAX: u32 = 4_096;
/// Sixteen million: far beyond any model, and products of two still fit 64 bits.
const WIDTH_MAX: u32 = 1 << 24;

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn llama() -> Value {
        json!({
            "model_type": "llama", "hidden_size": 576, "num_hidden_layers": 30,
            "num_attention_heads": 9, "num_key_value_heads": 3, "intermediate_size": 1536,
            "vocab_size": 49152, "rms_norm_eps": 1e-5, "rope_theta": 100_000.0,
            "max_position_embeddings": 8192, "tie_word_embeddings": true,
            "torch_dtype": "bfloat16", "eos_token_id": 2,
        })
    }

    fn with(changes: &[(&str, Value)]) -> Result<ModelConfig, String> {
        let mut config = llama();
        for (field, value) in changes {
            config[*field] = value.clone();
        }
        ModelConfig::parse(&config.to_string()).map_err(|error| error.to_string())
    }

    #[test]
    fn a_llama_is_read() {
        let config = with(&[]).expect("valid");
        assert_eq!((config.family, config.head_dim, config.kv_width()), (Family::Llama, 64, 192));
        assert_eq!((config.dtype, config.eos.as_slice()), (Some(Dtype::Bf16), [2].as_slice()));
        assert!(config.tied && !config.attention_bias && config.quantisation.is_none());
    }

    #[test]
    fn variants_are_read() {
        let config = with(&[
            ("model_type", json!("qwen3")),
            ("head_dim", json!(128)),
            ("rope_theta", Value::Null),
            ("rope_parameters", json!({"rope_theta": 1e6, "rope_type": "default"})),
            ("use_sliding_window", json!(false)),
            ("sliding_window", json!(16)),
            ("layer_types", json!(["full_attention"])),
            ("eos_token_id", json!([1, 2])),
            ("quantization_config", json!({"group_size": 64, "bits": 4})),
        ])
        .expect("valid");
        assert_eq!((config.family, config.query_width()), (Family::Qwen3, 1152));
        assert!((config.rope.theta - 1e6).abs() < 1.0);
        assert_eq!(config.eos, [1, 2]);
        assert!(config.quantisation.is_some());
        let mistral = with(&[("model_type", json!("mistral")), ("sliding_window", Value::Null)]);
        assert_eq!(mistral.expect("valid").family, Family::Llama);
        assert!(with(&[("sliding_window", json!(8192))]).is_ok());
    }

    #[test]
    fn an_unknown_architecture_lists_the_known() {
        let error = with(&[("model_type", json!("gemma3"))]).expect_err("refused");
        assert!(error.contains("`gemma3`") && error.contains("llama, mistral, qwen3"), "{error}");
    }

    #[test]
    fn refusals_name_the_field() {
        for (field, value) in [
            ("hidden_size", Value::Null),
            ("hidden_size", json!("576")),
            ("hidden_size", json!(-1)),
            ("hidden_size", json!(1_u64 << 40)),
            ("vocab_size", json!(i32::MAX)),
            ("num_hidden_layers", json!(0)),
            ("num_hidden_layers", json!(1_000_000)),
            ("num_key_value_heads", json!(4)),
            ("head_dim", json!(7)),
            ("head_dim", json!(i32::MAX - 1)),
            ("rms_norm_eps", json!("small")),
            ("rms_norm_eps", Value::Null),
            ("rope_theta", json!(-1)),
            ("rope_theta", json!(1e300)),
            ("rope_scaling", json!({"rope_type": "yarn", "factor": 8})),
            ("rope_scaling", json!([1])),
            ("rope_traditional", json!(true)),
            ("sliding_window", json!(4096)),
            ("layer_types", json!(["sliding_attention"])),
            ("hidden_act", json!("gelu")),
            ("tie_word_embeddings", json!(1)),
            ("torch_dtype", json!("float8")),
            ("eos_token_id", json!("</s>")),
            ("eos_token_id", json!([1, -2])),
            ("quantization", json!({"group_size": 64, "bits": 7})),
            ("max_position_embeddings", Value::Null),
            ("model_type", Value::Null),
        ] {
            let error = with(&[(field, value.clone())]).expect_err(field);
            assert!(error.contains(field), "{field} = {value}: {error}");
        }
    }

    #[test]
    fn what_is_no_object_is_refused() {
        for text in ["", "[]", "null", "{", "{\"model_type\": \"llama\"}"] {
            assert!(ModelConfig::parse(text).is_err(), "{text}");
        }
    }
}
