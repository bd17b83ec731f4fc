//! The chat template, in the environment that Hugging Face gives it.
//!
//! Templates are Jinja2 programs written against transformers' `apply_chat_template`: Python's
//! methods and tests on strings and dicts, `raise_exception`, `strftime_now`, and a `tojson` that is
//! `json.dumps`. `python` writes values as Python does. A template is a stranger's program, so it
//! runs on a bounded amount of fuel.

mod python;

use std::collections::BTreeMap;
use std::error::Error as _;
use std::fmt;
use std::time::SystemTime;

use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Kwargs, Serde, Value, ValueKind};
use minijinja::{Environment, Error, ErrorKind, Output, State};
use minijinja_contrib::pycompat;

use super::{Conversation, TextError, clock};

/// A compiled template with the special tokens it may write.
pub(super) struct ChatTemplate {
    environment: Environment<'static>,
    /// Whether it renders a list of one text part as it renders the text.
    reads_parts: bool,
}

impl ChatTemplate {
    /// Compiles `source`; the error says what is wrong and where.
    pub fn parse(source: &str, special: &BTreeMap<&'static str, String>) -> Result<Self, String> {
        let mut environment = Environment::new();
        let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build();
        environment.set_syntax(syntax.map_err(|error| error.to_string())?);
        environment.set_fuel(Some(FUEL));
        environment.set_unknown_method_callback(method);
        environment.set_formatter(format_like_python);
        environment.add_function("raise_exception", raise_exception);
        environment.add_filter("tojson", tojson);
        environment.add_filter("string", string);
        environment.add_filter("trim", trim);
        environment.add_test("sequence", is_sequence);
        environment.add_test("iterable", is_iterable);
        // A template may ask whether these are there at all.
        environment.add_global("documents", Value::from(()));
        for (role, token) in special {
            environment.add_global(*role, token.as_str());
        }
        environment
            // Jinja2 reads every kind of line end as one.
            .add_template_owned(
                NAME,
                without_generation_marks(&source.replace("\r\n", "\n").replace('\r', "\n")),
            )
            .map_err(|error| error.to_string())?;
        let mut template = Self { environment, reads_parts: false };
        template.reads_parts = template.renders_parts_as_text();
        Ok(template)
    }

    /// Whether a message's content may be a list of parts; else it must be one text.
    pub const fn reads_parts(&self) -> bool {
        self.reads_parts
    }

    pub fn render(
        &self,
        conversation: &Conversation,
        now: SystemTime,
    ) -> Result<String, TextError> {
        let strftime_now = Value::from_function(move |format: &str| {
            clock::strftime(format, now).map_err(|reason| invalid(&reason))
        });
        let tools = Some(&conversation.tools).filter(|tools| !tools.is_empty());
        let fixed = [
            ("messages", Value::from(Serde(&conversation.messages))),
            ("tools", Value::from(Serde(tools))),
            ("add_generation_prompt", Value::from(true)),
            ("strftime_now", strftime_now),
        ];
        let variables = conversation.variables.iter();
        let variables = variables.map(|(name, value)| (name.as_str(), Value::from(Serde(value))));
        let context = Value::from_pairs(variables.chain(fixed));
        self.environment.get_template(NAME).and_then(|template| template.render(context)).map_err(
            |error| match raised(&error) {
                Some(words) => TextError::Refused(words.to_owned()),
                None => TextError::Render(error.to_string()),
            },
        )
    }

    fn renders_parts_as_text(&self) -> bool {
        let render = |content| {
            let messages = vec![serde_json::json!({"role": "user", "content": content})];
            self.render(
                &Conversation { messages, ..Conversation::default() },
                SystemTime::UNIX_EPOCH,
            )
        };
        let text = render("Hello".into());
        let parts = render(serde_json::json!([{"type": "text", "text": "Hello"}]));
        matches!((text, parts), (Ok(text), Ok(parts)) if text == parts)
    }
}

/// Some templates mark the assistant's text for training with a block that Jinja2 does not have.
/// A block that is always taken renders the same.
fn without_generation_marks(source: &str) -> String {
    let mut plain = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(start) = rest.find("{%") {
        let Some(length) = rest[start..].find("%}") else { break };
        let (before, tag) = (&rest[..start], &rest[start..start + length]);
        let word = tag.trim_start_matches(['{', '%', '-', '+']).trim_end_matches(['-', '+']).trim();
        plain.push_str(before);
        match word {
            "generation" => plain.push_str(&tag.replace(word, "if true")),
            "endgeneration" => plain.push_str(&tag.replace(word, "endif")),
            _ => plain.push_str(tag),
        }
        rest = &rest[start + length..];
    }
    plain + rest
}

/// What a template says by `raise_exception`, kept apart from the engine's own errors.
#[derive(Debug)]
struct Raised(String);

