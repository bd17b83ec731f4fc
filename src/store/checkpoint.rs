//! A checkpoint directory as it lies on disk: `config.json` and safetensors files.
//!
//! Opening reads the config's text and every file's header, never a weight. What a header or the
//! index promises is checked against the files here, because MLX reads weights later and cannot
//! report a file that is too short. What the config means is not known here: see `model`.
//!
//! Start at [`Checkpoint::open`].

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use aws_lc_rs::digest;
use serde::Deserialize;

use crate::model::headers::{Header, HeaderError, PREFIX_BYTES, TensorEntry};

/// An opened checkpoint: everything but the weights.
#[derive(Debug, Clone)]
pub struct Checkpoint {
    /// `ORG/NAME` inside a Hugging Face cache, else the directory's own name.
    pub name: String,
    pub dir: PathBuf,
    /// The text of `config.json`.
    pub config_json: String,
    /// Every safetensors file, in the order of their names.
    pub files: Vec<PathBuf>,
    /// Every tensor of every file, in the order of `files` and of the bytes within.
    pub tensors: Vec<TensorEntry>,
    digest: [u8; digest::SHA256_OUTPUT_LEN],
}

#[derive(Debug, thiserror::Error)]
pub enum CheckpointError {
    #[error("{} is no checkpoint directory ({source}): give the path of one", dir.display())]
    Directory { dir: PathBuf, source: io::Error },
    #[error("{} has no config.json: it is no checkpoint, or its download is incomplete", dir.display())]
    NoConfig { dir: PathBuf },
    #[error("{} has no *.safetensors file: other forms of weights must be converted first", dir.display())]
    NoWeights { dir: PathBuf },
    #[error("{} cannot be read: {source}", file.display())]
    Unreadable { file: PathBuf, source: io::Error },
    #[error("{} has {bytes} bytes; at most {max} are read", file.display())]
    TooLarge { file: PathBuf, bytes: u64, max: u64 },
    #[error("{}: {reason}", file.display())]
    Index { file: PathBuf, reason: String },
    #[error("{} is missing, though {INDEX} names it: download or copy it again", file.display())]
    MissingFile { file: PathBuf },
    #[error("{} is a Git LFS pointer, not the weights: run `git lfs pull`", file.display())]
    LfsPointer { file: PathBuf },
    #[error("{} is damaged, download or copy it again: {source}", file.display())]
    Header { file: PathBuf, source: HeaderError },
    #[error(
        "{} has {got} bytes where its header ends at {expected}: it is damaged, download or copy it again",
        file.display()
    )]
    Size { file: PathBuf, expected: u64, got: u64 },
    #[error("tensor `{tensor}` is not in {}, where {INDEX} has it: download or copy both again", file.display())]
    MissingTensor { tensor: String, file: PathBuf },
    #[error("tensor `{tensor}` is in {} and in {}: remove the file that does not belong here", first.display(), second.display())]
    Twice { tensor: String, first: PathBuf, second: PathBuf },
}

impl Checkpoint {
    /// Opens the checkpoint in `dir`. Reads headers only: milliseconds for any size of model.
    pub fn open(dir: &Path) -> Result<Self, CheckpointError> {
        let opened = fs::canonicalize(dir).and_then(|path| fs::read_dir(&path).map(|_| path));
        let dir =
            opened.map_err(|source| CheckpointError::Directory { dir: dir.to_owned(), source })?;
        let config_json = config(&dir)?;
        let index = Index::read(&dir)?;
        let files = match &index {
            Some(index) => index.files(&dir)?,
            None => weight_files(&dir)?,
        };

        let mut hash = digest::Context::new(&digest::SHA256);
        hash.update(DIGEST_DOMAIN);
        absorb(&mut hash, config_json.as_bytes());
        let mut tensors = Vec::new();
        let mut homes: BTreeMap<String, usize> = BTreeMap::new();
        for (number, file) in files.iter().enumerate() {
            let (json, header) = header(file)?;
            absorb(&mut hash, file.file_name().unwrap_or_default().as_encoded_bytes());
            absorb(&mut hash, &json);
            for tensor in header.tensors {
                if let Some(first) = homes.insert(tensor.name.clone(), number) {
                    let (first, second) = (files[first].clone(), file.clone());
                    return Err(CheckpointError::Twice { tensor: tensor.name, first, second });
                }
                tensors.push(tensor);
            }
        }
        if let Some(index) = index {
            index.check(&files, &homes)?;
        }

        let mut digest = [0; digest::SHA256_OUTPUT_LEN];
        digest.copy_from_slice(hash.finish().as_ref());
        Ok(Self { name: name(&dir), dir, config_json, files, tensors, digest })
    }

