//! The conversation, in the form that chat templates read: roles, content as text or as a list of text
//! parts, reasoning, and tool calls with their arguments as objects.

use serde_json::{Map, Value, json};

use super::ParseError;
use super::field::{Fields, given};

/// What `messages` must be, for the error.
pub const WANTED: &str = "a list of at least one message";

/// Reads `messages`.
pub fn read(value: &Value) -> Result<Vec<Value>, ParseError> {
    match value {
        Value::Array(items) if !items.is_empty() => {
            items.iter().enumerate().map(|(at, item)| message(at, item)).collect()
        }
        other => Err(wrong("messages".to_owned(), WANTED, other)),
    }
}

fn message(at: usize, value: &Value) -> Result<Value, ParseError> {
    let path = format!("messages[{at}]");
    let Value::Object(object) = value else {
        return Err(wrong(path, "an object with role and content", value));
    };
    let fields = Fields::inside(&path, object);
    let role = role(&fields)?;
    for name in ["function_call", "audio", "refusal"] {
        if let Some(value) = fields.optional(name).filter(|value| !is_empty_list(value)) {
            let (param, harmless, given) = (fields.path(name), "null", given(value));
            return Err(ParseError::Unsupported { param, harmless, given });
        }
    }
    let calls = tool_calls(&fields, role)?;
    let content = match fields.optional("content") {
        // Where a template tells null from an empty text at all, it fails on null.
        None if role == "assistant" => "".into(),
        _ => content(&fields, fields.required("content", CONTENT)?)?,
    };
    // Templates ask which of these are there, so what is not stays out.
    let mut message =
        Map::from_iter([("role".to_owned(), role.into()), ("content".to_owned(), content)]);
    if role == "assistant" {
        message.extend(reasoning(&fields)?);
    }
    if !calls.is_empty() {
        message.insert("tool_calls".to_owned(), calls.into());
    }
    for name in ["name", "tool_call_id"] {
        if let Some(text) = fields.string(name)? {
            message.insert(name.to_owned(), text.into());
        }
    }
    Ok(message.into())
}

/// What the assistant thought. Servers differ in its name, and so do templates: it keeps the one it
/// has and gets the two that most of them read.
fn reasoning(fields: &Fields<'_>) -> Result<Vec<(String, Value)>, ParseError> {
    let mut named = Vec::new();
    for name in ["reasoning_content", "thinking", "reasoning"] {
        named.extend(fields.string(name)?.map(|text| (name.to_owned(), Value::from(text))));
    }
    let Some((_, first)) = named.first().cloned() else { return Ok(named) };
    named.insert(0, ("thinking".to_owned(), first.clone()));
    named.push(("reasoning_content".to_owned(), first));
    Ok(named)
}

/// The calls that the assistant made.
fn tool_calls(fields: &Fields<'_>, role: &str) -> Result<Vec<Value>, ParseError> {
    let Some(value) = fields.optional("tool_calls") else { return Ok(Vec::new()) };
    let Some(calls) = value.as_array() else {
        return Err(fields.wrong("tool_calls", "a list of calls", value));
    };
    if role != "assistant" && !calls.is_empty() {
        return Err(fields.wrong("tool_calls", "left out unless role is assistant", value));
    }
    let path = fields.path("tool_calls");
    calls.iter().enumerate().map(|(at, call)| tool_call(&format!("{path}[{at}]"), call)).collect()
}

fn tool_call(path: &str, value: &Value) -> Result<Value, ParseError> {
    let Value::Object(object) = value else {
        return Err(wrong(path.to_owned(), "an object with id, type and function", value));
    };
    let fields = Fields::inside(path, object);
    fields.string("id")?;
    if let Some(kind) = fields.optional("type").filter(|kind| *kind != "function") {
        return Err(fields.wrong("type", "\"function\"", kind));
    }
    let function = function(&fields.path("function"), fields.required("function", FUNCTION)?)?;
    let given = |name: &&str| fields.optional(name).cloned();
    // In the client's order, since a template may write a call as a whole.
    let known =
        object.keys().map(String::as_str).filter(|name| ["id", "type", "function"].contains(name));
    let call = known.filter_map(|name| {
        let value = if name == "function" { Some(function.clone()) } else { given(&name) };
        Some((name.to_owned(), value?))
    });
    Ok(Value::Object(call.collect()))
}

/// Arguments are JSON in a text for a client, an object for a template.
fn function(path: &str, value: &Value) -> Result<Value, ParseError> {
    let Value::Object(object) = value else { return Err(wrong(path.to_owned(), FUNCTION, value)) };
    let fields = Fields::inside(path, object);
    let name = fields.required("name", "the name of the function")?;
    if name.as_str().is_none_or(str::is_empty) {
        return Err(fields.wrong("name", "the name of the function", name));
    }
    let wrong = |value| Err(fields.wrong("arguments", "a JSON object in a string", value));
    let arguments: Map<String, Value> = match fields.optional("arguments") {
        None => Map::new(),
        Some(Value::Object(arguments)) => arguments.clone(),
        Some(Value::String(text)) if text.trim().is_empty() => Map::new(),
        Some(value @ Value::String(text)) => match serde_json::from_str(text) {
            Ok(arguments) => arguments,
            Err(_) => return wrong(value),
        },
        Some(other) => return wrong(other),
    };
    let mut function = object.clone();
    function.retain(|name, _| name == "name" || name == "arguments");
    function.insert("arguments".to_owned(), arguments.into());
    Ok(function.into())
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

/// A text, or several parts as they are: whether a template reads parts the node knows. One part is
/// its text for every template.
fn content(fields: &Fields<'_>, value: &Value) -> Result<Value, ParseError> {
    match value {
        Value::String(_) => Ok(value.clone()),
        Value::Array(parts) if !parts.is_empty() => {
            let path = fields.path("content");
            let texts = parts.iter().enumerate().map(|(at, part)| text_part(&path, at, part));
            Ok(match texts.collect::<Result<Vec<_>, _>>()?.as_slice() {
                [text] => Value::from(*text),
                texts => texts.iter().map(|text| json!({"type": "text", "text": text})).collect(),
            })
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
const FUNCTION: &str = "an object with name and arguments";
