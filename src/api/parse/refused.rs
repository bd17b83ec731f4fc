//! Fields that would change the answer and are not honoured yet. Each may say what it would say by
//! default; anything else is refused by name, because an answer that silently ignored it would look
//! right and be wrong. Supporting one means deleting its line.

use serde_json::Value;

use super::ParseError;
use super::field::{Fields, given};

/// Refuses the first field that asks for more than its default.
pub fn check(fields: &Fields<'_>) -> Result<(), ParseError> {
    // A user's name changes nothing.
    fields.string("user")?;
    for (name, harmless, is_harmless) in NOT_YET {
        if let Some(value) = fields.optional(name).filter(|value| !is_harmless(value)) {
            let (param, given) = ((*name).to_owned(), given(value));
            return Err(ParseError::Unsupported { param, harmless, given });
        }
    }
    Ok(())
}

/// Name, what may be sent, and the test for that. Null may always be sent.
type NotYet = (&'static str, &'static str, fn(&Value) -> bool);

const NOT_YET: &[NotYet] = &[
    ("n", "1", |value| value.as_u64() == Some(1)),
    ("functions", "an empty list", empty_list),
    ("function_call", "\"auto\" or \"none\"", auto_or_none),
    ("response_format", "{\"type\": \"text\"}", |value| {
        value.get("type").and_then(Value::as_str) == Some("text")
    }),
    ("reasoning_effort", "null", never),
    ("verbosity", "\"medium\"", |value| value.as_str() == Some("medium")),
    ("modalities", "[\"text\"]", |value| {
        value.as_array().is_some_and(|list| list.iter().all(|kind| kind == "text"))
    }),
    ("audio", "null", never),
    ("web_search_options", "null", never),
];

fn empty_list(value: &Value) -> bool {
    value.as_array().is_some_and(Vec::is_empty)
}

fn auto_or_none(value: &Value) -> bool {
    matches!(value.as_str(), Some("auto" | "none"))
}

fn never(_: &Value) -> bool {
    false
}