    /// SHA-256 over the config and every file's name and header: two nodes whose digests agree have
    /// the same model in the same layout. Weights are not read for it.
    pub const fn digest(&self) -> [u8; digest::SHA256_OUTPUT_LEN] {
        self.digest
    }
}

/// The part of `model.safetensors.index.json` that is read.
#[derive(Deserialize)]
struct Index {
    weight_map: BTreeMap<String, String>,
}

impl Index {
    fn read(dir: &Path) -> Result<Option<Self>, CheckpointError> {
        let file = dir.join(INDEX);
        if !file.exists() {
            return Ok(None);
        }
        let text = text(&file, INDEX_BYTES_MAX)?;
        let fault = |reason| CheckpointError::Index { file: file.clone(), reason };
        let index: Self = serde_json::from_str(&text).map_err(|error| fault(error.to_string()))?;
        if index.weight_map.is_empty() {
            return Err(fault("`weight_map` is empty".to_owned()));
        }
        // A name that leads out of the directory would make the index read any file of the machine.
        match index.weight_map.values().find(|name| !is_plain_name(name)) {
            Some(name) => Err(fault(format!("`{name}` is not a file name"))),
            None => Ok(Some(index)),
        }
    }

    fn files(&self, dir: &Path) -> Result<Vec<PathBuf>, CheckpointError> {
        let names: BTreeSet<&String> = self.weight_map.values().collect();
        let files: Vec<PathBuf> = names.into_iter().map(|name| dir.join(name)).collect();
        match files.iter().find(|file| !file.exists()) {
            Some(file) => Err(CheckpointError::MissingFile { file: file.clone() }),
            None => Ok(files),
        }
    }

    fn check(
        &self,
        files: &[PathBuf],
        homes: &BTreeMap<String, usize>,
    ) -> Result<(), CheckpointError> {
        for (tensor, named) in &self.weight_map {
            let home = homes.get(tensor).and_then(|number| files[*number].file_name());
            if home != Some(named.as_ref()) {
                let named = files.iter().find(|file| file.file_name() == Some(named.as_ref()));
                return Err(CheckpointError::MissingTensor {
                    tensor: tensor.clone(),
                    file: named.cloned().unwrap_or_default(),
                });
            }
        }
        Ok(())
    }
}

fn config(dir: &Path) -> Result<String, CheckpointError> {
    let file = dir.join("config.json");
    if !file.exists() {
        return Err(CheckpointError::NoConfig { dir: dir.to_owned() });
    }
    text(&file, CONFIG_BYTES_MAX)
}

/// Where no index says which files count: those named `model…`, since adapters and other forms of
/// the weights may lie beside them, else all.
fn weight_files(dir: &Path) -> Result<Vec<PathBuf>, CheckpointError> {
    let unreadable = |source| CheckpointError::Unreadable { file: dir.to_owned(), source };
    let mut files = Vec::new();
    for entry in fs::read_dir(dir).map_err(unreadable)? {
        let path = entry.map_err(unreadable)?.path();
        if path.extension().is_some_and(|extension| extension == "safetensors") {
            files.push(path);
        }
    }
    let is_model = |file: &PathBuf| {
        file.file_name().unwrap_or_default().as_encoded_bytes().starts_with(b"model")
    };
    if files.iter().any(is_model) {
        files.retain(is_model);
    }
    if files.is_empty() {
        return Err(CheckpointError::NoWeights { dir: dir.to_owned() });
    }
    files.sort();
    Ok(files)
}

