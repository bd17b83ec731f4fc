//! What `config.json` says of a model, as far as Daisy computes with it.
//!
//! A config is read once into a [`ModelConfig`] that holds only what is supported: whatever would
//! change the arithmetic and is not known here is refused by name, never passed over. Field names
//! are those of Hugging Face's configs, which MLX's checkpoints keep.

use daisy_proto::Dtype;
use serde_json::Value;

use super::family::{AttentionBias, Family, only_known_options};
use super::fields::{Fields, shown};
use super::layers::{Experts, GatedDelta};
use super::quantisation::Quantisation;
use super::rope::Rope;

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
    /// Intermediate size of dense layers; where all are sparse, that of one expert.
    pub intermediate: u32,
    /// None: all layers are dense.
    pub experts: Option<Experts>,
    /// None: all layers are of attention.
    pub delta: Option<GatedDelta>,
    pub vocab: u32,
    pub rms_eps: f32,
    pub rope: Rope,
    pub max_positions: u32,
    /// The head is the embedding's matrix.
    pub tied: bool,
    pub attention_bias: AttentionBias,
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
        let outer = Fields::new(object, "");

        // The architecture goes first: of an unknown one no other field means anything.
        let (model_type, family) = Family::named(&outer)?;
        let nested = if family.sees() { outer.object(TEXT)? } else { None };
        let fields = nested.map_or(outer, |text| Fields::new(text, TEXT));
        if nested.is_some() && fields.value("model_type").is_some() {
            same_family(&fields, family)?;
        }
        only_known_options(family, &outer)?;
        only_known_options(family, &fields)?;
        let (heads, hidden) = (fields.size("num_attention_heads")?, fields.size("hidden_size")?);
        let kv_heads = fields.optional_size("num_key_value_heads")?.unwrap_or(heads);
        if !heads.is_multiple_of(kv_heads) {
            return Err(ConfigError::Wrong {
                field: fields.named("num_key_value_heads"),
                expected: "a divisor of num_attention_heads",
                got: format!("{kv_heads} of {heads}"),
            });
        }
        let max_positions = fields.size("max_position_embeddings")?;
        full_attention(&fields, family, max_positions)?;
        let layers = fields.size("num_hidden_layers")?;
        let head_dim = head_dim(&fields, hidden, heads)?;
        let experts = Experts::parse(family, &fields)?;
        let config = Self {
            family,
            model_type,
            hidden,
            layers,
            heads,
            kv_heads,
            head_dim,
            intermediate: intermediate(&fields, layers, experts.as_ref())?,
            experts,
            delta: GatedDelta::parse(family, &fields)?,
            vocab: fields.size("vocab_size")?,
            rms_eps: fields
                .positive("rms_norm_eps")?
                .ok_or_else(|| missing(fields.named("rms_norm_eps")))?,
            rope: Rope::parse(&fields, head_dim, family.rotary_defaults())?,
            max_positions,
            tied: family.tied(&fields, &outer)?,
            attention_bias: family.attention_bias(&fields)?,
            mlp_bias: fields.flag("mlp_bias", false)?,
            dtype: dtype(&fields)?.or(dtype(&outer)?),
            eos: eos(&fields)?.or(eos(&outer)?).unwrap_or_default(),
            quantisation: quantisation(&outer, family)?.or(quantisation(&fields, family)?),
        };
        config.check_extent()?;
        Ok(config)
    }

    /// The mixture of experts of layer `layer`; none: it is dense.
    pub fn experts_of(&self, layer: u32) -> Option<&Experts> {
        self.experts.as_ref().filter(|experts| experts.in_layer(layer))
    }

    /// The gated delta net of layer `layer`; none: it is of attention.
    pub fn delta_of(&self, layer: u32) -> Option<&GatedDelta> {
        self.delta.as_ref().filter(|delta| delta.in_layer(layer))
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
            ("moe_intermediate_size", self.experts.as_ref().map_or(1, |experts| experts.width)),
            ("num_experts", self.experts.as_ref().map_or(1, |experts| experts.count)),
            (
                "shared_expert_intermediate_size",
                self.experts.as_ref().and_then(|experts| experts.shared_width).unwrap_or(1),
            ),
        ] {
            if size > WIDTH_MAX {
                return Err(too_large(field, size));
            }
        }
        Ok(())
    }
}

