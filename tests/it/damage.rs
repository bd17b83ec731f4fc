//! Damaged checkpoints never panic: random edits of every file that is read, from a fixed seed.
//!
//! Whatever an edit does, the answer is a value or an error that says something. What still opens
//! is used: the shard's tensors are judged, text goes in and out. `DAISY_TEST_ROUNDS` sets how many
//! edits each file gets.

use std::fs;
use std::path::Path;

use daisy::model::{ModelConfig, ModelSpec};
use daisy::store::Checkpoint;
use daisy::text::{Conversation, TextModel};
use daisy_proto::{LayerRange, Rank, Shard};
use serde_json::{Value, json};
use tempfile::TempDir;

#[test]
fn a_damaged_checkpoint_opens_or_says_why() {
    for (seed, name) in (1..).zip(["llama-tied-4bit-f32", "qwen3-bf16"]) {
        let mut random = Random(seed);
        let clean = copy(name);
        for file in FILES {
            let path = clean.path().join(file);
            let whole = fs::read(&path).unwrap_or_default();
            let rounds = if *file == "config.json" { 4 * rounds() } else { rounds() };
            for _ in 0..rounds {
                fs::write(&path, edited(file, &whole, &mut random)).expect("written");
                use_checkpoint(clean.path());
            }
            fs::write(&path, whole).expect("written");
        }
        assert!(use_checkpoint(clean.path()), "{name} as it was");
    }
}

/// Whether all of it opened.
fn use_checkpoint(dir: &Path) -> bool {
    let mut faults = Vec::new();
    let checkpoint = Checkpoint::open(dir).map_err(|error| faults.push(error.to_string())).ok();
    // The config is read even where the weights are damaged.
    let json = fs::read(dir.join("config.json")).expect("readable");
    let config = ModelConfig::parse(&String::from_utf8_lossy(&json));
    let config = config.map_err(|error| faults.push(error.to_string())).ok();
    if let (Some(checkpoint), Some(config)) = (&checkpoint, &config) {
        faults.extend(judge(checkpoint, config).err());
    }
    match TextModel::open(dir) {
        Ok(text) => faults.extend(talk(&text).err()),
        Err(error) => faults.push(error.to_string()),
    }
    assert!(faults.iter().all(|fault| !fault.is_empty() && fault.len() < 16_384), "{faults:?}");
    faults.is_empty()
}

fn judge(checkpoint: &Checkpoint, config: &ModelConfig) -> Result<(), String> {
    let spec = ModelSpec::new(config);
    let shard = Shard::of(Rank(0), LayerRange::new(0, config.layers));
    spec.shard_tensors(&shard, &checkpoint.tensors).map_err(|error| error.to_string())?;
    let sizes = checkpoint.tensors.iter().map(|tensor| (tensor.name.as_str(), tensor.bytes));
    spec.bytes_by_part(sizes).map(drop).map_err(|error| error.to_string())
}

fn talk(text: &TextModel) -> Result<(), String> {
    let content = "Say grüß Gott, 12 times: 你好 \u{1f600}\0";
    let messages = vec![serde_json::json!({"role": "user", "content": content})];
    let conversation = Conversation { messages, ..Conversation::default() };
    let rendered = text.render(&conversation).map_err(|error| error.to_string())?;
    let tokens = text.encode(&rendered).map_err(|error| error.to_string())?;
    let mut detokenizer = text.detokenizer();
    for token in tokens.into_iter().chain(0..300).chain([u32::MAX]) {
        detokenizer.push(token);
    }
    detokenizer.finish();
    Ok(())
}

