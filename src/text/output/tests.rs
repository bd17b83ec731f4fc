use super::*;

use proptest::prelude::*;
use serde_json::{Value, json};

const HERMES: &str = "<tool_call>{\"name\": …}</tool_call> <think></think>";
const QWEN2: &str = "<tool_call>{\"name\": …}</tool_call>";
const CODER: &str = "<tool_call><function=…><parameter=…> <think></think>";
const MISTRAL: &str = "[TOOL_CALLS]";
const LLAMA: &str = "<|start_header_id|> {\"name\": …, \"parameters\": …}";
const PLAIN: &str = "{{ messages }}";

/// In the tests below a marker stands in these where it is a token, and is bare where it is but text.
const OPEN: char = '⟦';
const CLOSE: char = '⟧';

fn tools() -> Tools {
    let parameters = json!({"type": "object", "properties": {
        "s": {"type": "string"}, "i": {"type": "integer"}, "n": {"type": "number"},
        "b": {"type": "boolean"}, "o": {"type": "object"}, "a": {"type": "array"},
        "e": {"enum": [1, "1", true]}, "m": {"type": ["integer", "null"]}, "N": {"type": ["string", "null"]},
        "u": {"anyOf": [{"type": "boolean"}, {"type": "string"}]}, "free": {},
    }});
    Tools::new(&[
        json!({"type": "function", "function": {"name": "f", "parameters": parameters}}),
        json!({"type": "function", "function": {"name": "g"}}),
    ])
}

/// Which markers the model of a test has as tokens.
#[derive(Clone, Copy)]
enum Vocabulary {
    Markers,
    Letters,
}

/// An answer and what was told of it, as one line each.
struct Told {
    reasoning: String,
    content: String,
    calls: Vec<String>,
}

fn parser(template: &str, vocabulary: Vocabulary, prompt: &str) -> OutputParser {
    let token = |marker: &str| match vocabulary {
        Vocabulary::Markers => Some(u32::try_from(marker.len()).expect("short")),
        Vocabulary::Letters => None,
    };
    OutputParser::new(Markup::of(template, token), tools(), true, opens_reasoning(prompt))
}

/// Feeds an answer cut after each byte that `cuts` says, though never within a character.
fn run(mut parser: OutputParser, answer: &str, cuts: impl Fn(usize) -> bool) -> Told {
    let mut told = Told { reasoning: String::new(), content: String::new(), calls: Vec::new() };
    let mut take = |parts: Parts| {
        told.reasoning.push_str(&parts.reasoning);
        told.content.push_str(&parts.content);
        told.calls
            .extend(parts.calls.iter().map(|call| format!("{} {}", call.name, call.arguments)));
    };
    let mut position = 0;
    let mut piece = String::new();
    for (at, character) in answer.chars().enumerate() {
        match character {
            OPEN => parser.mark(position),
            CLOSE => {}
            _ => {
                piece.push(character);
                position += character.len_utf8();
            }
        }
        if cuts(at) {
            take(parser.push(&std::mem::take(&mut piece)));
        }
    }
    take(parser.push(&piece));
    take(parser.finish());
    told
}

type Row<'a> = (&'a str, Vocabulary, &'a str, &'a str, &'a str, &'a str, &'a [&'a str]);

