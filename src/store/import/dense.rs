//! llama.cpp's dense decoders, `llama` and `qwen3`, as Hugging Face's: tensor names, shapes and
//! `config.json`.
//!
//! The two differ in a norm on the heads, in the order of the query and key rows, and in names.

use serde_json::{Map, Value as Json, json};

use super::super::gguf::{Gguf, TensorInfo, Value};
use super::floats::torch_name;
use super::module::{Form, Held, Module, Wish};
use super::rope::{self, Scaling};
use super::{ImportError, metadata};
use daisy_proto::Dtype;

/// An architecture by llama.cpp's name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Architecture {
    Llama,
    Qwen3,
}

/// A model of a GGUF file, known to be one that can be imported.
#[derive(Debug)]
pub(super) struct Dense {
    architecture: Architecture,
    layers: u64,
    hidden: u64,
    intermediate: u64,
    heads: u64,
    kv_heads: u64,
    head_dim: u64,
    pub context: u64,
    rms_eps: f32,
    rope_theta: f32,
    scaling: Option<Scaling>,
    wish: Wish,
    pub modules: Vec<Module>,
}

impl Architecture {
    pub const ALL: [Self; 2] = [Self::Llama, Self::Qwen3];

    /// Hugging Face's name is the same.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Llama => "llama",
            Self::Qwen3 => "qwen3",
        }
    }

    pub fn of(gguf: &Gguf) -> Result<Self, ImportError> {
        let name = metadata::text(gguf, "general.architecture")?;
        let known = Self::ALL.into_iter().find(|architecture| architecture.name() == name);
        known.ok_or_else(|| ImportError::Architecture { architecture: name.to_owned() })
    }

    const fn class(self) -> &'static str {
        match self {
            Self::Llama => "LlamaForCausalLM",
            Self::Qwen3 => "Qwen3ForCausalLM",
        }
    }

    /// The stems of a layer's tensors.
    fn stems(self) -> impl Iterator<Item = &'static str> {
        let head_norms: &[&str] = match self {
            Self::Llama => &[],
            Self::Qwen3 => &["attn_q_norm", "attn_k_norm"],
        };
        STEMS.iter().chain(head_norms).copied()
    }
}

impl Dense {
    /// Reads everything that could make an import fail, but no weight. `rope_factors` are the
    /// values of the tensor [`rope::FACTORS`].
    pub fn of(gguf: &Gguf, rope_factors: Option<&[f32]>, wish: Wish) -> Result<Self, ImportError> {
        let architecture = Architecture::of(gguf)?;
        let key = |key: &str| format!("{}.{key}", architecture.name());
        refuse_variants(gguf, architecture)?;
        let size = |name: &str| metadata::size(gguf, &key(name));
        let (hidden, heads) = (size("embedding_length")?, size("attention.head_count")?);
        let kv_heads = metadata::optional_size(gguf, &key("attention.head_count_kv"))?;
        let head_dim = metadata::optional_size(gguf, &key("attention.key_length"))?;
        let rope_theta = metadata::optional_f32(gguf, &key("rope.freq_base"))?;
        let mut model = Self {
            architecture,
            layers: size("block_count")?,
            hidden,
            intermediate: size("feed_forward_length")?,
            heads,
            kv_heads: kv_heads.unwrap_or(heads),
            head_dim: head_dim.unwrap_or(hidden / heads),
            context: size("context_length")?,
            rms_eps: metadata::f32(gguf, &key("attention.layer_norm_rms_epsilon"))?,
            rope_theta: rope_theta.unwrap_or(ROPE_THETA_DEFAULT),
            scaling: None,
            wish,
            modules: Vec::new(),
        };
        model.check_heads(gguf)?;
        if let Some(factors) = rope_factors {
            model.scaling = Scaling::of(factors, model.head_dim, model.rope_theta)?;
        }
        model.modules = gguf
            .tensors
            .iter()
            .filter(|tensor| tensor.name != rope::FACTORS)
            .map(|tensor| model.module(tensor))
            .collect::<Result<_, _>>()?;
        model.check_complete()?;
        Ok(model)
    }

    /// The fields of Hugging Face's config. Token ids come from the tokenizer's metadata.
    pub fn config(&self, token_ids: Map<String, Json>) -> Json {
        let mut config = json!({
            "architectures": [self.architecture.class()],
            "model_type": self.architecture.name(),
            "vocab_size": self.vocab(),
            "hidden_size": self.hidden,
            "intermediate_size": self.intermediate,
            "num_hidden_layers": self.layers,
            "num_attention_heads": self.heads,
            "num_key_value_heads": self.kv_heads,
            "head_dim": self.head_dim,
            "max_position_embeddings": self.context,
            "rms_norm_eps": metadata::shortest(self.rms_eps),
            "rope_theta": metadata::shortest(self.rope_theta),
            "rope_scaling": self.scaling.map(Scaling::json),
            "hidden_act": "silu",
            "attention_bias": false,
            "mlp_bias": false,
            "attention_dropout": 0.0,
            "tie_word_embeddings": !self.modules.iter().any(|module| module.path == HEAD),
            "torch_dtype": torch_name(self.compute_dtype()),
            "use_cache": true,
        });
        if let Some(fields) = config.as_object_mut() {
            fields.extend(token_ids);
            if let Some(quantisation) = self.quantisation() {
                fields.insert("quantization".to_owned(), quantisation.clone());
                // The same under the name that Hugging Face reads.
                fields.insert("quantization_config".to_owned(), quantisation);
            }
        }
        config
    }

