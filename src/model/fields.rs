//! Typed access to the fields of a JSON object, for `config.json`.
//!
//! Every refusal names the field, what was expected and what stood there. Knows no field by name.

use serde_json::{Map, Value};

use super::config::ConfigError;

/// An object together with the path at which it stands, so that errors can name nested fields.
#[derive(Debug, Clone, Copy)]
pub(super) struct Fields<'a> {
    object: &'a Map<String, Value>,
    path: &'a str,
}

impl<'a> Fields<'a> {
    pub(super) const fn new(object: &'a Map<String, Value>, path: &'a str) -> Self {
        Self { object, path }
    }

    /// The value, where null counts as absent: checkpoints use both for "not set".
    pub(super) fn value(&self, field: &str) -> Option<&'a Value> {
        self.object.get(field).filter(|value| !value.is_null())
    }

    /// The fields that are set.
    pub(super) fn names(&self) -> impl Iterator<Item = &'a str> {
        let set = self.object.iter().filter(|(_, value)| !value.is_null());
        set.map(|(name, _)| name.as_str())
    }

    pub(super) fn object(
        &self,
        field: &'static str,
    ) -> Result<Option<&'a Map<String, Value>>, ConfigError> {
        self.optional(field, "an object", Value::as_object)
    }

    pub(super) fn text(&self, field: &'static str) -> Result<Option<&'a str>, ConfigError> {
        self.optional(field, "a string", Value::as_str)
    }

    pub(super) fn flag(&self, field: &'static str, default: bool) -> Result<bool, ConfigError> {
        Ok(self.optional(field, "true or false", Value::as_bool)?.unwrap_or(default))
    }

    /// A size that must be there: at least 1 and small enough for MLX's 32-bit signed shapes.
    pub(super) fn size(&self, field: &'static str) -> Result<u32, ConfigError> {
        self.optional_size(field)?.ok_or_else(|| ConfigError::Missing { field: self.named(field) })
    }

    pub(super) fn optional_size(&self, field: &'static str) -> Result<Option<u32>, ConfigError> {
        self.optional(field, "a whole number from 1 to 2147483647", |value| {
            let number = u32::try_from(value.as_u64()?).ok()?;
            (1..=SIZE_MAX).contains(&number).then_some(number)
        })
    }

    /// A positive, finite number.
    pub(super) fn positive(&self, field: &'static str) -> Result<Option<f32>, ConfigError> {
        self.optional(field, "a positive number", |value| {
            #[expect(clippy::cast_possible_truncation, reason = "f32 is what MLX computes with")]
            let number = value.as_f64()? as f32;
            (number.is_finite() && number > 0.0).then_some(number)
        })
    }

    pub(super) fn optional<T>(
        &self,
        field: &'static str,
        expected: &'static str,
        read: impl FnOnce(&'a Value) -> Option<T>,
    ) -> Result<Option<T>, ConfigError> {
        let Some(value) = self.value(field) else { return Ok(None) };
        match read(value) {
            Some(read) => Ok(Some(read)),
            None => {
                Err(ConfigError::Wrong { field: self.named(field), expected, got: shown(value) })
            }
        }
    }

    pub(super) fn named(&self, field: &str) -> String {
        if self.path.is_empty() { field.to_owned() } else { format!("{}.{field}", self.path) }
    }
}

/// A value as an error shows it: short, whatever a damaged file holds.
pub(super) fn shown(value: &Value) -> String {
    let text = value.to_string();
    match text.char_indices().nth(SHOWN_CHARS) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text,
    }
}

const SIZE_MAX: u32 = i32::MAX as u32;
const SHOWN_CHARS: usize = 60;