/// Template, vocabulary, end of the prompt, answer; reasoning, content, calls.
const TABLE: &[Row<'_>] = {
    use Vocabulary::{Letters, Markers};
    &[
        (
            PLAIN,
            Letters,
            "",
            "<think>a</think> <tool_call>{}",
            "",
            "<think>a</think> <tool_call>{}",
            &[],
        ),
        // Reasoning, with its line breaks gone; opened by the model, by the prompt, or not at all.
        (HERMES, Letters, "", "<think>\na b\n\nc\n</think>\n\nHi\n", "a b\n\nc", "Hi\n", &[]),
        (HERMES, Markers, "", "\n⟦<think>⟧\na\n⟦</think>⟧\n\nHi", "a", "Hi", &[]),
        (HERMES, Markers, "<think>\n", "a </think> b\n⟦</think>⟧Hi", "a </think> b", "Hi", &[]),
        (HERMES, Letters, "<think>\n", "a\n", "a\n", "", &[]),
        (HERMES, Letters, "<think>\n\n</think>\n\n", "Hi", "", "Hi", &[]),
        (HERMES, Letters, "", "Say <think> or </think>.", "", "Say <think> or </think>.", &[]),
        (HERMES, Markers, "", "Say ⟦<think>⟧.", "", "Say <think>.", &[]),
        (HERMES, Markers, "", "<think>a</think>", "", "<think>a</think>", &[]),
        (HERMES, Letters, "", "<think>\n\n</think>\n\nHi", "", "Hi", &[]),
        (HERMES, Letters, "", " \n ", "", " \n ", &[]),
        (QWEN2, Letters, "", "<think>a</think>", "", "<think>a</think>", &[]),
        // Calls as JSON in tags.
        (
            HERMES,
            Markers,
            "",
            "⟦<think>⟧x⟦</think>⟧\n\nLet me see.\n\n⟦<tool_call>⟧\n{\"name\": \"f\", \"arguments\": {\"s\": \"é </tool_call> }\"}}\n⟦</tool_call>⟧\n⟦<tool_call>⟧\n{\"name\":\"g\",\"arguments\":{}}\n⟦</tool_call>⟧\n",
            "x",
            "Let me see.",
            &["f {\"s\":\"é </tool_call> }\"}", "g {}"],
        ),
        (QWEN2, Letters, "", "<tool_call>{\"name\": \"g\"}</tool_call>done", "", "done", &["g {}"]),
        (
            QWEN2,
            Letters,
            "",
            "<tool_call>\n{\"name\": \"g\", \"arguments\": \"{\\\"x\\\": 1}\"}",
            "",
            "",
            &["g {\"x\":1}"],
        ),
        // A token that is a promise may name any tool; text must name one that is there.
        (
            QWEN2,
            Markers,
            "",
            "⟦<tool_call>⟧{\"name\": \"h\", \"arguments\": {}}</tool_call>",
            "",
            "",
            &["h {}"],
        ),
        (
            QWEN2,
            Letters,
            "",
            "a <tool_call>{\"name\": \"h\"}</tool_call>",
            "",
            "a <tool_call>{\"name\": \"h\"}</tool_call>",
            &[],
        ),
        // No calls: prose, code, damaged JSON, no end.
        (
            QWEN2,
            Markers,
            "",
            "<tool_call>{\"name\": \"g\"}</tool_call>",
            "",
            "<tool_call>{\"name\": \"g\"}</tool_call>",
            &[],
        ),
        (
            QWEN2,
            Markers,
            "",
            "The ⟦<tool_call>⟧ tag ends in ⟦</tool_call>⟧.",
            "",
            "The <tool_call> tag ends in </tool_call>.",
            &[],
        ),
        (
            QWEN2,
            Letters,
            "",
            "<tool_call>{\"name\": g}</tool_call> a",
            "",
            "<tool_call>{\"name\": g}</tool_call> a",
            &[],
        ),
        (
            QWEN2,
            Letters,
            "",
            "<tool_call>{\"name\": \"g\", \"arguments\": [1]}</tool_call>",
            "",
            "<tool_call>{\"name\": \"g\", \"arguments\": [1]}</tool_call>",
            &[],
        ),
        (
            QWEN2,
            Letters,
            "",
            "a <tool_call>\n{\"name\": \"g\", \"argum",
            "",
            "a <tool_call>\n{\"name\": \"g\", \"argum",
            &[],
        ),
        (
            QWEN2,
            Letters,
            "",
            "<tool_call><tool_call>{\"name\": \"g\"}</tool_call>",
            "",
            "<tool_call>",
            &["g {}"],
        ),
        (QWEN2, Letters, "", "a < b <tool <tool_call", "", "a < b <tool <tool_call", &[]),
        // Calls in tags all the way.
        (
            CODER,
            Markers,
            "<think>\n",
            "a\n⟦</think>⟧\n\n⟦<tool_call>⟧\n<function=f>\n<parameter=s>\nline\n</parameter>\n\nmore\n</parameter>\n<parameter=i>\n3\n</parameter>\n<parameter=n>\n-2.5\n</parameter>\n<parameter=b>\nTrue\n</parameter>\n<parameter=o>\n{\"k\": [1, null]}\n</parameter>\n<parameter=a>\n[]\n</parameter>\n</function>\n⟦</tool_call>⟧",
            "a",
            "",
            &[
                "f {\"s\":\"line\\n</parameter>\\n\\nmore\",\"i\":3,\"n\":-2.5,\"b\":true,\"o\":{\"k\":[1,null]},\"a\":[]}",
            ],
        ),
        (
            CODER,
            Letters,
            "",
            "Go.\n<tool_call>\n<function=f><parameter=s>null</parameter><parameter=N>None</parameter><parameter=i>3.0</parameter><parameter=n>7</parameter><parameter=b>maybe</parameter><parameter=o>no</parameter><parameter=e>1</parameter><parameter=m>null</parameter><parameter=u>false</parameter><parameter=free>1</parameter><parameter=z>1</parameter></function></tool_call>\n\n<tool_call>\n<function=g>\n</function>\n</tool_call>",
            "",
            "Go.",
            &[
                "f {\"s\":null,\"N\":null,\"i\":3,\"n\":7,\"b\":\"maybe\",\"o\":\"no\",\"e\":1,\"m\":null,\"u\":false,\"free\":\"1\",\"z\":\"1\"}",
                "g {}",
            ],
        ),
        (CODER, Letters, "", "<tool_call><function=g></function>", "", "", &["g {}"]),
        (CODER, Letters, "", "<tool_call><function=g></function>\nbye", "", "bye", &["g {}"]),
        (
            CODER,
            Letters,
            "",
            "<tool_call>\n{\"name\": \"g\"}</tool_call>",
            "",
            "<tool_call>\n{\"name\": \"g\"}</tool_call>",
            &[],
        ),
        (
            CODER,
            Letters,
            "",
            "<tool_call>\n<function=f>\n<parameter=s>\nx\n",
            "",
            "<tool_call>\n<function=f>\n<parameter=s>\nx\n",
            &[],
        ),
        (
            CODER,
            Letters,
            "",
            "<tool_call>\n<function=f>\nx</function>",
            "",
            "<tool_call>\n<function=f>\nx</function>",
            &[],
        ),
        (
            CODER,
            Letters,
            "",
            "Use <function=f> in <tool_call>.",
            "",
            "Use <function=f> in <tool_call>.",
            &[],
        ),
        // Mistral's two forms.
        (
            MISTRAL,
            Markers,
            "",
            "⟦[TOOL_CALLS]⟧ [{\"name\": \"f\", \"arguments\": {\"s\": \"]\"}, \"id\": \"123456789\"}, {\"name\": \"g\", \"arguments\": {}}]",
            "",
            "",
            &["f {\"s\":\"]\"}", "g {}"],
        ),
        (
            MISTRAL,
            Markers,
            "",
            "Well.⟦[TOOL_CALLS]⟧f⟦[CALL_ID]⟧123456789⟦[ARGS]⟧{\"s\": \"a\"}⟦[TOOL_CALLS]⟧g⟦[ARGS]⟧{}",
            "",
            "Well.",
            &["f {\"s\":\"a\"}", "g {}"],
        ),
        (MISTRAL, Letters, "", "[TOOL_CALLS][{\"name\": \"g\"}] [1]", "", " [1]", &["g {}"]),
        (MISTRAL, Letters, "", "[TOOL_CALLS] opens a call", "", "[TOOL_CALLS] opens a call", &[]),
        (MISTRAL, Letters, "", "[TOOL_CALLS]g[ARGS]none", "", "[TOOL_CALLS]g[ARGS]none", &[]),
        (
            MISTRAL,
            Letters,
            "",
            "[TOOL_CALLS][{\"name\": \"g\"}, 1]",
            "",
            "[TOOL_CALLS][{\"name\": \"g\"}, 1]",
            &[],
        ),
        (MISTRAL, Letters, "", "[TOOL_CALLS]", "", "[TOOL_CALLS]", &[]),
        // Llama: the answer as a whole, or behind a tag.
        (
            LLAMA,
            Letters,
            "",
            "{\"name\": \"f\", \"parameters\": {\"i\": \"3\"}}",
            "",
            "",
            &["f {\"i\":\"3\"}"],
        ),
        (
            LLAMA,
            Letters,
            "",
            "\n{\"type\": \"function\", \"name\": \"f\", \"parameters\": {}}; {\"name\": \"g\", \"parameters\": {}}",
            "",
            "",
            &["f {}", "g {}"],
        ),
        (
            LLAMA,
            Letters,
            "",
            "{\"type\": \"function\", \"function\": {\"name\": \"g\", \"parameters\": {}}}",
            "",
            "",
            &["g {}"],
        ),
        (
            LLAMA,
            Markers,
            "",
            "⟦<|python_tag|>⟧{\"name\": \"g\", \"parameters\": {}}",
            "",
            "",
            &["g {}"],
        ),
        (
            LLAMA,
            Letters,
            "",
            "{\"name\": \"nobody\", \"parameters\": {}}",
            "",
            "{\"name\": \"nobody\", \"parameters\": {}}",
            &[],
        ),
        (LLAMA, Letters, "", "{\"answer\": 42}", "", "{\"answer\": 42}", &[]),
        (
            LLAMA,
            Letters,
            "",
            "{\"name\": \"f\", \"parameters\": {",
            "",
            "{\"name\": \"f\", \"parameters\": {",
            &[],
        ),
        (
            LLAMA,
            Letters,
            "",
            "Call {\"name\": \"g\", \"parameters\": {}}",
            "",
            "Call {\"name\": \"g\", \"parameters\": {}}",
            &[],
        ),
        (LLAMA, Letters, "", "{\"name\": \"g\", \"parameters\": {}}\n\nSo.", "", "So.", &["g {}"]),
    ]
};

