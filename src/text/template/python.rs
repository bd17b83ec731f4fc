//! How Python writes values: `str`, `repr` and `json.dumps`. Templates were written against these,
//! and a model knows their output from its training, to the space.

use std::fmt::Write as _;

use minijinja::value::{Value, ValueKind};
use minijinja::{Error, ErrorKind};

/// `str(value)`: what `{{ value }}` shows. An undefined value shows nothing.
pub fn text(value: &Value) -> Result<String, Error> {
    match (value.as_str(), value.kind()) {
        (Some(text), _) => Ok(text.to_owned()),
        (None, ValueKind::Undefined) => Ok(String::new()),
        _ => {
            let mut out = String::new();
            repr(value, &mut out, 0)?;
            Ok(out)
        }
    }
}

/// `str.isspace`: Unicode's white space and four separators more.
pub fn is_space(character: char) -> bool {
    character.is_whitespace() || matches!(character, '\u{1c}'..='\u{1f}')
}

/// How `json.dumps` is asked to write.
#[derive(Debug, Clone)]
pub struct Json {
    /// What one level is indented by; none: everything in one line.
    pub indent: Option<String>,
    pub between_items: String,
    pub after_key: String,
    pub ascii_only: bool,
    pub sort_keys: bool,
}

impl Json {
    /// `json.dumps(value, …)`.
    pub fn write(&self, value: &Value) -> Result<String, Error> {
        let mut out = String::new();
        self.value(value, &mut out, 0)?;
        Ok(out)
    }

    fn value(&self, value: &Value, out: &mut String, depth: usize) -> Result<(), Error> {
        check(depth)?;
        match value.kind() {
            ValueKind::None => out.push_str("null"),
            ValueKind::Bool => out.push_str(if value.is_true() { "true" } else { "false" }),
            ValueKind::Number => out.push_str(&number(value, "Infinity", "NaN")),
            ValueKind::String => self.string(value.as_str().unwrap_or_default(), out),
            ValueKind::Seq | ValueKind::Iterable => {
                let items = value.try_iter()?;
                self.enclosed(['[', ']'], items, out, depth, |item, out| {
                    self.value(&item, out, depth + 1)
                })?;
            }
            ValueKind::Map => {
                let mut keys: Vec<(String, Value)> = value
                    .try_iter()?
                    .map(|key| Ok((json_key(&key)?, key)))
                    .collect::<Result<_, Error>>()?;
                if self.sort_keys {
                    keys.sort_by(|a, b| a.0.cmp(&b.0));
                }
                self.enclosed(['{', '}'], keys, out, depth, |(name, key), out| {
                    self.string(&name, out);
                    out.push_str(&self.after_key);
                    self.value(&value.get_item(&key)?, out, depth + 1)
                })?;
            }
            kind => return Err(unwritable(&format!("{kind} cannot be written as JSON"))),
        }
        Ok(())
    }

    fn enclosed<T>(
        &self,
        [open, close]: [char; 2],
        items: impl IntoIterator<Item = T>,
        out: &mut String,
        depth: usize,
        write: impl Fn(T, &mut String) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let line = |depth: usize| {
            self.indent
                .as_ref()
                .map_or_else(String::new, |indent| format!("\n{}", indent.repeat(depth)))
        };
        out.push(open);
        let mut is_empty = true;
        for item in items {
            if !is_empty {
                out.push_str(&self.between_items);
            }
            is_empty = false;
            out.push_str(&line(depth + 1));
            write(item, out)?;
        }
        if !is_empty {
            out.push_str(&line(depth));
        }
        out.push(close);
        Ok(())
    }

    fn string(&self, text: &str, out: &mut String) {
        out.push('"');
        for character in text.chars() {
            match character {
                '"' => out.push_str("\\\""),
                '\\' => out.push_str("\\\\"),
                '\n' => out.push_str("\\n"),
                '\r' => out.push_str("\\r"),
                '\t' => out.push_str("\\t"),
                '\u{8}' => out.push_str("\\b"),
                '\u{c}' => out.push_str("\\f"),
                c if c < ' ' || (self.ascii_only && !c.is_ascii()) => {
                    for unit in c.encode_utf16(&mut [0; 2]) {
                        let _ = write!(out, "\\u{unit:04x}");
                    }
                }
                c => out.push(c),
            }
        }
        out.push('"');
    }
}

/// A key of an object is always text there.
fn json_key(key: &Value) -> Result<String, Error> {
    Ok(match key.kind() {
        ValueKind::String => key.as_str().unwrap_or_default().to_owned(),
        ValueKind::None => "null".to_owned(),
        ValueKind::Bool => (if key.is_true() { "true" } else { "false" }).to_owned(),
        ValueKind::Number => number(key, "Infinity", "NaN"),
        kind => return Err(unwritable(&format!("{kind} cannot be a key of JSON"))),
    })
}

