//! Fields of a GGUF file's metadata, required or not, with errors that name them.

use super::super::gguf::{Gguf, Value};
use super::ImportError;

/// A number of at least 1.
pub(super) fn size(gguf: &Gguf, key: &str) -> Result<u64, ImportError> {
    optional_size(gguf, key)?.ok_or_else(|| missing(key))
}

pub(super) fn optional_size(gguf: &Gguf, key: &str) -> Result<Option<u64>, ImportError> {
    let size = |value: &Value| value.as_u64().filter(|size| (1..=SIZE_MAX).contains(size));
    optional(gguf, key, "a number of at least 1", size)
}

/// The id of a token.
pub(super) fn optional_id(gguf: &Gguf, key: &str) -> Result<Option<u32>, ImportError> {
    optional(gguf, key, "a token id", |value| value.as_u64().and_then(|id| u32::try_from(id).ok()))
}

pub(super) fn f32(gguf: &Gguf, key: &str) -> Result<f32, ImportError> {
    optional_f32(gguf, key)?.ok_or_else(|| missing(key))
}

pub(super) fn optional_f32(gguf: &Gguf, key: &str) -> Result<Option<f32>, ImportError> {
    optional(gguf, key, "a number above 0", |value| match value {
        Value::F32(number) if number.is_finite() && *number > 0.0 => Some(*number),
        _ => None,
    })
}

pub(super) fn text<'a>(gguf: &'a Gguf, key: &str) -> Result<&'a str, ImportError> {
    optional_text(gguf, key)?.ok_or_else(|| missing(key))
}

pub(super) fn optional_text<'a>(gguf: &'a Gguf, key: &str) -> Result<Option<&'a str>, ImportError> {
    optional(gguf, key, "a text", Value::as_text)
}

pub(super) fn list<'a>(gguf: &'a Gguf, key: &str) -> Result<&'a [Value], ImportError> {
    optional(gguf, key, "a list", Value::as_list)?.ok_or_else(|| missing(key))
}

pub(super) fn optional_bool(gguf: &Gguf, key: &str) -> Result<Option<bool>, ImportError> {
    optional(gguf, key, "true or false", Value::as_bool)
}

/// The f64 that is written like the f32, so that 1e-5 does not become 9.99999974e-6 in a config.
pub(super) fn shortest(number: f32) -> f64 {
    number.to_string().parse().unwrap_or(f64::from(number))
}

fn optional<'a, T>(
    gguf: &'a Gguf,
    key: &str,
    expected: &str,
    read: impl FnOnce(&'a Value) -> Option<T>,
) -> Result<Option<T>, ImportError> {
    let Some(value) = gguf.metadata.get(key) else { return Ok(None) };
    let read = read(value).ok_or_else(|| ImportError::Metadata {
        key: key.to_owned(),
        reason: format!("must be {expected}, got {value}"),
    })?;
    Ok(Some(read))
}

fn missing(key: &str) -> ImportError {
    ImportError::Metadata { key: key.to_owned(), reason: "is missing".to_owned() }
}

/// Above every real size, and small enough that products of two do not overflow.
const SIZE_MAX: u64 = u32::MAX as u64;
