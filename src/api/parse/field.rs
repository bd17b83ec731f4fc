//! Reading one field of a JSON object: its type, its bounds, and the error that names it.

use serde_json::{Map, Value};

use super::{ParseError, shortened};

/// An object and where it lies in the body.
#[derive(Debug, Clone)]
pub struct Fields<'a> {
    object: &'a Map<String, Value>,
    /// Path of the object with a final dot; empty for the body itself.
    prefix: String,
}

impl<'a> Fields<'a> {
    pub fn of_body(object: &'a Map<String, Value>) -> Self {
        Self { object, prefix: String::new() }
    }

    pub fn inside(path: &str, object: &'a Map<String, Value>) -> Self {
        Self { object, prefix: format!("{path}.") }
    }

    pub fn path(&self, name: &str) -> String {
        format!("{}{name}", self.prefix)
    }

    /// The value, unless it is missing or null.
    pub fn optional(&self, name: &str) -> Option<&'a Value> {
        self.object.get(name).filter(|value| !value.is_null())
    }

    pub fn required(&self, name: &str, wanted: &str) -> Result<&'a Value, ParseError> {
        match self.object.get(name) {
            None => Err(ParseError::Missing { param: self.path(name), wanted: wanted.to_owned() }),
            Some(null @ Value::Null) => Err(self.wrong(name, wanted, null)),
            Some(value) => Ok(value),
        }
    }

    pub fn string(&self, name: &str) -> Result<Option<&'a str>, ParseError> {
        match self.optional(name) {
            None => Ok(None),
            Some(Value::String(text)) => Ok(Some(text)),
            Some(other) => Err(self.wrong(name, "a string", other)),
        }
    }

    pub fn boolean(&self, name: &str) -> Result<Option<bool>, ParseError> {
        match self.optional(name) {
            None => Ok(None),
            Some(Value::Bool(value)) => Ok(Some(*value)),
            Some(other) => Err(self.wrong(name, "true or false", other)),
        }
    }

    /// A number for which `allowed` holds; `wanted` says so in words.
    pub fn number(
        &self,
        name: &str,
        wanted: &str,
        allowed: impl Fn(f64) -> bool,
    ) -> Result<Option<f64>, ParseError> {
        let Some(value) = self.optional(name) else { return Ok(None) };
        match value.as_f64() {
            Some(number) if allowed(number) => Ok(Some(number)),
            _ => Err(self.wrong(name, wanted, value)),
        }
    }

    /// A whole number from `least` to the largest that 32 bits hold.
    pub fn whole(&self, name: &str, least: u32) -> Result<Option<u32>, ParseError> {
        self.whole_between(name, least, u32::MAX)
    }

    pub fn whole_between(
        &self,
        name: &str,
        least: u32,
        most: u32,
    ) -> Result<Option<u32>, ParseError> {
        let Some(value) = self.optional(name) else { return Ok(None) };
        let number = value.as_u64().and_then(|number| u32::try_from(number).ok());
        number.filter(|number| (least..=most).contains(number)).map(Some).ok_or_else(|| {
            self.wrong(name, &format!("a whole number from {least} to {most}"), value)
        })
    }

    pub fn wrong(&self, name: &str, wanted: &str, value: &Value) -> ParseError {
        ParseError::Wrong { param: self.path(name), wanted: wanted.to_owned(), given: given(value) }
    }
}

/// A value as an error shows it.
pub fn given(value: &Value) -> String {
    match value {
        Value::Null => "null".to_owned(),
        Value::Bool(value) => value.to_string(),
        Value::Number(number) => number.to_string(),
        Value::String(text) => format!("the string {:?}", shortened(text)),
        Value::Array(items) if items.is_empty() => "an empty list".to_owned(),
        Value::Array(items) => format!("a list of {}", items.len()),
        Value::Object(_) => "an object".to_owned(),
    }
}
