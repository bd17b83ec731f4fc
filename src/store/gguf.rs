//! A reader of GGUF files: metadata and where the tensors lie, never the weights themselves.
//!
//! The format is llama.cpp's (<https://github.com/ggml-org/ggml/blob/master/docs/gguf.md>), versions
//! 2 and 3, little-endian. Whatever length a file claims is checked against what is left of it and
//! against a bound before anything is kept, so a damaged or cut file is an error that says what was
//! being read and at which byte. What the metadata mean is not known here: see `import`.
//!
//! Start at [`Gguf::open`].

use std::collections::HashMap;
use std::fmt;
use std::fs::File;
use std::io::{self, BufReader, Read};
use std::path::Path;

/// A file's header.
#[derive(Debug, Clone, PartialEq)]
pub struct Gguf {
    pub version: u32,
    pub metadata: HashMap<String, Value>,
    /// In the order of the file.
    pub tensors: Vec<TensorInfo>,
}

/// One value of the metadata.
#[derive(Debug, Clone, PartialEq)]
pub enum Value {
    Unsigned(u64),
    Signed(i64),
    F32(f32),
    F64(f64),
    Bool(bool),
    Text(String),
    List(Vec<Value>),
}

/// One tensor and where it lies.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TensorInfo {
    pub name: String,
    /// Sizes with the innermost first, which is the reverse of a shape in Python.
    pub sizes: Vec<u64>,
    pub kind: TensorKind,
    /// Where its bytes start in the file.
    pub offset: u64,
    /// None for a type whose layout is not known.
    pub bytes: Option<u64>,
}

/// How a tensor's values are stored, by llama.cpp's number of the type.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct TensorKind(pub u32);

#[derive(Debug, thiserror::Error)]
pub enum GgufError {
    #[error("it cannot be read: {0}")]
    Io(#[from] io::Error),
    #[error("it is no GGUF file: it does not start with `GGUF`")]
    NotGguf,
    #[error("its GGUF version is {0}; versions 2 and 3 are read")]
    Version(u32),
    #[error("it is a big-endian GGUF file; only little-endian ones are read")]
    BigEndian,
    #[error("it is cut short: {what} at byte {at} needs {needed} bytes, {left} are left")]
    Short { what: String, at: u64, needed: u64, left: u64 },
    #[error("it is damaged: {what} at byte {at} claims {claimed}, at most {max} are read")]
    TooMany { what: String, at: u64, claimed: u64, max: u64 },
    #[error("it is damaged: {what} at byte {at} {reason}")]
    Damaged { what: String, at: u64, reason: String },
}

impl Gguf {
    /// Reads the header of `file`.
    pub fn open(file: &Path) -> Result<Self, GgufError> {
        let opened = File::open(file)?;
        let bytes = opened.metadata()?.len();
        Self::read(BufReader::new(opened), bytes)
    }

    /// Reads a header from the start of something that has `bytes` in all.
    pub fn read(source: impl Read, bytes: u64) -> Result<Self, GgufError> {
        let mut reader =
            Reader { source, at: 0, bytes, items: 0, what: "the magic number".to_owned() };
        if reader.array().map_err(|_| GgufError::NotGguf)? != *MAGIC {
            return Err(GgufError::NotGguf);
        }
        reader.reading("the version");
        let version = reader.u32()?;
        if !(2..=3).contains(&version) {
            let is_swapped = (1..=3).contains(&version.swap_bytes());
            return Err(if is_swapped {
                GgufError::BigEndian
            } else {
                GgufError::Version(version)
            });
        }
        reader.reading("the number of tensors");
        let tensor_count = reader.count(TENSORS_MAX, TENSOR_BYTES_MIN)?;
        reader.reading("the number of metadata entries");
        let metadata_count = reader.count(METADATA_MAX, METADATA_BYTES_MIN)?;

        let mut metadata = HashMap::new();
        for number in 0..metadata_count {
            reader.what = format!("the key of metadata entry {number}");
            let key = reader.text(NAME_BYTES_MAX)?;
            reader.what = format!("metadata `{key}`");
            let value = reader.value()?;
            if metadata.insert(key, value).is_some() {
                return Err(reader.damaged("is there twice"));
            }
        }

        let mut tensors = Vec::new();
        for number in 0..tensor_count {
            reader.what = format!("the name of tensor {number}");
            let name = reader.text(NAME_BYTES_MAX)?;
            reader.what = format!("tensor `{name}`");
            tensors.push(reader.tensor(name)?);
        }
        place(&mut reader, &metadata, &mut tensors)?;
        Ok(Self { version, metadata, tensors })
    }
}

impl Value {
    pub fn as_text(&self) -> Option<&str> {
        if let Self::Text(text) = self { Some(text) } else { None }
    }

