//! Writing safetensors files: shards of bounded size and the index over them.
//!
//! Names and shapes are known before the first byte is written, so a header is complete when its
//! file begins, and then tensors are appended in the planned order, one at a time.
//! The format: <https://huggingface.co/docs/safetensors>.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use serde_json::{Map, Value, json};

use crate::model::StoredDtype;

/// A tensor that will be written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Planned {
    pub name: String,
    pub dtype: StoredDtype,
    pub shape: Vec<u64>,
}

impl Planned {
    pub fn bytes(&self) -> u64 {
        self.dtype.size_bytes() * self.shape.iter().product::<u64>()
    }
}

/// The files that a list of tensors makes.
#[derive(Debug)]
pub(super) struct Shards {
    /// Name and tensors of each file.
    files: Vec<(String, Vec<Planned>)>,
}

impl Shards {
    /// Cuts the tensors into files of at most `bytes_max` of data; a larger tensor has its own.
    pub fn plan(tensors: Vec<Planned>, bytes_max: u64) -> Self {
        let mut shards: Vec<Vec<Planned>> = Vec::new();
        let mut room = 0;
        for tensor in tensors {
            let bytes = tensor.bytes();
            if let Some(shard) = shards.last_mut().filter(|_| bytes <= room) {
                room -= bytes;
                shard.push(tensor);
            } else {
                room = bytes_max.saturating_sub(bytes);
                shards.push(vec![tensor]);
            }
        }
        let count = shards.len();
        let name = |number: usize| match count {
            1 => "model.safetensors".to_owned(),
            _ => format!("model-{number:05}-of-{count:05}.safetensors"),
        };
        let files = shards.into_iter().enumerate().map(|(i, shard)| (name(i + 1), shard)).collect();
        Self { files }
    }

    pub fn bytes(&self) -> u64 {
        self.files.iter().flat_map(|(_, tensors)| tensors).map(Planned::bytes).sum()
    }

    /// The text of `model.safetensors.index.json`.
    pub fn index(&self) -> Value {
        let homes = self.files.iter().flat_map(|(file, tensors)| {
            tensors.iter().map(move |tensor| (tensor.name.clone(), json!(file)))
        });
        json!({
            "metadata": { "total_size": self.bytes() },
            "weight_map": homes.collect::<Map<_, _>>(),
        })
    }
}

/// Writes the files of a plan, tensor by tensor.
pub(super) struct Writer<'a> {
    dir: &'a Path,
    /// Files that were not begun, the next one last.
    waiting: Vec<(String, Vec<Planned>)>,
    open: Option<Open>,
}

struct Open {
    path: PathBuf,
    file: BufWriter<File>,
    /// Tensors that were not written, the next one last.
    waiting: Vec<Planned>,
}

impl<'a> Writer<'a> {
    pub fn new(dir: &'a Path, shards: Shards) -> Self {
        let waiting = shards.files.into_iter().rev().collect();
        Self { dir, waiting, open: None }
    }

    /// Writes the next planned tensor. The error names the file.
    pub fn append(&mut self, name: &str, bytes: &[u8]) -> Result<(), (PathBuf, io::Error)> {
        if self.open.as_ref().is_none_or(|open| open.waiting.is_empty()) {
            self.begin()?;
        }
        let Some(open) = &mut self.open else { return Err(out_of_plan(self.dir, name)) };
        let planned = open.waiting.pop();
        if planned
            .is_none_or(|planned| planned.name != name || planned.bytes() != bytes.len() as u64)
        {
            return Err(out_of_plan(&open.path, name));
        }
        open.file.write_all(bytes).map_err(|error| (open.path.clone(), error))
    }

    /// Everything is on the disk when this returns.
    pub fn finish(mut self) -> Result<(), (PathBuf, io::Error)> {
        let is_done = self.open.as_ref().is_none_or(|open| open.waiting.is_empty());
        if !is_done || !self.waiting.is_empty() {
            return Err(out_of_plan(self.dir, "the last"));
        }
        self.close()
    }

    fn begin(&mut self) -> Result<(), (PathBuf, io::Error)> {
        self.close()?;
        let Some((name, mut tensors)) = self.waiting.pop() else { return Ok(()) };
        let path = self.dir.join(name);
        let begun = File::create_new(&path).and_then(|file| {
            let mut file = BufWriter::with_capacity(BUFFER_BYTES, file);
            file.write_all(&header(&tensors))?;
            Ok(file)
        });
        let file = begun.map_err(|error| (path.clone(), error))?;
        tensors.reverse();
        self.open = Some(Open { path, file, waiting: tensors });
        Ok(())
    }

    fn close(&mut self) -> Result<(), (PathBuf, io::Error)> {
        let Some(Open { path, file, .. }) = self.open.take() else { return Ok(()) };
        file.into_inner()
            .map_err(io::IntoInnerError::into_error)
            .and_then(|file| file.sync_all())
            .map_err(|error| (path, error))
    }
}

/// Length and JSON of a header, padded so that the data begin at a multiple of eight.
fn header(tensors: &[Planned]) -> Vec<u8> {
    let mut entries = Map::new();
    entries.insert("__metadata__".to_owned(), json!({ "format": "mlx" }));
    let mut end = 0;
    for tensor in tensors {
        let start = end;
        end += tensor.bytes();
        let entry = json!({
            "dtype": tensor.dtype.to_string(),
            "shape": tensor.shape,
            "data_offsets": [start, end],
        });
        entries.insert(tensor.name.clone(), entry);
    }
    let mut json = Value::Object(entries).to_string().into_bytes();
    json.resize(json.len().next_multiple_of(8), b' ');
    let mut header = (json.len() as u64).to_le_bytes().to_vec();
    header.extend(json);
    header
}

fn out_of_plan(path: &Path, name: &str) -> (PathBuf, io::Error) {
    (path.to_owned(), io::Error::other(format!("tensor `{name}` is not what was planned")))
}

const BUFFER_BYTES: usize = 1 << 20;
