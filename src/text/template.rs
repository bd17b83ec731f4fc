//! The chat template, in the environment that Hugging Face gives it.
//!
//! Templates are Jinja2 programs written against transformers' `apply_chat_template`: Python's
//! methods on strings and dicts, `raise_exception`, `strftime_now`, and a `tojson` that does not
//! escape HTML. A template is a stranger's program, so it runs on a bounded amount of fuel.

use std::collections::BTreeMap;
use std::error::Error as _;
use std::fmt;
use std::time::SystemTime;

use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Kwargs, Value};
use minijinja::{Environment, Error, ErrorKind, Output, State, escape_formatter, filters};
use minijinja_contrib::pycompat;

use super::{Message, TextError, clock};

/// A compiled template with the special tokens it may write.
pub(super) struct ChatTemplate {
    environment: Environment<'static>,
}

impl ChatTemplate {
    /// Compiles `source`; the error says what is wrong and where.
    pub fn parse(source: &str, special: &BTreeMap<&'static str, String>) -> Result<Self, String> {
        let mut environment = Environment::new();
        let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build();
        environment.set_syntax(syntax.map_err(|error| error.to_string())?);
        environment.set_fuel(Some(FUEL));
        environment.set_unknown_method_callback(pycompat::unknown_method_callback);
        environment.set_formatter(format_like_python);
        environment.add_function("raise_exception", raise_exception);
        environment.add_filter("tojson", tojson);
        // A template may ask whether these are there at all.
        environment.add_global("tools", Value::from(()));
        environment.add_global("documents", Value::from(()));
        for (role, token) in special {
            environment.add_global(*role, token.as_str());
        }
        environment
            .add_template_owned(NAME, without_generation_marks(source))
            .map_err(|error| error.to_string())?;
        Ok(Self { environment })
    }

    pub fn render(&self, messages: &[Message<'_>], now: SystemTime) -> Result<String, TextError> {
        let messages: Value = messages
            .iter()
            .map(|message| {
                Value::from_pairs([("role", message.role), ("content", message.content)])
            })
            .collect();
        let strftime_now = Value::from_function(move |format: &str| {
            clock::strftime(format, now).map_err(|reason| invalid(&reason))
        });
        let context = Value::from_pairs([
            ("messages", messages),
            ("add_generation_prompt", Value::from(true)),
            ("strftime_now", strftime_now),
        ]);
        self.environment.get_template(NAME).and_then(|template| template.render(context)).map_err(
            |error| match raised(&error) {
                Some(words) => TextError::Refused(words.to_owned()),
                None => TextError::Render(error.to_string()),
            },
        )
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

/// As Python's `json.dumps(value, ensure_ascii=False)`: nothing is escaped for HTML.
#[allow(clippy::needless_pass_by_value, reason = "the engine hands a filter its arguments so")]
fn tojson(value: &Value, arguments: Kwargs) -> Result<String, Error> {
    if arguments.get::<Option<bool>>("ensure_ascii")? == Some(true) {
        return Err(invalid("tojson with ensure_ascii=true is not supported"));
    }
    let indent = arguments.get::<Option<Value>>("indent")?.filter(|indent| !indent.is_none());
    arguments.assert_all_used()?;
    let escaped = filters::tojson(value, indent, Kwargs::from_iter(NO_ARGUMENTS))?;
    Ok(without_html_escapes(escaped.as_str().unwrap_or_default()))
}

fn without_html_escapes(json: &str) -> String {
    let mut plain = String::with_capacity(json.len());
    let mut rest = json;
    while let Some(start) = rest.find('\\') {
        plain.push_str(&rest[..start]);
        let html = HTML_ESCAPES.iter().find(|(escape, _)| rest[start..].starts_with(escape));
        let length = if let Some((escape, character)) = html {
            plain.push(*character);
            escape.len()
        } else {
            // Both characters of any other escape, so that an escaped backslash starts none.
            let length = ESCAPE_BYTES.min(rest.len() - start);
            plain.push_str(&rest[start..start + length]);
            length
        };
        rest = &rest[start + length..];
    }
    plain + rest
}

/// Python writes `None` and `True` where Jinja's other implementations write `none` and `true`.
fn format_like_python(
    out: &mut Output<'_>,
    state: &mut State<'_, '_>,
    value: &Value,
) -> Result<(), Error> {
    if value.is_none() {
        out.write_str("None").map_err(Error::from)
    } else if let Ok(truth) = bool::try_from(value.clone()) {
        out.write_str(if truth { "True" } else { "False" }).map_err(Error::from)
    } else {
        escape_formatter(out, state, value)
    }
}

fn invalid(reason: &str) -> Error {
    Error::new(ErrorKind::InvalidOperation, reason.to_owned())
}

const NAME: &str = "chat_template";
const NO_ARGUMENTS: [(&str, Value); 0] = [];
/// A backslash and what it escapes, which is ASCII in JSON.
const ESCAPE_BYTES: usize = 2;
const HTML_ESCAPES: &[(&str, char)] =
    &[("\\u003c", '<'), ("\\u003e", '>'), ("\\u0026", '&'), ("\\u0027", '\'')];
/// About one unit per instruction or 64 bytes of a value: a second of work, and a thousand times
/// what a long conversation takes.
const FUEL: u64 = 5_000_000;

#[cfg(test)]
#[path = "template_tests.rs"]
mod tests;
