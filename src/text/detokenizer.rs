//! From tokens back to text, one token at a time.
//!
//! A token may be half a character, so bytes wait until they make a whole one. Each token costs its
//! own length, however long the answer is: the text is never decoded a second time. What a token
//! stands for follows from the tokenizer's `decoder`; those known are byte-level ones, pieces with
//! byte fallback, and none at all. Start at [`Detokenizer::push`].

use std::fmt;
use std::sync::Arc;

use serde_json::Value;
use tokenizers::Tokenizer;

use super::{TextError, caught};

/// The text of one answer as it grows. The pieces together are what decoding all tokens at once
/// gives, without special tokens; invalid bytes come out as U+FFFD.
#[derive(Clone)]
pub struct Detokenizer {
    vocabulary: Arc<Vocabulary>,
    /// The start of a character: at most three bytes between two calls.
    pending: Vec<u8>,
    is_first: bool,
    /// How many characters may still be stripped from the start.
    strip: usize,
}

impl Detokenizer {
    pub(super) fn new(vocabulary: Arc<Vocabulary>) -> Self {
        let strip = match &vocabulary.scheme {
            Scheme::Pieces(pieces) => pieces.strip.map_or(0, |(_, most)| most),
            _ => 0,
        };
        Self { vocabulary, pending: Vec::new(), is_first: true, strip }
    }

    /// The text that `token` completes, if any.
    pub fn push(&mut self, token: u32) -> Option<String> {
        let piece = self.vocabulary.piece(token)?;
        let is_first = std::mem::take(&mut self.is_first);
        let mut text = String::new();
        match &self.vocabulary.scheme {
            Scheme::ByteLevel => self.pending.extend(byte_level(piece)),
            Scheme::Pieces(pieces) => {
                if let Some(byte) = fallback_byte(&piece).filter(|_| pieces.bytes) {
                    self.pending.push(byte);
                } else {
                    // The run of bytes has ended, so its last character stays incomplete.
                    take_rest(&mut self.pending, &mut text);
                    text.push_str(&pieces.text(piece, is_first));
                }
            }
            Scheme::Words => {
                text.extend((!is_first).then_some(' '));
                text.push_str(&piece);
            }
        }
        take_complete(&mut self.pending, &mut text);
        self.stripped(text)
    }

    /// What is left when the answer has ended: U+FFFD if the last character is incomplete.
    pub fn finish(&mut self) -> Option<String> {
        let mut text = String::new();
        take_rest(&mut self.pending, &mut text);
        self.stripped(text)
    }

    fn stripped(&mut self, mut text: String) -> Option<String> {
        if let Scheme::Pieces(Pieces { strip: Some((stripped, _)), .. }) = &self.vocabulary.scheme {
            while self.strip > 0 && !text.is_empty() {
                if text.starts_with(*stripped) {
                    text.remove(0);
                    self.strip -= 1;
                } else {
                    self.strip = 0;
                }
            }
        }
        (!text.is_empty()).then_some(text)
    }
}

impl fmt::Debug for Detokenizer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Detokenizer").field("pending", &self.pending).finish_non_exhaustive()
    }
}

/// A tokenizer and how its tokens become text.
pub(super) struct Vocabulary {
    tokenizer: Tokenizer,
    scheme: Scheme,
}

impl Vocabulary {
    /// The error names a decoder that is not known.
    pub fn new(tokenizer: Tokenizer) -> Result<Self, String> {
        let decoder = match tokenizer.get_decoder() {
            Some(decoder) => serde_json::to_value(decoder).map_err(|error| error.to_string())?,
            None => Value::Null,
        };
        let scheme = Scheme::of(&decoder)?;
        Ok(Self { tokenizer, scheme })
    }

    pub fn encode(&self, text: &str) -> Result<Vec<u32>, TextError> {
        caught(|| {
            let encoding = self.tokenizer.encode_fast(text, false);
            encoding.map(|encoding| encoding.get_ids().to_vec()).map_err(|error| error.to_string())
        })
        .map_err(TextError::Encode)
    }

    /// The token as the vocabulary writes it; none for a special token and for no token at all.
    fn piece(&self, token: u32) -> Option<String> {
        let piece = self.tokenizer.id_to_token(token)?;
        let is_special = self.tokenizer.get_added_vocabulary().is_special_token(&piece);
        (!is_special).then_some(piece)
    }

    /// The token's name as the vocabulary writes it.
    pub fn name(&self, token: u32) -> Option<String> {
        self.tokenizer.id_to_token(token)
    }

    /// What a token stands for, wherever it stands; none for a special token, which is no text, and
    /// for no token at all.
    pub fn bytes(&self, token: u32) -> Option<Vec<u8>> {
        let piece = self.piece(token)?;
        Some(match &self.scheme {
            Scheme::ByteLevel => byte_level(piece),
            Scheme::Pieces(pieces) => match fallback_byte(&piece).filter(|_| pieces.bytes) {
                Some(byte) => vec![byte],
                None => pieces.text(piece, false).into_bytes(),
            },
            Scheme::Words => piece.into_bytes(),
        })
    }

    #[cfg(test)]
    pub fn decode(&self, tokens: &[u32]) -> String {
        self.tokenizer.decode(tokens, true).expect("a decoder that cannot fail")
    }
}

