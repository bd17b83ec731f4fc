//! Which tensors a model has, to which part of it each belongs, and what the parts weigh.
//!
//! From a [`ModelConfig`] follows every module of the model by path and shape; from those, with
//! the headers of the files, what a shard must find there. [`ModelSpec::shard_tensors`] is strict
//! both ways: it names the first tensor that is missing, unknown, of the wrong shape or the wrong
//! type. Start at [`ModelSpec`].

use std::collections::BTreeMap;

use daisy_proto::{Dtype, Shard};

use super::config::{Family, ModelConfig};
use super::headers::{StoredDtype, TensorEntry};
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

/// A module of the model: something with weights, named by its path in the checkpoint.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Module {
    pub path: String,
    pub part: Part,
    pub kind: ModuleKind,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ModuleKind {
    /// `[rows, columns]`: a linear layer's `[out, in]`, an embedding's `[vocab, hidden]`.
    Matrix { rows: u32, columns: u32, bias: bool },
    /// A norm's weight.
    Vector { size: u32 },
}

/// A tensor that a shard needs, as found in a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Expected {
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
    #[error("tensor `{tensor}` is in two files")]
    Twice { tensor: String },
    #[error("layers {start}-{end} do not exist: the model has {layers}")]
    Layers { start: u32, end: u32, layers: u32 },
}

