//! Making a checkpoint out of a GGUF file, bit for bit.
//!
//! The result is an ordinary MLX checkout: `config.json`, tokenizer files and safetensors. Nothing
//! is rounded, so only types that MLX's affine form holds exactly are taken; everything that cannot
//! be imported is refused by name before a byte is written. Weights pass through memory one tensor
//! at a time, into a directory beside the target that takes its name when it is complete.
//!
//! Start at [`import_gguf`]; `llama` is the one architecture, `blocks` the arithmetic.

mod blocks;
mod llama;
mod metadata;
mod safetensors;
mod tokenizer;

use std::fs::{self, File, Permissions};
use std::io::{self, ErrorKind, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use serde_json::Value as Json;

use super::gguf::{Gguf, GgufError, TensorKind};
use blocks::Affine;
use llama::{Form, Llama, Module};
use safetensors::{Shards, Writer};
use tokenizer::Tokenizer;

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
    #[error("architecture `{architecture}` cannot be imported; supported are {}", ARCHITECTURES.join(", "))]
    Architecture { architecture: String },
    #[error(
        "tensor `{tensor}` is stored as {kind}, which cannot be imported; supported are {}",
        supported_kinds()
    )]
    TensorKind { tensor: String, kind: TensorKind },
    #[error("tensor `{tensor}` {reason}")]
    Tensor { tensor: String, reason: String },
    #[error("metadata `{key}` {reason}")]
    Metadata { key: String, reason: String },
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
    progress: &mut dyn FnMut(Progress<'_>),
) -> Result<Imported, ImportError> {
    let gguf =
        Gguf::open(file).map_err(|source| ImportError::Gguf { file: file.to_owned(), source })?;
    let architecture = metadata::text(&gguf, "general.architecture")?;
    if !ARCHITECTURES.contains(&architecture) {
        return Err(ImportError::Architecture { architecture: architecture.to_owned() });
    }
    let llama = Llama::of(&gguf)?;
    let context = metadata::size(&gguf, "llama.context_length")?;
    let text = Tokenizer::of(&gguf, context, llama.vocab())?;
    let planned = llama.modules.iter().flat_map(Llama::planned).collect();
    let shards = Shards::plan(planned, SHARD_BYTES_MAX);
    let bytes = shards.bytes();

    let texts = [
        ("config.json", llama.config(text.ids)),
        ("generation_config.json", text.generation),
        ("tokenizer.json", text.splitter),
        ("tokenizer_config.json", text.config),
        ("model.safetensors.index.json", shards.index()),
    ];
    let written = Target::beside(out).and_then(|target| {
        for (name, json) in &texts {
            target.write_json(name, json)?;
        }
        weights(file, &llama.modules, Writer::new(target.dir.path(), shards), bytes, progress)?;
        target.publish(out)
    });
    match written {
        Err(ImportError::Write { source, .. }) if source.kind() == ErrorKind::StorageFull => {
            Err(ImportError::DiskFull { out: out.to_owned(), bytes })
        }
        Err(error) => Err(error),
        Ok(()) => Ok(Imported { dir: out.to_owned(), tensors: llama.modules.len(), bytes }),
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
        let stored = stored_bytes(&mut source, module).map_err(unreadable)?;
        for (planned, bytes) in Llama::planned(module).iter().zip(converted(module, stored)) {
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

fn stored_bytes(source: &mut File, module: &Module) -> io::Result<Vec<u8>> {
    let expected = module.source.bytes.unwrap_or(0);
    source.seek(SeekFrom::Start(module.source.offset))?;
    let mut bytes = Vec::new();
    source.take(expected).read_to_end(&mut bytes)?;
    if bytes.len() as u64 != expected {
        let short = format!("tensor `{}` became shorter while it was read", module.source.name);
        return Err(io::Error::new(ErrorKind::UnexpectedEof, short));
    }
    Ok(bytes)
}

/// The data of [`Llama::planned`]'s tensors.
fn converted(module: &Module, stored: Vec<u8>) -> Vec<Vec<u8>> {
    let parts = match module.form {
        Form::Plain => vec![stored],
        Form::Affine(block) => {
            let Affine { weight, scales, biases } = blocks::affine(block, &stored);
            vec![weight, scales, biases]
        }
    };
    let rows = module.source.sizes.last().and_then(|rows| usize::try_from(*rows).ok());
    match (module.permuted, rows) {
        (Some(heads), Some(rows)) => {
            parts.iter().map(|part| blocks::unpermuted(part, rows, heads)).collect()
        }
        _ => parts,
    }
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

fn supported_kinds() -> String {
    KINDS.map(|kind| kind.to_string()).join(", ")
}

const ARCHITECTURES: &[&str] = &["llama"];
const KINDS: [TensorKind; 3] = [TensorKind::F32, TensorKind::Q4_1, TensorKind::Q8_0];
/// As Hugging Face cuts its files.
const SHARD_BYTES_MAX: u64 = 5_000_000_000;

#[cfg(test)]
mod tests;
