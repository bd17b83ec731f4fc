//! A tiny checkpoint of `tests/data/tiny` and what the reference library computes for it.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use daisy::model::ModelConfig;
use daisy::store::Checkpoint;
use daisy_proto::Dtype;
use serde_json::Value;

use crate::logits::Tolerance;
use crate::on_gpu;

pub struct Tiny {
    pub checkpoint: Checkpoint,
    pub config: ModelConfig,
    /// What the reference computed in.
    pub dtype: Dtype,
    /// Whether sums are rounded as in the reference; where not, greedy ids may be others.
    pub same_sums: bool,
    pub tolerance: Tolerance,
    pub prompt: Vec<u32>,
    /// What follows the prompt, greedily.
    pub greedy: Vec<u32>,
    /// Longer than a block of the cache.
    pub long_prompt: Vec<u32>,
    /// Of every position of the prompt.
    pub prompt_logits: Vec<Vec<f32>>,
    /// After each greedy id, decoded with a cache.
    pub step_logits: Vec<Vec<f32>>,
    /// After the prompt and all greedy ids, computed at once without a cache.
    pub nocache_logits: Vec<f32>,
    /// After the long prompt.
    pub long_logits: Vec<f32>,
    /// Of a checkpoint in a half type: those two, computed in f32.
    pub widened: Option<Widened>,
}

pub struct Widened {
    pub nocache_logits: Vec<f32>,
    pub long_logits: Vec<f32>,
}

/// `tests/data`.
pub fn data() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data")
}

impl Tiny {
    pub fn open(name: &str) -> Self {
        Self::at(&data().join("tiny").join(name))
    }

    pub fn at(dir: &Path) -> Self {
        let name = dir.display();
        let checkpoint = Checkpoint::open(dir).expect("the checkpoint opens");
        let config = ModelConfig::parse(&checkpoint.config_json).expect("the config is understood");
        let text = fs::read_to_string(dir.join("reference.json")).expect("reference.json is there");
        let summary: Value = serde_json::from_str(&text).expect("reference.json is JSON");
        let dtype = match summary["compute_dtype"].as_str() {
            Some("float32") => Dtype::F32,
            Some("float16") => Dtype::F16,
            Some("bfloat16") => Dtype::Bf16,
            other => panic!("{name}: compute type {other:?}"),
        };
        let bound = |kind: &str| summary["tolerance"][kind].as_f64().expect("a tolerance");
        // In a half type MLX adds up in that type on a CPU, as the reference did, and in f32 on a
        // GPU: there only the size of those roundings can be asked for.
        let same_sums = dtype == Dtype::F32 || !on_gpu();
        let tolerance = match dtype {
            Dtype::F16 if !same_sums => {
                Tolerance { logit: 2e-2, kl: f64::INFINITY, same_best: false }
            }
            Dtype::Bf16 if !same_sums => {
                Tolerance { logit: 0.2, kl: f64::INFINITY, same_best: false }
            }
            _ => {
                let same_best = dtype == Dtype::F32;
                Tolerance { logit: bound("logit"), kl: bound("kl"), same_best }
            }
        };
        let vocab = config.vocab as usize;
        let tensors = Tensors::read(&dir.join("reference.safetensors"));
        Self {
            dtype,
            same_sums,
            tolerance,
            prompt: tensors.ids("prompt"),
            greedy: tensors.ids("greedy"),
            long_prompt: tensors.ids("long_prompt"),
            prompt_logits: tensors.rows("prompt_logits", vocab),
            step_logits: tensors.rows("step_logits", vocab),
            nocache_logits: tensors.floats("nocache_logits"),
            long_logits: tensors.floats("long_logits"),
            widened: (dtype != Dtype::F32).then(|| Widened {
                nocache_logits: tensors.floats("nocache_logits_f32"),
                long_logits: tensors.floats("long_logits_f32"),
            }),
            checkpoint,
            config,
        }
    }
}

impl Tiny {
    /// Whether a sequence can be trimmed to an earlier position: not where it has a recurrent state.
    pub const fn goes_back(&self) -> bool {
        self.config.delta.is_none()
    }
}

/// The tensors of a safetensors file, as bytes. Read here by hand, so that what judges the engine
/// does not rest on its readers.
struct Tensors(BTreeMap<String, Vec<u8>>);

impl Tensors {
    fn read(file: &Path) -> Self {
        let bytes = fs::read(file).expect("reference.safetensors is there");
        let (length, rest) = bytes.split_first_chunk::<8>().expect("a length");
        let length = usize::try_from(u64::from_le_bytes(*length)).expect("a length that fits");
        let (header, data) = rest.split_at(length);
        let header: BTreeMap<String, Value> = serde_json::from_slice(header).expect("a header");
        let tensors = header.into_iter().filter(|(name, _)| name != "__metadata__");
        let place = |entry: &Value, end: usize| {
            let offset = entry["data_offsets"][end].as_u64().expect("an offset");
            usize::try_from(offset).expect("an offset that fits")
        };
        Self(
            tensors
                .map(|(name, entry)| (name, data[place(&entry, 0)..place(&entry, 1)].to_vec()))
                .collect(),
        )
    }

    fn words(&self, name: &str) -> impl Iterator<Item = [u8; 4]> {
        let bytes = self.0.get(name).unwrap_or_else(|| panic!("no tensor `{name}`"));
        bytes.as_chunks::<4>().0.iter().copied()
    }

    fn ids(&self, name: &str) -> Vec<u32> {
        self.words(name).map(u32::from_le_bytes).collect()
    }

    fn floats(&self, name: &str) -> Vec<f32> {
        self.words(name).map(f32::from_le_bytes).collect()
    }

    fn rows(&self, name: &str, width: usize) -> Vec<Vec<f32>> {
        self.floats(name).chunks(width).map(<[f32]>::to_vec).collect()
    }
}
