//! The header of a safetensors file: which tensors it holds, of what type and shape, and where.
//!
//! The format: eight bytes of little-endian length, that many bytes of JSON, then the data; offsets
//! count from the data's first byte (<https://huggingface.co/docs/safetensors>). The reader passes
//! the bytes in and says how long the file is; whatever a header promises is checked against that,
//! since MLX reads later and cannot report a file that is too short.

use std::fmt;

use serde::de::{Deserializer, MapAccess, Visitor};
use serde_json::Value;

/// Element type of a stored tensor.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum StoredDtype {
    Bool,
    U8,
    I8,
    U16,
    I16,
    F16,
    Bf16,
    U32,
    I32,
    F32,
    U64,
    I64,
    F64,
}

/// One tensor of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TensorEntry {
    pub name: String,
    pub dtype: StoredDtype,
    pub shape: Vec<u64>,
    /// Where its bytes start in the file.
    pub offset: u64,
    pub bytes: u64,
}

/// What a file holds, in the order of the bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Header {
    pub tensors: Vec<TensorEntry>,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum HeaderError {
    #[error("the file ends after {file_bytes} bytes, before its header does")]
    Short { file_bytes: u64 },
    #[error("the header claims {claimed} bytes; at most {HEADER_BYTES_MAX} are read")]
    Huge { claimed: u64 },
    #[error("the header is not valid JSON: {0}")]
    Json(String),
    #[error("tensor `{tensor}` is listed twice")]
    Duplicate { tensor: String },
    #[error("tensor `{tensor}`: {reason}")]
    Entry { tensor: String, reason: String },
    #[error("tensor `{tensor}` has {got} bytes, but {expected} by its shape and type")]
    Size { tensor: String, expected: u64, got: u64 },
    #[error(
        "tensor `{tensor}` ends at byte {end} of a file of {file_bytes}: the file is cut short"
    )]
    OutOfFile { tensor: String, end: u64, file_bytes: u64 },
    #[error("tensors `{first}` and `{second}` overlap")]
    Overlap { first: String, second: String },
}

impl Header {
    /// Bytes of JSON that follow the first eight bytes of a file.
    pub fn json_bytes(prefix: [u8; PREFIX_BYTES], file_bytes: u64) -> Result<u64, HeaderError> {
        let claimed = u64::from_le_bytes(prefix);
        if claimed > HEADER_BYTES_MAX {
            return Err(HeaderError::Huge { claimed });
        }
        if PREFIX_BYTES as u64 + claimed > file_bytes {
            return Err(HeaderError::Short { file_bytes });
        }
        Ok(claimed)
    }

    /// Reads the JSON that stands between the prefix and the data of a file of `file_bytes`.
    pub fn parse(json: &[u8], file_bytes: u64) -> Result<Self, HeaderError> {
        let mut reader = serde_json::Deserializer::from_slice(json);
        let entries = reader
            .deserialize_map(Entries)
            .and_then(|entries| reader.end().map(|()| entries))
            .map_err(|error| HeaderError::Json(error.to_string()))?;

        let data_start = PREFIX_BYTES as u64 + json.len() as u64;
        let mut tensors = entries
            .into_iter()
            .filter(|(name, _)| name != METADATA)
            .map(|(name, value)| entry(name, value, data_start, file_bytes))
            .collect::<Result<Vec<_>, _>>()?;
        distinct(&tensors)?;
        tensors.sort_by_key(|tensor| (tensor.offset, tensor.bytes));
        apart(&tensors)?;
        Ok(Self { tensors })
    }
}

impl StoredDtype {
    pub const fn size_bytes(self) -> u64 {
        match self {
            Self::Bool | Self::U8 | Self::I8 => 1,
            Self::U16 | Self::I16 | Self::F16 | Self::Bf16 => 2,
            Self::U32 | Self::I32 | Self::F32 => 4,
            Self::U64 | Self::I64 | Self::F64 => 8,
        }
    }

