//! Calls whose arguments are JSON: reading what stands behind the marker that opens one.

use serde_json::de::Deserializer;
use serde_json::{Map, Value};

use super::functions;
use super::markup::{ARGS, CALL_ID, CallFormat, END_TOOL_CALL};
use super::tools::{ToolCall, Tools};

/// What a text is that may begin with calls. It stays so with more text behind it.
#[derive(Debug, PartialEq, Eq)]
pub enum Outcome {
    /// They are the first `length` bytes of it.
    Calls { calls: Vec<ToolCall>, length: usize },
    /// More text will tell.
    Incomplete,
    /// It is no call.
    None,
}

impl CallFormat {
    /// Reads `text`, of which no more will come if `is_whole`.
    pub(super) fn read(self, text: &str, tools: &Tools, is_whole: bool) -> Outcome {
        let outcome = match self {
            Self::Tagged => tagged(text, is_whole),
            Self::Functions => functions::read(text, tools, is_whole),
            Self::Mistral => mistral(text),
            Self::Llama => llama(text),
        };
        match outcome {
            Outcome::Incomplete if is_whole => Outcome::None,
            outcome => outcome,
        }
    }
}

/// JSON up to the closing tag. A closing tag within a text of it leaves the JSON open.
fn tagged(text: &str, is_whole: bool) -> Outcome {
    let body = text.trim_start();
    if !body.is_empty() && !body.starts_with('{') {
        return Outcome::None;
    }
    for (at, _) in text.match_indices(END_TOOL_CALL) {
        match serde_json::from_str::<Value>(&text[..at]) {
            Ok(value) => return one(&value, at + END_TOOL_CALL.len()),
            Err(error) if error.is_eof() => {}
            Err(_) => return Outcome::None,
        }
    }
    // Some models end their turn in place of the tag.
    match serde_json::from_str::<Value>(text) {
        Ok(value) if is_whole => one(&value, text.len()),
        _ => Outcome::Incomplete,
    }
}

/// A list of calls, or `NAME[ARGS]{…}`, with `[CALL_ID]ID` before the arguments or without.
fn mistral(text: &str) -> Outcome {
    let body = text.trim_start();
    if body.is_empty() {
        return Outcome::Incomplete;
    }
    if body.starts_with('[') {
        return match value(text) {
            Parsed::Value(Value::Array(calls), length) => {
                let calls: Option<Vec<ToolCall>> = calls.iter().map(call).collect();
                match calls {
                    Some(calls) if !calls.is_empty() => Outcome::Calls { calls, length },
                    _ => Outcome::None,
                }
            }
            Parsed::Incomplete => Outcome::Incomplete,
            _ => Outcome::None,
        };
    }
    let name_length =
        body.find(|c: char| !(c.is_alphanumeric() || "_-.".contains(c))).unwrap_or(body.len());
    let (name, mut rest) = body.split_at(name_length);
    if let Some(id) = rest.strip_prefix(CALL_ID) {
        rest = &id[id.find('[').unwrap_or(id.len())..];
    }
    let Some(arguments) = rest.strip_prefix(ARGS) else {
        let may_follow = |marker: &str| marker.starts_with(rest);
        let is_open = may_follow(ARGS) || may_follow(CALL_ID);
        return if is_open && !name.is_empty() { Outcome::Incomplete } else { Outcome::None };
    };
    let before = text.len() - arguments.len();
    match value(arguments) {
        Parsed::Value(value, length) => match object(&value) {
            Some(arguments) if !name.is_empty() => Outcome::Calls {
                calls: vec![ToolCall { name: name.to_owned(), arguments }],
                length: before + length,
            },
            _ => Outcome::None,
        },
        Parsed::Incomplete
            if arguments.trim_start().starts_with('{') || arguments.trim().is_empty() =>
        {
            Outcome::Incomplete
        }
        _ => Outcome::None,
    }
}

/// One JSON object. An answer in JSON that is no call shows by its first key.
fn llama(text: &str) -> Outcome {
    let body = text.trim_start();
    if !body.is_empty() && !body.starts_with('{') {
        return Outcome::None;
    }
    let first_key = body.strip_prefix('{').and_then(|rest| {
        let rest = rest.trim_start().strip_prefix('"')?;
        rest.split_once('"').map(|(key, _)| key)
    });
    if first_key.is_some_and(|key| !LLAMA_KEYS.contains(&key)) {
        return Outcome::None;
    }
    match value(text) {
        Parsed::Value(value, length) => one(&value, length),
        Parsed::Incomplete => Outcome::Incomplete,
        Parsed::None => Outcome::None,
    }
}

enum Parsed {
    /// And how many bytes it took.
    Value(Value, usize),
    Incomplete,
    None,
}

/// The JSON value that a text begins with.
fn value(text: &str) -> Parsed {
    let mut values = Deserializer::from_str(text).into_iter::<Value>();
    match values.next() {
        Some(Ok(value)) => Parsed::Value(value, values.byte_offset()),
        Some(Err(error)) if !error.is_eof() => Parsed::None,
        Some(Err(_)) | None => Parsed::Incomplete,
    }
}

fn one(value: &Value, length: usize) -> Outcome {
    call(value).map_or(Outcome::None, |call| Outcome::Calls { calls: vec![call], length })
}

/// `{"name": …, "arguments": {…}}`; Llama says `parameters`.
fn call(value: &Value) -> Option<ToolCall> {
    let value = value.get("function").filter(|inner| inner.is_object()).unwrap_or(value);
    let name = value.get("name")?.as_str().filter(|name| !name.is_empty())?;
    let arguments = value.get("arguments").or_else(|| value.get("parameters"));
    Some(ToolCall { name: name.to_owned(), arguments: object(arguments.unwrap_or(&Value::Null))? })
}

/// The JSON text of arguments: an object, or one that was written as a text, or nothing.
fn object(arguments: &Value) -> Option<String> {
    match arguments {
        Value::Null => Some("{}".to_owned()),
        Value::Object(_) => Some(arguments.to_string()),
        Value::String(text) => {
            let inner: Map<String, Value> = serde_json::from_str(text).ok()?;
            Some(Value::Object(inner).to_string())
        }
        _ => None,
    }
}

const LLAMA_KEYS: &[&str] = &["name", "type", "function", "parameters", "arguments"];
