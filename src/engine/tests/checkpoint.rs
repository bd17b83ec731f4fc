//! Tiny random checkpoints in safetensors files, seeded.

use std::fs;
use std::path::PathBuf;

use serde_json::{Map, Value, json};
use tempfile::TempDir;

use crate::model::{
    ModelConfig, ModelSpec, Module, ModuleKind, ModuleQuantisation, Part, QuantisationMode,
};

pub(super) const VOCAB: u32 = 61;
pub(super) const LAYERS: u32 = 4;

/// A checkpoint on disk; gone when dropped.
pub(super) struct Checkpoint {
    pub(super) config: ModelConfig,
    pub(super) files: Vec<PathBuf>,
    _directory: TempDir,
}

/// A tensor before it is written.
#[derive(Clone)]
pub(super) struct RawTensor {
    pub(super) name: String,
    pub(super) dtype: &'static str,
    pub(super) shape: Vec<u32>,
    pub(super) bytes: Vec<u8>,
}

/// Four layers in every style that the engine knows.
pub(super) fn styles() -> Vec<(&'static str, Value)> {
    let quantised = json!({
        "group_size": 32, "bits": 4,
        "model.embed_tokens": {"group_size": 64, "bits": 8},
        "model.layers.1.mlp.down_proj": false,
        "model.layers.2.self_attn.q_proj": {"group_size": 32, "bits": 3},
    });
    vec![
        ("llama", json!({"model_type": "llama"})),
        (
            "llama with biases",
            json!({"model_type": "llama", "attention_bias": true, "mlp_bias": true}),
        ),
        (
            "llama tied 4-bit",
            json!({
            "model_type": "llama", "tie_word_embeddings": true, "quantization": quantised}),
        ),
        ("qwen3 tied", json!({"model_type": "qwen3", "tie_word_embeddings": true})),
        ("qwen3 4-bit", json!({"model_type": "qwen3", "quantization": quantised})),
    ]
}

impl Checkpoint {
    pub(super) fn write(style: &Value) -> Self {
        Self::write_edited(style, |_| {})
    }

    /// Writes the checkpoint after `edit` has had its way with the tensors: the first half of the
    /// layers in one file, the rest in another.
    pub(super) fn write_edited(style: &Value, edit: impl FnOnce(&mut Vec<RawTensor>)) -> Self {
        let mut config = json!({
            "hidden_size": 64, "num_hidden_layers": LAYERS, "head_dim": 16,
            "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 96,
            "vocab_size": VOCAB, "rms_norm_eps": 1e-5, "max_position_embeddings": 16384,
            "torch_dtype": "bfloat16",
        });
        for (field, value) in style.as_object().expect("an object") {
            config[field] = value.clone();
        }
        let config = ModelConfig::parse(&config.to_string()).expect("a valid config");
        let mut tensors = tensors(&config);
        edit(&mut tensors);

        let directory = tempfile::tempdir().expect("a directory");
        let later = |name: &str| (LAYERS / 2..LAYERS).any(|n| name.contains(&format!(".{n}.")));
        let (second, first) = tensors.into_iter().partition::<Vec<_>, _>(|t| later(&t.name));
        let files = [("model-1.safetensors", first), ("model-2.safetensors", second)];
        let files = files.map(|(name, tensors)| {
            let path = directory.path().join(name);
            fs::write(&path, file(&tensors)).expect("written");
            path
        });
        Self { config, files: files.to_vec(), _directory: directory }
    }
}

/// Overwrites with bytes that read as NaN in every float type.
pub(super) fn poison(tensor: &mut RawTensor) {
    tensor.bytes.fill(0xff);
}

fn tensors(config: &ModelConfig) -> Vec<RawTensor> {
    let spec = ModelSpec::new(config);
    let mut parts = vec![Part::Embedding, Part::Norm, Part::Head];
    parts.extend((0..config.layers).map(Part::Layer));
    let mut random = Random(42);
    let modules = parts.into_iter().flat_map(|part| spec.modules(part));
    modules.flat_map(|module| module_tensors(spec, &module, &mut random)).collect()
}