    /// Whether weights may be stored so: what MLX computes with on every device.
    pub const fn is_float(self) -> bool {
        matches!(self, Self::F16 | Self::Bf16 | Self::F32)
    }

    fn named(name: &str) -> Option<Self> {
        DTYPES.iter().find(|(known, _)| *known == name).map(|(_, dtype)| *dtype)
    }
}

impl fmt::Display for StoredDtype {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = DTYPES.iter().find(|(_, dtype)| dtype == self).map_or("?", |(name, _)| name);
        f.write_str(name)
    }
}

fn entry(
    tensor: String,
    value: Value,
    data_start: u64,
    file_bytes: u64,
) -> Result<TensorEntry, HeaderError> {
    let raw: RawEntry = match serde_json::from_value(value) {
        Ok(raw) => raw,
        Err(error) => return Err(HeaderError::Entry { tensor, reason: error.to_string() }),
    };
    let Some(dtype) = StoredDtype::named(&raw.dtype) else {
        return Err(HeaderError::Entry { tensor, reason: format!("unknown type `{}`", raw.dtype) });
    };
    let [start, end] = raw.data_offsets;
    let (Some(got), Some(file_end)) = (end.checked_sub(start), data_start.checked_add(end)) else {
        let reason = format!("data_offsets [{start}, {end}] are no range");
        return Err(HeaderError::Entry { tensor, reason });
    };
    let expected = raw.shape.iter().try_fold(dtype.size_bytes(), |n, size| n.checked_mul(*size));
    let Some(expected) = expected else {
        return Err(HeaderError::Entry { tensor, reason: "its shape is too large".to_owned() });
    };
    if got != expected {
        return Err(HeaderError::Size { tensor, expected, got });
    }
    if file_end > file_bytes {
        return Err(HeaderError::OutOfFile { tensor, end: file_end, file_bytes });
    }
    Ok(TensorEntry {
        name: tensor,
        dtype,
        shape: raw.shape,
        offset: data_start + start,
        bytes: got,
    })
}

fn distinct(tensors: &[TensorEntry]) -> Result<(), HeaderError> {
    let mut names: Vec<&str> = tensors.iter().map(|tensor| tensor.name.as_str()).collect();
    names.sort_unstable();
    match names.windows(2).find(|pair| pair[0] == pair[1]) {
        Some(pair) => Err(HeaderError::Duplicate { tensor: pair[0].to_owned() }),
        None => Ok(()),
    }
}

fn apart(sorted: &[TensorEntry]) -> Result<(), HeaderError> {
    match sorted.windows(2).find(|pair| pair[0].offset + pair[0].bytes > pair[1].offset) {
        Some([first, second]) => {
            Err(HeaderError::Overlap { first: first.name.clone(), second: second.name.clone() })
        }
        _ => Ok(()),
    }
}

#[derive(serde::Deserialize)]
struct RawEntry {
    dtype: String,
    shape: Vec<u64>,
    data_offsets: [u64; 2],
}

/// Reads an object as a list, because a map would drop all but the last of equal names.
struct Entries;

impl<'de> Visitor<'de> for Entries {
    type Value = Vec<(String, Value)>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object of tensors")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut entries = Vec::new();
        while let Some(entry) = map.next_entry()? {
            entries.push(entry);
        }
        Ok(entries)
    }
}