/// How tokens become text, by the `decoder` of tokenizer.json.
#[derive(Debug, PartialEq, Eq)]
enum Scheme {
    /// Every byte is written as a character of its own.
    ByteLevel,
    /// Tokens are text, in which single characters stand for others.
    Pieces(Pieces),
    /// No decoder: tokens are words with a space between.
    Words,
}

#[derive(Debug, Default, PartialEq, Eq)]
struct Pieces {
    replace: Vec<(String, String)>,
    /// `<0x0A>` stands for a byte.
    bytes: bool,
    /// A mark that is a space, but nothing in the first token.
    space: Option<char>,
    /// This many of the character go from the start of the text.
    strip: Option<(char, usize)>,
}

impl Scheme {
    fn of(decoder: &Value) -> Result<Self, String> {
        let steps = match (decoder["type"].as_str(), decoder["decoders"].as_array()) {
            _ if decoder.is_null() => return Ok(Self::Words),
            (Some("Sequence"), Some(steps)) => steps.as_slice(),
            _ => std::slice::from_ref(decoder),
        };
        if steps.iter().all(|step| step["type"] == "ByteLevel") {
            return Ok(Self::ByteLevel);
        }
        let mut pieces = Pieces::default();
        let mut is_fused = false;
        for step in steps {
            is_fused |= step["type"] == "Fuse";
            pieces.add(step, is_fused).ok_or_else(|| step.to_string())?;
        }
        Ok(Self::Pieces(pieces))
    }
}

impl Pieces {
    /// Takes up a step of the decoder; none if it is not known, or not where it stands.
    fn add(&mut self, step: &Value, is_fused: bool) -> Option<()> {
        let character = |field: &str| {
            let mut characters = step[field].as_str()?.chars();
            characters.next().filter(|_| characters.next().is_none())
        };
        match step["type"].as_str()? {
            "Fuse" => {}
            "ByteFallback" if !is_fused => self.bytes = true,
            "Replace" if !is_fused && !self.bytes => {
                let from = step["pattern"]["String"].as_str().filter(|from| !from.is_empty())?;
                self.replace.push((from.to_owned(), step["content"].as_str()?.to_owned()));
            }
            "Metaspace" if !is_fused && self.replace.is_empty() => {
                let mark = character("replacement")?;
                match step["prepend_scheme"].as_str() {
                    Some("never") => self.replace.push((mark.to_string(), " ".to_owned())),
                    _ => self.space = Some(mark),
                }
            }
            // The end of the text is not known while it grows.
            "Strip" if is_fused && step["stop"] == 0 && self.strip.is_none() => {
                let most = usize::try_from(step["start"].as_u64()?).ok()?;
                self.strip = Some((character("content")?, most));
            }
            _ => return None,
        }
        Some(())
    }

    fn text(&self, mut piece: String, is_first: bool) -> String {
        if let Some(mark) = self.space {
            piece = piece.replace(mark, if is_first { "" } else { " " });
        }
        for (from, to) in &self.replace {
            piece = piece.replace(from, to);
        }
        piece
    }
}

/// Moves whole characters to `text`, and with them bytes that can be part of none.
fn take_complete(pending: &mut Vec<u8>, text: &mut String) {
    let mut done = 0;
    while done < pending.len() {
        match str::from_utf8(&pending[done..]) {
            Ok(valid) => {
                text.push_str(valid);
                done = pending.len();
            }
            Err(error) => {
                let valid = done + error.valid_up_to();
                text.push_str(&String::from_utf8_lossy(&pending[done..valid]));
                done = valid;
                let Some(invalid) = error.error_len() else { break };
                text.push(char::REPLACEMENT_CHARACTER);
                done += invalid;
            }
        }
    }
    pending.drain(..done);
}

/// Gives up on an incomplete character.
fn take_rest(pending: &mut Vec<u8>, text: &mut String) {
    if !pending.is_empty() {
        pending.clear();
        text.push(char::REPLACEMENT_CHARACTER);
    }
}

/// The bytes of a byte-level token. One with a character that stands for no byte was added as it
/// stands.
fn byte_level(piece: String) -> Vec<u8> {
    let byte = |character| BYTES.get(character as usize).copied().flatten();
    let bytes: Option<Vec<u8>> = piece.chars().map(byte).collect();
    bytes.unwrap_or_else(|| piece.into_bytes())
}

fn fallback_byte(piece: &str) -> Option<u8> {
    let digits = piece.strip_prefix("<0x")?.strip_suffix('>')?;
    u8::from_str_radix(digits, 16).ok().filter(|_| digits.len() == 2 && !digits.starts_with('+'))
}

/// GPT-2's alphabet: a byte that is printable in Latin-1 stands for itself, and the others take the
/// characters from 256 on, in their order.
const BYTES: [Option<u8>; 324] = {
    let mut bytes = [None; 324];
    let (mut byte, mut next) = (0_u8, 256);
    loop {
        let is_printable = matches!(byte, b'!'..=b'~' | 0xA1..=0xAC | 0xAE..=0xFF);
        bytes[if is_printable { byte as usize } else { next }] = Some(byte);
        next += if is_printable { 0 } else { 1 };
        if byte == u8::MAX {
            break bytes;
        }
        byte += 1;
    }
};

#[cfg(test)]
#[path = "detokenizer_tests.rs"]
mod tests;
