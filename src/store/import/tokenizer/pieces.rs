//! `SentencePiece`'s BPE: Llama 1 and 2, Mistral, Gemma.
//!
//! Pieces have scores, and of all neighbours those merge first whose piece has the highest. Hugging
//! Face wants ranked pairs instead: every way to cut a piece into two others, by the piece's score,
//! as its converter has them. A character that is no piece becomes its bytes.

use std::collections::HashMap;

use serde_json::{Value as Json, json};

use super::super::super::gguf::{Gguf, Value};
use super::super::{ImportError, metadata};
use super::{Scheme, TOKEN_KINDS, vocabulary};

pub(super) fn scheme(gguf: &Gguf, tokens: &[&str]) -> Result<Scheme, ImportError> {
    refuse_normalised(gguf)?;
    let prefix = metadata::optional_bool(gguf, PREFIX)?.unwrap_or(true);
    let unknown = metadata::optional_id(gguf, UNKNOWN)?.unwrap_or(0);
    let Some(unknown) = tokens.get(unknown as usize) else {
        let reason = format!("is {unknown} of {} tokens", tokens.len());
        return Err(ImportError::Metadata { key: UNKNOWN.to_owned(), reason });
    };
    let model = json!({
        "type": "BPE",
        "dropout": null,
        "unk_token": unknown,
        "continuing_subword_prefix": null,
        "end_of_word_suffix": null,
        "fuse_unk": true,
        "byte_fallback": true,
        "ignore_merges": false,
        "vocab": vocabulary(tokens)?,
        "merges": merges(tokens, &scores(gguf, tokens)?, &mergeable(gguf)?),
    });
    let spaces = json!({ "type": "Replace", "pattern": { "String": " " }, "content": SPACE });
    let normalizer = if prefix {
        let first = json!({ "type": "Prepend", "prepend": SPACE });
        json!({ "type": "Sequence", "normalizers": [first, spaces] })
    } else {
        spaces
    };
    Ok(Scheme {
        normalizer,
        pre_tokenizer: Json::Null,
        decoder: decoder(prefix),
        model,
        adds_bos: true,
    })
}

fn decoder(prefix: bool) -> Json {
    let mut steps = vec![
        json!({ "type": "Replace", "pattern": { "String": SPACE }, "content": " " }),
        json!({ "type": "ByteFallback" }),
        json!({ "type": "Fuse" }),
    ];
    if prefix {
        steps.push(json!({ "type": "Strip", "content": " ", "start": 1, "stop": 0 }));
    }
    json!({ "type": "Sequence", "decoders": steps })
}

/// Pairs in the order in which they merge: the best piece first, and of one piece's pairs the one
/// whose parts have the lowest ids.
fn merges(tokens: &[&str], scores: &[f32], mergeable: &[bool]) -> Vec<Json> {
    let pieces: HashMap<&str, usize> = tokens
        .iter()
        .enumerate()
        .filter(|(id, _)| mergeable[*id])
        .map(|(id, token)| (*token, id))
        .collect();
    let mut pairs = Vec::new();
    for (id, piece) in tokens.iter().enumerate().filter(|(id, _)| mergeable[*id]) {
        for (at, _) in piece.char_indices().skip(1) {
            let (left, right) = piece.split_at(at);
            if let (Some(left_id), Some(right_id)) = (pieces.get(left), pieces.get(right)) {
                pairs.push((scores[id], (id, *left_id, *right_id), left, right));
            }
        }
    }
    pairs.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
    pairs.into_iter().map(|(.., left, right)| json!([left, right])).collect()
}

/// Which tokens text can merge into: pieces, not those with a meaning of their own, nor bytes.
fn mergeable(gguf: &Gguf) -> Result<Vec<bool>, ImportError> {
    let kinds = metadata::list(gguf, TOKEN_KINDS)?.iter();
    Ok(kinds.map(|kind| kind.as_u64() == Some(NORMAL)).collect())
}

fn scores(gguf: &Gguf, tokens: &[&str]) -> Result<Vec<f32>, ImportError> {
    let fault = |reason: String| ImportError::Metadata { key: SCORES.to_owned(), reason };
    let scores = metadata::list(gguf, SCORES)?;
    let kinds = metadata::list(gguf, TOKEN_KINDS)?;
    if scores.len() != tokens.len() || kinds.len() != tokens.len() {
        let [scores, kinds, tokens] = [scores.len(), kinds.len(), tokens.len()];
        return Err(fault(format!("has {scores} items, and {kinds} kinds, for {tokens} tokens")));
    }
    let scores = scores.iter().map(|score| match score {
        Value::F32(score) if !score.is_nan() => Some(*score),
        _ => None,
    });
    scores.collect::<Option<_>>().ok_or_else(|| fault("must be a list of numbers".to_owned()))
}

/// What changes the text before it is cut, and is not imported.
fn refuse_normalised(gguf: &Gguf) -> Result<(), ImportError> {
    let refused = |key: &str| ImportError::Metadata {
        key: key.to_owned(),
        reason: "changes the text, which is not supported".to_owned(),
    };
    if metadata::optional_bool(gguf, STRIPS)? == Some(true) {
        return Err(refused(STRIPS));
    }
    match gguf.metadata.get(CHARSMAP) {
        Some(Value::List(map)) if map.is_empty() => Ok(()),
        Some(_) => Err(refused(CHARSMAP)),
        None => Ok(()),
    }
}

/// `SentencePiece`'s character for a space.
const SPACE: &str = "\u{2581}";
const SCORES: &str = "tokenizer.ggml.scores";
const PREFIX: &str = "tokenizer.ggml.add_space_prefix";
const UNKNOWN: &str = "tokenizer.ggml.unknown_token_id";
const STRIPS: &str = "tokenizer.ggml.remove_extra_whitespaces";
const CHARSMAP: &str = "tokenizer.ggml.precompiled_charsmap";
/// llama.cpp's number for the kind.
const NORMAL: u64 = 1;
