//! Which tensors a model has, to which part of it each belongs, and what the parts weigh.
//!
//! From a [`ModelConfig`] follows every module of the model by path and shape; from those, with
//! the headers of the files, what a shard must find there. [`ModelSpec::shard_tensors`] is strict
//! both ways: it names the first tensor that is missing, unknown, of the wrong shape or the wrong
//! type. Start at [`ModelSpec`].

use std::collections::BTreeMap;

use daisy_proto::Shard;

use super::config::ModelConfig;
use super::headers::{StoredDtype, TensorEntry};
use super::modules::{Module, ModuleKind, layer_modules};
use super::names::{ExpertForm, canonical, experts};
use super::quantisation::ModuleQuantisation;

/// The part of a model that is placed as a whole.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Part {
    Embedding,
    Layer(u32),
    Norm,
    /// The output projection of an untied model.
    Head,
}

/// A tensor that a shard needs, as found in a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Expected {
    /// Its name within the language model.
    pub name: String,
    pub part: Part,
    pub shape: Vec<u64>,
    pub dtype: StoredDtype,
}

/// What the parts weigh in the files.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PartBytes {
    pub embedding: u64,
    pub layers: Vec<u64>,
    /// What the experts are of each layer's.
    pub experts: Vec<u64>,
    pub norm: u64,
    pub head: u64,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SpecError {
    #[error("tensor `{tensor}` is missing")]
    Missing { tensor: String },
    #[error("tensor `{tensor}` belongs to no module of a {model_type} with {layers} layers")]
    Unknown { tensor: String, model_type: String, layers: u32 },
    #[error("tensor `{tensor}` has shape {got:?}, expected {expected:?}")]
    Shape { tensor: String, expected: Vec<u64>, got: Vec<u64> },
    #[error("tensor `{tensor}` has type {got}, expected {expected}")]
    Type { tensor: String, expected: &'static str, got: StoredDtype },
    #[error(
        "`{module}` has {columns} columns, which groups of {group_size} do not divide: \
         config.json's quantization does not fit this model"
    )]
    Group { module: String, columns: u32, group_size: u32 },
    #[error("tensor `{tensor}` is there twice")]
    Twice { tensor: String },
    #[error("layers {start}-{end} do not exist: the model has {layers}")]
    Layers { start: u32, end: u32, layers: u32 },
    #[error("no tensor tells whether MLX or the original wrote this {model_type}: give all files")]
    Layout { model_type: String },
}

/// A model as a set of modules.
#[derive(Debug, Clone, Copy)]
pub struct ModelSpec<'a> {
    pub(super) config: &'a ModelConfig,
}

impl<'a> ModelSpec<'a> {
    pub const fn new(config: &'a ModelConfig) -> Self {
        Self { config }
    }

    /// The modules of one part.
    pub fn modules(self, part: Part) -> Vec<Module> {
        let config = self.config;
        let module = |path: &str, kind| Module { path: path.to_owned(), part, kind };
        let vocabulary =
            ModuleKind::Matrix { rows: config.vocab, columns: config.hidden, bias: false };
        match part {
            Part::Embedding => vec![module(EMBEDDING, vocabulary)],
            Part::Norm => vec![module(NORM, ModuleKind::Vector { size: config.hidden })],
            Part::Head if config.tied => Vec::new(),
            Part::Head => vec![module(HEAD, vocabulary)],
            Part::Layer(layer) => layer_modules(config, layer)
                .into_iter()
                .map(|(path, kind)| module(&format!("{}{path}", layer_prefix(layer)), kind))
                .collect(),
        }
    }

    /// The parts of a shard. The head of a tied model is its embedding.
    pub fn parts(self, shard: &Shard) -> Vec<Part> {
        let mut parts = Vec::new();
        if shard.has_embedding || (shard.has_head && self.config.tied) {
            parts.push(Part::Embedding);
        }
        parts.extend(shard.layers.iter().map(Part::Layer));
        if shard.has_head {
            parts.extend([Part::Norm, Part::Head]);
        }
        parts
    }

    /// The part that a tensor belongs to; none if the model has no place for such a name.
    pub fn part_of(self, tensor: &str) -> Option<Part> {
        if let Some(rest) = tensor.strip_prefix(LAYERS) {
            let (layer, _) = rest.split_once('.')?;
            let number: u32 = layer.parse().ok().filter(|number| *number < self.config.layers)?;
            return Some(Part::Layer(number));
        }
        let path = tensor.rsplit_once('.')?.0;
        [(EMBEDDING, Part::Embedding), (NORM, Part::Norm), (HEAD, Part::Head)]
            .into_iter()
            .find_map(|(known, part)| (known == path).then_some(part))
    }

