use super::*;

use std::fs;

use serde_json::json;
use tempfile::TempDir;

/// A tokenizer of single characters with what a trap may be: a post-processor that adds a token,
/// and the padding and truncation of a training run.
fn tokenizer() -> String {
    let vocabulary: serde_json::Map<_, _> =
        "abc ".chars().enumerate().map(|(id, c)| (c.to_string(), json!(id))).collect();
    let special = |id: u32, content: &str| {
        json!({ "id": id, "content": content, "single_word": false, "lstrip": false,
                "rstrip": false, "normalized": false, "special": true })
    };
    json!({
        "version": "1.0",
        "truncation": { "direction": "Right", "max_length": 2, "strategy": "LongestFirst", "stride": 0 },
        "padding": { "strategy": { "Fixed": 8 }, "direction": "Right", "pad_to_multiple_of": null,
                     "pad_id": 0, "pad_type_id": 0, "pad_token": "a" },
        "added_tokens": [special(4, "<s>"), special(5, "</s>")],
        "normalizer": null, "pre_tokenizer": null, "decoder": { "type": "Fuse" },
        "post_processor": { "type": "TemplateProcessing",
            "single": [{ "SpecialToken": { "id": "<s>", "type_id": 0 } }, { "Sequence": { "id": "A", "type_id": 0 } }],
            "pair": [{ "Sequence": { "id": "A", "type_id": 0 } }, { "Sequence": { "id": "B", "type_id": 1 } }],
            "special_tokens": { "<s>": { "id": "<s>", "ids": [4], "tokens": ["<s>"] } } },
        "model": { "type": "BPE", "vocab": vocabulary, "merges": [] },
    })
    .to_string()
}

fn directory(files: &[(&str, &str)]) -> TempDir {
    let dir = tempfile::tempdir().expect("a directory");
    fs::write(dir.path().join("tokenizer.json"), tokenizer()).expect("written");
    for (name, text) in files {
        fs::write(dir.path().join(name), text).expect("written");
    }
    dir
}

fn open(files: &[(&str, &str)]) -> Result<TextModel, TextError> {
    TextModel::open(directory(files).path())
}

fn one() -> Conversation {
    let messages = vec![json!({"role": "user", "content": "abc"})];
    Conversation { messages, ..Conversation::default() }
}

#[test]
fn a_prompt_becomes_tokens_and_tokens_text() {
    let config = r#"{"bos_token": {"content": "<s>"}, "chat_template": "{{ bos_token }}{{ messages[0].content }}"}"#;
    let model = open(&[("tokenizer_config.json", config)]).expect("valid");
    let rendered = model.render(&one()).expect("rendered");
    assert_eq!(rendered, "<s>abc");
    // One <s>, which the template wrote; nothing cut, nothing padded.
    assert_eq!(model.encode(&rendered).expect("tokens"), [4, 0, 1, 2]);
    assert_eq!(model.vocab_size(), 6);
    let mut detokenizer = model.detokenizer();
    let text: Vec<_> = [1, 2, 5].into_iter().filter_map(|id| detokenizer.push(id)).collect();
    assert_eq!(text, ["b", "c"]);
    assert!(model.encode("").expect("tokens").is_empty());
}

#[test]
fn tokens_have_bytes_or_a_name() {
    let model = open(&[]).expect("valid");
    for (id, bytes, name) in [
        (1, Some("b"), Some("b")),
        (3, Some(" "), Some(" ")),
        (5, None, Some("</s>")),
        (99, None, None),
    ] {
        assert_eq!(model.token_bytes(id), bytes.map(|bytes| bytes.as_bytes().to_vec()), "{id}");
        assert_eq!(model.token_name(id).as_deref(), name, "{id}");
    }
}

#[test]
fn a_text_model_is_shared_between_threads() {
    fn shared<T: Send + Sync + 'static>() {}
    shared::<TextModel>();
    shared::<Detokenizer>();
}

