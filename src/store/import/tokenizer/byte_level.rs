//! Byte-level BPE: GPT-2's, and what Llama 3 and Qwen made of it.
//!
//! Text is cut by a pattern, each part is written in 256 characters that stand for bytes, and
//! those merge by rank. What a model's pattern is follows from llama.cpp's name of it.

use serde_json::{Value as Json, json};

use super::super::super::gguf::Gguf;
use super::super::{ImportError, metadata};
use super::{Scheme, texts, unsupported, vocabulary};

/// How text is cut before it is merged.
#[derive(Debug, Clone, Copy)]
enum Cut {
    Gpt2,
    /// Every digit apart, then as GPT-2.
    Digits,
    /// By this pattern.
    Pattern(&'static str),
}

/// A pre-tokenizer that is known.
struct Known {
    /// llama.cpp's name.
    name: &'static str,
    cut: Cut,
    /// Text is composed first: a letter and its accent become one character.
    composes: bool,
    /// A part that is a token stays one, although no merges may lead to it.
    ignore_merges: bool,
    adds_bos: bool,
}

pub(super) fn scheme(gguf: &Gguf, tokens: &[&str]) -> Result<Scheme, ImportError> {
    let pre = metadata::text(gguf, PRE)?;
    let Some(known) = KNOWN.iter().find(|known| known.name == pre) else {
        let names: Vec<&str> = KNOWN.iter().map(|known| known.name).collect();
        return Err(unsupported(PRE, pre, &names));
    };
    let mut merges = Vec::new();
    for merge in texts(gguf, MERGES)? {
        let (left, right) = merge.split_once(' ').ok_or_else(|| ImportError::Metadata {
            key: MERGES.to_owned(),
            reason: format!("has `{merge}`, which is not two tokens"),
        })?;
        merges.push(json!([left, right]));
    }
    let model = json!({
        "type": "BPE",
        "dropout": null,
        "unk_token": null,
        "continuing_subword_prefix": null,
        "end_of_word_suffix": null,
        "fuse_unk": false,
        "byte_fallback": false,
        "ignore_merges": known.ignore_merges,
        "vocab": vocabulary(tokens)?,
        "merges": merges,
    });
    Ok(Scheme {
        normalizer: if known.composes { json!({ "type": "NFC" }) } else { Json::Null },
        pre_tokenizer: known.cut.pre_tokenizer(),
        decoder: byte_level(true, true),
        model,
        adds_bos: known.adds_bos,
    })
}

impl Cut {
    fn pre_tokenizer(self) -> Json {
        let then =
            |first: Json, second| json!({ "type": "Sequence", "pretokenizers": [first, second] });
        match self {
            Self::Gpt2 => byte_level(false, true),
            Self::Digits => then(
                json!({ "type": "Digits", "individual_digits": true }),
                byte_level(false, true),
            ),
            Self::Pattern(pattern) => then(
                json!({
                    "type": "Split",
                    "pattern": { "Regex": pattern },
                    "behavior": "Isolated",
                    "invert": false,
                }),
                byte_level(false, false),
            ),
        }
    }
}

fn byte_level(add_prefix_space: bool, use_regex: bool) -> Json {
    json!({
        "type": "ByteLevel",
        "add_prefix_space": add_prefix_space,
        "trim_offsets": true,
        "use_regex": use_regex,
    })
}

const PRE: &str = "tokenizer.ggml.pre";
const MERGES: &str = "tokenizer.ggml.merges";

const KNOWN: &[Known] = &[
    Known { name: "gpt-2", cut: Cut::Gpt2, composes: false, ignore_merges: false, adds_bos: false },
    Known {
        name: "default",
        cut: Cut::Gpt2,
        composes: false,
        ignore_merges: false,
        adds_bos: false,
    },
    Known {
        name: "smollm",
        cut: Cut::Digits,
        composes: false,
        ignore_merges: false,
        adds_bos: false,
    },
    Known {
        name: "llama-bpe",
        cut: Cut::Pattern(LLAMA_3),
        composes: false,
        ignore_merges: true,
        adds_bos: true,
    },
    Known {
        name: "qwen2",
        cut: Cut::Pattern(QWEN_2),
        composes: true,
        ignore_merges: false,
        adds_bos: false,
    },
];

/// The models' own patterns; they differ in how many digits stay together.
const LLAMA_3: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const QWEN_2: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