    pub fn as_list(&self) -> Option<&[Self]> {
        if let Self::List(list) = self { Some(list) } else { None }
    }

    pub fn as_u64(&self) -> Option<u64> {
        match self {
            Self::Unsigned(number) => Some(*number),
            Self::Signed(number) => u64::try_from(*number).ok(),
            _ => None,
        }
    }

    pub const fn as_bool(&self) -> Option<bool> {
        if let Self::Bool(truth) = self { Some(*truth) } else { None }
    }
}

/// A value as an error shows it.
impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unsigned(number) => number.fmt(f),
            Self::Signed(number) => number.fmt(f),
            Self::F32(number) => number.fmt(f),
            Self::F64(number) => number.fmt(f),
            Self::Bool(truth) => truth.fmt(f),
            Self::Text(text) => write!(f, "`{}`", text.chars().take(80).collect::<String>()),
            Self::List(list) => write!(f, "a list of {}", list.len()),
        }
    }
}

impl TensorKind {
    pub const F32: Self = Self(0);
    pub const F16: Self = Self(1);
    pub const Q4_0: Self = Self(2);
    pub const Q4_1: Self = Self(3);
    pub const Q5_0: Self = Self(6);
    pub const Q5_1: Self = Self(7);
    pub const Q8_0: Self = Self(8);
    pub const Q2_K: Self = Self(10);
    pub const Q3_K: Self = Self(11);
    pub const Q4_K: Self = Self(12);
    pub const Q5_K: Self = Self(13);
    pub const Q6_K: Self = Self(14);
    pub const BF16: Self = Self(30);

    /// Values per block and bytes per block; none if the type is not known.
    fn block(self) -> Option<(u64, u64)> {
        KINDS.iter().find(|kind| kind.0 == self.0).map(|(_, _, values, bytes)| (*values, *bytes))
    }
}

impl fmt::Display for TensorKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match KINDS.iter().find(|kind| kind.0 == self.0) {
            Some((_, name, ..)) => f.write_str(name),
            None => write!(f, "type {}", self.0),
        }
    }
}

/// Turns offsets into the data section into offsets into the file, and checks them against it.
fn place<R: Read>(
    reader: &mut Reader<R>,
    metadata: &HashMap<String, Value>,
    tensors: &mut [TensorInfo],
) -> Result<(), GgufError> {
    reader.what = format!("metadata `{ALIGNMENT}`");
    let alignment = match metadata.get(ALIGNMENT) {
        None => ALIGNMENT_DEFAULT,
        Some(value) => value
            .as_u64()
            .filter(|alignment| alignment.is_power_of_two() && *alignment <= ALIGNMENT_MAX)
            .ok_or_else(|| reader.damaged(&format!("is {value}, no power of two")))?,
    };
    let data_start = reader.at.next_multiple_of(alignment);
    for tensor in tensors {
        let relative = tensor.offset;
        reader.what = format!("the data of tensor `{}`", tensor.name);
        if !relative.is_multiple_of(alignment) {
            return Err(reader.damaged(&format!("is at {relative}, no multiple of {alignment}")));
        }
        let (needed, left) = (tensor.bytes.unwrap_or(0), reader.bytes.saturating_sub(data_start));
        let end = relative.checked_add(needed);
        if end.is_none_or(|end| end > left) {
            let left = left.saturating_sub(relative);
            let at = data_start.saturating_add(relative);
            return Err(GgufError::Short { what: reader.what.clone(), at, needed, left });
        }
        tensor.offset = data_start + relative;
    }
    Ok(())
}

