//! The tokenizer in a GGUF file as Hugging Face's `tokenizer.json` and `tokenizer_config.json`.
//!
//! Two kinds are known: byte-level BPE, with pre-tokenizers that are known to be the ones the model
//! was trained with, for a wrong one gives other tokens without a sign of it; and `SentencePiece`'s
//! BPE. Either is only the part of `tokenizer.json` that differs; what they share is here.
//!
//! Start at [`Tokenizer::of`].

mod byte_level;
mod pieces;

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
        let tokens = texts(gguf, TOKENS)?;
        if tokens.len() as u64 > vocab {
            let reason = format!("has {} tokens, but the embedding {vocab} rows", tokens.len());
            return Err(ImportError::Metadata { key: TOKENS.to_owned(), reason });
        }
        let scheme = match metadata::text(gguf, MODEL)? {
            "gpt2" => byte_level::scheme(gguf, &tokens)?,
            "llama" => pieces::scheme(gguf, &tokens)?,
            other => return Err(unsupported(MODEL, other, &["gpt2", "llama"])),
        };
        let special = Special::of(gguf, &tokens)?;
        let added = added_tokens(gguf, &tokens, &special)?;
        let begins = metadata::optional_bool(gguf, "tokenizer.ggml.add_bos_token")?;
        let begins = begins.unwrap_or(scheme.adds_bos);
        let tokenizer = json!({
            "version": "1.0",
            "truncation": null,
            "padding": null,
            "added_tokens": added.iter().map(|token| token.json(true)).collect::<Vec<_>>(),
            "normalizer": scheme.normalizer,
            "pre_tokenizer": scheme.pre_tokenizer,
            "post_processor": special.post_processor(begins),
            "decoder": scheme.decoder,
            "model": scheme.model,
        });
        // The library that will read it is asked now, while nothing has been written.
        tokenizers::Tokenizer::from_bytes(tokenizer.to_string()).map_err(|error| {
            ImportError::Metadata {
                key: TOKENS.to_owned(),
                reason: format!("make no tokenizer: {error}"),
            }
        })?;
        Ok(Self {
            splitter: tokenizer,
            config: special.tokenizer_config(gguf, &added, begins, context)?,
            ids: special.ids(),
            generation: special.generation_config(),
        })
    }
}

/// The parts of `tokenizer.json` in which kinds of tokenizers differ.
struct Scheme {
    normalizer: Json,
    pre_tokenizer: Json,
    decoder: Json,
    model: Json,
    /// Whether a text begins with the token of that role where the file does not say.
    adds_bos: bool,
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

fn added_tokens<'a>(
    gguf: &Gguf,
    tokens: &[&'a str],
    special: &Special<'_>,
) -> Result<Vec<Added<'a>>, ImportError> {
    let kinds = metadata::list(gguf, TOKEN_KINDS)?;
    if kinds.len() != tokens.len() {
        let reason = format!("has {} items for {} tokens", kinds.len(), tokens.len());
        return Err(ImportError::Metadata { key: TOKEN_KINDS.to_owned(), reason });
    }
    let added = tokens.iter().zip(kinds).enumerate().filter_map(|(id, (content, kind))| {
        let is_special = match kind.as_u64() {
            Some(CONTROL | UNKNOWN) => true,
            // Some files give the end of a turn the wrong kind.
            Some(USER_DEFINED) => special.ends.iter().any(|end| *end as usize == id),
            _ => return None,
        };
        Some(Added { id, content, is_special })
    });
    Ok(added.collect())
}

/// Ids by token.
fn vocabulary(tokens: &[&str]) -> Result<Map<String, Json>, ImportError> {
    let mut vocabulary = Map::new();
    for (id, token) in tokens.iter().enumerate() {
        if vocabulary.insert((*token).to_owned(), json!(id)).is_some() {
            let reason = format!("has `{token}` twice");
            return Err(ImportError::Metadata { key: TOKENS.to_owned(), reason });
        }
    }
    Ok(vocabulary)
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

    /// Puts the first token before a text, where it is wanted.
    fn post_processor(&self, begins: bool) -> Json {
        let bos = self.roles.iter().find(|(role, ..)| begins && *role == "bos");
        let Some((_, id, token)) = bos else { return Json::Null };
        let begin = json!({ "SpecialToken": { "id": token, "type_id": 0 } });
        let text = |name: &str| json!({ "Sequence": { "id": name, "type_id": 0 } });
        json!({
            "type": "TemplateProcessing",
            "single": [begin, text("A")],
            "pair": [begin, text("A"), begin, text("B")],
            "special_tokens": { *token: { "id": token, "ids": [id], "tokens": [token] } },
        })
    }

    fn tokenizer_config(
        &self,
        gguf: &Gguf,
        added: &[Added<'_>],
        begins: bool,
        context: u64,
    ) -> Result<Json, ImportError> {
        let decoder = added.iter().map(|token| (token.id.to_string(), token.json(false)));
        let flag = |key: &str| metadata::optional_bool(gguf, &format!("tokenizer.ggml.{key}"));
        let mut config = json!({
            "tokenizer_class": "PreTrainedTokenizerFast",
            "model_max_length": context,
            "add_prefix_space": false,
            "add_bos_token": begins,
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
const TOKENS: &str = "tokenizer.ggml.tokens";
const TOKEN_KINDS: &str = "tokenizer.ggml.token_type";
/// llama.cpp's numbers for kinds of tokens.
const UNKNOWN: u64 = 2;
const CONTROL: u64 = 3;
const USER_DEFINED: u64 = 4;
/// llama.cpp's roles and Hugging Face's.
const ROLES: &[(&str, &str)] =
    &[("bos", "bos"), ("eos", "eos"), ("padding", "pad"), ("unknown", "unk")];
const ENDS: &[&str] = &["eos", "eot", "eom"];
