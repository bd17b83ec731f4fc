//! The architectures that the engine has a file for, and what differs between their configs.

use serde_json::Value;

use super::config::ConfigError;
use super::fields::{Fields, shown};
use super::rope::RotaryDefaults;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Family {
    Llama,
    Qwen2,
    Qwen3,
    Qwen3Moe,
    Qwen3Next,
    /// Also what calls itself Qwen 3.6.
    Qwen35,
    Qwen35Moe,
}

/// Which projections of attention have a bias.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AttentionBias {
    None,
    /// Queries, keys and values.
    Inputs,
    All,
}

impl Family {
    /// The family that `model_type` names.
    pub(super) fn named(fields: &Fields<'_>) -> Result<(String, Self), ConfigError> {
        let model_type = fields
            .text("model_type")?
            .ok_or_else(|| ConfigError::Missing { field: fields.named("model_type") })?;
        match FAMILIES.iter().find(|(name, _)| *name == model_type) {
            Some((_, family)) => Ok((model_type.to_owned(), *family)),
            None => Err(ConfigError::Architecture {
                model_type: model_type.to_owned(),
                supported: FAMILIES.iter().map(|(name, _)| *name).collect::<Vec<_>>().join(", "),
            }),
        }
    }

    /// Whether layers of gated delta nets stand between those of attention.
    pub const fn is_hybrid(self) -> bool {
        matches!(self, Self::Qwen3Next | Self::Qwen35 | Self::Qwen35Moe)
    }

    /// Whether checkpoints hold a vision tower beside the language model, and its config within
    /// their own.
    pub const fn sees(self) -> bool {
        matches!(self, Self::Qwen35 | Self::Qwen35Moe)
    }

    pub(super) const fn has_experts(self) -> bool {
        matches!(self, Self::Qwen3Moe | Self::Qwen3Next | Self::Qwen35Moe)
    }

    pub(super) const fn has_shared_expert(self) -> bool {
        matches!(self, Self::Qwen3Next | Self::Qwen35Moe)
    }

    /// What holds where the config says nothing. The base of newer families is not guessed: the
    /// reference implementations assume different ones.
    pub(super) const fn rotary_defaults(self) -> RotaryDefaults {
        match self {
            Self::Llama | Self::Qwen3 => RotaryDefaults { theta: Some(1e4), part: None },
            Self::Qwen2 | Self::Qwen3Moe => RotaryDefaults { theta: None, part: None },
            Self::Qwen3Next | Self::Qwen35 | Self::Qwen35Moe => {
                RotaryDefaults { theta: None, part: Some(0.25) }
            }
        }
    }

    pub(super) fn attention_bias(self, fields: &Fields<'_>) -> Result<AttentionBias, ConfigError> {
        // Qwen 2 has its biases without a word in its config.
        let said = fields.flag("attention_bias", matches!(self, Self::Qwen2))?;
        match (self, said) {
            (Self::Qwen2, true) => Ok(AttentionBias::Inputs),
            (Self::Qwen2, false) => Err(refused(fields, "attention_bias", "false", "true")),
            (Self::Qwen3Moe, true) => Err(refused(fields, "attention_bias", "true", "false")),
            (_, true) => Ok(AttentionBias::All),
            (_, false) => Ok(AttentionBias::None),
        }
    }

    /// Whether the head is the embedding's matrix: the config's word, or that of the config around.
    pub(super) fn tied(self, fields: &Fields<'_>, outer: &Fields<'_>) -> Result<bool, ConfigError> {
        const FIELD: &str = "tie_word_embeddings";
        let [own, around] =
            [fields, outer].map(|fields| fields.optional(FIELD, "true or false", Value::as_bool));
        match (own?, around?) {
            (Some(own), Some(around)) if own != around => Err(ConfigError::Wrong {
                field: fields.named(FIELD),
                expected: "the same as tie_word_embeddings",
                got: format!("{own}, where that is {around}"),
            }),
            (Some(tied), _) | (None, Some(tied)) => Ok(tied),
            // The reference implementations assume different things.
            (None, None) if matches!(self, Self::Qwen2) => {
                Err(ConfigError::Missing { field: FIELD.to_owned() })
            }
            (None, None) => Ok(false),
        }
    }
}

