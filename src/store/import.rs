//! Making a checkpoint out of a GGUF file.
//!
//! The result is an ordinary MLX checkout: `config.json`, tokenizer files and safetensors. Without a
//! [`Wish`] nothing is rounded that MLX's affine form holds exactly. Everything that cannot be
//! imported is refused by name before a byte is written. Weights pass through memory one tensor at a
//! time, into a directory beside the target that takes its name when it is complete.
//!
//! Start at [`import_gguf`]; `dense` has the architectures, `module` decides what becomes of a
//! tensor, `blocks` and `affine` are the arithmetic, `tokenizer` the text.

mod affine;
mod blocks;
mod dense;
mod floats;
mod metadata;
mod module;
mod rope;
mod safetensors;
mod tokenizer;

use std::fs::{self, File, Permissions};
use std::io::{self, ErrorKind, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use daisy_proto::Dtype;
use serde_json::Value as Json;

use super::gguf::{Gguf, GgufError, TensorInfo, TensorKind};
use crate::model::{ConfigError, ModelConfig};
use dense::{Architecture, Dense};
use module::{Held, Module};
use safetensors::{Shards, Writer};
use tokenizer::Tokenizer;

pub use module::{Quantise, Wish};

/// A checkpoint that was made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Imported {
    pub dir: PathBuf,
    /// Tensors of the GGUF file.
    pub tensors: usize,
    /// Bytes of weights that were written.
    pub bytes: u64,
}

/// How far an import has come, after each tensor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Progress<'a> {
    /// The tensor that was written last.
    pub tensor: &'a str,
    pub tensors_done: usize,
    pub tensors: usize,
    pub bytes_done: u64,
    pub bytes: u64,
}

#[derive(Debug, thiserror::Error)]
pub enum ImportError {
    #[error("{} cannot be imported: {source}", file.display())]
    Gguf { file: PathBuf, source: GgufError },
    #[error("architecture `{architecture}` cannot be imported; supported are {}", architectures())]
    Architecture { architecture: String },
    #[error(
        "tensor `{tensor}` is stored as {kind}, which cannot be imported; supported are {}",
        Held::names()
    )]
    TensorKind { tensor: String, kind: TensorKind },
    #[error("tensor `{tensor}` {reason}")]
    Tensor { tensor: String, reason: String },
    #[error("metadata `{key}` {reason}")]
    Metadata { key: String, reason: String },
    #[error("what the file describes would not be served: {0}")]
    Config(#[from] ConfigError),
    #[error(
        "tensor `{tensor}` holds something that is no finite number in {dtype}; f32 and bf16 hold \
         larger ones than f16, and if f32 does not help the file is damaged"
    )]
    NotFinite { tensor: String, dtype: &'static str },
    #[error("{} is there already: choose another directory, or remove it first", .0.display())]
    Exists(PathBuf),
    #[error("{} cannot be read: {source}", file.display())]
    Read { file: PathBuf, source: io::Error },
    #[error("{} cannot be written: {source}", path.display())]
    Write { path: PathBuf, source: io::Error },
    #[error("the disk is full: the checkpoint takes {bytes} bytes beside {}; nothing was left there", out.display())]
    DiskFull { out: PathBuf, bytes: u64 },
}

