//! llama.cpp's `llama` architecture as Hugging Face's: tensor names, shapes and `config.json`.

use serde_json::{Map, Value as Json, json};

use super::super::gguf::{Gguf, TensorInfo, TensorKind, Value};
use super::blocks::{Block, GROUP};
use super::safetensors::{Dtype, Planned};
use super::{ImportError, metadata};

/// A llama of a GGUF file, known to be one that can be imported.
#[derive(Debug)]
pub(super) struct Llama {
    layers: u64,
    hidden: u64,
    intermediate: u64,
    heads: u64,
    kv_heads: u64,
    head_dim: u64,
    context: u64,
    rms_eps: f32,
    rope_theta: f32,
    pub modules: Vec<Module>,
}

/// One tensor of the file and what becomes of it.
#[derive(Debug)]
pub(super) struct Module {
    pub source: TensorInfo,
    /// Path of the module, such as `model.layers.0.mlp.up_proj`.
    pub path: String,
    pub form: Form,
    /// Heads whose rows llama.cpp has permuted.
    pub permuted: Option<usize>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Form {
    Plain,
    Affine(Block),
}

impl Llama {
    /// Reads everything that could make an import fail, but no weight.
    pub fn of(gguf: &Gguf) -> Result<Self, ImportError> {
        refuse_variants(gguf)?;
        let size = |key: &str| metadata::size(gguf, &format!("llama.{key}"));
        let (hidden, heads) = (size("embedding_length")?, size("attention.head_count")?);
        let kv_heads = metadata::optional_size(gguf, "llama.attention.head_count_kv")?;
        let head_dim = metadata::optional_size(gguf, "llama.attention.key_length")?;
        let rope_theta = metadata::optional_f32(gguf, "llama.rope.freq_base")?;
        let mut llama = Self {
            layers: size("block_count")?,
            hidden,
            intermediate: size("feed_forward_length")?,
            heads,
            kv_heads: kv_heads.unwrap_or(heads),
            head_dim: head_dim.unwrap_or(hidden / heads),
            context: size("context_length")?,
            rms_eps: metadata::f32(gguf, "llama.attention.layer_norm_rms_epsilon")?,
            rope_theta: rope_theta.unwrap_or(ROPE_THETA_DEFAULT),
            modules: Vec::new(),
        };
        llama.check_heads(gguf)?;
        llama.modules =
            gguf.tensors.iter().map(|tensor| llama.module(tensor)).collect::<Result<_, _>>()?;
        llama.check_complete()?;
        Ok(llama)
    }