/// Bytes changed at random or, half of the time where the file is JSON, a value by another one.
fn edited(file: &str, whole: &[u8], random: &mut Random) -> Vec<u8> {
    let json = match file {
        "model.safetensors" => {
            let length = usize::from_le_bytes(whole[..8].try_into().expect("eight"));
            &whole[8..8 + length]
        }
        _ => whole,
    };
    if random.below(2) == 0
        && let Ok(mut value) = serde_json::from_slice::<Value>(json)
    {
        let count = 1 + random.below(2);
        (0..count).for_each(|_| replace(&mut value, random));
        let text = value.to_string().into_bytes();
        if file != "model.safetensors" {
            return text;
        }
        let length = (text.len() as u64).to_le_bytes();
        return [&length, text.as_slice(), &whole[8 + json.len()..]].concat();
    }
    let mut bytes = whole.to_vec();
    match random.below(4) {
        0 => bytes.truncate(random.below(whole.len() + 1)),
        1 => bytes.extend_from_slice(&whole[..random.below(whole.len().min(99) + 1)]),
        _ => {
            // Where a header ends, only weights follow.
            let end = if file == "model.safetensors" { 8 + json.len() } else { whole.len() };
            for _ in 0..=random.below(3) {
                if let Some(byte) = bytes.get_mut(random.below(end.max(1))) {
                    *byte = ODD_BYTES[random.below(ODD_BYTES.len())];
                }
            }
        }
    }
    bytes
}

/// Puts something odd in the place of a value that is chosen by a walk from the root.
fn replace(value: &mut Value, random: &mut Random) {
    let inner = match value {
        Value::Object(object) if !object.is_empty() => {
            let at = random.below(object.len());
            if random.below(12) == 0 {
                object.remove(&object.keys().nth(at).expect("below its length").clone());
                return;
            }
            object.values_mut().nth(at)
        }
        Value::Array(list) if !list.is_empty() => {
            let at = random.below(list.len());
            if random.below(12) == 0 {
                list.remove(at);
                return;
            }
            list.get_mut(at)
        }
        _ => None,
    };
    match inner {
        Some(inner) if random.below(6) > 0 => replace(inner, random),
        _ => *value = odd(random),
    }
}

fn odd(random: &mut Random) -> Value {
    let values = [
        json!(null),
        json!(true),
        json!(false),
        json!(0),
        json!(1),
        json!(2),
        json!(3),
        json!(32),
        json!(-1),
        json!(i32::MAX),
        json!(u32::MAX),
        json!(u64::MAX),
        json!(i64::MIN),
        json!(1 << 24),
        json!(1e-320),
        json!(1e300),
        json!(0.5),
        json!(""),
        json!("a"),
        json!("<s>"),
        json!("F32"),
        json!("default"),
        json!("{{ messages[99].content }}{% for a in range(99999999) %}{{ a }}{% endfor %}"),
        json!("(?:a+)+$|\\p{Nope}[[]"),
        json!("ü\u{1f600}"),
        json!("x".repeat(5000)),
        json!([]),
        json!([[0, 0]]),
        json!([-1, "a", null]),
        json!({}),
        json!({"type": "ByteLevel"}),
        json!({"String": ""}),
        json!({"group_size": 32, "bits": 3}),
    ];
    values[random.below(values.len())].clone()
}

fn copy(name: &str) -> TempDir {
    let to = tempfile::tempdir().expect("a folder");
    let from = format!("{}/tests/data/tiny/{name}", env!("CARGO_MANIFEST_DIR"));
    for file in FILES {
        fs::copy(Path::new(&from).join(file), to.path().join(file)).expect("copied");
    }
    to
}

fn rounds() -> usize {
    let rounds = std::env::var("DAISY_TEST_ROUNDS").ok().and_then(|rounds| rounds.parse().ok());
    rounds.unwrap_or(ROUNDS)
}

/// splitmix64 (Steele et al. 2014).
struct Random(u64);

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        usize::try_from((z ^ (z >> 31)) % bound as u64).expect("below a usize")
    }
}

const FILES: &[&str] = &[
    "config.json",
    "generation_config.json",
    "model.safetensors",
    "model.safetensors.index.json",
    "tokenizer.json",
    "tokenizer_config.json",
];
const ODD_BYTES: &[u8] = b"\0\x80\xff\"{}[],:-0919e.tn\\";
const ROUNDS: usize = 40;