    /// Rows of the embedding.
    pub fn vocab(&self) -> u64 {
        let embedding = self.modules.iter().find(|module| module.path == EMBEDDING);
        embedding.map_or(0, |module| module.source.sizes.last().copied().unwrap_or(0))
    }

    /// One default for all modules, the most frequent, and a word on every matrix that differs.
    fn quantisation(&self) -> Option<Json> {
        let form = |module: &Module| {
            module.form.affine().map(
                |form| json!({ "group_size": form.group, "bits": form.bits, "mode": "affine" }),
            )
        };
        let matrices = || self.modules.iter().filter(|module| module.is_matrix());
        let mut used: Vec<(Json, usize)> = Vec::new();
        for settings in matrices().filter_map(form) {
            match used.iter_mut().find(|(known, _)| *known == settings) {
                Some((_, count)) => *count += 1,
                None => used.push((settings, 1)),
            }
        }
        let (default, _) = used.into_iter().rev().max_by_key(|(_, count)| *count)?;
        let mut all = default.clone();
        for module in matrices().filter(|module| form(module).as_ref() != Some(&default)) {
            all[&module.path] = form(module).unwrap_or(Json::Bool(false));
        }
        Some(all)
    }

    /// What was asked for; else the type of the matrices that are kept in 16 bits, if there are any.
    /// All others are exact, and only 32 bits keep that.
    fn compute_dtype(&self) -> Dtype {
        let values = |dtype| -> u64 {
            let matrices = self.modules.iter().filter(|module| module.is_matrix());
            let kept = matrices.filter(|module| module.form.floats() == dtype);
            kept.map(|module| module.source.sizes.iter().product::<u64>()).sum()
        };
        match (self.wish.dtype, values(Dtype::F16), values(Dtype::Bf16)) {
            (Some(dtype), ..) => dtype,
            (None, 0, 0) => Dtype::F32,
            (None, half, brain) if half >= brain => Dtype::F16,
            (None, ..) => Dtype::Bf16,
        }
    }

    fn key(&self, key: &str) -> String {
        format!("{}.{key}", self.architecture.name())
    }

    fn check_heads(&self, gguf: &Gguf) -> Result<(), ImportError> {
        let fault =
            |key: &str, reason: String| Err(ImportError::Metadata { key: self.key(key), reason });
        if !self.heads.is_multiple_of(self.kv_heads) {
            let reason =
                format!("is {}, which does not divide {} heads", self.kv_heads, self.heads);
            return fault("attention.head_count_kv", reason);
        }
        if !self.head_dim.is_multiple_of(2) || self.head_dim == 0 {
            return fault("attention.key_length", format!("is {}, no even number", self.head_dim));
        }
        for key in ["attention.value_length", "rope.dimension_count"] {
            let size = metadata::optional_size(gguf, &self.key(key))?;
            if size.is_some_and(|size| size != self.head_dim) {
                let reason =
                    format!("is not the {} of a head, which is not supported", self.head_dim);
                return fault(key, reason);
            }
        }
        Ok(())
    }

    /// What becomes of one tensor. Its shape must be what the metadata say, since the engine and
    /// the rows' order rely on it.
    fn module(&self, tensor: &TensorInfo) -> Result<Module, ImportError> {
        let fault = |reason: String| ImportError::Tensor { tensor: tensor.name.clone(), reason };
        let name = self.architecture.name();
        let (path, sizes) =
            self.place(&tensor.name).ok_or_else(|| fault(format!("is not known in a {name}")))?;
        let Some(held) = Held::of(tensor.kind) else {
            let (tensor, kind) = (tensor.name.clone(), tensor.kind);
            return Err(ImportError::TensorKind { tensor, kind });
        };
        let form = match held {
            _ if sizes.len() == 2 => Form::choose(held, sizes[0], self.wish),
            Held::Floats(dtype) => Form::Floats(self.wish.dtype.unwrap_or(dtype)),
            Held::Blocks(_) => {
                let reason = format!("is a vector of {}; only floats are supported", tensor.kind);
                return Err(fault(reason));
            }
        };
        // The vocabulary's size is what the embedding has; 0 stands for it.
        let fits = tensor.sizes.len() == sizes.len()
            && tensor.sizes.iter().zip(&sizes).all(|(got, size)| got == size || *size == 0)
            && !tensor.sizes.contains(&0);
        if !fits {
            return Err(fault(format!("has the sizes {:?}, expected {sizes:?}", tensor.sizes)));
        }
        let permuted = match (self.architecture, path.rsplit('.').next()) {
            (Architecture::Llama, Some("q_proj")) => Some(self.heads),
            (Architecture::Llama, Some("k_proj")) => Some(self.kv_heads),
            _ => None,
        };
        let permuted = permuted.and_then(|heads| usize::try_from(heads).ok());
        Ok(Module { source: tensor.clone(), path, held, form, permuted })
    }