/// Bytes before the header's JSON.
pub const PREFIX_BYTES: usize = 8;
/// The same bound as the format's own library.
const HEADER_BYTES_MAX: u64 = 100_000_000;
const METADATA: &str = "__metadata__";
const DTYPES: &[(&str, StoredDtype)] = &[
    ("BOOL", StoredDtype::Bool),
    ("U8", StoredDtype::U8),
    ("I8", StoredDtype::I8),
    ("U16", StoredDtype::U16),
    ("I16", StoredDtype::I16),
    ("F16", StoredDtype::F16),
    ("BF16", StoredDtype::Bf16),
    ("U32", StoredDtype::U32),
    ("I32", StoredDtype::I32),
    ("F32", StoredDtype::F32),
    ("U64", StoredDtype::U64),
    ("I64", StoredDtype::I64),
    ("F64", StoredDtype::F64),
];

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(json: &str) -> Result<Header, HeaderError> {
        Header::parse(json.as_bytes(), 8 + json.len() as u64 + 64)
    }

    #[test]
    fn tensors_come_in_the_order_of_their_bytes() {
        let json = r#"{"__metadata__": {"format": "mlx"},
            "b": {"dtype": "U32", "shape": [2, 2], "data_offsets": [16, 32]},
            "a": {"dtype": "BF16", "shape": [8], "data_offsets": [0, 16]}}"#;
        let header = parse(json).expect("valid");
        let names: Vec<&str> = header.tensors.iter().map(|t| t.name.as_str()).collect();
        assert_eq!(names, ["a", "b"]);
        assert_eq!(header.tensors[1].offset, 8 + json.len() as u64 + 16);
        assert_eq!((header.tensors[1].dtype, header.tensors[1].bytes), (StoredDtype::U32, 16));
    }

    #[test]
    fn faults_name_the_tensor() {
        let one = r#""a": {"dtype": "F32", "shape": [4], "data_offsets": [0, 16]}"#;
        for (json, said) in [
            (format!("{{{one}, {one}}}"), "`a` is listed twice"),
            (
                format!(
                    r#"{{{one}, "b": {{"dtype": "F32", "shape": [1], "data_offsets": [12, 16]}}}}"#
                ),
                "`a` and `b` overlap",
            ),
            (
                r#"{"a": {"dtype": "F32", "shape": [4], "data_offsets": [0, 12]}}"#.into(),
                "has 12 bytes, but 16",
            ),
            (
                r#"{"a": {"dtype": "F32", "shape": [20], "data_offsets": [0, 80]}}"#.into(),
                "`a` ends at byte",
            ),
            (
                r#"{"a": {"dtype": "F4", "shape": [4], "data_offsets": [0, 2]}}"#.into(),
                "unknown type `F4`",
            ),
            (
                r#"{"a": {"dtype": "F32", "shape": [4], "data_offsets": [16, 0]}}"#.into(),
                "`a`: data_offsets",
            ),
            (r#"{"a": {"dtype": "F32", "shape": [-4], "data_offsets": [0, 16]}}"#.into(), "`a`:"),
            (
                format!(
                    r#"{{"a": {{"dtype": "F32", "shape": [{0}, {0}], "data_offsets": [0, 16]}}}}"#,
                    u64::MAX
                ),
                "`a`: its shape",
            ),
            (
                format!(
                    r#"{{"a": {{"dtype": "U8", "shape": [1], "data_offsets": [{}, {}]}}}}"#,
                    u64::MAX - 1,
                    u64::MAX
                ),
                "`a`: data_offsets",
            ),
            (r#"{"a": 3}"#.into(), "`a`:"),
            ("[]".into(), "not valid JSON"),
            ("{} x".into(), "not valid JSON"),
        ] {
            let error = parse(&json).expect_err(&json).to_string();
            assert!(error.contains(said), "{json}: {error}");
        }
    }

    #[test]
    fn a_header_fits_its_file() {
        assert_eq!(Header::json_bytes(10_u64.to_le_bytes(), 18), Ok(10));
        assert_eq!(
            Header::json_bytes(10_u64.to_le_bytes(), 17),
            Err(HeaderError::Short { file_bytes: 17 })
        );
        let claimed = u64::MAX;
        assert_eq!(
            Header::json_bytes(claimed.to_le_bytes(), 17),
            Err(HeaderError::Huge { claimed })
        );
    }
}