#[test]
fn answers_are_taken_apart_alike_for_every_cut() {
    for (template, vocabulary, prompt, answer, reasoning, content, calls) in TABLE {
        let length = answer.chars().count();
        let whole = |_| false;
        let single = |_| true;
        // Every single cut, none at all, and one after each character.
        let check = |told: Told, how: &str| {
            let Told { reasoning: r, content: c, calls: k } = told;
            assert_eq!((r.as_str(), c.as_str()), (*reasoning, *content), "{answer:?} {how}");
            assert_eq!(k, *calls, "{answer:?} {how}");
        };
        check(run(parser(template, *vocabulary, prompt), answer, whole), "whole");
        check(run(parser(template, *vocabulary, prompt), answer, single), "by characters");
        for cut in 0..length {
            let told = run(parser(template, *vocabulary, prompt), answer, |at| at == cut);
            check(told, &format!("cut after {cut}"));
        }
    }
}

proptest! {
    /// Whatever a model writes: every cut gives the same, and without calls and reasoning nothing is
    /// lost.
    #[test]
    fn no_cut_changes_what_is_told(
        pieces in prop::collection::vec(prop::sample::select(&[
            "a", " ", "\n", "é", "<", "{", "}", "]", ";", "<think>", "⟦<think>⟧", "⟦</think>⟧",
            "</think>", "<tool_call>", "⟦<tool_call>⟧", "</tool_call>", "⟦[TOOL_CALLS]⟧", "[TOOL_CALLS]",
            "[ARGS]", "g", "{\"name\": \"g\"", ", \"parameters\": {}}", "[{\"name\": \"f\"}]",
            "<function=g>", "<parameter=x>", "</parameter>", "</function>", "⟦<|python_tag|>⟧",
        ][..]), 0..12),
        seed in any::<u64>(),
        template in prop::sample::select(&[PLAIN, HERMES, CODER, MISTRAL, LLAMA][..]),
        has_tokens in any::<bool>(),
        prompt in prop::sample::select(&["", "<think>\n"][..]),
    ) {
        let vocabulary = if has_tokens { Vocabulary::Markers } else { Vocabulary::Letters };
        let answer = pieces.concat();
        let whole = run(parser(template, vocabulary, prompt), &answer, |_| false);
        for cuts in [u64::MAX, seed, seed.rotate_left(17), !seed] {
            let told = run(parser(template, vocabulary, prompt), &answer, |at| cuts >> (at % 64) & 1 == 1);
            prop_assert_eq!(&told.reasoning, &whole.reasoning);
            prop_assert_eq!(&told.content, &whole.content);
            prop_assert_eq!(&told.calls, &whole.calls);
        }
        if whole.calls.is_empty() && whole.reasoning.is_empty() && !answer.contains("think") && prompt.is_empty() {
            prop_assert_eq!(whole.content, answer.replace([OPEN, CLOSE], ""));
        }
    }
}