fn module_tensors(spec: ModelSpec<'_>, module: &Module, random: &mut Random) -> Vec<RawTensor> {
    let path = &module.path;
    let weight = format!("{path}.weight");
    match module.kind {
        ModuleKind::Vector { size } => vec![float(weight, &[size], random, 1.0, 0.2)],
        ModuleKind::Bare { size } => vec![float(path.clone(), &[size], random, -0.5, 0.5)],
        ModuleKind::Convolution { channels, kernel } => {
            vec![float(weight, &[channels, kernel, 1], random, 0.0, 0.8)]
        }
        ModuleKind::Matrix { rows, columns, bias } => {
            let mut tensors = matrix(spec, path, &[rows, columns], random);
            if bias {
                tensors.push(float(format!("{path}.bias"), &[rows], random, 0.0, 0.5));
            }
            tensors
        }
        ModuleKind::Experts { count, hidden, width } => {
            let inner = [count, width, hidden];
            [("gate_proj", inner), ("up_proj", inner), ("down_proj", [count, hidden, width])]
                .into_iter()
                .flat_map(|(name, shape)| matrix(spec, &format!("{path}.{name}"), &shape, random))
                .collect()
        }
    }
}

/// A matrix or a stack of them, as the config says that it is stored.
fn matrix(spec: ModelSpec<'_>, path: &str, shape: &[u32], random: &mut Random) -> Vec<RawTensor> {
    let name = |suffix: &str| format!("{path}.{suffix}");
    let Some(ModuleQuantisation { mode, group_size, bits }) = spec.quantisation(path, None) else {
        return vec![float(name("weight"), shape, random, 0.0, 0.25)];
    };
    let (columns, leading) = shape.split_last().expect("a shape");
    let with = |last: u32| [leading, &[last]].concat();
    let groups = with(columns / group_size);
    let bytes =
        |name, dtype, shape: Vec<u32>, bytes: Vec<u8>| RawTensor { name, dtype, shape, bytes };
    let packed = with(columns * bits / 32);
    let words = packed.iter().product::<u32>();
    let weights = (0..words).flat_map(|_| random.word().to_le_bytes()).collect();
    let mut tensors = vec![bytes(name("weight"), "U32", packed, weights)];
    if mode.is_affine() {
        let steps = (1_u32 << bits) - 1;
        #[expect(clippy::cast_precision_loss, reason = "small numbers")]
        let scale = 0.5 / steps as f32;
        tensors.push(float(name("scales"), &groups, random, scale, scale / 4.0));
        tensors.push(float(name("biases"), &groups, random, -0.25, 0.02));
    } else {
        // Exponents of a small scale; the bytes of 8-bit weights may mean very large numbers.
        let scale = match mode {
            QuantisationMode::Nvfp4 => 0x18,
            QuantisationMode::Mxfp8 => 117,
            _ => 123,
        };
        let count = groups.iter().product::<u32>() as usize;
        tensors.push(bytes(name("scales"), "U8", groups, vec![scale; count]));
    }
    tensors
}

fn float(name: String, shape: &[u32], random: &mut Random, middle: f32, spread: f32) -> RawTensor {
    let count = shape.iter().product::<u32>();
    RawTensor {
        name,
        dtype: "BF16",
        shape: shape.to_vec(),
        bytes: (0..count).flat_map(|_| bf16(middle + spread * random.unit())).collect(),
    }
}

fn file(tensors: &[RawTensor]) -> Vec<u8> {
    let mut header = Map::new();
    let mut data = Vec::new();
    for RawTensor { name, dtype, shape, bytes } in tensors {
        let offsets = [data.len(), data.len() + bytes.len()];
        header
            .insert(name.clone(), json!({"dtype": dtype, "shape": shape, "data_offsets": offsets}));
        data.extend_from_slice(bytes);
    }
    let header = Value::Object(header).to_string();
    let mut file = (header.len() as u64).to_le_bytes().to_vec();
    file.extend_from_slice(header.as_bytes());
    file.extend_from_slice(&data);
    file
}

/// The upper half of an f32 is a bfloat16.
fn bf16(value: f32) -> [u8; 2] {
    let [_, _, low, high] = value.to_le_bytes();
    [low, high]
}

/// xorshift64* (Vigna 2016): enough for weights.
struct Random(u64);

impl Random {
    fn word(&mut self) -> u32 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 32) as u32
    }

    /// From -1 to 1.
    fn unit(&mut self) -> f32 {
        #[expect(clippy::cast_precision_loss, reason = "24 bits are exact")]
        let unit = (self.word() >> 8) as f32 / (1 << 23) as f32;
        unit - 1.0
    }
}