#[test]
fn ends_come_from_every_file() {
    for (files, expected) in [
        (vec![], vec![]),
        (vec![("config.json", r#"{"eos_token_id": 7}"#)], vec![7]),
        (
            vec![
                ("config.json", r#"{"eos_token_id": [9, 7]}"#),
                ("generation_config.json", r#"{"eos_token_id": [7, 3]}"#),
            ],
            vec![3, 7, 9],
        ),
        (
            vec![("config.json", r#"{"text_config": {"eos_token_id": 5}, "eos_token_id": null}"#)],
            vec![5],
        ),
        (vec![("tokenizer_config.json", r#"{"eos_token": "</s>"}"#)], vec![5]),
        (vec![("tokenizer_config.json", r#"{"eos_token": "no such"}"#)], vec![]),
    ] {
        assert_eq!(open(&files).expect("valid").eos(), expected, "{files:?}");
    }
}

#[test]
fn templates_come_from_their_file_first() {
    let config = |template: &str| format!(r#"{{"chat_template": {template}}}"#);
    let listed =
        r#"[{"name": "tool_use", "template": "x"}, {"name": "default", "template": "listed"}]"#;
    for (files, expected) in [
        (vec![("tokenizer_config.json", config("\"config\""))], "config"),
        (vec![("tokenizer_config.json", config(listed))], "listed"),
        (vec![("chat_template.json", config("\"json\""))], "json"),
        (
            vec![
                ("tokenizer_config.json", config("\"config\"")),
                ("chat_template.jinja", "file".to_owned()),
            ],
            "file",
        ),
        (
            vec![
                ("tokenizer_config.json", config("null")),
                ("chat_template.json", config("\"json\"")),
            ],
            "json",
        ),
    ] {
        let files: Vec<(&str, &str)> = files.iter().map(|(n, text)| (*n, text.as_str())).collect();
        assert_eq!(open(&files).expect("valid").render(&one()).expect("rendered"), expected);
    }
    let none = open(&[]).expect("valid").render(&one()).expect_err("no template").to_string();
    assert!(none.contains("no chat template"), "{none}");
}

#[test]
fn tools_may_have_a_template_of_their_own() {
    let listed = r#"{"chat_template": [{"name": "default", "template": "plain"},
                     {"name": "tool_use", "template": "{{ tools | length }}"}]}"#;
    let dir = directory(&[("chat_template.jinja", "plain"), ("tokenizer_config.json", listed)]);
    let in_files = || TextModel::open(dir.path()).expect("valid");
    let mut with_tools = one();
    with_tools.tools = vec![json!({"type": "function", "function": {"name": "f"}}); 3];
    let rendered = |model: &TextModel| {
        [one(), with_tools.clone()]
            .map(|conversation| model.render(&conversation).expect("rendered"))
    };
    let model = open(&[("tokenizer_config.json", listed)]).expect("valid");
    assert_eq!(rendered(&model), ["plain", "3"]);
    // A file hides all that the config says.
    assert_eq!(rendered(&in_files()), ["plain", "plain"]);
    let more = dir.path().join("additional_chat_templates");
    fs::create_dir(&more).expect("made");
    fs::write(more.join("tool_use.jinja"), "from a file").expect("written");
    assert_eq!(rendered(&in_files()), ["plain", "from a file"]);
    fs::write(more.join("tool_use.jinja"), "{% if %}").expect("written");
    let error = TextModel::open(dir.path()).expect_err("no template").to_string();
    assert!(error.contains("tool_use.jinja") && error.contains("syntax error"), "{error}");
}

#[test]
fn several_parts_are_joined_for_templates_that_read_none() {
    let parts = json!([{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]);
    let messages = vec![json!({"role": "user", "content": parts})];
    let conversation = Conversation { messages, ..Conversation::default() };
    let reads = "{% if messages[0].content is string %}{{ messages[0].content }}{% else %}\
                 {% for part in messages[0].content %}{{ part.text }}{% endfor %}{% endif %}";
    for (template, expected) in [("{{ messages[0].content }}", "a\nb"), (reads, "ab")] {
        let model = open(&[("chat_template.jinja", template)]).expect("valid");
        assert_eq!(model.render(&conversation).expect("rendered"), expected);
    }
}

#[test]
fn faults_name_the_file() {
    for (file, text, said) in [
        ("tokenizer.json", "{", "damaged"),
        ("tokenizer.json", r#"{"model": {"type": "New"}}"#, "damaged"),
        ("tokenizer_config.json", "[]", "damaged"),
        ("tokenizer_config.json", r#"{"bos_token": 3}"#, "`bos_token` must be a text"),
        ("tokenizer_config.json", r#"{"chat_template": 3}"#, "`chat_template` must be a text"),
        ("tokenizer_config.json", r#"{"chat_template": "{% if %}"}"#, "syntax error"),
        ("chat_template.jinja", "{{", "syntax error"),
        ("config.json", r#"{"eos_token_id": -1}"#, "`eos_token_id` must be a token id"),
        (
            "generation_config.json",
            r#"{"eos_token_id": [1, "x"]}"#,
            "`eos_token_id` must be a token id",
        ),
    ] {
        let error = open(&[(file, text)]).expect_err(text).to_string();
        assert!(error.contains(file) && error.contains(said), "{file} {text}: {error}");
    }
    let error =
        TextModel::open(tempfile::tempdir().expect("a directory").path()).expect_err("empty");
    assert!(error.to_string().contains("tokenizer.json is missing"), "{error}");
}

#[test]
fn what_cannot_fit_is_refused_before_it_is_split() {
    // The longest token, `</s>`, has 4 bytes.
    let model = open(&[]).expect("valid");
    assert_eq!(model.encode_within(&"a".repeat(11), 2).expect("may fit").len(), 11);
    let error = model.encode_within(&"a".repeat(12), 2).expect_err("cannot fit").to_string();
    assert!(error.contains("12 bytes") && error.contains("2 tokens"), "{error}");
}
