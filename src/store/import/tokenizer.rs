//! The tokenizer in a GGUF file as Hugging Face's `tokenizer.json` and `tokenizer_config.json`.
//!
//! Only byte-level BPE is known, with pre-tokenizers that are known to be the ones the model was
//! trained with: a wrong one gives other tokens without a sign of it.

use serde_json::{Map, Value as Json, json};

use super::super::gguf::{Gguf, Value};
use super::{ImportError, metadata};

/// The files' contents.
#[derive(Debug)]
pub(super) struct Tokenizer {
    /// The text of `tokenizer.json`.
    pub splitter: Json,
    /// The text of `tokenizer_config.json`.
    pub config: Json,
    /// Fields on token ids, for `config.json`.
    pub ids: Map<String, Json>,
    /// The text of `generation_config.json`.
    pub generation: Json,
}

impl Tokenizer {
    pub fn of(gguf: &Gguf, context: u64, vocab: u64) -> Result<Self, ImportError> {
        let model = metadata::text(gguf, MODEL)?;
        if model != "gpt2" {
            return Err(unsupported(MODEL, model, &["gpt2"]));
        }
        let pre = metadata::text(gguf, PRE)?;
        let Some((_, digits_apart)) = PRE_TOKENIZERS.iter().find(|(name, _)| *name == pre) else {
            let known: Vec<&str> = PRE_TOKENIZERS.iter().map(|(name, _)| *name).collect();
            return Err(unsupported(PRE, pre, &known));
        };

        let tokens = texts(gguf, TOKENS)?;
        if tokens.len() as u64 > vocab {
            let reason = format!("has {} tokens, but the embedding {vocab} rows", tokens.len());
            return Err(ImportError::Metadata { key: TOKENS.to_owned(), reason });
        }
        let added = added_tokens(gguf, &tokens)?;
        let tokenizer = json!({
            "version": "1.0",
            "truncation": null,
            "padding": null,
            "added_tokens": added.iter().map(|token| token.json(true)).collect::<Vec<_>>(),
            "normalizer": null,
            "pre_tokenizer": pre_tokenizer(*digits_apart),
            "post_processor": null,
            "decoder": byte_level(true),
            "model": model_of(gguf, &tokens)?,
        });
        // The library that will read it is asked now, while nothing has been written.
        tokenizers::Tokenizer::from_bytes(tokenizer.to_string()).map_err(|error| {
            ImportError::Metadata {
                key: TOKENS.to_owned(),
                reason: format!("make no tokenizer: {error}"),
            }
        })?;
        let special = Special::of(gguf, &tokens)?;
        Ok(Self {
            splitter: tokenizer,
            config: special.tokenizer_config(gguf, &added, context)?,
            ids: special.ids(),
            generation: special.generation_config(),
        })
    }
}

/// A token that is matched as it stands, before the text is split.
struct Added<'a> {
    id: usize,
    content: &'a str,
    is_special: bool,
}

impl Added<'_> {
    fn json(&self, with_id: bool) -> Json {
        let mut token = json!({
            "content": self.content,
            "single_word": false,
            "lstrip": false,
            "rstrip": false,
            "normalized": false,
            "special": self.is_special,
        });
        if with_id {
            token["id"] = json!(self.id);
        }
        token
    }
}

fn added_tokens<'a>(gguf: &Gguf, tokens: &[&'a str]) -> Result<Vec<Added<'a>>, ImportError> {
    let kinds = metadata::list(gguf, TOKEN_KINDS)?;
    if kinds.len() != tokens.len() {
        let reason = format!("has {} items for {} tokens", kinds.len(), tokens.len());
        return Err(ImportError::Metadata { key: TOKEN_KINDS.to_owned(), reason });
    }
    let added = tokens.iter().zip(kinds).enumerate().filter_map(|(id, (content, kind))| {
        let is_special = match kind.as_u64() {
            Some(CONTROL) => true,
            Some(USER_DEFINED) => false,
            _ => return None,
        };
        Some(Added { id, content, is_special })
    });
    Ok(added.collect())
}

fn model_of(gguf: &Gguf, tokens: &[&str]) -> Result<Json, ImportError> {
    let fault = |key: &str, reason| Err(ImportError::Metadata { key: key.to_owned(), reason });
    let mut vocabulary = Map::new();
    for (id, token) in tokens.iter().enumerate() {
        if vocabulary.insert((*token).to_owned(), json!(id)).is_some() {
            return fault(TOKENS, format!("has `{token}` twice"));
        }
    }
    let mut merges = Vec::new();
    for merge in texts(gguf, MERGES)? {
        match merge.split_once(' ') {
            Some((left, right)) => merges.push(json!([left, right])),
            None => return fault(MERGES, format!("has `{merge}`, which is not two tokens")),
        }
    }
    Ok(json!({
        "type": "BPE",
        "dropout": null,
        "unk_token": null,
        "continuing_subword_prefix": null,
        "end_of_word_suffix": null,
        "fuse_unk": false,
        "byte_fallback": false,
        "ignore_merges": false,
        "vocab": vocabulary,
        "merges": merges,
    }))
}