    /// Hugging Face's path of a tensor and its sizes, innermost first.
    fn place(&self, name: &str) -> Option<(String, Vec<u64>)> {
        let (hidden, inner) = (self.hidden, self.intermediate);
        let queries = self.heads.checked_mul(self.head_dim)?;
        let keys = self.kv_heads.checked_mul(self.head_dim)?;
        let stem = name.strip_suffix(".weight")?;
        match stem {
            "token_embd" => return Some((EMBEDDING.to_owned(), vec![hidden, 0])),
            "output_norm" => return Some((NORM.to_owned(), vec![hidden])),
            "output" => return Some((HEAD.to_owned(), vec![hidden, 0])),
            _ => {}
        }
        let (number, stem) = stem.strip_prefix("blk.")?.split_once('.')?;
        let number: u64 = number.parse().ok().filter(|number| *number < self.layers)?;
        let (path, sizes) = match stem {
            _ if !self.architecture.stems().any(|known| known == stem) => return None,
            "attn_norm" => ("input_layernorm", vec![hidden]),
            "attn_q_norm" => ("self_attn.q_norm", vec![self.head_dim]),
            "attn_k_norm" => ("self_attn.k_norm", vec![self.head_dim]),
            "attn_q" => ("self_attn.q_proj", vec![hidden, queries]),
            "attn_k" => ("self_attn.k_proj", vec![hidden, keys]),
            "attn_v" => ("self_attn.v_proj", vec![hidden, keys]),
            "attn_output" => ("self_attn.o_proj", vec![queries, hidden]),
            "ffn_norm" => ("post_attention_layernorm", vec![hidden]),
            "ffn_gate" => ("mlp.gate_proj", vec![hidden, inner]),
            "ffn_up" => ("mlp.up_proj", vec![hidden, inner]),
            "ffn_down" => ("mlp.down_proj", vec![inner, hidden]),
            _ => return None,
        };
        Some((format!("model.layers.{number}.{path}"), sizes))
    }

    /// Every tensor of the model must be there once; the head may be the embedding's matrix.
    fn check_complete(&self) -> Result<(), ImportError> {
        let mut paths: Vec<&str> = self.modules.iter().map(|module| module.path.as_str()).collect();
        paths.sort_unstable();
        if let Some(pair) = paths.windows(2).find(|pair| pair[0] == pair[1]) {
            let reason = "is there twice".to_owned();
            return Err(ImportError::Tensor { tensor: pair[0].to_owned(), reason });
        }
        let vocab = self.vocab();
        let head = self.modules.iter().find(|module| module.path == HEAD);
        if let Some(head) = head.filter(|head| head.source.sizes.last() != Some(&vocab)) {
            let reason = format!("has not the {vocab} rows of the embedding");
            return Err(ImportError::Tensor { tensor: head.source.name.clone(), reason });
        }
        // The first that is missing ends this, however many layers a damaged number claims.
        let stems = ["token_embd".to_owned(), "output_norm".to_owned()].into_iter().chain(
            (0..self.layers).flat_map(|layer| {
                self.architecture.stems().map(move |stem| format!("blk.{layer}.{stem}"))
            }),
        );
        for stem in stems {
            let name = format!("{stem}.weight");
            let path = self.place(&name).map(|(path, _)| path).unwrap_or_default();
            if paths.binary_search(&path.as_str()).is_err() {
                let reason = "is missing: the file is incomplete or one of several".to_owned();
                return Err(ImportError::Tensor { tensor: name, reason });
            }
        }
        Ok(())
    }
}

/// What changes the arithmetic and is not imported.
fn refuse_variants(gguf: &Gguf, architecture: Architecture) -> Result<(), ImportError> {
    let refused = |key: String, value: &Value| {
        let reason = format!("is {value}, which is not supported");
        Err(ImportError::Metadata { key, reason })
    };
    let key = |key: &str| format!("{}.{key}", architecture.name());
    for (key, plain) in [(key("rope.scaling.type"), "none"), (key("rope.scale_linear"), "")] {
        if let Some(value) = gguf.metadata.get(&key).filter(|value| value.as_text() != Some(plain))
        {
            return refused(key, value);
        }
    }
    let counts = [key("expert_count"), key("attention.sliding_window"), "split.count".to_owned()];
    for key in counts {
        let zero = |value: &&Value| !matches!(value.as_u64(), Some(0 | 1));
        if let Some(value) = gguf.metadata.get(&key).filter(zero) {
            return refused(key, value);
        }
    }
    Ok(())
}

const EMBEDDING: &str = "model.embed_tokens";
const NORM: &str = "model.norm";
const HEAD: &str = "lm_head";
const ROPE_THETA_DEFAULT: f32 = 10_000.0;
const STEMS: &[&str] = &[
    "attn_norm",
    "attn_q",
    "attn_k",
    "attn_v",
    "attn_output",
    "ffn_norm",
    "ffn_gate",
    "ffn_up",
    "ffn_down",
];