/// The header of a file, as text and as read; the file's size must be what the header says.
fn header(file: &Path) -> Result<(Vec<u8>, Header), CheckpointError> {
    let unreadable = |source| CheckpointError::Unreadable { file: file.to_owned(), source };
    let damaged = |source| CheckpointError::Header { file: file.to_owned(), source };

    let got = size(file).map_err(unreadable)?;
    let mut opened = File::open(file).map_err(unreadable)?;
    let mut prefix = [0; PREFIX_BYTES];
    if got < PREFIX_BYTES as u64 {
        return Err(damaged(HeaderError::Short { file_bytes: got }));
    }
    opened.read_exact(&mut prefix).map_err(unreadable)?;
    if &prefix == LFS_PREFIX {
        return Err(CheckpointError::LfsPointer { file: file.to_owned() });
    }
    let json_bytes = Header::json_bytes(prefix, got).map_err(damaged)?;
    let mut json = Vec::new();
    opened.take(json_bytes).read_to_end(&mut json).map_err(unreadable)?;
    let header = Header::parse(&json, got).map_err(damaged)?;

    let data_start = PREFIX_BYTES as u64 + json.len() as u64;
    let ends = header.tensors.iter().map(|tensor| tensor.offset + tensor.bytes);
    let expected = ends.max().unwrap_or(data_start);
    if got != expected {
        return Err(CheckpointError::Size { file: file.to_owned(), expected, got });
    }
    Ok((json, header))
}

fn text(file: &Path, max: u64) -> Result<String, CheckpointError> {
    let unreadable = |source| CheckpointError::Unreadable { file: file.to_owned(), source };
    let bytes = size(file).map_err(unreadable)?;
    if bytes > max {
        return Err(CheckpointError::TooLarge { file: file.to_owned(), bytes, max });
    }
    fs::read_to_string(file).map_err(unreadable)
}

/// The size of an ordinary file. Opening a pipe or reading a device may never end.
fn size(file: &Path) -> io::Result<u64> {
    let metadata = fs::metadata(file)?;
    if metadata.is_file() {
        Ok(metadata.len())
    } else {
        Err(io::Error::other("it is no ordinary file"))
    }
}

fn name(dir: &Path) -> String {
    let component = |path: &Path| {
        path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default()
    };
    // A Hugging Face cache keeps `models--ORG--NAME/snapshots/REVISION`.
    let mut above = dir.ancestors().skip(1).map(component);
    if let (Some("snapshots"), Some(cached)) = (above.next().as_deref(), above.next())
        && let Some(repository) = cached.strip_prefix("models--")
    {
        return repository.replacen("--", "/", 1);
    }
    component(dir)
}

fn is_plain_name(name: &str) -> bool {
    Path::new(name).file_name() == Some(name.as_ref()) && !name.contains('\\')
}

/// Lengths go first, so that no two different lists of texts hash alike.
fn absorb(hash: &mut digest::Context, bytes: &[u8]) {
    hash.update(&(bytes.len() as u64).to_le_bytes());
    hash.update(bytes);
}

const INDEX: &str = "model.safetensors.index.json";
const LFS_PREFIX: &[u8; PREFIX_BYTES] = b"version ";
const DIGEST_DOMAIN: &[u8] = b"daisy checkpoint 1";
/// The longest known are far below 1 MiB.
const CONFIG_BYTES_MAX: u64 = 16 << 20;
/// About 100 bytes per tensor: room for half a million.
const INDEX_BYTES_MAX: u64 = 64 << 20;

#[cfg(test)]
#[path = "checkpoint_tests.rs"]
mod tests;
