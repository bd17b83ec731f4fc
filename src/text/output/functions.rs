//! Calls in tags, as Qwen3-Coder and Qwen 3.5 write them:
//! `<function=NAME><parameter=KEY>VALUE</parameter>…</function></tool_call>`. Values are bare text;
//! the tool's schema says what they mean.

use serde_json::{Map, Number, Value};

use super::calls::Outcome;
use super::markup::END_TOOL_CALL;
use super::tools::{ToolCall, Tools};

/// Reads what stands behind `<tool_call>`.
pub fn read(text: &str, tools: &Tools, is_whole: bool) -> Outcome {
    let mut rest = text;
    let name = match attribute(&mut rest, FUNCTION) {
        Tag::Is(name) => name,
        Tag::Perhaps => return Outcome::Incomplete,
        Tag::No => return Outcome::None,
    };
    let mut arguments = Map::new();
    loop {
        match attribute(&mut rest, PARAMETER) {
            Tag::Is(key) => {
                let Some(text) = parameter(&mut rest) else { return Outcome::Incomplete };
                arguments.insert(key.to_owned(), typed(text, tools.parameter(name, key)));
            }
            Tag::Perhaps => return Outcome::Incomplete,
            Tag::No => match closing(&mut rest, END_FUNCTION) {
                Tag::Is(_) => break,
                Tag::Perhaps => return Outcome::Incomplete,
                Tag::No => return Outcome::None,
            },
        }
    }
    // The call is whole; a model that forgets the outer tag is understood.
    if matches!(closing(&mut rest, END_TOOL_CALL), Tag::Perhaps) && !is_whole {
        return Outcome::Incomplete;
    }
    let arguments = Value::Object(arguments).to_string();
    let calls = vec![ToolCall { name: name.to_owned(), arguments }];
    Outcome::Calls { calls, length: text.len() - rest.len() }
}

/// What a text begins with, after white space.
enum Tag<'a> {
    Is(&'a str),
    /// Too little of it is there.
    Perhaps,
    No,
}

/// Takes `OPENING` + attribute + `>`, gives the attribute.
fn attribute<'a>(rest: &mut &'a str, opening: &str) -> Tag<'a> {
    let text = rest.trim_start();
    let Some(inner) = text.strip_prefix(opening) else {
        return if opening.starts_with(text) { Tag::Perhaps } else { Tag::No };
    };
    let end = inner.find(|c: char| c == '>' || c == '<' || c.is_whitespace());
    match end {
        Some(end) if end > 0 && inner[end..].starts_with('>') => {
            *rest = &inner[end + 1..];
            Tag::Is(&inner[..end])
        }
        Some(_) => Tag::No,
        None => Tag::Perhaps,
    }
}

fn closing<'a>(rest: &mut &'a str, tag: &str) -> Tag<'a> {
    let text = rest.trim_start();
    match text.strip_prefix(tag) {
        Some(behind) => {
            *rest = behind;
            Tag::Is("")
        }
        None if tag.starts_with(text) => Tag::Perhaps,
        None => Tag::No,
    }
}

/// Takes a value and its closing tag; none if the end is not there yet. A closing tag is one only
/// if another parameter or the end of the function follows: values may be texts about tags.
fn parameter<'a>(rest: &mut &'a str) -> Option<&'a str> {
    let text = *rest;
    for (at, _) in text.match_indices(END_PARAMETER) {
        let mut behind = &text[at + END_PARAMETER.len()..];
        let follows = behind.trim_start();
        if follows.starts_with(PARAMETER)
            || matches!(closing(&mut behind, END_FUNCTION), Tag::Is(_))
        {
            *rest = &text[at + END_PARAMETER.len()..];
            let value = &text[..at];
            let value = value.strip_prefix('\n').unwrap_or(value);
            return Some(value.strip_suffix('\n').unwrap_or(value));
        }
    }
    None
}

/// A value by its schema; what does not fit stays text, which the tool can refuse.
fn typed(text: &str, schema: Option<&Value>) -> Value {
    if text.eq_ignore_ascii_case("null") {
        return Value::Null;
    }
    let as_text = || Value::from(text);
    let Some(schema) = schema else { return as_text() };
    let mut kinds = Vec::new();
    collect_kinds(schema, &mut kinds);
    if kinds.is_empty() {
        let json: Option<Value> = serde_json::from_str(text).ok();
        let is_listed = |value: &Value| {
            schema.get("enum").and_then(Value::as_array).is_some_and(|all| all.contains(value))
        };
        return json
            .filter(|value| value.is_object() || value.is_array() || is_listed(value))
            .unwrap_or_else(as_text);
    }
    let of = |kind: &&str| match *kind {
        "integer" => integer(text),
        "number" => integer(text).or_else(|| number(text)),
        "boolean" if text.eq_ignore_ascii_case("true") => Some(true.into()),
        "boolean" if text.eq_ignore_ascii_case("false") => Some(false.into()),
        // As Qwen3-Coder's template writes it.
        "null" if text == "None" => Some(Value::Null),
        "object" => serde_json::from_str(text).ok().filter(Value::is_object),
        "array" => serde_json::from_str(text).ok().filter(Value::is_array),
        _ => None,
    };
    kinds.iter().find_map(of).unwrap_or_else(as_text)
}

/// The types that a schema allows, also by its alternatives.
fn collect_kinds<'a>(schema: &'a Value, kinds: &mut Vec<&'a str>) {
    match schema.get("type") {
        Some(Value::String(kind)) => kinds.push(kind),
        Some(Value::Array(several)) => kinds.extend(several.iter().filter_map(Value::as_str)),
        _ => {}
    }
    for several in ["anyOf", "oneOf"] {
        let alternatives = schema.get(several).and_then(Value::as_array);
        for alternative in alternatives.into_iter().flatten() {
            collect_kinds(alternative, kinds);
        }
    }
}

/// `3.0` is a whole number as well.
fn integer(text: &str) -> Option<Value> {
    let text = text.trim();
    let whole =
        text.parse::<i64>().map(Value::from).or_else(|_| text.parse::<u64>().map(Value::from));
    whole.ok().or_else(|| {
        let float = text.parse::<f64>().ok().filter(|float| float.fract() == 0.0)?;
        #[allow(
            clippy::cast_possible_truncation,
            reason = "below 2^53 every whole number is exact"
        )]
        (float.abs() < EXACT_MAX).then(|| Value::from(float as i64))
    })
}

fn number(text: &str) -> Option<Value> {
    text.trim().parse().ok().and_then(Number::from_f64).map(Value::Number)
}

const FUNCTION: &str = "<function=";
const END_FUNCTION: &str = "</function>";
const PARAMETER: &str = "<parameter=";
const END_PARAMETER: &str = "</parameter>";
/// 2^53.
const EXACT_MAX: f64 = 9_007_199_254_740_992.0;
