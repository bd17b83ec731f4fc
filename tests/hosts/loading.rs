//! What a rank holds while it loads: its own layers, one after the other, and never much more.
//!
//! Anonymous memory is what counts (`RssAnon`): pages of files are given back by themselves.

use std::fs::{self, File};
use std::io::Write;
use std::path::Path;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use serde_json::{Map, Value, json};
use tempfile::TempDir;

use super::cluster::{Cluster, Home, tiny};
use super::skip;

/// A Llama of 2 GiB in one file: quantised layers, and one that is not and so weighs nearly four times
/// as much. Its weights are holes, which read as zeros.
fn checkpoint() -> TempDir {
    let dir = tempfile::tempdir().expect("a folder");
    for name in ["tokenizer.json", "tokenizer_config.json", "generation_config.json"] {
        fs::copy(Path::new(&tiny("llama-f32")).join(name), dir.path().join(name)).expect("copied");
    }
    let heavy = format!("model.layers.{HEAVY}.");
    let mut quantization = Map::new();
    quantization.insert("group_size".to_owned(), json!(64));
    quantization.insert("bits".to_owned(), json!(8));
    let mut header = Map::new();
    let mut end = 0_u64;
    let mut add = |name: String, dtype: &str, shape: &[u64], bytes: u64| {
        let size = shape.iter().product::<u64>() * bytes;
        let entry = json!({"dtype": dtype, "shape": shape, "data_offsets": [end, end + size]});
        header.insert(name, entry);
        end += size;
    };
    add("model.embed_tokens.weight".to_owned(), "F32", &[VOCAB, HIDDEN], 4);
    add("model.norm.weight".to_owned(), "F32", &[HIDDEN], 4);
    for layer in 0..LAYERS {
        let prefix = format!("model.layers.{layer}.");
        for norm in ["input_layernorm", "post_attention_layernorm"] {
            add(format!("{prefix}{norm}.weight"), "F32", &[HIDDEN], 4);
        }
        for (path, rows, columns) in [
            ("self_attn.q_proj", HIDDEN, HIDDEN),
            ("self_attn.k_proj", HIDDEN, HIDDEN),
            ("self_attn.v_proj", HIDDEN, HIDDEN),
            ("self_attn.o_proj", HIDDEN, HIDDEN),
            ("mlp.gate_proj", WIDTH, HIDDEN),
            ("mlp.up_proj", WIDTH, HIDDEN),
            ("mlp.down_proj", HIDDEN, WIDTH),
        ] {
            let path = format!("{prefix}{path}");
            if path.starts_with(&heavy) {
                quantization.insert(path.clone(), Value::Bool(false));
                add(format!("{path}.weight"), "F32", &[rows, columns], 4);
            } else {
                add(format!("{path}.weight"), "U32", &[rows, columns / 4], 4);
                add(format!("{path}.scales"), "F32", &[rows, columns / 64], 4);
                add(format!("{path}.biases"), "F32", &[rows, columns / 64], 4);
            }
        }
    }
    let config = json!({
        "model_type": "llama", "hidden_size": HIDDEN, "num_hidden_layers": LAYERS,
        "num_attention_heads": 16, "intermediate_size": WIDTH, "vocab_size": VOCAB,
        "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "max_position_embeddings": 512,
        "tie_word_embeddings": true, "quantization": quantization,
    });
    fs::write(dir.path().join("config.json"), config.to_string()).expect("written");
    let text = Value::Object(header).to_string();
    let mut file = File::create(dir.path().join("model.safetensors")).expect("a file");
    file.write_all(&(text.len() as u64).to_le_bytes()).expect("written");
    file.write_all(text.as_bytes()).expect("written");
    file.set_len(8 + text.len() as u64 + end).expect("a sparse file");
    dir
}

/// The largest anonymous memory of every rank process that this binary runs, by its pid.
struct Peaks {
    watcher: JoinHandle<Vec<(u32, u64)>>,
    stop: std::sync::mpsc::Sender<()>,
}

impl Peaks {
    fn watch() -> Self {
        let (stop, stopped) = std::sync::mpsc::channel();
        let watcher = thread::spawn(move || {
            let mut peaks: Vec<(u32, u64)> = Vec::new();
            while stopped.recv_timeout(Duration::from_millis(2)).is_err() {
                for pid in ranks() {
                    let Some(bytes) = anonymous_bytes(pid) else { continue };
                    match peaks.iter_mut().find(|(known, _)| *known == pid) {
                        Some((_, peak)) => *peak = bytes.max(*peak),
                        None => peaks.push((pid, bytes)),
                    }
                }
            }
            peaks
        });
        Self { watcher, stop }
    }

    fn of(self, pid: u32) -> u64 {
        let _ = self.stop.send(());
        let peaks = self.watcher.join().expect("it watches to the end");
        peaks.iter().find(|(known, _)| *known == pid).expect("the rank was seen").1
    }
}

fn ranks() -> Vec<u32> {
    let binary = env!("CARGO_BIN_EXE_daisy");
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_string_lossy().parse().ok());
    let is_rank = |pid: &u32| {
        let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        let mut words = line.split(|byte| *byte == 0);
        words.next() == Some(binary.as_bytes()) && words.next() == Some(b"rank")
    };
    pids.filter(is_rank).collect()
}

fn anonymous_bytes(pid: u32) -> Option<u64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:"))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok().map(|kib| kib << 10)
}

#[test]
fn a_rank_that_loads_holds_its_layers_and_little_more() {
    if !Path::new("/proc/self/status").exists() {
        skip!("loading", "there is no /proc");
    }
    let model = checkpoint();
    let path = model.path().to_str().expect("utf-8");
    let node = |name: &str| (Home::new(name), "127.0.0.1:0".to_owned());
    let peaks = [Peaks::watch(), Peaks::watch()];
    // The heavy layer is among the first rank's.
    let cut = ["--layers", "8,8", "--headroom-gb", "0", "--context", "64", "--chunk", "16"];
    let cluster = Cluster::start(vec![node("near"), node("far")], path, &cut);
    for ((rank, peaks), pid) in (0..).zip(peaks).zip(cluster.pids.clone()) {
        let peak = peaks.of(pid);
        let layers = rank * 8..(rank + 1) * 8;
        let mut shard: u64 = layers.clone().map(layer_bytes).sum();
        if rank == 0 {
            shard += VOCAB * HIDDEN * 4;
        }
        let heaviest = layers.map(layer_bytes).max().expect("a layer");
        let allowed = (shard + heaviest) * 11 / 10 + BASE;
        let all: u64 = (0..LAYERS).map(layer_bytes).sum();
        assert!(all > allowed, "a rank that read everything would not be noticed");
        assert!(peak > shard, "rank {rank} holds {peak} bytes, and its shard has {shard}");
        assert!(peak <= allowed, "rank {rank} held {peak} bytes; {allowed} are allowed");
    }
}

const fn layer_bytes(layer: u64) -> u64 {
    let weights = 4 * HIDDEN * HIDDEN + 3 * HIDDEN * WIDTH;
    if layer == HEAVY { weights * 4 } else { weights + weights / 64 * 8 }
}

const LAYERS: u64 = 16;
const HEAVY: u64 = 3;
const HIDDEN: u64 = 2048;
const WIDTH: u64 = 8192;
const VOCAB: u64 = 256;
/// What the program itself holds, its threads and MLX's library included.
const BASE: u64 = 64 << 20;