fn repr(value: &Value, out: &mut String, depth: usize) -> Result<(), Error> {
    check(depth)?;
    match value.kind() {
        ValueKind::None => out.push_str("None"),
        ValueKind::Undefined => out.push_str("Undefined"),
        ValueKind::Bool => out.push_str(if value.is_true() { "True" } else { "False" }),
        ValueKind::Number => out.push_str(&number(value, "inf", "nan")),
        ValueKind::String => repr_text(value.as_str().unwrap_or_default(), out),
        ValueKind::Seq => {
            out.push('[');
            for (at, item) in value.try_iter()?.enumerate() {
                out.push_str(if at > 0 { ", " } else { "" });
                repr(&item, out, depth + 1)?;
            }
            out.push(']');
        }
        ValueKind::Map => {
            out.push('{');
            for (at, key) in value.try_iter()?.enumerate() {
                out.push_str(if at > 0 { ", " } else { "" });
                repr(&key, out, depth + 1)?;
                out.push_str(": ");
                repr(&value.get_item(&key)?, out, depth + 1)?;
            }
            out.push('}');
        }
        _ => {
            let _ = write!(out, "{value}");
        }
    }
    Ok(())
}

fn repr_text(text: &str, out: &mut String) {
    let quote = if text.contains('\'') && !text.contains('"') { '"' } else { '\'' };
    out.push(quote);
    for character in text.chars() {
        match character {
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            c if c == '\\' || c == quote => out.extend(['\\', c]),
            c if is_printable(c) => out.push(c),
            c => {
                let code = u32::from(c);
                let _ = match code {
                    0..0x100 => write!(out, "\\x{code:02x}"),
                    0x100..0x1_0000 => write!(out, "\\u{code:04x}"),
                    _ => write!(out, "\\U{code:08x}"),
                };
            }
        }
    }
    out.push(quote);
}

/// Rust escapes what is in the same Unicode categories as Python; a mark that belongs to the
/// character before it, too, but only at the start of a text.
fn is_printable(character: char) -> bool {
    let after_a_letter = String::from_iter(['a', character]);
    !character.is_control() && !after_a_letter.escape_debug().to_string().starts_with("a\\u")
}

/// `repr` of a number: the shortest digits that mean it, with an exponent outside of 1e-4 to 1e16.
fn number(value: &Value, infinity: &str, nan: &str) -> String {
    let float = match f64::try_from(value.clone()) {
        Ok(float) if !value.is_integer() => float,
        _ => return value.to_string(),
    };
    if float.is_nan() {
        return nan.to_owned();
    }
    if float.is_infinite() {
        return format!("{}{infinity}", if float < 0.0 { "-" } else { "" });
    }
    let scientific = format!("{float:e}");
    let (digits, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or_default();
    if (-4..16).contains(&exponent) {
        format!("{float:?}")
    } else {
        let sign = if exponent < 0 { '-' } else { '+' };
        format!("{digits}e{sign}{:02}", exponent.unsigned_abs())
    }
}

/// A template can nest lists without end; what a client sends is far below.
fn check(depth: usize) -> Result<(), Error> {
    if depth > DEPTH_MAX {
        return Err(unwritable(&format!("a value is nested more than {DEPTH_MAX} levels deep")));
    }
    Ok(())
}

fn unwritable(reason: &str) -> Error {
    Error::new(ErrorKind::InvalidOperation, reason.to_owned())
}

const DEPTH_MAX: usize = 200;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_written_as_python_writes_them() {
        // Expected values are those of Python's repr.
        for (value, expected) in [
            (Value::from(1), "1"),
            (Value::from(-3_i64), "-3"),
            (Value::from(u64::MAX), "18446744073709551615"),
            (Value::from(1.0), "1.0"),
            (Value::from(-0.0), "-0.0"),
            (Value::from(0.1), "0.1"),
            (Value::from(1e15), "1000000000000000.0"),
            (Value::from(1e16), "1e+16"),
            (Value::from(1.5e300), "1.5e+300"),
            (Value::from(0.0001), "0.0001"),
            (Value::from(0.00001), "1e-05"),
            (Value::from(-1.25e-7), "-1.25e-07"),
            (Value::from(f64::INFINITY), "inf"),
        ] {
            assert_eq!(text(&value).expect("a number"), expected);
        }
    }

    #[test]
    fn lists_and_dicts_are_shown_as_python_shows_them() {
        let value: Value = Value::from(minijinja::value::Serde(serde_json::json!({
            "a": [null, true, 1.5, "it's", "say \"it's\"", "a\\b\n"],
            "b": {},
            "é😀": "\u{0}\u{a0}\u{200b}\u{301}\u{e000}\u{e0001}",
        })));
        // Python's repr of the same.
        let expected = r#"{'a': [None, True, 1.5, "it's", 'say "it\'s"', 'a\\b\n'], 'b': {}, 'é😀': '\x00\xa0\u200b"#
            .to_owned()
            + "\u{301}"
            + r"\ue000\U000e0001'}";
        assert_eq!(text(&value).expect("a dict"), expected);
        assert_eq!(text(&Value::UNDEFINED).expect("nothing"), "");
    }
}
