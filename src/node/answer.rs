//! One answer as its client sees it: tokens in; text, reasoning, tool calls and log probabilities out,
//! cut before the first stop string.
//!
//! Stop strings are looked for in the text as the model wrote it, markup and all; what they leave is
//! taken apart.
//! A token's log probability goes out when all of its text has. Tokens that are half a character
//! wait for the one that completes it, and those of which a stop string cuts something off are left
//! out: their text would show what must not be shown. Knows neither clients nor ranks.

use std::collections::VecDeque;

use super::handle::{Delta, Likelihood, TokenLikelihood, TokenText};
use crate::text::{Detokenizer, OutputParser, Parts, StopMatcher, TextModel};

/// An answer that grows.
#[derive(Debug)]
pub(super) struct Answer {
    detokenizer: Detokenizer,
    stops: StopMatcher,
    output: OutputParser,
    /// Bytes of text so far, shown or held back.
    decoded: usize,
    shown: usize,
    /// Tokens that were not shown yet, each with where its text ends; none: not known yet.
    waiting: VecDeque<(Option<usize>, TokenLikelihood)>,
}

impl Answer {
    pub(super) fn new(text: &TextModel, stops: &[String], output: OutputParser) -> Self {
        Self {
            detokenizer: text.detokenizer(),
            stops: StopMatcher::new(stops),
            output,
            decoded: 0,
            shown: 0,
            waiting: VecDeque::new(),
        }
    }

    /// Takes up a token of `text`'s, with its likelihood where that was asked for; gives what may be
    /// shown now.
    pub(super) fn push(
        &mut self,
        text: &TextModel,
        token: u32,
        likelihood: Option<TokenLikelihood>,
    ) -> Delta {
        self.waiting.extend(likelihood.map(|likelihood| (None, likelihood)));
        let decoded = match text.marker(token).filter(|marker| self.output.uses(marker)) {
            Some(marker) => {
                // It begins where all text before it has ended. It may be a special token, which is
                // no text otherwise.
                let mut before = self.detokenizer.finish().unwrap_or_default();
                self.output.mark(self.decoded + before.len());
                before.push_str(marker);
                Some(before)
            }
            None => self.detokenizer.push(token),
        };
        self.show(decoded)
    }

    /// The answer has ended: what was held back, unless it was stopped.
    pub(super) fn finish(&mut self) -> Delta {
        let rest = self.detokenizer.finish();
        let mut delta = self.show(rest);
        if !self.stops.is_stopped() {
            let held = self.stops.finish();
            delta.append(self.output.push(&held).into());
            let left = self.waiting.drain(..).map(|(_, likelihood)| likelihood);
            delta.tokens.extend(left);
        }
        delta.append(self.output.finish().into());
        delta
    }

    /// Whether the answer is complete, by a stop string or by its only call: nothing is shown after
    /// that.
    pub(super) const fn is_stopped(&self) -> bool {
        self.stops.is_stopped() || self.output.is_done()
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
        Delta { tokens, ..self.output.push(&text).into() }
    }
}

impl From<Parts> for Delta {
    fn from(parts: Parts) -> Self {
        let Parts { reasoning, content, calls } = parts;
        Self { text: content, reasoning, calls, tokens: Vec::new() }
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
    use crate::text::Tools;

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

    fn answer(text: &TextModel, stops: &[String]) -> Answer {
        Answer::new(text, stops, text.output("", Tools::default(), true))
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
            let mut growing = answer(&text, &[stop.to_owned()]);
            let mut shown: Vec<Delta> =
                (0..3).map(|token| growing.push(&text, token, Some(asked(&text, token)))).collect();
            shown.push(growing.finish());
            for (delta, (text, tokens)) in shown.iter().zip(expected) {
                assert_eq!((delta.text.as_str(), bytes(delta)), (text, tokens.into()), "{stop}");
            }
            assert_eq!(growing.is_stopped(), is_stopped, "{stop}");
        }
    }

