//! The shard's tensors: found, checked, read layer by layer, in the compute type.
//!
//! Headers are read and judged first, by the model's spec: names both ways, shapes, types and that
//! the bytes are there. Then MLX opens the files, which reads nothing yet. A part's tensors
//! are read when the part is finished, so that the peak is the shard and one part; tensors of other
//! shards are never read.

use std::collections::HashMap;
use std::fs::{File, Metadata};
use std::io::Read;
use std::path::{Path, PathBuf};

use daisy_proto::Shard;
use mlx_rs::{Array, Dtype, memory, transforms};

use super::error::EngineError;
use super::layers::{Embedding, Joined, Linear, RmsNorm};
use crate::model::headers::PREFIX_BYTES;
use crate::model::{
    Expected, Header, HeaderError, ModelConfig, ModelSpec, ModuleQuantisation, StoredDtype,
};

/// Tensors of a shard that no module has taken yet.
pub(super) struct Weights<'a> {
    spec: ModelSpec<'a>,
    config: &'a ModelConfig,
    dtype: Dtype,
    on_gpu: bool,
    lazy: HashMap<String, Array>,
    stored: HashMap<String, StoredDtype>,
    /// Taken since the last [`Weights::finish_part`]: in the compute type, not read yet.
    taken: Vec<Array>,
    files: Vec<OpenFile>,
}

/// A file as it was when its header was judged.
struct OpenFile {
    path: PathBuf,
    metadata: Metadata,
}

impl<'a> Weights<'a> {
    /// Opens `files` and finds the tensors of `shard` in them.
    pub(super) fn open(
        files: &[PathBuf],
        config: &'a ModelConfig,
        shard: &Shard,
    ) -> Result<(Self, Vec<Expected>), EngineError> {
        let spec = ModelSpec::new(config);
        let mut open = Vec::new();
        let mut headers = Vec::new();
        for path in files {
            let (header, metadata) = read_header(path)?;
            open.push(OpenFile { path: path.clone(), metadata });
            headers.push(header);
        }
        let entries = headers.iter().flat_map(|header| &header.tensors);
        let expected = spec.shard_tensors(shard, entries)?;
        let stored: HashMap<_, _> =
            expected.iter().map(|tensor| (tensor.name.clone(), tensor.dtype)).collect();

        let mut lazy = HashMap::new();
        for (path, header) in files.iter().zip(&headers) {
            if header.tensors.iter().any(|tensor| stored.contains_key(&tensor.name)) {
                let arrays = Array::load_safetensors(path)
                    .map_err(|error| EngineError::Mlx(format!("{}: {error}", path.display())))?;
                lazy.extend(arrays.into_iter().filter(|(name, _)| stored.contains_key(name)));
            }
        }
        let weights = Self {
            spec,
            config,
            dtype: Dtype::Float32,
            on_gpu: false,
            lazy,
            stored,
            taken: Vec::new(),
            files: open,
        };
        Ok((weights, expected))
    }

    /// Float tensors that are taken from here on come in `dtype`; on a GPU, modules in its form.
    pub(super) fn compute_in(&mut self, dtype: Dtype, on_gpu: bool) {
        self.dtype = dtype;
        self.on_gpu = on_gpu;
    }

    pub(super) fn on_gpu(&self) -> bool {
        self.on_gpu
    }