/// Turns the GGUF `file` into a checkpoint directory `out`, which must be empty or not there.
/// Blocks for as long as the disk takes.
pub fn import_gguf(
    file: &Path,
    out: &Path,
    wish: Wish,
    progress: &mut dyn FnMut(Progress<'_>),
) -> Result<Imported, ImportError> {
    let gguf =
        Gguf::open(file).map_err(|source| ImportError::Gguf { file: file.to_owned(), source })?;
    Architecture::of(&gguf)?;
    let factors = rope_factors(file, &gguf)?;
    let model = Dense::of(&gguf, factors.as_deref(), wish)?;
    let text = Tokenizer::of(&gguf, model.context, model.vocab())?;
    let config = model.config(text.ids);
    // The engine's own reader is asked, so that nothing is imported that cannot be served.
    ModelConfig::parse(&config.to_string())?;
    let planned = model.modules.iter().flat_map(Module::planned).collect();
    let shards = Shards::plan(planned, SHARD_BYTES_MAX);
    let bytes = shards.bytes();

    let texts = [
        ("config.json", config),
        ("generation_config.json", text.generation),
        ("tokenizer.json", text.splitter),
        ("tokenizer_config.json", text.config),
        ("model.safetensors.index.json", shards.index()),
    ];
    let written = Target::beside(out).and_then(|target| {
        for (name, json) in &texts {
            target.write_json(name, json)?;
        }
        weights(file, &model.modules, Writer::new(target.dir.path(), shards), bytes, progress)?;
        target.publish(out)
    });
    match written {
        Err(ImportError::Write { source, .. }) if source.kind() == ErrorKind::StorageFull => {
            Err(ImportError::DiskFull { out: out.to_owned(), bytes })
        }
        Err(error) => Err(error),
        Ok(()) => Ok(Imported { dir: out.to_owned(), tensors: model.modules.len(), bytes }),
    }
}

/// Reads, converts and writes every tensor.
fn weights(
    file: &Path,
    modules: &[Module],
    mut writer: Writer<'_>,
    bytes: u64,
    progress: &mut dyn FnMut(Progress<'_>),
) -> Result<(), ImportError> {
    let unreadable = |source| ImportError::Read { file: file.to_owned(), source };
    let unwritable = |(path, source)| ImportError::Write { path, source };
    let mut source = File::open(file).map_err(unreadable)?;
    let mut bytes_done = 0;
    for (number, module) in modules.iter().enumerate() {
        let stored = stored_bytes(&mut source, &module.source).map_err(unreadable)?;
        let converted = module.converted(stored).ok_or_else(|| ImportError::NotFinite {
            tensor: module.source.name.clone(),
            dtype: floats::torch_name(module.form.floats()),
        })?;
        for (planned, bytes) in module.planned().iter().zip(converted) {
            writer.append(&planned.name, &bytes).map_err(unwritable)?;
            bytes_done += bytes.len() as u64;
        }
        progress(Progress {
            tensor: &module.path,
            tensors_done: number + 1,
            tensors: modules.len(),
            bytes_done,
            bytes,
        });
    }
    writer.finish().map_err(unwritable)
}

/// The values of [`rope::FACTORS`], which are few and decide what the config says.
fn rope_factors(file: &Path, gguf: &Gguf) -> Result<Option<Vec<f32>>, ImportError> {
    let Some(tensor) = gguf.tensors.iter().find(|tensor| tensor.name == rope::FACTORS) else {
        return Ok(None);
    };
    if tensor.kind != TensorKind::F32 || tensor.bytes.is_none_or(|bytes| bytes > FACTOR_BYTES_MAX) {
        let reason = format!("has the sizes {:?} of {}", tensor.sizes, tensor.kind);
        return Err(ImportError::Tensor { tensor: tensor.name.clone(), reason });
    }
    let bytes = File::open(file)
        .and_then(|mut source| stored_bytes(&mut source, tensor))
        .map_err(|source| ImportError::Read { file: file.to_owned(), source })?;
    let mut factors = Vec::new();
    floats::decode(Dtype::F32, &bytes, &mut factors);
    Ok(Some(factors))
}

fn stored_bytes(source: &mut File, tensor: &TensorInfo) -> io::Result<Vec<u8>> {
    let expected = tensor.bytes.unwrap_or(0);
    source.seek(SeekFrom::Start(tensor.offset))?;
    let mut bytes = Vec::new();
    source.take(expected).read_to_end(&mut bytes)?;
    if bytes.len() as u64 != expected {
        let short = format!("tensor `{}` became shorter while it was read", tensor.name);
        return Err(io::Error::new(ErrorKind::UnexpectedEof, short));
    }
    Ok(bytes)
}

/// A directory beside the target, removed unless it is published.
struct Target {
    dir: tempfile::TempDir,
}

impl Target {
    fn beside(out: &Path) -> Result<Self, ImportError> {
        let unwritable = |source| ImportError::Write { path: out.to_owned(), source };
        match fs::read_dir(out).map(|mut entries| entries.next().is_none()) {
            Ok(true) => {}
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            Ok(false) => return Err(ImportError::Exists(out.to_owned())),
            Err(error) if error.kind() == ErrorKind::NotADirectory => {
                return Err(ImportError::Exists(out.to_owned()));
            }
            Err(error) => return Err(unwritable(error)),
        }
        let parent = match out.parent() {
            Some(parent) if parent != Path::new("") => parent,
            _ => Path::new("."),
        };
        fs::create_dir_all(parent).map_err(unwritable)?;
        let name = out.file_name().unwrap_or_default().to_string_lossy();
        let dir = tempfile::Builder::new()
            .prefix(&format!(".{name}.importing-"))
            // As any directory that a user makes, so that others may read the model.
            .permissions(Permissions::from_mode(0o777))
            .tempdir_in(parent);
        Ok(Self { dir: dir.map_err(unwritable)? })
    }

    fn write_json(&self, name: &str, json: &Json) -> Result<(), ImportError> {
        let path = self.dir.path().join(name);
        let mut text = serde_json::to_vec_pretty(json).unwrap_or_default();
        text.push(b'\n');
        let written = File::create_new(&path)
            .and_then(|mut file| file.write_all(&text).and_then(|()| file.sync_all()));
        written.map_err(|source| ImportError::Write { path, source })
    }

    /// Gives the directory its name. One that has come there meanwhile and is not empty stays.
    fn publish(self, out: &Path) -> Result<(), ImportError> {
        match fs::rename(self.dir.path(), out) {
            Ok(()) => {
                // There is nothing left to remove.
                let _ = self.dir.keep();
                Ok(())
            }
            Err(error) if error.kind() == ErrorKind::DirectoryNotEmpty => {
                Err(ImportError::Exists(out.to_owned()))
            }
            Err(source) => Err(ImportError::Write { path: out.to_owned(), source }),
        }
    }
}

fn architectures() -> String {
    Architecture::ALL.map(Architecture::name).join(", ")
}

/// Of heads far larger than any there is.
const FACTOR_BYTES_MAX: u64 = 1 << 16;
/// As Hugging Face cuts its files.
const SHARD_BYTES_MAX: u64 = 5_000_000_000;

#[cfg(test)]
mod tests;
