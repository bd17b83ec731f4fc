//! What a client sends, through its parsing and the chat templates of real models, against what
//! transformers renders of it: scripts/fixtures/templates.py wrote the table.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use serde_json::{Value, json};

use super::super::parse;
use crate::node::handle::{Conversation, ServedModel};
use crate::text::{Parts, TextError, TextModel, ToolCall, Tools};

/// Here lie the templates that may be kept with the project, and the table.
const KEPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/templates");
/// Others, such as Llama's, are fetched.
const FETCHED: &str = "DAISY_TEST_TEMPLATES";

fn table() -> Value {
    let text = fs::read_to_string(Path::new(KEPT).join("rendered.json")).expect("the table");
    serde_json::from_str(&text).expect("JSON")
}

/// A file of a template's; none if it was not fetched.
fn file(name: &str) -> Option<PathBuf> {
    let fetched = std::env::var_os(FETCHED).map(PathBuf::from);
    let folders = [Some(KEPT.into()), fetched];
    folders.into_iter().flatten().map(|folder| folder.join(name)).find(|file| file.exists())
}

/// A checkpoint with that template and tokenizer; none if they were not fetched.
fn model(table: &Value, template: &str, tokenizer: &[u8]) -> Option<TextModel> {
    let source = file(&format!("{template}.jinja"))?;
    let special = table["special"].as_object().expect("families");
    let special = special.iter().find(|(family, _)| template.starts_with(family.as_str()));
    let dir = tempfile::tempdir().expect("a folder");
    let write =
        |name: &str, bytes: &[u8]| fs::write(dir.path().join(name), bytes).expect("written");
    write("tokenizer.json", tokenizer);
    write("tokenizer_config.json", special.expect("a family").1.to_string().as_bytes());
    write("chat_template.jinja", &fs::read(source).expect("a template"));
    Some(TextModel::open(dir.path()).expect("a template that compiles"))
}

/// When the table was made.
fn now(table: &Value) -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_secs(table["now"].as_u64().expect("a time"))
}

fn conversation(request: &Value) -> Conversation {
    let mut body = request.clone();
    body["model"] = "default".into();
    let served = ServedModel { id: "tiny".to_owned(), context: 2048, created: 7 };
    let chat = parse::chat(body.to_string().as_bytes(), &served, String::new());
    chat.unwrap_or_else(|error| panic!("{error}: {body}")).request.conversation
}

/// A tokenizer that knows nothing.
fn no_tokens() -> String {
    let tokenizer = json!({
        "version": "1.0", "added_tokens": [], "decoder": {"type": "Fuse"},
        "model": {"type": "BPE", "vocab": {}, "merges": []},
    });
    tokenizer.to_string()
}

#[test]
fn requests_are_rendered_as_transformers_renders_them() {
    let table = table();
    let mut faults = Vec::new();
    let mut absent = Vec::new();
    for (name, rendered) in table["rendered"].as_object().expect("templates") {
        let Some(model) = model(&table, name, no_tokens().as_bytes()) else {
            absent.push(name.as_str());
            continue;
        };
        for (request, expected) in rendered.as_object().expect("answers") {
            let conversation = conversation(&table["requests"][request]);
            let got = match model.render_at(&conversation, now(&table)) {
                Ok(text) => json!({"text": text}),
                Err(TextError::Refused(words)) => json!({"refused": words}),
                Err(error) => json!({"failed": error.to_string()}),
            };
            if got != *expected {
                faults.push(format!("{name}, {request}:\n  got      {got}\n  expected {expected}"));
            }
        }
    }
    assert!(faults.is_empty(), "{} differ\n{}", faults.len(), faults.join("\n"));
    assert!(absent.iter().all(|name| name.starts_with("llama")), "{absent:?}");
    if !absent.is_empty() {
        println!("SKIP templates of {}: {FETCHED} is not set", absent.join(", "));
    }
}

#[test]
fn real_tokenizers_split_them_as_transformers_does() {
    let table = table();
    for name in ["qwen3", "llama3.1"] {
        let Some(tokenizer) = file(&format!("{name}/tokenizer.json")) else {
            println!("SKIP tokenizer of {name}: it lies not where {FETCHED} says");
            continue;
        };
        let model = model(&table, name, &fs::read(tokenizer).expect("a tokenizer"));
        let model = model.expect("a template comes with it");
        for (request, expected) in table["ids"][name].as_object().expect("a fetched tokenizer") {
            let rendered = model.render_at(&conversation(&table["requests"][request]), now(&table));
            let ids = model.encode(&rendered.expect("rendered")).expect("tokens");
            let ids: Vec<String> = ids.iter().map(ToString::to_string).collect();
            assert_eq!(ids.join(" "), expected.as_str().expect("ids"), "{name}, {request}");
        }
        if name == "qwen3" {
            // What opens a call is one token there, and known as such.
            let ids = model.encode("<tool_call>").expect("tokens");
            assert_eq!((ids.len(), model.marker(ids[0])), (1, Some("<tool_call>")));
        }
    }
}