#[test]
fn nothing_follows_the_only_call() {
    let markup = Markup::of(QWEN2, |_| None);
    let mut parser = OutputParser::new(markup, tools(), false, false);
    let call = "<tool_call>{\"name\": \"g\"}</tool_call>";
    assert_eq!(parser.push(&format!("a{call}{call}b")).calls.len(), 1);
    assert!(parser.is_done());
    assert_eq!((parser.push("c"), parser.finish()), (Parts::default(), Parts::default()));
}

#[test]
fn text_is_not_held_back_without_need() {
    let mut parser = parser(HERMES, Vocabulary::Letters, "");
    for (text, shown) in [
        ("Hello", "Hello"),
        (", wor", ", wor"),
        ("ld ", "ld"),
        ("<", ""),
        ("b", " <b"),
        ("<tool_call> is", "<tool_call> is"),
        ("\n\n", ""),
        ("x", "\n\nx"),
    ] {
        assert_eq!(parser.push(text).content, shown, "{text:?}");
    }
}

#[test]
fn without_tools_there_are_no_calls() {
    let text = "<tool_call>{\"name\": \"g\"}</tool_call>";
    let mut parser = OutputParser::new(Markup::of(QWEN2, |_| None), Tools::default(), true, false);
    assert_eq!(parser.push(text).content, text);
    assert!(!parser.uses("<tool_call>"));
}

