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
use super::ffi;
use super::host::size;
use super::layers::{Embedding, Joined, Linear, Quantised, RmsNorm};
use crate::model::headers::PREFIX_BYTES;
use crate::model::names::experts;
use crate::model::{
    Expected, ExpertForm, Header, HeaderError, Layout, ModelConfig, ModelSpec, SpecError,
    StoredDtype,
};

/// Tensors of a shard that no module has taken yet.
pub(super) struct Weights<'a> {
    spec: ModelSpec<'a>,
    config: &'a ModelConfig,
    layout: Layout,
    dtype: Dtype,
    on_gpu: bool,
    /// By their names within the language model.
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
        let layout = Layout::of(config, entries.clone())
            .ok_or_else(|| SpecError::Layout { model_type: config.model_type.clone() })?;
        let expected = spec.shard_tensors(shard, entries)?;
        let stored: HashMap<_, _> =
            expected.iter().map(|tensor| (tensor.name.clone(), tensor.dtype)).collect();

        let mut lazy = HashMap::new();
        for (path, header) in files.iter().zip(&headers) {
            let wanted = |stored_name: &str| {
                spec.own_name(stored_name).filter(|name| stored.contains_key(name))
            };
            if header.tensors.iter().any(|tensor| wanted(&tensor.name).is_some()) {
                let arrays = Array::load_safetensors(path)
                    .map_err(|error| EngineError::Mlx(format!("{}: {error}", path.display())))?;
                let named = |(name, array): (String, Array)| Some((wanted(&name)?, array));
                lazy.extend(arrays.into_iter().filter_map(named));
            }
        }
        let weights = Self {
            spec,
            config,
            layout,
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
        self.join(parts)
    }

    /// Projections of one input, in the form that this device likes.
    pub(super) fn join<const N: usize>(
        &mut self,
        parts: [Linear; N],
    ) -> Result<Joined<N>, EngineError> {
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
        let name = format!("{path}.weight");
        let weight = match self.layout {
            Layout::Mlx => self.float(&name)?,
            Layout::Original => {
                let stored = self.take(&name)?.as_dtype(Dtype::Float32)?;
                self.keep(stored.add(Array::from_f32(1.0))?.as_dtype(self.dtype)?)
            }
        };
        Ok(RmsNorm { weight, eps: self.config.rms_eps })
    }

    /// A vector or a convolution's weight in f32, whatever is computed in.
    pub(super) fn in_f32(&mut self, name: &str) -> Result<Array, EngineError> {
        let array = self.take(name)?.as_dtype(Dtype::Float32)?;
        Ok(self.keep(array))
    }

    /// The linear layer at `path` as several: the outputs that each of `parts` names.
    pub(super) fn linear_parts(
        &mut self,
        path: &str,
        parts: &[Vec<i32>],
    ) -> Result<Vec<Linear>, EngineError> {
        let whole = self.linear(path, false)?;
        let part = |ids: &Vec<i32>| {
            let count = size(ids.len() as u64)?;
            whole.rows(&Array::from_slice(ids, &[count]))
        };
        let parts: Vec<Linear> = parts.iter().map(part).collect::<Result<_, _>>()?;
        self.made(parts.iter().flat_map(Linear::arrays).collect());
        Ok(parts)
    }

    /// The stacks of gate, up and down projections of `count` experts at `path`; to be given to
    /// [`Weights::made`] as they are used.
    pub(super) fn experts(&mut self, path: &str, count: u32) -> Result<[Matrix; 3], EngineError> {
        let [gate, up, down] = ["gate_proj", "up_proj", "down_proj"];
        match ExpertForm::of(path, |name| self.stored.contains_key(name)) {
            ExpertForm::Stacked => {
                let stack = |name| {
                    let path = format!("{path}.{name}");
                    self.stack(&path, &path)
                };
                let stacks: Result<Vec<_>, _> = [gate, up, down].into_iter().map(stack).collect();
                stacks?.try_into().map_err(|_| EngineError::Internal("three stacks"))
            }
            ExpertForm::Separate => {
                let mut stacks = Vec::new();
                for name in [gate, up, down] {
                    let named = format!("{path}.{name}");
                    let one =
                        |expert| self.stack(&format!("{}.{expert}.{name}", experts(path)), &named);
                    let matrices: Result<Vec<_>, _> = (0..count).map(one).collect();
                    stacks.push(Matrix::stacked(&matrices?)?);
                }
                stacks.try_into().map_err(|_| EngineError::Internal("three stacks"))
            }
            ExpertForm::Fused => {
                let both = self.take(&format!("{}.gate_up_proj", experts(path)))?;
                let down = self.take(&format!("{}.down_proj", experts(path)))?;
                let [count, rows, columns] = [both.dim(0), both.dim(1), both.dim(2)];
                let half = |from, to| {
                    let half = ffi::slice(&both, &[0, from, 0], &[count, to, columns])?;
                    Ok::<_, EngineError>(half.contiguous()?.as_dtype(self.dtype)?)
                };
                let (gate, up) = (half(0, rows / 2)?, half(rows / 2, rows)?);
                Ok([gate, up, down.as_dtype(self.dtype)?].map(Matrix::Plain))
            }
        }
    }

    /// Counts what a module made of its tensors among the part's arrays.
    pub(super) fn made(&mut self, arrays: Vec<Array>) {
        self.taken.extend(arrays);
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
        let matrix = self.stack(path, path)?;
        self.taken.extend(matrix.arrays());
        Ok(matrix)
    }

    /// A matrix or a stack of them, not counted among the part's arrays.
    /// The config speaks of its quantisation by the path `named`.
    fn stack(&mut self, path: &str, named: &str) -> Result<Matrix, EngineError> {
        let name = format!("{path}.weight");
        let quantisation = self.spec.quantisation(named, self.stored.get(&name).copied());
        let weight = self.take(&name)?;
        let Some(quantisation) = quantisation else {
            return Ok(Matrix::Plain(weight.as_dtype(self.dtype)?));
        };
        let mut scales = self.take(&format!("{path}.scales"))?;
        let mut biases = None;
        if quantisation.mode.is_affine() {
            scales = scales.as_dtype(self.dtype)?;
            biases = Some(self.take(&format!("{path}.biases"))?.as_dtype(self.dtype)?);
        }
        let dtype = self.dtype;
        Ok(Matrix::Quantised(Quantised { weight, scales, biases, quantisation, dtype }))
    }

    fn float(&mut self, name: &str) -> Result<Array, EngineError> {
        let array = self.take(name)?.as_dtype(self.dtype)?;
        Ok(self.keep(array))
    }

    fn keep(&mut self, array: Array) -> Array {
        self.taken.push(array.clone());
        array
    }

    fn take(&mut self, name: &str) -> Result<Array, EngineError> {
        self.lazy.remove(name).ok_or(EngineError::Internal("a checked tensor is gone"))
    }
}