/// What a template writes of an earlier answer is how the model writes one: read back, it must be what
/// it was.
#[test]
fn what_templates_write_of_calls_is_read_back() {
    let table = table();
    let arguments = json!({
        "city": "Zürich \"</tool_call>\"\n\\ {}", "days": 2, "exact": true, "ratio": -0.5, "note": null,
        "filter": {"items": ["a", null, {"x": [1.5]}], "keys": {}}, "list": ["]", "}"],
    });
    let kinds = [
        ("city", "string"),
        ("days", "integer"),
        ("exact", "boolean"),
        ("ratio", "number"),
        ("filter", "object"),
        ("list", "array"),
    ];
    let properties: serde_json::Map<String, Value> =
        kinds.iter().map(|(name, kind)| ((*name).to_owned(), json!({"type": kind}))).collect();
    let tool = |name: &str| {
        json!({"type": "function", "function": {"name": name,
               "parameters": {"type": "object", "properties": properties}}})
    };
    let call = |name: &str, id: &str, arguments: &Value| json!({"id": id, "type": "function", "function": {"name": name, "arguments": arguments.to_string()}});
    let mut read = Vec::new();
    for name in table["rendered"].as_object().expect("templates").keys() {
        // QwQ's history leaves out what it thought, and so the tags that its prompt has opened.
        let Some(model) = model(&table, name, no_tokens().as_bytes()).filter(|_| name != "qwq")
        else {
            continue;
        };
        let mut calls = vec![call("get_weather", "callid000", &arguments)];
        if !name.starts_with("llama") {
            calls.push(call("ping", "callid001", &json!({})));
        }
        let mut answered = json!({
            "messages": [{"role": "user", "content": "How warm is it?"}],
            "tools": [tool("get_weather"), tool("ping")],
            "chat_template_kwargs": {"enable_thinking": true},
        });
        let prompt = model.render_at(&conversation(&answered), now(&table)).expect("rendered");
        let messages = answered["messages"].as_array_mut().expect("a list");
        messages.push(json!({"role": "assistant", "content": null, "tool_calls": calls, "reasoning_content": "Where?\nThere."}));
        let whole = model.render_at(&conversation(&answered), now(&table)).expect("rendered");
        let answer = whole.strip_prefix(&prompt).unwrap_or_else(|| panic!("{name}: {whole}"));
        let ends = ["<|im_end|>", "<|eot_id|>", "</s>"].iter().filter_map(|end| answer.find(end));
        let answer = &answer[..ends.min().expect("an end of the turn")];

        let tools = Tools::new(&conversation(&answered).tools);
        let mut output = model.output(&prompt, tools, true);
        let mut told = Parts::default();
        let letters = answer.split_inclusive(|_| true).map(|letter| output.push(letter));
        for parts in letters.collect::<Vec<_>>().into_iter().chain([output.finish()]) {
            told.reasoning.push_str(&parts.reasoning);
            told.content.push_str(&parts.content);
            told.calls.extend(parts.calls);
        }
        let thinks = ["qwen3", "qwen3.5", "qwen3.5-nothink", "qwen3.6", "qwen3.8"];
        let thought = if thinks.contains(&name.as_str()) { "Where?\nThere." } else { "" };
        assert_eq!(
            (told.reasoning.as_str(), told.content.as_str()),
            (thought, ""),
            "{name}: {answer}"
        );
        let made = |call: &ToolCall| json!({"name": call.name, "arguments": call.arguments});
        let made: Vec<Value> = told.calls.iter().map(made).collect();
        let expected: Vec<Value> = calls.iter().map(|call| call["function"].clone()).collect();
        let (mut made, mut expected) = (json!(made), json!(expected));
        for list in [&mut made, &mut expected] {
            for call in list.as_array_mut().expect("a list") {
                let text = call["arguments"].as_str().expect("JSON in a text");
                call["arguments"] = serde_json::from_str(text).expect("JSON");
            }
        }
        // Python's word for null, which the older of these templates write, is no word of JSON's.
        if ["qwen3-coder", "qwen3.5", "qwen3.5-nothink"].contains(&name.as_str()) {
            expected[0]["arguments"]["note"] = "None".into();
        }
        assert_eq!(made, expected, "{name}: {answer}");
        read.push(name.as_str());
    }
    assert!(read.len() >= 10, "{read:?}");
}