/// Reads forward, and knows where it is, what it reads and how much there is.
struct Reader<R> {
    source: R,
    at: u64,
    bytes: u64,
    /// Items of lists so far.
    items: u64,
    /// What errors name.
    what: String,
}

impl<R: Read> Reader<R> {
    fn reading(&mut self, what: &str) {
        what.clone_into(&mut self.what);
    }

    fn value(&mut self) -> Result<Value, GgufError> {
        let kind = self.u32()?;
        self.value_of(kind, 0)
    }

    fn value_of(&mut self, kind: u32, depth: u32) -> Result<Value, GgufError> {
        Ok(match kind {
            0 => Value::Unsigned(u8::from_le_bytes(self.array()?).into()),
            1 => Value::Signed(i8::from_le_bytes(self.array()?).into()),
            2 => Value::Unsigned(u16::from_le_bytes(self.array()?).into()),
            3 => Value::Signed(i16::from_le_bytes(self.array()?).into()),
            4 => Value::Unsigned(self.u32()?.into()),
            5 => Value::Signed(i32::from_le_bytes(self.array()?).into()),
            6 => Value::F32(f32::from_le_bytes(self.array()?)),
            7 => match self.array()? {
                [0] => Value::Bool(false),
                [1] => Value::Bool(true),
                [other] => return Err(self.damaged(&format!("has {other} for a truth value"))),
            },
            8 => Value::Text(self.text(TEXT_BYTES_MAX)?),
            9 => self.list(depth)?,
            10 => Value::Unsigned(self.u64()?),
            11 => Value::Signed(i64::from_le_bytes(self.array()?)),
            12 => Value::F64(f64::from_le_bytes(self.array()?)),
            other => return Err(self.damaged(&format!("has the unknown type {other}"))),
        })
    }

    fn list(&mut self, depth: u32) -> Result<Value, GgufError> {
        if depth == LIST_DEPTH_MAX {
            return Err(self.damaged("has lists in lists in lists"));
        }
        let kind = self.u32()?;
        let bytes_min = match kind {
            0 | 1 | 7 => 1,
            2 | 3 => 2,
            4..=6 => 4,
            _ => 8,
        };
        // The bound is on all lists together, since items in memory are larger than in the file.
        let count = self.count(ITEMS_MAX - self.items, bytes_min)?;
        self.items += count;
        (0..count)
            .map(|_| self.value_of(kind, depth + 1))
            .collect::<Result<_, _>>()
            .map(Value::List)
    }

    fn tensor(&mut self, name: String) -> Result<TensorInfo, GgufError> {
        let dimensions = self.u32()?;
        if !(1..=DIMENSIONS_MAX).contains(&dimensions) {
            return Err(self.damaged(&format!("has {dimensions} dimensions, not 1 to 4")));
        }
        let sizes = (0..dimensions).map(|_| self.u64()).collect::<Result<Vec<_>, _>>()?;
        let kind = TensorKind(self.u32()?);
        let offset = self.u64()?;

        let values = sizes.iter().try_fold(1_u64, |product, size| product.checked_mul(*size));
        let values = values.ok_or_else(|| self.damaged(&format!("has the sizes {sizes:?}")))?;
        let bytes = match kind.block() {
            None => None,
            Some((block, _)) if !sizes[0].is_multiple_of(block) => {
                let row = sizes[0];
                return Err(self.damaged(&format!("has rows of {row} values of {kind}")));
            }
            Some((block, bytes)) => Some(
                (values / block)
                    .checked_mul(bytes)
                    .ok_or_else(|| self.damaged(&format!("has the sizes {sizes:?}")))?,
            ),
        };
        Ok(TensorInfo { name, sizes, kind, offset, bytes })
    }

    /// A number of things that follow and take at least `bytes_min` each.
    fn count(&mut self, max: u64, bytes_min: u64) -> Result<u64, GgufError> {
        let at = self.at;
        let claimed = self.u64()?;
        if claimed > max {
            return Err(GgufError::TooMany { what: self.what.clone(), at, claimed, max });
        }
        self.need(claimed.saturating_mul(bytes_min))?;
        Ok(claimed)
    }