impl AttentionBias {
    pub const fn on_inputs(self) -> bool {
        !matches!(self, Self::None)
    }

    pub const fn on_output(self) -> bool {
        matches!(self, Self::All)
    }
}

/// Refuses what would change the arithmetic and is not implemented, by its name and value.
pub(super) fn only_known_options(family: Family, fields: &Fields<'_>) -> Result<(), ConfigError> {
    for Known { field, applies, only } in OPTIONS {
        let Some(value) = fields.value(field).filter(|_| applies(family)) else { continue };
        let said = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        if !only.contains(&said.as_str()) {
            let supported = match only {
                [] => "no such field".to_owned(),
                only => only.join(", "),
            };
            let got = shown(value).trim_matches('"').to_owned();
            return Err(ConfigError::Unsupported { field: fields.named(field), got, supported });
        }
    }
    Ok(())
}

/// A field of a config, and the values that it may have.
struct Known {
    field: &'static str,
    applies: fn(Family) -> bool,
    only: &'static [&'static str],
}

fn refused(fields: &Fields<'_>, field: &str, got: &str, supported: &str) -> ConfigError {
    ConfigError::Unsupported {
        field: fields.named(field),
        got: got.to_owned(),
        supported: supported.to_owned(),
    }
}

const fn every(field: &'static str, only: &'static [&'static str]) -> Known {
    Known { field, applies: |_| true, only }
}

/// Options of these architectures, or of others that are written under their name, which change
/// what is computed.
const OPTIONS: &[Known] = &[
    every("hidden_act", &["silu"]),
    Known { field: "attn_output_gate", applies: Family::is_hybrid, only: &["true"] },
    Known { field: "attn_output_gate", applies: |family| !family.is_hybrid(), only: &["false"] },
    every("mamba_ssm_dtype", &["float32"]),
    every("output_gate_type", &["swish", "silu"]),
    // Code of the checkpoint's own.
    every("model_file", &[]),
    every("final_logit_softcapping", &[]),
    every("attn_logit_softcapping", &[]),
    every("query_pre_attn_scalar", &[]),
    every("attention_multiplier", &[]),
    every("embedding_multiplier", &[]),
    every("residual_multiplier", &[]),
    every("logits_scaling", &[]),
    every("logit_scale", &[]),
    every("clip_qkv", &[]),
    every("alibi", &["false"]),
    every("rope_interleaved", &["false"]),
    Known {
        field: "use_qk_norm",
        applies: |family| matches!(family, Family::Llama | Family::Qwen2),
        only: &["false"],
    },
    Known { field: "mlp_bias", applies: |family| family != Family::Llama, only: &["false"] },
    Known { field: "num_experts", applies: |family| !family.has_experts(), only: &["0"] },
    every("num_local_experts", &["0"]),
    // The reference implementations disagree on what these would mean.
    Known { field: "norm_topk_prob", applies: Family::sees, only: &["true"] },
    Known { field: "decoder_sparse_step", applies: Family::sees, only: &["1"] },
    Known { field: "mlp_only_layers", applies: Family::sees, only: &["[]"] },
];

/// Mistral's 7B models are llamas by another name; a Qwen 3.5 without eyes calls itself its text.
const FAMILIES: &[(&str, Family)] = &[
    ("llama", Family::Llama),
    ("mistral", Family::Llama),
    ("qwen2", Family::Qwen2),
    ("qwen3", Family::Qwen3),
    ("qwen3_moe", Family::Qwen3Moe),
    ("qwen3_next", Family::Qwen3Next),
    ("qwen3_5", Family::Qwen35),
    ("qwen3_5_text", Family::Qwen35),
    ("qwen3_5_moe", Family::Qwen35Moe),
    ("qwen3_5_moe_text", Family::Qwen35Moe),
];