    /// The fields of Hugging Face's config. Token ids come from the tokenizer's metadata.
    pub fn config(&self, token_ids: Map<String, Json>) -> Json {
        let mut config = json!({
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
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
            "rope_scaling": null,
            "hidden_act": "silu",
            "attention_bias": false,
            "mlp_bias": false,
            "attention_dropout": 0.0,
            "tie_word_embeddings": !self.modules.iter().any(|module| module.path == HEAD),
            "torch_dtype": "float32",
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

    /// The tensors that `module` becomes, in the order in which they are written.
    pub fn planned(module: &Module) -> Vec<Planned> {
        let name = |suffix: &str| format!("{}.{suffix}", module.path);
        let shape: Vec<u64> = module.source.sizes.iter().rev().copied().collect();
        let Form::Affine(block) = module.form else {
            return vec![Planned { name: name("weight"), dtype: Dtype::F32, shape }];
        };
        let (rows, columns) = (shape[0], shape[1]);
        let groups = vec![rows, columns / GROUP as u64];
        let words = vec![rows, columns * u64::from(block.bits()) / u64::from(u32::BITS)];
        vec![
            Planned { name: name("weight"), dtype: Dtype::U32, shape: words },
            Planned { name: name("scales"), dtype: Dtype::F32, shape: groups.clone() },
            Planned { name: name("biases"), dtype: Dtype::F32, shape: groups },
        ]
    }

    /// One default for all modules, and a word on every matrix that differs from it.
    fn quantisation(&self) -> Option<Json> {
        let settings =
            |block: Block| json!({ "group_size": GROUP, "bits": block.bits(), "mode": "affine" });
        let matrices = || self.modules.iter().filter(|module| module.source.sizes.len() == 2);
        let used = |block| matrices().any(|module| module.form == Form::Affine(block));
        let default = [Block::Q4_1, Block::Q8_0].into_iter().find(|block| used(*block))?;
        let mut all = settings(default);
        for module in matrices().filter(|module| module.form != Form::Affine(default)) {
            all[&module.path] = match module.form {
                Form::Affine(block) => settings(block),
                Form::Plain => Json::Bool(false),
            };
        }
        Some(all)
    }

    fn check_heads(&self, gguf: &Gguf) -> Result<(), ImportError> {
        let fault = |key: &str, reason: String| {
            Err(ImportError::Metadata { key: format!("llama.{key}"), reason })
        };
        if !self.heads.is_multiple_of(self.kv_heads) {
            let reason =
                format!("is {}, which does not divide {} heads", self.kv_heads, self.heads);
            return fault("attention.head_count_kv", reason);
        }
        if !self.head_dim.is_multiple_of(2) || self.head_dim == 0 {
            return fault("attention.key_length", format!("is {}, no even number", self.head_dim));
        }
        for key in ["attention.value_length", "rope.dimension_count"] {
            let size = metadata::optional_size(gguf, &format!("llama.{key}"))?;
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
        let (path, sizes) =
            self.place(&tensor.name).ok_or_else(|| fault("is not known in a llama".to_owned()))?;
        let form = match tensor.kind {
            TensorKind::F32 => Form::Plain,
            TensorKind::Q4_1 => Form::Affine(Block::Q4_1),
            TensorKind::Q8_0 => Form::Affine(Block::Q8_0),
            kind => {
                let tensor = tensor.name.clone();
                return Err(ImportError::TensorKind { tensor, kind });
            }
        };
        if form != Form::Plain && sizes.len() != 2 {
            return Err(fault(format!("is a vector of {}; only F32 is supported", tensor.kind)));
        }
        // The vocabulary's size is what the embedding has; 0 stands for it.
        let fits = tensor.sizes.len() == sizes.len()
            && tensor.sizes.iter().zip(&sizes).all(|(got, size)| got == size || *size == 0)
            && !tensor.sizes.contains(&0);
        if !fits {
            return Err(fault(format!("has the sizes {:?}, expected {sizes:?}", tensor.sizes)));
        }
        let permuted = match path.rsplit('.').next() {
            Some("q_proj") => Some(self.heads),
            Some("k_proj") => Some(self.kv_heads),
            _ => None,
        };
        let permuted = permuted.and_then(|heads| usize::try_from(heads).ok());
        Ok(Module { source: tensor.clone(), path, form, permuted })
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
            "attn_norm" => ("input_layernorm", vec![hidden]),
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

    /// Every tensor of a llama must be there once; the head may be the embedding's matrix.
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
            (0..self.layers)
                .flat_map(|layer| STEMS.iter().map(move |s| format!("blk.{layer}.{s}"))),
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

/// What changes a llama's arithmetic and is not imported.
fn refuse_variants(gguf: &Gguf) -> Result<(), ImportError> {
    let refused = |key: &str, value: &Value| {
        let reason = format!("is {value}, which is not supported");
        Err(ImportError::Metadata { key: key.to_owned(), reason })
    };
    for (key, plain) in [("llama.rope.scaling.type", "none"), ("llama.rope.scale_linear", "")] {
        if let Some(value) = gguf.metadata.get(key).filter(|value| value.as_text() != Some(plain)) {
            return refused(key, value);
        }
    }
    for key in ["llama.expert_count", "llama.attention.sliding_window", "split.count"] {
        let zero = |value: &&Value| !matches!(value.as_u64(), Some(0 | 1));
        if let Some(value) = gguf.metadata.get(key).filter(zero) {
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