fn pre_tokenizer(digits_apart: bool) -> Json {
    if digits_apart {
        let digits = json!({ "type": "Digits", "individual_digits": true });
        json!({ "type": "Sequence", "pretokenizers": [digits, byte_level(false)] })
    } else {
        byte_level(false)
    }
}

fn byte_level(add_prefix_space: bool) -> Json {
    json!({
        "type": "ByteLevel",
        "add_prefix_space": add_prefix_space,
        "trim_offsets": true,
        "use_regex": true,
    })
}

/// Tokens with a role of their own.
struct Special<'a> {
    /// Role in Hugging Face's files, id and text.
    roles: Vec<(&'static str, u32, &'a str)>,
    /// Ids that end an answer: the end of the text and, where it is another, the end of a turn.
    ends: Vec<u32>,
}

impl<'a> Special<'a> {
    fn of(gguf: &Gguf, tokens: &[&'a str]) -> Result<Self, ImportError> {
        let find = |role: &str| -> Result<Option<(u32, &'a str)>, ImportError> {
            let key = format!("tokenizer.ggml.{role}_token_id");
            let Some(id) = metadata::optional_id(gguf, &key)? else { return Ok(None) };
            let token = tokens.get(id as usize).ok_or_else(|| ImportError::Metadata {
                key,
                reason: format!("is {id} of {} tokens", tokens.len()),
            })?;
            Ok(Some((id, *token)))
        };
        let mut roles = Vec::new();
        for (role, name) in ROLES {
            roles.extend(find(role)?.map(|(id, token)| (*name, id, token)));
        }
        let mut ends = Vec::new();
        for role in ENDS {
            ends.extend(find(role)?.map(|(id, _)| id).filter(|id| !ends.contains(id)));
        }
        Ok(Self { roles, ends })
    }

    fn ids(&self) -> Map<String, Json> {
        self.roles
            .iter()
            .filter(|(role, ..)| *role != "unk")
            .map(|(role, id, _)| (format!("{role}_token_id"), json!(id)))
            .collect()
    }

    fn generation_config(&self) -> Json {
        let mut fields = self.ids();
        fields.insert("_from_model_config".to_owned(), Json::Bool(true));
        if self.ends.len() > 1 {
            fields.insert("eos_token_id".to_owned(), json!(self.ends));
        }
        Json::Object(fields)
    }

    fn tokenizer_config(
        &self,
        gguf: &Gguf,
        added: &[Added<'_>],
        context: u64,
    ) -> Result<Json, ImportError> {
        let decoder = added.iter().map(|token| (token.id.to_string(), token.json(false)));
        let flag = |key: &str| metadata::optional_bool(gguf, &format!("tokenizer.ggml.{key}"));
        let mut config = json!({
            "tokenizer_class": "PreTrainedTokenizerFast",
            "model_max_length": context,
            "add_prefix_space": false,
            "add_bos_token": flag("add_bos_token")?.unwrap_or(false),
            "add_eos_token": flag("add_eos_token")?.unwrap_or(false),
            "clean_up_tokenization_spaces": false,
            "added_tokens_decoder": decoder.collect::<Map<_, _>>(),
        });
        for (role, _, token) in &self.roles {
            config[format!("{role}_token")] = json!(token);
        }
        // A base model has none; it is imported all the same.
        if let Some(template) = metadata::optional_text(gguf, "tokenizer.chat_template")? {
            config["chat_template"] = json!(template);
        }
        Ok(config)
    }
}

fn texts<'a>(gguf: &'a Gguf, key: &str) -> Result<Vec<&'a str>, ImportError> {
    let texts = metadata::list(gguf, key)?.iter().map(Value::as_text);
    texts.collect::<Option<_>>().ok_or_else(|| ImportError::Metadata {
        key: key.to_owned(),
        reason: "must be a list of texts".to_owned(),
    })
}

fn unsupported(key: &str, got: &str, known: &[&str]) -> ImportError {
    let reason = format!("is `{got}`, which is not supported; supported: {}", known.join(", "));
    ImportError::Metadata { key: key.to_owned(), reason }
}

const MODEL: &str = "tokenizer.ggml.model";
const PRE: &str = "tokenizer.ggml.pre";
const TOKENS: &str = "tokenizer.ggml.tokens";
const TOKEN_KINDS: &str = "tokenizer.ggml.token_type";
const MERGES: &str = "tokenizer.ggml.merges";
/// llama.cpp's numbers for kinds of tokens.
const CONTROL: u64 = 3;
const USER_DEFINED: u64 = 4;
/// llama.cpp's name of a pre-tokenizer, and whether it takes every digit apart before it does what
/// GPT-2's does.
const PRE_TOKENIZERS: &[(&str, bool)] = &[("gpt-2", false), ("default", false), ("smollm", true)];
/// llama.cpp's roles and Hugging Face's.
const ROLES: &[(&str, &str)] =
    &[("bos", "bos"), ("eos", "eos"), ("padding", "pad"), ("unknown", "unk")];
const ENDS: &[&str] = &["eos", "eot", "eom"];