    pub(super) fn config(&self) -> &'a ModelConfig {
        self.config
    }

    pub(super) fn linear(&mut self, path: &str, bias: bool) -> Result<Linear, EngineError> {
        let matrix = self.matrix(path)?;
        let bias = if bias { Some(self.float(&format!("{path}.bias"))?) } else { None };
        Linear::new(matrix, bias)
    }

    /// Projections of one input, under `path`.
    pub(super) fn joined<const N: usize>(
        &mut self,
        path: &str,
        names: [&str; N],
        bias: bool,
    ) -> Result<Joined<N>, EngineError> {
        let parts: Result<Vec<Linear>, _> =
            names.iter().map(|name| self.linear(&format!("{path}.{name}"), bias)).collect();
        let Ok(parts) = <[Linear; N]>::try_from(parts?) else {
            return Err(EngineError::Internal("a projection for each name"));
        };
        if !self.on_gpu {
            return Ok(Joined::Each(parts));
        }
        let joined = Joined::one(parts)?;
        self.taken.extend(joined.made());
        Ok(joined)
    }

    pub(super) fn embedding(&mut self, path: &str) -> Result<Embedding, EngineError> {
        Embedding::new(self.matrix(path)?)
    }

    pub(super) fn rms_norm(&mut self, path: &str) -> Result<RmsNorm, EngineError> {
        Ok(RmsNorm { weight: self.float(&format!("{path}.weight"))?, eps: self.config.rms_eps })
    }

    /// Reads what was taken since the last time and gives back the memory of its stored form.
    pub(super) fn finish_part(&mut self) -> Result<(), EngineError> {
        let taken = std::mem::take(&mut self.taken);
        transforms::eval(taken.iter())?;
        drop(taken);
        Ok(memory::clear_cache()?)
    }

    /// Whether the files are still those whose headers were judged: MLX cannot report one that was
    /// cut short meanwhile.
    pub(super) fn finish(self) -> Result<(), EngineError> {
        for OpenFile { path, metadata } in self.files {
            let now = std::fs::metadata(&path)
                .map_err(|error| EngineError::Io { path: path.clone(), error })?;
            if now.len() != metadata.len() || now.modified().ok() != metadata.modified().ok() {
                return Err(EngineError::Changed { path });
            }
        }
        Ok(())
    }

    fn matrix(&mut self, path: &str) -> Result<Matrix, EngineError> {
        let name = format!("{path}.weight");
        let quantisation = self.spec.quantisation(path, self.stored.get(&name).copied());
        let Some(quantisation) = quantisation else {
            return Ok(Matrix::Plain(self.float(&name)?));
        };
        let weight = self.take(&name)?;
        self.taken.push(weight.clone());
        Ok(Matrix::Quantised {
            weight,
            scales: self.float(&format!("{path}.scales"))?,
            biases: self.float(&format!("{path}.biases"))?,
            quantisation,
        })
    }

    fn float(&mut self, name: &str) -> Result<Array, EngineError> {
        let array = self.take(name)?.as_dtype(self.dtype)?;
        self.taken.push(array.clone());
        Ok(array)
    }

    fn take(&mut self, name: &str) -> Result<Array, EngineError> {
        self.lazy.remove(name).ok_or(EngineError::Internal("a checked tensor is gone"))
    }
}

/// A weight matrix `[out, in]`, as the checkpoint stores it.
pub(super) enum Matrix {
    Plain(Array),
    Quantised { weight: Array, scales: Array, biases: Array, quantisation: ModuleQuantisation },
}

fn read_header(path: &Path) -> Result<(Header, Metadata), EngineError> {
    let io = |error| EngineError::Io { path: path.to_owned(), error };
    let bad = |error| EngineError::Header { path: path.to_owned(), error };
    let mut file = File::open(path).map_err(io)?;
    let metadata = file.metadata().map_err(io)?;
    let file_bytes = metadata.len();
    let mut prefix = [0; PREFIX_BYTES];
    if file_bytes < PREFIX_BYTES as u64 {
        return Err(bad(HeaderError::Short { file_bytes }));
    }
    file.read_exact(&mut prefix).map_err(io)?;
    let json_bytes = Header::json_bytes(prefix, file_bytes).map_err(bad)?;
    let mut json = Vec::new();
    file.take(json_bytes).read_to_end(&mut json).map_err(io)?;
    if json.len() as u64 != json_bytes {
        return Err(bad(HeaderError::Short { file_bytes }));
    }
    Ok((Header::parse(&json, file_bytes).map_err(bad)?, metadata))
}
