//! The conversation: roles, and content as text or as a list of text parts.

use serde_json::Value;

use crate::node::handle::ChatMessage;

use super::ParseError;
use super::field::{Fields, given};

/// What `messages` must be, for the error.
pub const WANTED: &str = "a list of at least one message";

/// Reads `messages`.
pub fn read(value: &Value) -> Result<Vec<ChatMessage>, ParseError> {
    match value {
        Value::Array(items) if !items.is_empty() => {
            items.iter().enumerate().map(|(at, item)| message(at, item)).collect()
        }
        other => Err(wrong("messages".to_owned(), WANTED, other)),
    }
}

fn message(at: usize, value: &Value) -> Result<ChatMessage, ParseError> {
    let path = format!("messages[{at}]");
    let Value::Object(object) = value else {
        return Err(wrong(path, "an object with role and content", value));
    };
    let fields = Fields::inside(&path, object);
    let role = role(&fields)?;
    // Names and ids do not reach the prompt of any template that is served; a wrong type is still
    // a mistake of the client's.
    fields.string("name")?;
    fields.string("tool_call_id")?;
    for name in ["tool_calls", "function_call", "audio", "refusal"] {
        if let Some(value) = fields.optional(name).filter(|value| !is_empty_list(value)) {
            let (param, harmless, given) = (fields.path(name), "null", given(value));
            return Err(ParseError::Unsupported { param, harmless, given });
        }
    }
    let content = match fields.optional("content") {
        None if role == "assistant" => String::new(),
        _ => content(&fields, fields.required("content", CONTENT)?)?,
    };
    Ok(ChatMessage { role: role.to_owned(), content })
}

/// The role as chat templates know it: `developer` is the newer name of `system`.
fn role(fields: &Fields<'_>) -> Result<&'static str, ParseError> {
    let value = fields.required("role", ROLES)?;
    match value.as_str() {
        Some("system" | "developer") => Ok("system"),
        Some("user") => Ok("user"),
        Some("assistant") => Ok("assistant"),
        Some("tool") => Ok("tool"),
        _ => Err(fields.wrong("role", ROLES, value)),
    }
}

fn content(fields: &Fields<'_>, value: &Value) -> Result<String, ParseError> {
    match value {
        Value::String(text) => Ok(text.clone()),
        Value::Array(parts) if !parts.is_empty() => {
            let path = fields.path("content");
            let texts: Result<Vec<&str>, ParseError> =
                parts.iter().enumerate().map(|(at, part)| text_part(&path, at, part)).collect();
            Ok(texts?.join(PART_SEPARATOR))
        }
        other => Err(fields.wrong("content", CONTENT, other)),
    }
}

fn text_part<'a>(path: &str, at: usize, part: &'a Value) -> Result<&'a str, ParseError> {
    let path = format!("{path}[{at}]");
    let Value::Object(object) = part else {
        return Err(wrong(path, "an object with type and text", part));
    };
    let fields = Fields::inside(&path, object);
    let kind = fields.required("type", ONLY_TEXT)?;
    if kind.as_str() != Some("text") {
        return Err(fields.wrong("type", ONLY_TEXT, kind));
    }
    let text = fields.required("text", "a string")?;
    text.as_str().ok_or_else(|| fields.wrong("text", "a string", text))
}

fn is_empty_list(value: &Value) -> bool {
    value.as_array().is_some_and(Vec::is_empty)
}

fn wrong(param: String, wanted: &str, value: &Value) -> ParseError {
    ParseError::Wrong { param, wanted: wanted.to_owned(), given: given(value) }
}

const ROLES: &str = "one of system, developer, user, assistant, tool";
const CONTENT: &str = "a string or a list of text parts";
const ONLY_TEXT: &str = "\"text\"; this model reads no images, sound or files";
/// Parts are often a document and a question: glued together, their words would run into one.
const PART_SEPARATOR: &str = "\n";