#[test]
fn the_form_follows_from_the_template() {
    for (template, calls, reasoning) in [
        (PLAIN, None, false),
        (HERMES, Some(CallFormat::Tagged), true),
        (QWEN2, Some(CallFormat::Tagged), false),
        (CODER, Some(CallFormat::Functions), true),
        (MISTRAL, Some(CallFormat::Mistral), false),
        (LLAMA, Some(CallFormat::Llama), false),
        ("<|python_tag|>", Some(CallFormat::Llama), false),
        ("<|start_header_id|>", None, false),
        ("<tool_call>{name}<arg_key>", None, false),
    ] {
        let markup = Markup::of(template, |marker| (marker == "<tool_call>").then_some(7));
        assert_eq!((markup.calls, markup.reasoning), (calls, reasoning), "{template}");
        let is_tagged = matches!(calls, Some(CallFormat::Tagged | CallFormat::Functions));
        assert_eq!(markup.marker(7).is_some(), is_tagged, "{template}");
    }
}

#[test]
fn arguments_are_json() {
    for (template, vocabulary, prompt, answer, ..) in TABLE {
        for call in run(parser(template, *vocabulary, prompt), answer, |_| false).calls {
            let (_, arguments) = call.split_once(' ').expect("name and arguments");
            let value: Value = serde_json::from_str(arguments).expect("JSON");
            assert!(value.is_object(), "{call}");
        }
    }
}
