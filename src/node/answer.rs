//! One answer as its client sees it: tokens in, text and log probabilities out, cut before the first
//! stop string.
//!
//! A token's log probability goes out when all of its text has. Tokens that are half a character
//! wait for the one that completes it, and those of which a stop string cuts something off are left
//! out: their text would show what must not be shown. Knows neither clients nor ranks.

use std::collections::VecDeque;

use super::handle::{Delta, Likelihood, TokenLikelihood, TokenText};
use crate::text::{Detokenizer, StopMatcher, TextModel};

/// An answer that grows.
#[derive(Debug)]
pub(super) struct Answer {
    detokenizer: Detokenizer,
    stops: StopMatcher,
    /// Bytes of text so far, shown or held back.
    decoded: usize,
    shown: usize,
    /// Tokens that were not shown yet, each with where its text ends; none: not known yet.
    waiting: VecDeque<(Option<usize>, TokenLikelihood)>,
}

impl Answer {
    pub(super) fn new(text: &TextModel, stops: &[String]) -> Self {
        Self {
            detokenizer: text.detokenizer(),
            stops: StopMatcher::new(stops),
            decoded: 0,
            shown: 0,
            waiting: VecDeque::new(),
        }
    }

    /// Takes up a token, with its likelihood where that was asked for; gives what may be shown now.
    pub(super) fn push(&mut self, token: u32, likelihood: Option<TokenLikelihood>) -> Delta {
        self.waiting.extend(likelihood.map(|likelihood| (None, likelihood)));
        let text = self.detokenizer.push(token);
        self.show(text)
    }

    /// The answer has ended: what was held back, unless it was stopped.
    pub(super) fn finish(&mut self) -> Delta {
        let rest = self.detokenizer.finish();
        let mut delta = self.show(rest);
        if !self.stops.is_stopped() {
            delta.text.push_str(&self.stops.finish());
            let left = self.waiting.drain(..).map(|(_, likelihood)| likelihood);
            delta.tokens.extend(left);
        }
        delta
    }

    /// Whether a stop string was found: nothing is shown after that.
    pub(super) const fn is_stopped(&self) -> bool {
        self.stops.is_stopped()
    }

    fn show(&mut self, decoded: Option<String>) -> Delta {
        let Some(decoded) = decoded else { return Delta::default() };
        self.decoded += decoded.len();
        for (end, _) in self.waiting.iter_mut().rev().take_while(|(end, _)| end.is_none()) {
            *end = Some(self.decoded);
        }
        let text = self.stops.push(&decoded);
        self.shown += text.len();
        let is_shown = |end: Option<usize>| end.is_some_and(|end| end <= self.shown);
        let count = self.waiting.iter().take_while(|(end, _)| is_shown(*end)).count();
        let tokens = self.waiting.drain(..count).map(|(_, likelihood)| likelihood).collect();
        Delta { text, tokens }
    }
}