/// A model as a set of modules.
#[derive(Debug, Clone, Copy)]
pub struct ModelSpec<'a> {
    config: &'a ModelConfig,
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
            Part::Layer(layer) => layer_modules(config)
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
        for entry in stored.into_iter().filter(|entry| !self.is_ignored(&entry.name)) {
            let part = self.part_of(&entry.name).ok_or_else(|| self.unknown(&entry.name))?;
            if parts.contains(&part) && mine.insert(entry.name.as_str(), entry).is_some() {
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
            Some((name, _)) => Err(self.unknown(name)),
            None => Ok(expected),
        }
    }

    /// What each part weighs, from the names and bytes of all files.
    pub fn bytes_by_part<'t>(
        self,
        stored: impl IntoIterator<Item = (&'t str, u64)>,
    ) -> Result<PartBytes, SpecError> {
        let mut sums =
            PartBytes { layers: vec![0; self.config.layers as usize], ..PartBytes::default() };
        for (name, bytes) in stored.into_iter().filter(|(name, _)| !self.is_ignored(name)) {
            let sum = match self.part_of(name).ok_or_else(|| self.unknown(name))? {
                Part::Embedding => &mut sums.embedding,
                Part::Layer(layer) => &mut sums.layers[layer as usize],
                Part::Norm => &mut sums.norm,
                Part::Head => &mut sums.head,
            };
            *sum = sum.saturating_add(bytes);
        }
        Ok(sums)
    }

    /// Bytes of keys and values that one position takes in one layer.
    pub const fn kv_bytes_per_token_and_layer(self, dtype: Dtype) -> u64 {
        2 * self.config.kv_width() as u64 * dtype.size_bytes() as u64
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

    /// Names, shapes and types of a module's tensors.
    fn module_tensors(
        self,
        module: &Module,
        stored: &BTreeMap<&str, &TensorEntry>,
    ) -> Result<Vec<(String, Vec<u64>, Kind)>, SpecError> {
        let name = |suffix: &str| format!("{}.{suffix}", module.path);
        let weight = name("weight");
        let (rows, columns, bias) = match module.kind {
            ModuleKind::Vector { size } => {
                return Ok(vec![(weight, vec![u64::from(size)], Kind::Float)]);
            }
            ModuleKind::Matrix { rows, columns, bias } => (rows, columns, bias),
        };
        let wide = u64::from(rows);
        let stored_as = stored.get(weight.as_str()).map(|entry| entry.dtype);
        let mut tensors = match self.quantisation(&module.path, stored_as) {
            None => vec![(weight, vec![wide, u64::from(columns)], Kind::Float)],
            Some(ModuleQuantisation { group_size, bits }) => {
                if !columns.is_multiple_of(group_size) {
                    return Err(SpecError::Group {
                        module: module.path.clone(),
                        columns,
                        group_size,
                    });
                }
                let packed = u64::from(columns) * u64::from(bits) / u64::from(u32::BITS);
                let groups = u64::from(columns / group_size);
                vec![
                    (weight, vec![wide, packed], Kind::Packed),
                    (name("scales"), vec![wide, groups], Kind::Float),
                    (name("biases"), vec![wide, groups], Kind::Float),
                ]
            }
        };
        if bias {
            tensors.push((name("bias"), vec![wide], Kind::Float));
        }
        Ok(tensors)
    }

    /// Tensors that some checkpoints carry although the model has no use for them: the rotary
    /// frequencies, which follow from the config, and a tied model's copy of its embedding.
    fn is_ignored(self, tensor: &str) -> bool {
        let tied_head =
            self.config.tied && tensor.rsplit_once('.').is_some_and(|(path, _)| path == HEAD);
        tied_head || (tensor.starts_with(LAYERS) && tensor.ends_with(ROTARY))
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

fn layer_modules(config: &ModelConfig) -> Vec<(&'static str, ModuleKind)> {
    let matrix = |rows, columns, bias| ModuleKind::Matrix { rows, columns, bias };
    let (hidden, query, kv) = (config.hidden, config.query_width(), config.kv_width());
    let norm = ModuleKind::Vector { size: hidden };
    let mut modules = vec![
        ("input_layernorm", norm),
        ("self_attn.q_proj", matrix(query, hidden, config.attention_bias)),
        ("self_attn.k_proj", matrix(kv, hidden, config.attention_bias)),
        ("self_attn.v_proj", matrix(kv, hidden, config.attention_bias)),
        ("self_attn.o_proj", matrix(hidden, query, config.attention_bias)),
        ("post_attention_layernorm", norm),
        ("mlp.gate_proj", matrix(config.intermediate, hidden, config.mlp_bias)),
        ("mlp.up_proj", matrix(config.intermediate, hidden, config.mlp_bias)),
        ("mlp.down_proj", matrix(hidden, config.intermediate, config.mlp_bias)),
    ];
    match config.family {
        Family::Llama => {}
        Family::Qwen3 => {
            let head = ModuleKind::Vector { size: config.head_dim };
            modules.extend([("self_attn.q_norm", head), ("self_attn.k_norm", head)]);
        }
    }
    modules
}

/// What a tensor may be stored as.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Float,
    /// Quantised weights, packed into 32-bit words.
    Packed,
}

fn check(entry: &TensorEntry, shape: &[u64], kind: Kind) -> Result<(), SpecError> {
    let tensor = || entry.name.clone();
    let (fits, expected) = match kind {
        Kind::Float => (entry.dtype.is_float(), "F32, F16 or BF16"),
        Kind::Packed => (entry.dtype == StoredDtype::U32, "U32 (quantised weights)"),
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

#[cfg(test)]
mod tests {
    use daisy_proto::{LayerRange, Rank};
    use serde_json::{Value, json};

    use super::*;

    fn config(changes: &[(&str, Value)]) -> ModelConfig {
        let mut config = json!({
            "model_type": "qwen3", "hidden_size": 64, "num_hidden_layers": 3, "head_dim": 16,
            "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 96,
            "vocab_size": 50, "rms_norm_eps": 1e-5, "max_position_embeddings": 128,
        });
        for (field, value) in changes {
            config[*field] = value.clone();
        }
        ModelConfig::parse(&config.to_string()).expect("valid")
    }

    /// Every tensor of a model, as a converter would store them.
    fn stored(config: &ModelConfig) -> Vec<TensorEntry> {
        let spec = ModelSpec::new(config);
        let mut parts = vec![Part::Embedding, Part::Norm, Part::Head];
        parts.extend((0..config.layers).map(Part::Layer));
        let mut entries = Vec::new();
        for module in parts.into_iter().flat_map(|part| spec.modules(part)) {
            for (name, shape, kind) in spec.module_tensors(&module, &BTreeMap::new()).expect("fits")
            {
                let dtype = if kind == Kind::Packed { StoredDtype::U32 } else { StoredDtype::Bf16 };
                let bytes = shape.iter().product::<u64>() * dtype.size_bytes();
                entries.push(TensorEntry { name, dtype, shape, offset: 0, bytes });
            }
        }
        entries
    }

    fn refusal(config: &ModelConfig, entries: &[TensorEntry], rank: u32) -> String {
        let shard = Shard::of(Rank(rank), LayerRange::new(rank, rank + 1));
        let spec = ModelSpec::new(config);
        spec.shard_tensors(&shard, entries).expect_err("must be refused").to_string()
    }

    #[test]
    fn a_shard_finds_its_tensors_and_no_others() {
        for quantised in [Value::Null, json!({"group_size": 32, "bits": 4, "lm_head": false})] {
            let config = config(&[("quantization", quantised.clone())]);
            let (spec, entries) = (ModelSpec::new(&config), stored(&config));
            let cuts = [(0, 0, 1), (1, 1, 3)].map(|(rank, start, end)| {
                let shard = Shard::of(Rank(rank), LayerRange::new(start, end));
                spec.shard_tensors(&shard, &entries).expect("complete").len()
            });
            assert_eq!(cuts[0] + cuts[1], entries.len(), "{quantised}");
            assert!(cuts.iter().all(|count| *count > 0));
        }
    }

    #[test]
    fn a_wrong_tensor_of_the_shard_is_named() {
        let config = config(&[("quantization", json!({"group_size": 32, "bits": 4}))]);
        let complete = stored(&config);
        let changed = |name: &str, change: fn(&mut TensorEntry)| {
            let mut entries = complete.clone();
            change(entries.iter_mut().find(|entry| entry.name == name).expect("exists"));
            refusal(&config, &entries, 1)
        };
        let scales = "model.layers.1.mlp.up_proj.scales";
        let cases = [
            (
                changed(scales, |entry| entry.name = "model.layers.0.x".into()),
                "`model.layers.1.mlp.up_proj.scales` is missing",
            ),
            (changed(scales, |entry| entry.name.push('x')), "is missing"),
            (
                changed(scales, |entry| entry.shape = vec![96, 3]),
                "has shape [96, 3], expected [96, 2]",
            ),
            (changed(scales, |entry| entry.dtype = StoredDtype::I8), "has type I8"),
            (
                changed("model.norm.weight", |entry| entry.name = "visual.weight".into()),
                "`visual.weight` belongs to no module",
            ),
        ];
        for (error, said) in cases {
            assert!(error.contains(said), "{error}");
        }
        for (extra, said) in [
            ("model.layers.1.mlp.up_proj.bias", "`model.layers.1.mlp.up_proj.bias` belongs to no"),
            (
                "model.layers.3.mlp.up_proj.weight",
                "`model.layers.3.mlp.up_proj.weight` belongs to no",
            ),
            (
                "model.layers.1.mlp.up_proj.weight",
                "`model.layers.1.mlp.up_proj.weight` is in two files",
            ),
        ] {
            let mut entries = complete.clone();
            entries.push(TensorEntry { name: extra.into(), ..complete[0].clone() });
            let error = refusal(&config, &entries, 1);
            assert!(error.contains(said), "{error}");
        }
    }

    #[test]
    fn an_unquantised_module_may_stand_among_quantised_ones() {
        let config = config(&[("quantization", json!({"group_size": 32, "bits": 4}))]);
        let mut entries = stored(&config);
        let path = "model.layers.1.mlp.up_proj";
        entries.retain(|entry| {
            !["scales", "biases"].map(|s| format!("{path}.{s}")).contains(&entry.name)
        });
        let weight = entries.iter_mut().find(|entry| entry.name == format!("{path}.weight"));
        let weight = weight.expect("exists");
        (weight.dtype, weight.shape) = (StoredDtype::F32, vec![96, 64]);
        let shard = Shard::of(Rank(1), LayerRange::new(1, 2));
        assert!(ModelSpec::new(&config).shard_tensors(&shard, &entries).is_ok());
    }

    #[test]
    fn groups_must_divide_the_columns() {
        let groups =
            |size: u32| config(&[("quantization", json!({"group_size": size, "bits": 4}))]);
        let error = refusal(&groups(128), &stored(&groups(32)), 1);
        assert!(error.contains("`model.layers.1.self_attn.q_proj` has 64 columns"), "{error}");
    }

    #[test]
    fn leftovers_are_passed_over() {
        let tied = config(&[("tie_word_embeddings", json!(true))]);
        let mut entries = stored(&tied);
        for extra in ["lm_head.weight", "model.layers.0.self_attn.rotary_emb.inv_freq"] {
            entries.push(TensorEntry { name: extra.into(), ..entries[0].clone() });
        }
        let shard = Shard::of(Rank(0), LayerRange::new(0, 3));
        let needed = ModelSpec::new(&tied).shard_tensors(&shard, &entries).expect("complete");
        assert_eq!(needed.len(), entries.len() - 2);
    }

    #[test]
    fn bytes_add_up_by_part() {
        let config = config(&[]);
        let (spec, entries) = (ModelSpec::new(&config), stored(&config));
        let named = || entries.iter().map(|entry| (entry.name.as_str(), entry.bytes));
        let parts = spec.bytes_by_part(named()).expect("all known");
        assert_eq!((parts.embedding, parts.head, parts.norm), (6400, 6400, 128));
        assert_eq!(parts.layers.len(), 3);
        let sum = parts.embedding + parts.head + parts.norm + parts.layers.iter().sum::<u64>();
        assert_eq!(sum, entries.iter().map(|entry| entry.bytes).sum::<u64>());
        assert_eq!(spec.kv_bytes_per_token_and_layer(Dtype::Bf16), 2 * 2 * 16 * 2);
        assert!(spec.bytes_by_part([("audio.weight", 1)]).is_err());
    }

    #[test]
    fn layers_beyond_the_model_are_refused() {
        let config = config(&[]);
        for (start, end) in [(0, 4), (3, 2)] {
            let shard = Shard::of(Rank(1), LayerRange { start, end });
            let error = ModelSpec::new(&config).shard_tensors(&shard, &[]).expect_err("refused");
            assert!(matches!(error, SpecError::Layers { .. }), "{error}");
        }
    }
}