impl fmt::Display for Raised {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Raised {}

fn raise_exception(words: String) -> Result<Value, Error> {
    Err(invalid("raise_exception").with_source(Raised(words)))
}

fn raised(error: &Error) -> Option<&str> {
    let mut cause = error.source();
    while let Some(error) = cause {
        if let Some(raised) = error.downcast_ref::<Raised>() {
            return Some(&raised.0);
        }
        cause = error.source();
    }
    None
}

/// As transformers' own, which is `json.dumps` without escapes for HTML.
#[allow(clippy::needless_pass_by_value, reason = "the engine hands a filter its arguments so")]
fn tojson(
    state: &State<'_, '_>,
    value: &Value,
    ensure_ascii: Option<Value>,
    indent: Option<Value>,
    named: Kwargs,
) -> Result<String, Error> {
    let argument = |positional: Option<Value>, name| match positional {
        Some(value) => Ok(Some(value)),
        None => named.get::<Option<Value>>(name),
    };
    let is_true = |value: Option<Value>| value.is_some_and(|value| value.is_true());
    let ascii_only = is_true(argument(ensure_ascii, "ensure_ascii")?);
    let indent = indentation(argument(indent, "indent")?)?;
    let separators = argument(None, "separators")?.filter(|value| !value.is_none());
    let sort_keys = is_true(argument(None, "sort_keys")?);
    named.assert_all_used()?;
    let separator = |at, default: &str| match &separators {
        None => Ok(default.to_owned()),
        Some(both) => both
            .get_item_by_index(at)?
            .as_str()
            .map(str::to_owned)
            .ok_or_else(|| invalid("the separators of tojson must be two texts")),
    };
    let json = python::Json {
        between_items: separator(0, if indent.is_some() { "," } else { ", " })?,
        after_key: separator(1, ": ")?,
        indent,
        ascii_only,
        sort_keys,
    };
    let written = json.write(value)?;
    charge(state, &written)?;
    Ok(written)
}

/// A number of spaces, or the text itself.
fn indentation(indent: Option<Value>) -> Result<Option<String>, Error> {
    let Some(indent) = indent.filter(|indent| !indent.is_none()) else { return Ok(None) };
    if let Some(text) = indent.as_str() {
        return Ok(Some(text.to_owned()));
    }
    let spaces = usize::try_from(indent).ok().filter(|spaces| *spaces <= INDENT_MAX);
    let spaces = spaces.ok_or_else(|| invalid("the indent of tojson must be a small number"))?;
    Ok(Some(" ".repeat(spaces)))
}

/// Python's `str`.
fn string(state: &State<'_, '_>, value: &Value) -> Result<Value, Error> {
    if value.as_str().is_some() {
        return Ok(value.clone());
    }
    let written = python::text(value)?;
    charge(state, &written)?;
    Ok(written.into())
}

/// Python's `str(value).strip(characters)`.
#[allow(clippy::needless_pass_by_value, reason = "the engine hands a filter its arguments so")]
fn trim(value: &Value, characters: Option<String>) -> Result<String, Error> {
    let text = python::text(value)?;
    Ok(match characters {
        Some(characters) => text.trim_matches(|c| characters.contains(c)),
        None => text.trim_matches(python::is_space),
    }
    .to_owned())
}

/// Python's methods. What is white space to it is more than to the library's own.
fn method(
    state: &mut State<'_, '_>,
    value: &Value,
    name: &str,
    arguments: &[Value],
) -> Result<Value, Error> {
    match (value.as_str(), name, arguments) {
        (Some(text), "strip", []) => Ok(text.trim_matches(python::is_space).into()),
        (Some(text), "lstrip", []) => Ok(text.trim_start_matches(python::is_space).into()),
        (Some(text), "rstrip", []) => Ok(text.trim_end_matches(python::is_space).into()),
        _ => pycompat::unknown_method_callback(state, value, name, arguments),
    }
}

/// Jinja2 asks for a length and an index, which texts, dicts and what is undefined have as well.
fn is_sequence(value: &Value) -> bool {
    matches!(
        value.kind(),
        ValueKind::Seq | ValueKind::String | ValueKind::Map | ValueKind::Undefined
    )
}

fn is_iterable(value: &Value) -> bool {
    is_sequence(value) || value.kind() == ValueKind::Iterable
}

fn format_like_python(
    out: &mut Output<'_>,
    state: &mut State<'_, '_>,
    value: &Value,
) -> Result<(), Error> {
    if let Some(text) = value.as_str() {
        return out.write_str(text).map_err(Error::from);
    }
    let written = python::text(value)?;
    charge(state, &written)?;
    out.write_str(&written).map_err(Error::from)
}

/// Takes the fuel for a text that was made by one instruction.
fn charge(state: &State<'_, '_>, written: &str) -> Result<(), Error> {
    state.consume_fuel(written.len() as u64 / BYTES_PER_FUEL)
}

fn invalid(reason: &str) -> Error {
    Error::new(ErrorKind::InvalidOperation, reason.to_owned())
}

const NAME: &str = "chat_template";
const INDENT_MAX: usize = 100;
const BYTES_PER_FUEL: u64 = 64;
/// About one unit per instruction or 64 bytes of a value: a second of work, and a thousand times
/// what a long conversation takes.
const FUEL: u64 = 5_000_000;

#[cfg(test)]
mod tests;