/// A weight matrix `[out, in]`, or a stack of them, as the checkpoint stores it.
pub(super) enum Matrix {
    Plain(Array),
    Quantised(Quantised),
}

impl Matrix {
    /// `matrices` of one form, as a stack.
    fn stacked(matrices: &[Self]) -> Result<Self, EngineError> {
        let mut parts: Vec<Vec<Array>> = Vec::new();
        for matrix in matrices {
            for (place, array) in matrix.arrays().into_iter().enumerate() {
                match parts.get_mut(place) {
                    Some(part) => part.push(array),
                    None => parts.push(vec![array]),
                }
            }
        }
        let stacks: Result<Vec<Array>, _> =
            parts.iter().map(|part| mlx_rs::ops::stack(part, 0)).collect();
        let mut stacks = stacks?.into_iter();
        let mut next = || stacks.next().ok_or(EngineError::Internal("a stack of nothing"));
        match matrices.first() {
            Some(Self::Quantised(Quantised { biases, quantisation, dtype, .. })) => {
                let (weight, scales) = (next()?, next()?);
                let biases = if biases.is_some() { Some(next()?) } else { None };
                let (quantisation, dtype) = (*quantisation, *dtype);
                Ok(Self::Quantised(Quantised { weight, scales, biases, quantisation, dtype }))
            }
            _ => Ok(Self::Plain(next()?)),
        }
    }

    pub(super) fn arrays(&self) -> Vec<Array> {
        match self {
            Self::Plain(weight) => vec![weight.clone()],
            Self::Quantised(weight) => weight.arrays(),
        }
    }
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