fn same_family(text: &Fields<'_>, family: Family) -> Result<(), ConfigError> {
    let (model_type, own) = Family::named(text)?;
    if own == family {
        return Ok(());
    }
    let field = text.named("model_type");
    Err(ConfigError::Wrong { field, expected: "the text part of model_type", got: model_type })
}

/// The intermediate size of dense layers, which a model of sparse ones alone need not say.
fn intermediate(
    fields: &Fields<'_>,
    layers: u32,
    experts: Option<&Experts>,
) -> Result<u32, ConfigError> {
    const FIELD: &str = "intermediate_size";
    match experts {
        Some(experts) if (0..layers.min(LAYERS_MAX)).all(|layer| experts.in_layer(layer)) => {
            Ok(fields.optional_size(FIELD)?.unwrap_or(experts.width))
        }
        _ => fields.size(FIELD),
    }
}

fn head_dim(fields: &Fields<'_>, hidden: u32, heads: u32) -> Result<u32, ConfigError> {
    let head_dim = match fields.optional_size("head_dim")? {
        Some(head_dim) => head_dim,
        None if hidden.is_multiple_of(heads) => hidden / heads,
        None => return Err(missing(fields.named("head_dim"))),
    };
    // Rotary embedding turns pairs of elements.
    if head_dim.is_multiple_of(2) {
        return Ok(head_dim);
    }
    Err(ConfigError::Wrong {
        field: fields.named("head_dim"),
        expected: "an even number",
        got: head_dim.to_string(),
    })
}

/// Refuses attention that does not see the whole context.
fn full_attention(
    fields: &Fields<'_>,
    family: Family,
    max_positions: u32,
) -> Result<(), ConfigError> {
    // Qwen's configs give a window and then switch it off.
    let windowed = fields.flag("use_sliding_window", true)?;
    if let Some(window) = fields.optional_size("sliding_window")?.filter(|_| windowed)
        && window < max_positions
    {
        let supported = format!("null, or at least max_position_embeddings ({max_positions})");
        return Err(ConfigError::Unsupported {
            field: fields.named("sliding_window"),
            got: window.to_string(),
            supported,
        });
    }
    if family.is_hybrid() {
        // Its gated delta nets judge the list.
        return Ok(());
    }
    let kinds = fields.optional("layer_types", "a list", Value::as_array)?;
    match kinds.into_iter().flatten().find(|kind| kind.as_str() != Some("full_attention")) {
        Some(kind) => Err(unsupported(fields.named("layer_types"), &shown(kind), "full_attention")),
        None => Ok(()),
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
                return Err(unsupported(fields.named(field), other, "float32, float16, bfloat16"));
            }
        }
    }
    Ok(None)
}

fn eos(fields: &Fields<'_>) -> Result<Option<Vec<u32>>, ConfigError> {
    let id = |value: &Value| value.as_u64().and_then(|id| u32::try_from(id).ok());
    fields.optional("eos_token_id", "a token id or a list of them", |value| match value {
        Value::Array(ids) => ids.iter().map(id).collect(),
        one => id(one).map(|id| vec![id]),
    })
}

fn quantisation(fields: &Fields<'_>, family: Family) -> Result<Option<Quantisation>, ConfigError> {
    for key in ["quantization", "quantization_config"] {
        if let Some(object) = fields.object(key)? {
            return Quantisation::parse(&fields.named(key), object, family).map(Some);
        }
    }
    Ok(None)
}

const fn missing(field: String) -> ConfigError {
    ConfigError::Missing { field }
}

fn unsupported(field: String, got: &str, supported: &str) -> ConfigError {
    ConfigError::Unsupported { field, got: got.to_owned(), supported: supported.to_owned() }
}

/// Where the config of the language model stands in that of a model that also sees.
const TEXT: &str = "text_config";
const LAYERS_MAX: u32 = 4_096;
/// Sixteen million: far beyond any model, and products of two still fit 64 bits.
const WIDTH_MAX: u32 = 1 << 24;

#[cfg(test)]
#[path = "config_tests.rs"]
mod tests;