    #[test]
    fn a_special_token_has_a_name_and_no_text() {
        let mut growing = answer(&BYTES, &[]);
        assert!(growing.push(&BYTES, 257, Some(asked(&BYTES, 257))).is_empty());
        let delta = growing.push(&BYTES, u32::from(b'!'), Some(asked(&BYTES, u32::from(b'!'))));
        assert_eq!((delta.text.as_str(), delta.tokens.len()), ("!", 2));
        let named = TokenText::Special("<|im_start|>".to_owned());
        assert_eq!((&delta.tokens[0].drawn.token, bytes(&delta)), (&named, b"!".to_vec()));
    }

    #[test]
    fn without_log_probabilities_there_is_text_alone() {
        let mut growing = answer(&BYTES, &[]);
        let shown: Vec<Delta> = "é!"
            .bytes()
            .map(|byte| growing.push(&BYTES, byte.into(), None))
            .chain([Delta::default()])
            .collect();
        let texts: Vec<&str> = shown.iter().map(|delta| delta.text.as_str()).collect();
        assert_eq!(texts, ["", "é", "!", ""]);
        assert!(shown.iter().all(|delta| delta.tokens.is_empty()));
        assert!(growing.finish().is_empty());
    }

    /// A model whose tokens are bytes, `<tool_call>` (264), `[TOOL_CALLS]` (265, the only special one)
    /// and `</think>` (266), and that writes calls as `template` says.
    fn caller(template: &str) -> TextModel {
        let bytes = std::fs::read(
            Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/tiny/llama-f32/tokenizer.json"),
        );
        let mut tokenizer: serde_json::Value =
            serde_json::from_slice(&bytes.expect("a tokenizer")).expect("JSON");
        let names = ["<tool_call>", "[TOOL_CALLS]", "</think>"];
        tokenizer["added_tokens"] = (264..)
            .zip(names)
            .map(|(id, content): (u32, _)| {
                serde_json::json!({"id": id, "content": content, "special": id == 265,
                    "single_word": false, "lstrip": false, "rstrip": false, "normalized": false})
            })
            .collect();
        let dir = tempfile::tempdir().expect("a folder");
        std::fs::write(dir.path().join("tokenizer.json"), tokenizer.to_string()).expect("written");
        std::fs::write(dir.path().join("chat_template.jinja"), template).expect("written");
        TextModel::open(dir.path()).expect("a model")
    }

    /// The answer to `prompt` of text and, in brackets, ids.
    fn told(text: &TextModel, prompt: &str, stops: &[String], answer: &str) -> (Delta, bool) {
        let tools = [serde_json::json!({"type": "function", "function": {"name": "f"}})];
        let output = text.output(prompt, Tools::new(&tools), false);
        let mut growing = Answer::new(text, stops, output);
        let mut all = Delta::default();
        for piece in answer.split_inclusive(['⟦', '⟧']) {
            match piece.strip_suffix('⟧') {
                Some(id) => all.append(growing.push(text, id.parse().expect("an id"), None)),
                None => {
                    for byte in piece.trim_end_matches('⟦').bytes() {
                        all.append(growing.push(text, byte.into(), None));
                    }
                }
            }
        }
        let is_stopped = growing.is_stopped();
        all.append(growing.finish());
        (all, is_stopped)
    }