    /// The tensors that `shard` reads, checked against what the files hold. Tensors of other
    /// shards are not looked at, beyond that their names must belong to the model.
    pub fn shard_tensors<'t>(
        self,
        shard: &Shard,
        stored: impl IntoIterator<Item = &'t TensorEntry>,
    ) -> Result<Vec<Expected>, SpecError> {
        let layers = shard.layers;
        if layers.end > self.config.layers || layers.start > layers.end {
            let (start, end) = (layers.start, layers.end);
            return Err(SpecError::Layers { start, end, layers: self.config.layers });
        }
        let parts = self.parts(shard);
        let mut mine = BTreeMap::new();
        for entry in stored {
            let Some(name) = self.own_name(&entry.name) else { continue };
            let part = self.part_of(&name).ok_or_else(|| self.unknown(&entry.name))?;
            if parts.contains(&part) && mine.insert(name, entry).is_some() {
                return Err(SpecError::Twice { tensor: entry.name.clone() });
            }
        }
        let mut expected = Vec::new();
        for module in parts.iter().flat_map(|part| self.modules(*part)) {
            for (name, shape, kind) in self.module_tensors(&module, &mine)? {
                let entry = mine
                    .remove(name.as_str())
                    .ok_or(SpecError::Missing { tensor: name.clone() })?;
                check(entry, &shape, kind)?;
                expected.push(Expected { name, part: module.part, shape, dtype: entry.dtype });
            }
        }
        match mine.first_key_value() {
            Some((_, entry)) => Err(self.unknown(&entry.name)),
            None => Ok(expected),
        }
    }

    /// What each part weighs, from the names and bytes of all files. What is no part of the
    /// language model is not counted.
    pub fn bytes_by_part<'t>(
        self,
        stored: impl IntoIterator<Item = (&'t str, u64)>,
    ) -> Result<PartBytes, SpecError> {
        let none = vec![0_u64; self.config.layers as usize];
        let mut sums = PartBytes { layers: none.clone(), experts: none, ..PartBytes::default() };
        for (stored, bytes) in stored {
            let Some(name) = self.own_name(stored) else { continue };
            let sum = match self.part_of(&name).ok_or_else(|| self.unknown(stored))? {
                Part::Embedding => &mut sums.embedding,
                Part::Layer(layer) => {
                    if EXPERTS.iter().any(|path| name.contains(path)) {
                        let sum = &mut sums.experts[layer as usize];
                        *sum = sum.saturating_add(bytes);
                    }
                    &mut sums.layers[layer as usize]
                }
                Part::Norm => &mut sums.norm,
                Part::Head => &mut sums.head,
            };
            *sum = sum.saturating_add(bytes);
        }
        Ok(sums)
    }

    /// How the module at `path` is stored: the config's word, except that a module which the config
    /// leaves to the default may also be there unquantised.
    pub fn quantisation(
        self,
        path: &str,
        weight: Option<StoredDtype>,
    ) -> Option<ModuleQuantisation> {
        let quantisation = self.config.quantisation.as_ref()?;
        let named = quantisation.overrides.contains_key(path);
        let plain = weight.is_some_and(StoredDtype::is_float);
        quantisation.of(path).filter(|_| named || !plain)
    }

    /// Names, shapes and types of a module's tensors, in the form in which they are stored.
    fn module_tensors(
        self,
        module: &Module,
        stored: &Stored<'_>,
    ) -> Result<Vec<Tensor>, SpecError> {
        let path = &module.path;
        let weight = format!("{path}.weight");
        let one = |name, shape| Ok(vec![(name, shape, Kind::Float)]);
        match module.kind {
            ModuleKind::Vector { size } => one(weight, vec![u64::from(size)]),
            ModuleKind::Bare { size } => one(path.clone(), vec![u64::from(size)]),
            ModuleKind::Convolution { channels, kernel } => {
                let mut shape = vec![u64::from(channels), u64::from(kernel), 1];
                if stored.get(weight.as_str()).is_some_and(|entry| entry.shape.last() != Some(&1)) {
                    shape.swap(1, 2);
                }
                one(weight, shape)
            }
            ModuleKind::Matrix { rows, columns, bias } => {
                let mut tensors = self.matrix_tensors(path, path, &[rows, columns], stored)?;
                if bias {
                    tensors.push((format!("{path}.bias"), vec![u64::from(rows)], Kind::Float));
                }
                Ok(tensors)
            }
            ModuleKind::Experts { count, hidden, width } => {
                self.expert_tensors(path, [count, hidden, width], stored)
            }
        }
    }

    fn expert_tensors(
        self,
        path: &str,
        [count, hidden, width]: [u32; 3],
        stored: &Stored<'_>,
    ) -> Result<Vec<Tensor>, SpecError> {
        let projections = [
            ("gate_proj", [count, width, hidden]),
            ("up_proj", [count, width, hidden]),
            ("down_proj", [count, hidden, width]),
        ];
        let mut tensors = Vec::new();
        match ExpertForm::of(path, |name| stored.contains_key(name)) {
            ExpertForm::Stacked => {
                for (name, shape) in projections {
                    let path = format!("{path}.{name}");
                    tensors.extend(self.matrix_tensors(&path, &path, &shape, stored)?);
                }
            }
            ExpertForm::Separate => {
                for (name, [count, rows, columns]) in projections {
                    for expert in 0..count {
                        let own = format!("{}.{expert}.{name}", experts(path));
                        let stack = format!("{path}.{name}");
                        tensors.extend(self.matrix_tensors(
                            &own,
                            &stack,
                            &[rows, columns],
                            stored,
                        )?);
                    }
                }
            }
            ExpertForm::Fused => {
                for (name, shape) in [
                    ("gate_up_proj", [count, 2 * width, hidden]),
                    ("down_proj", [count, hidden, width]),
                ] {
                    let name = format!("{}.{name}", experts(path));
                    tensors.push((name, shape.map(u64::from).to_vec(), Kind::Float));
                }
            }
        }
        Ok(tensors)
    }

    /// The weight at `path`, `[…, columns]`, quantised as the config says of the module at `named`.
    fn matrix_tensors(
        self,
        path: &str,
        named: &str,
        shape: &[u32],
        stored: &Stored<'_>,
    ) -> Result<Vec<Tensor>, SpecError> {
        let name = |suffix: &str| format!("{path}.{suffix}");
        let weight = name("weight");
        let stored_as = stored.get(weight.as_str()).map(|entry| entry.dtype);
        let Some(quantisation) = self.quantisation(named, stored_as) else {
            return Ok(vec![(weight, shape.iter().copied().map(u64::from).collect(), Kind::Float)]);
        };
        let ModuleQuantisation { mode, group_size, bits } = quantisation;
        let Some((&columns, leading)) = shape.split_last() else { return Ok(Vec::new()) };
        if !columns.is_multiple_of(group_size) {
            let module = path.to_owned();
            return Err(SpecError::Group { module, columns, group_size });
        }
        let with =
            |last: u64| leading.iter().copied().map(u64::from).chain([last]).collect::<Vec<u64>>();
        let packed = u64::from(columns) * u64::from(bits) / u64::from(u32::BITS);
        let groups = u64::from(columns / group_size);
        let mut tensors = vec![(weight, with(packed), Kind::Packed)];
        if mode.is_affine() {
            tensors.push((name("scales"), with(groups), Kind::Float));
            tensors.push((name("biases"), with(groups), Kind::Float));
        } else {
            tensors.push((name("scales"), with(groups), Kind::Bytes));
        }
        Ok(tensors)
    }

    /// A tensor's name within the language model; none for those that some checkpoints carry
    /// although it has no use for them: what stands beside it, the rotary frequencies, which follow
    /// from the config, and a tied model's copy of its embedding.
    pub fn own_name(self, stored: &str) -> Option<String> {
        let name = canonical(self.config.family, stored)?;
        let tied_head =
            self.config.tied && name.rsplit_once('.').is_some_and(|(path, _)| path == HEAD);
        let ignored = tied_head || (name.starts_with(LAYERS) && name.ends_with(ROTARY));
        (!ignored).then(|| name.into_owned())
    }

    fn unknown(self, tensor: &str) -> SpecError {
        SpecError::Unknown {
            tensor: tensor.to_owned(),
            model_type: self.config.model_type.clone(),
            layers: self.config.layers,
        }
    }
}

