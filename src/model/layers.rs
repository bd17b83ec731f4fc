//! What kinds of layers a model has: mixtures of experts in place of dense feed-forward networks,
//! gated delta nets in place of attention. Which kind a layer is follows from its number in the
//! whole model, wherever it is cut.

use std::collections::BTreeSet;

use serde_json::Value;

use super::config::ConfigError;
use super::family::Family;
use super::fields::{Fields, shown};

/// The mixture of experts of a model's sparse layers. All sizes are at least 1.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Experts {
    pub count: u32,
    /// How many a token goes through, at most `count`.
    pub per_token: u32,
    /// Intermediate size of one.
    pub width: u32,
    /// Intermediate size of the one that every token goes through as well.
    pub shared_width: Option<u32>,
    /// Whether the weights of a token's experts are scaled to add up to 1.
    pub normalised: bool,
    /// Every so many layers one is sparse, unless it is among the dense ones.
    step: u32,
    dense: BTreeSet<u32>,
}

/// The gated delta nets of a hybrid model. All sizes are at least 1, and the value heads a multiple
/// of the key heads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GatedDelta {
    pub key_heads: u32,
    pub value_heads: u32,
    pub key_dim: u32,
    pub value_dim: u32,
    /// Positions that the convolution sees, at least 2.
    pub kernel: u32,
    /// Every so many layers one is of attention: the last of each period.
    interval: u32,
}

impl Experts {
    pub(super) fn parse(family: Family, fields: &Fields<'_>) -> Result<Option<Self>, ConfigError> {
        if !family.has_experts() {
            return Ok(None);
        }
        let (count, per_token) = (fields.size("num_experts")?, fields.size("num_experts_per_tok")?);
        if per_token > count {
            return Err(ConfigError::Wrong {
                field: fields.named("num_experts_per_tok"),
                expected: "at most num_experts",
                got: format!("{per_token} of {count}"),
            });
        }
        let shared = "shared_expert_intermediate_size";
        let shared_width =
            if family.has_shared_expert() { Some(fields.size(shared)?) } else { None };
        // Qwen 3.5 has no word for it: there they always are.
        let normalised = match fields.optional("norm_topk_prob", "true or false", Value::as_bool)? {
            Some(normalised) => normalised,
            None if family.sees() => true,
            None => return Err(ConfigError::Missing { field: fields.named("norm_topk_prob") }),
        };
        let numbers = |list: &Value| {
            let number = |value: &Value| value.as_u64().and_then(|n| u32::try_from(n).ok());
            list.as_array()?.iter().map(number).collect::<Option<BTreeSet<u32>>>()
        };
        let dense = fields.optional("mlp_only_layers", "a list of layer numbers", numbers)?;
        Ok(Some(Self {
            count,
            per_token,
            width: fields.size("moe_intermediate_size")?,
            shared_width,
            normalised,
            step: fields.optional_size("decoder_sparse_step")?.unwrap_or(1),
            dense: dense.unwrap_or_default(),
        }))
    }

    /// Whether layer `layer` of the model has them.
    pub fn in_layer(&self, layer: u32) -> bool {
        (layer + 1).is_multiple_of(self.step) && !self.dense.contains(&layer)
    }
}

impl GatedDelta {
    pub(super) fn parse(family: Family, fields: &Fields<'_>) -> Result<Option<Self>, ConfigError> {
        if !family.is_hybrid() {
            return Ok(None);
        }
        let net = Self {
            key_heads: fields.size("linear_num_key_heads")?,
            value_heads: fields.size("linear_num_value_heads")?,
            key_dim: fields.size("linear_key_head_dim")?,
            value_dim: fields.size("linear_value_head_dim")?,
            kernel: fields.size("linear_conv_kernel_dim")?,
            interval: fields.optional_size("full_attention_interval")?.unwrap_or(INTERVAL),
        };
        let wrong = |field: &str, expected, got: String| {
            Err(ConfigError::Wrong { field: fields.named(field), expected, got })
        };
        if !net.value_heads.is_multiple_of(net.key_heads) {
            let got = format!("{} for {} key heads", net.value_heads, net.key_heads);
            return wrong("linear_num_value_heads", "a multiple of linear_num_key_heads", got);
        }
        if !(2..=KERNEL_MAX).contains(&net.kernel) {
            return wrong("linear_conv_kernel_dim", "from 2 to 64", net.kernel.to_string());
        }
        let widths = [(net.key_heads, net.key_dim), (net.value_heads, net.value_dim)];
        if widths.iter().any(|(heads, dim)| u64::from(*heads) * u64::from(*dim) > WIDTH_MAX) {
            let got = format!("{} of {}", net.value_heads, net.value_dim);
            return wrong("linear_value_head_dim", "a size within reason", got);
        }
        net.check_kinds(fields)?;
        Ok(Some(net))
    }

    /// Whether layer `layer` of the model is one of them.
    pub const fn in_layer(&self, layer: u32) -> bool {
        !(layer + 1).is_multiple_of(self.interval)
    }

    /// Width of all keys together, or of all queries.
    pub const fn key_width(&self) -> u32 {
        self.key_heads * self.key_dim
    }

    pub const fn value_width(&self) -> u32 {
        self.value_heads * self.value_dim
    }

    /// What the convolution runs over: queries, keys and values.
    pub const fn conv_width(&self) -> u32 {
        2 * self.key_width() + self.value_width()
    }

    /// Elements of the state of one layer: a matrix per value head.
    pub const fn state_size(&self) -> u64 {
        self.value_width() as u64 * self.key_dim as u64
    }

    /// A list of every layer's kind must say what the interval says.
    fn check_kinds(&self, fields: &Fields<'_>) -> Result<(), ConfigError> {
        let kinds = fields.optional("layer_types", "a list", Value::as_array)?;
        for (layer, kind) in (0..).zip(kinds.into_iter().flatten()) {
            let expected = if self.in_layer(layer) { "linear_attention" } else { "full_attention" };
            if kind.as_str() != Some(expected) {
                return Err(ConfigError::Unsupported {
                    field: fields.named("layer_types"),
                    got: format!("{} for layer {layer}", shown(kind)),
                    supported: format!(
                        "{expected}, since every {}th layer is full_attention",
                        self.interval
                    ),
                });
            }
        }
        Ok(())
    }
}

/// What the reference implementations assume.
const INTERVAL: u32 = 4;
const KERNEL_MAX: u32 = 64;
/// As of other widths: products of two still fit 64 bits.
const WIDTH_MAX: u64 = 1 << 24;