/// What a rank computed, with the tokens' own text.
pub(super) fn likelihood(
    text: &TextModel,
    token: u32,
    logprobs: daisy_proto::Logprobs,
) -> TokenLikelihood {
    let of = |(id, logprob)| {
        let name = || TokenText::Special(text.token_name(id).unwrap_or_default());
        let token = text.token_bytes(id).map_or_else(name, TokenText::Bytes);
        Likelihood { token, logprob }
    };
    TokenLikelihood {
        drawn: of((token, logprobs.drawn)),
        top: logprobs.top.into_iter().map(of).collect(),
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::sync::LazyLock;

    use proptest::prelude::*;

    use super::*;

    /// Its tokens are single bytes.
    static BYTES: LazyLock<TextModel> = LazyLock::new(|| {
        let tiny = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/tiny/llama-f32");
        TextModel::open(&tiny).expect("a checkpoint")
    });

    /// A model of these tokens, numbered from 0.
    fn words(pieces: &[&str]) -> TextModel {
        let vocabulary: serde_json::Map<_, _> = (0..)
            .zip(pieces)
            .map(|(id, piece): (u32, _)| ((*piece).to_owned(), id.into()))
            .collect();
        let tokenizer = serde_json::json!({
            "version": "1.0", "added_tokens": [], "decoder": {"type": "Fuse"},
            "model": {"type": "BPE", "vocab": vocabulary, "merges": []},
        });
        let dir = tempfile::tempdir().expect("a folder");
        std::fs::write(dir.path().join("tokenizer.json"), tokenizer.to_string()).expect("written");
        TextModel::open(dir.path()).expect("a tokenizer")
    }

    fn asked(text: &TextModel, token: u32) -> TokenLikelihood {
        let logprobs = daisy_proto::Logprobs { drawn: -1.0, top: vec![(token, -1.0)] };
        likelihood(text, token, logprobs)
    }

    fn bytes(delta: &Delta) -> Vec<u8> {
        let of = |token: &TokenLikelihood| match &token.drawn.token {
            TokenText::Bytes(bytes) => bytes.clone(),
            TokenText::Special(_) => Vec::new(),
        };
        delta.tokens.iter().flat_map(of).collect()
    }

    #[test]
    fn tokens_come_with_their_text_and_never_with_a_stop_string() {
        let text = words(&["ab", "cd", "e"]);
        // Stop strings, then for each token what is shown of text and of tokens.
        for (stop, expected, is_stopped) in [
            ("", [("ab", "ab"), ("cd", "cd"), ("e", "e"), ("", "")], false),
            ("de", [("ab", "ab"), ("c", ""), ("", ""), ("", "")], true),
            ("bcx", [("a", ""), ("bcd", "abcd"), ("e", "e"), ("", "")], false),
            ("ab", [("", ""), ("", ""), ("", ""), ("", "")], true),
            ("ex", [("ab", "ab"), ("cd", "cd"), ("", ""), ("e", "e")], false),
        ] {
            let mut answer = Answer::new(&text, &[stop.to_owned()]);
            let mut shown: Vec<Delta> =
                (0..3).map(|token| answer.push(token, Some(asked(&text, token)))).collect();
            shown.push(answer.finish());
            for (delta, (text, tokens)) in shown.iter().zip(expected) {
                assert_eq!((delta.text.as_str(), bytes(delta)), (text, tokens.into()), "{stop}");
            }
            assert_eq!(answer.is_stopped(), is_stopped, "{stop}");
        }
    }

    #[test]
    fn a_special_token_has_a_name_and_no_text() {
        let mut answer = Answer::new(&BYTES, &[]);
        assert!(answer.push(257, Some(asked(&BYTES, 257))).is_empty());
        let delta = answer.push(u32::from(b'!'), Some(asked(&BYTES, u32::from(b'!'))));
        assert_eq!((delta.text.as_str(), delta.tokens.len()), ("!", 2));
        let named = TokenText::Special("<|im_start|>".to_owned());
        assert_eq!((&delta.tokens[0].drawn.token, bytes(&delta)), (&named, b"!".to_vec()));
    }

    #[test]
    fn without_log_probabilities_there_is_text_alone() {
        let mut answer = Answer::new(&BYTES, &[]);
        let shown: Vec<Delta> = "é!"
            .bytes()
            .map(|byte| answer.push(byte.into(), None))
            .chain([Delta::default()])
            .collect();
        let texts: Vec<&str> = shown.iter().map(|delta| delta.text.as_str()).collect();
        assert_eq!(texts, ["", "é", "!", ""]);
        assert!(shown.iter().all(|delta| delta.tokens.is_empty()));
        assert!(answer.finish().is_empty());
    }

    proptest! {
        /// One byte at a time: characters stay whole, and text and tokens end before the stop string.
        #[test]
        fn bytes_become_characters_and_stop_in_time(
            text in "[abé🙂]{0,9}",
            stops in prop::collection::vec("[abé🙂]{1,3}", 0..4),
        ) {
            let ends = (0..=text.len()).filter(|end| text.is_char_boundary(*end));
            let mut cuts = ends.filter_map(|end| {
                let stop = stops.iter().filter(|stop| text[..end].ends_with(stop.as_str()));
                stop.map(String::len).max().map(|length| end - length)
            });
            let first = cuts.next();
            let whole = &text[..first.unwrap_or(text.len())];

            let mut answer = Answer::new(&BYTES, &stops);
            let mut all = Delta::default();
            for byte in text.bytes() {
                all.append(answer.push(byte.into(), Some(asked(&BYTES, byte.into()))));
                prop_assert!(whole.starts_with(&all.text));
                prop_assert!(whole.as_bytes().starts_with(&bytes(&all)));
            }
            all.append(answer.finish());
            prop_assert_eq!(&all.text, whole);
            prop_assert_eq!(bytes(&all), whole.as_bytes());
            prop_assert_eq!(answer.is_stopped(), first.is_some());
        }
    }
}