/// Path prefix of a layer's modules.
pub fn layer_prefix(layer: u32) -> String {
    format!("{LAYERS}{layer}.")
}

/// Tensors by their names within the language model.
type Stored<'t> = BTreeMap<String, &'t TensorEntry>;
/// Name, shape and type.
type Tensor = (String, Vec<u64>, Kind);

/// What a tensor may be stored as.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Float,
    /// Quantised weights, packed into 32-bit words.
    Packed,
    /// Scales in 8 bits.
    Bytes,
}

fn check(entry: &TensorEntry, shape: &[u64], kind: Kind) -> Result<(), SpecError> {
    let tensor = || entry.name.clone();
    let (fits, expected) = match kind {
        Kind::Float => (entry.dtype.is_float(), "F32, F16 or BF16"),
        Kind::Packed => (entry.dtype == StoredDtype::U32, "U32 (quantised weights)"),
        Kind::Bytes => (entry.dtype == StoredDtype::U8, "U8 (scales)"),
    };
    if !fits {
        return Err(SpecError::Type { tensor: tensor(), expected, got: entry.dtype });
    }
    if entry.shape != shape {
        let (expected, got) = (shape.to_vec(), entry.shape.clone());
        return Err(SpecError::Shape { tensor: tensor(), expected, got });
    }
    Ok(())
}

/// Path of the embedding.
pub const EMBEDDING: &str = "model.embed_tokens";
/// Path of the norm before the head.
pub const NORM: &str = "model.norm";
/// Path of an untied head.
pub const HEAD: &str = "lm_head";
const LAYERS: &str = "model.layers.";
const ROTARY: &str = ".self_attn.rotary_emb.inv_freq";
const EXPERTS: [&str; 2] = [".mlp.switch_mlp.", ".mlp.experts."];

#[cfg(test)]
#[path = "spec_tests.rs"]
mod tests;