    fn text(&mut self, max: u64) -> Result<String, GgufError> {
        let length = self.count(max, 1)?;
        let mut bytes = Vec::new();
        self.source.by_ref().take(length).read_to_end(&mut bytes)?;
        if bytes.len() as u64 != length {
            // The file became shorter while it was read.
            return Err(self.short(length));
        }
        self.at += length;
        String::from_utf8(bytes).map_err(|_| self.damaged("is not UTF-8"))
    }

    fn u32(&mut self) -> Result<u32, GgufError> {
        self.array().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Result<u64, GgufError> {
        self.array().map(u64::from_le_bytes)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], GgufError> {
        self.need(N as u64)?;
        let mut bytes = [0; N];
        self.source.read_exact(&mut bytes)?;
        self.at += N as u64;
        Ok(bytes)
    }

    fn need(&self, needed: u64) -> Result<(), GgufError> {
        if self.bytes.saturating_sub(self.at) < needed { Err(self.short(needed)) } else { Ok(()) }
    }

    fn short(&self, needed: u64) -> GgufError {
        let left = self.bytes.saturating_sub(self.at);
        GgufError::Short { what: self.what.clone(), at: self.at, needed, left }
    }

    fn damaged(&self, reason: &str) -> GgufError {
        let (what, reason) = (self.what.clone(), reason.to_owned());
        GgufError::Damaged { what, at: self.at, reason }
    }
}

const MAGIC: &[u8; 4] = b"GGUF";
const ALIGNMENT: &str = "general.alignment";
const ALIGNMENT_DEFAULT: u64 = 32;
const ALIGNMENT_MAX: u64 = 1 << 20;
const DIMENSIONS_MAX: u32 = 4;
/// Bounds far beyond every known file, and small enough to be read into memory: the largest models
/// have some 2,000 tensors, 60 entries and, in lists, a million items.
const TENSORS_MAX: u64 = 1 << 17;
const METADATA_MAX: u64 = 1 << 14;
const ITEMS_MAX: u64 = 1 << 23;
const LIST_DEPTH_MAX: u32 = 2;
const NAME_BYTES_MAX: u64 = 1 << 16;
const TEXT_BYTES_MAX: u64 = 1 << 24;
/// A length, a type and one byte.
const METADATA_BYTES_MIN: u64 = 8 + 4 + 1;
/// A length, the number of dimensions, one of them, a type and an offset.
const TENSOR_BYTES_MIN: u64 = 8 + 4 + 8 + 4 + 8;
/// Number, name, values per block and bytes per block.
const KINDS: &[(u32, &str, u64, u64)] = &[
    (0, "F32", 1, 4),
    (1, "F16", 1, 2),
    (2, "Q4_0", 32, 18),
    (3, "Q4_1", 32, 20),
    (6, "Q5_0", 32, 22),
    (7, "Q5_1", 32, 24),
    (8, "Q8_0", 32, 34),
    (9, "Q8_1", 32, 36),
    (10, "Q2_K", 256, 84),
    (11, "Q3_K", 256, 110),
    (12, "Q4_K", 256, 144),
    (13, "Q5_K", 256, 176),
    (14, "Q6_K", 256, 210),
    (15, "Q8_K", 256, 292),
    (16, "IQ2_XXS", 256, 66),
    (17, "IQ2_XS", 256, 74),
    (18, "IQ3_XXS", 256, 98),
    (19, "IQ1_S", 256, 50),
    (20, "IQ4_NL", 32, 18),
    (21, "IQ3_S", 256, 110),
    (22, "IQ2_S", 256, 82),
    (23, "IQ4_XS", 256, 136),
    (24, "I8", 1, 1),
    (25, "I16", 1, 2),
    (26, "I32", 1, 4),
    (27, "I64", 1, 8),
    (28, "F64", 1, 8),
    (29, "IQ1_M", 256, 56),
    (30, "BF16", 1, 2),
    (34, "TQ1_0", 256, 54),
    (35, "TQ2_0", 256, 66),
    (39, "MXFP4", 32, 17),
];

#[cfg(test)]
#[path = "gguf_tests.rs"]
pub(crate) mod tests;