    #[test]
    fn tokens_that_are_markers_open_calls_and_letters_do_not() {
        let json = r#"{"name": "f", "arguments": {"x": "é"}}"#;
        let call = ("f".to_owned(), r#"{"x":"é"}"#.to_owned());
        let letters = format!("<tool_call>{json}</tool_call>");
        let mistral = format!("[{json}]");
        // Template, prompt, stop string, answer; reasoning, content, whether there is the call.
        for (template, prompt, stop, answer, reasoning, content, calls) in [
            ("<tool_call>", "", "", format!("Hé ⟦264⟧{json}</tool_call>⟦264⟧"), "", "Hé", true),
            ("<tool_call>", "", "", letters.clone(), "", letters.as_str(), false),
            (
                "<tool_call>",
                "",
                "f\"",
                format!("a⟦264⟧{json}"),
                "",
                "a<tool_call>{\"name\": \"",
                false,
            ),
            ("[TOOL_CALLS]", "", "", format!("⟦265⟧{mistral}"), "", "", true),
            ("[TOOL_CALLS]", "", "", "a⟦265⟧b".to_owned(), "", "a[TOOL_CALLS]b", false),
            (
                "</think>",
                "<think>",
                "",
                "a</think>b⟦266⟧\nc⟦265⟧".to_owned(),
                "a</think>b",
                "c",
                false,
            ),
            ("", "<think>", "", "a⟦266⟧b⟦265⟧".to_owned(), "", "a</think>b", false),
        ] {
            let stops = [stop.to_owned()];
            let (delta, is_stopped) = told(&caller(template), prompt, &stops, &answer);
            assert_eq!(
                (delta.reasoning.as_str(), delta.text.as_str()),
                (reasoning, content),
                "{answer}"
            );
            let made: Vec<_> =
                delta.calls.into_iter().map(|call| (call.name, call.arguments)).collect();
            assert_eq!(made, Vec::from_iter(calls.then(|| call.clone())), "{answer}");
            assert_eq!(is_stopped, calls || !stop.is_empty(), "{answer}");
        }
    }

    #[test]
    fn a_real_tokenizers_tokens_are_taken_apart() {
        let Some(fetched) = std::env::var_os("DAISY_TEST_TEMPLATES") else {
            println!("SKIP calls in a real tokenizer's tokens: DAISY_TEST_TEMPLATES is not set");
            return;
        };
        let tokenizer = Path::new(&fetched).join("qwen3/tokenizer.json");
        if !tokenizer.exists() {
            println!("SKIP calls in a real tokenizer's tokens: {} is missing", tokenizer.display());
            return;
        }
        let template =
            Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/templates/qwen3.jinja");
        let dir = tempfile::tempdir().expect("a folder");
        std::fs::copy(tokenizer, dir.path().join("tokenizer.json")).expect("copied");
        std::fs::copy(template, dir.path().join("chat_template.jinja")).expect("copied");
        let text = TextModel::open(dir.path()).expect("a model");

        let call = r#"{"name": "f", "arguments": {"x": "日本 🗼"}}"#;
        let wrote = format!(
            "<think>\nÜber </think>\n\nGrüß 🐈‍⬛.\n<tool_call>\n{call}\n</tool_call>\n<tool_call>\n{call}\n</tool_call><|im_end|>"
        );
        let tools = [serde_json::json!({"type": "function", "function": {"name": "f"}})];
        let mut growing = Answer::new(&text, &[], text.output("", Tools::new(&tools), true));
        let mut all = Delta::default();
        for token in text.encode(&wrote).expect("tokens") {
            all.append(growing.push(&text, token, None));
        }
        all.append(growing.finish());
        assert_eq!((all.reasoning.as_str(), all.text.as_str()), ("Über ", "Grüß 🐈‍⬛."));
        let arguments: Vec<&str> = all.calls.iter().map(|call| call.arguments.as_str()).collect();
        assert_eq!(arguments, [r#"{"x":"日本 🗼"}"#; 2]);
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

            let mut growing = answer(&BYTES, &stops);
            let mut all = Delta::default();
            for byte in text.bytes() {
                all.append(growing.push(&BYTES, byte.into(), Some(asked(&BYTES, byte.into()))));
                prop_assert!(whole.starts_with(&all.text));
                prop_assert!(whole.as_bytes().starts_with(&bytes(&all)));
            }
            all.append(growing.finish());
            prop_assert_eq!(&all.text, whole);
            prop_assert_eq!(bytes(&all), whole.as_bytes());
            prop_assert_eq!(growing.is_stopped(), first.is_some());
        }
    }
}
