//! `daisy cluster plan`: machines that are not there, and a checkpoint of which only headers are.

use std::fs::{self, File};
use std::io::Write;
use std::path::Path;
use std::process::{Command, Output};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tempfile::TempDir;

/// A folder with a checkpoint and descriptions of machines.
struct Desk(TempDir);

impl Desk {
    /// 48 layers as in a mixture of 128 experts, about 400 GB in files that take no space.
    fn new() -> Self {
        let dir = tempfile::tempdir().expect("a folder");
        let model = dir.path().join("large");
        fs::create_dir(&model).expect("a folder");
        let tokenizer = format!("{}/tests/data/tiny/llama-f32", env!("CARGO_MANIFEST_DIR"));
        for name in ["tokenizer.json", "tokenizer_config.json"] {
            fs::copy(Path::new(&tokenizer).join(name), model.join(name)).expect("copied");
        }
        let config = json!({
            "model_type": "qwen3_moe", "hidden_size": HIDDEN, "num_hidden_layers": LAYERS,
            "head_dim": HEAD, "num_attention_heads": 64, "num_key_value_heads": 4,
            "intermediate_size": 4096, "moe_intermediate_size": WIDTH, "num_experts": EXPERTS,
            "num_experts_per_tok": 8, "norm_topk_prob": true, "vocab_size": VOCAB,
            "rms_norm_eps": 1e-6, "rope_theta": 1e6, "max_position_embeddings": 40960, "torch_dtype": "bfloat16",
            "tie_word_embeddings": false,
        });
        fs::write(model.join("config.json"), config.to_string()).expect("written");
        let outer = [
            ("model.embed_tokens.weight", vec![VOCAB, HIDDEN]),
            ("model.norm.weight", vec![HIDDEN]),
            ("lm_head.weight", vec![VOCAB, HIDDEN]),
        ];
        file(&model, 0, outer.map(|(name, shape)| (name.to_owned(), shape)).to_vec());
        for layer in 0..LAYERS {
            let of = |(name, shape): (&str, Vec<u64>)| {
                (format!("model.layers.{layer}.{name}.weight"), shape)
            };
            let tensors = [
                ("input_layernorm", vec![HIDDEN]),
                ("post_attention_layernorm", vec![HIDDEN]),
                ("self_attn.q_proj", vec![64 * HEAD, HIDDEN]),
                ("self_attn.k_proj", vec![4 * HEAD, HIDDEN]),
                ("self_attn.v_proj", vec![4 * HEAD, HIDDEN]),
                ("self_attn.o_proj", vec![HIDDEN, 64 * HEAD]),
                ("self_attn.q_norm", vec![HEAD]),
                ("self_attn.k_norm", vec![HEAD]),
                ("mlp.gate", vec![EXPERTS, HIDDEN]),
                ("mlp.switch_mlp.gate_proj", vec![EXPERTS, WIDTH, HIDDEN]),
                ("mlp.switch_mlp.up_proj", vec![EXPERTS, WIDTH, HIDDEN]),
                ("mlp.switch_mlp.down_proj", vec![EXPERTS, HIDDEN, WIDTH]),
            ];
            file(&model, layer + 1, tensors.map(of).to_vec());
        }
        Self(dir)
    }

    /// Plans for `machines`; the answer of the binary.
    fn plan(&self, machines: &Value, more: &[&str]) -> Output {
        let facts = self.0.path().join("facts.json");
        fs::write(&facts, machines.to_string()).expect("written");
        Command::new(env!("CARGO_BIN_EXE_daisy"))
            .args(["cluster", "plan", "--model"])
            .arg(self.0.path().join("large"))
            .arg("--facts")
            .arg(facts)
            .args(more)
            .env("DAISY_HOME", self.0.path().join("home"))
            .env("OPTIQ_CLUSTER_HEADROOM_GB", "3")
            .env("OPTIQ_VERBOSE", "1")
            .output()
            .expect("the binary runs")
    }
}

/// A safetensors file: a real header, and a hole where the weights would be.
fn file(dir: &Path, number: u64, tensors: Vec<(String, Vec<u64>)>) {
    let mut offset = 0;
    let mut header = serde_json::Map::new();
    for (name, shape) in tensors {
        let end = offset + shape.iter().product::<u64>() * 2;
        let entry = json!({"dtype": "BF16", "shape": shape, "data_offsets": [offset, end]});
        header.insert(name, entry);
        offset = end;
    }
    let text = Value::Object(header).to_string();
    let mut file =
        File::create(dir.join(format!("model-{number:05}.safetensors"))).expect("a file");
    file.write_all(&(text.len() as u64).to_le_bytes()).expect("written");
    file.write_all(text.as_bytes()).expect("written");
    file.set_len(8 + text.len() as u64 + offset).expect("a sparse file");
}

fn mac(name: &str, gib: u64, chip: &str) -> Value {
    json!({"name": name, "memory_gib": gib, "chip": chip})
}

#[test]
fn hundreds_of_gigabytes_are_planned_from_headers_alone() {
    let desk = Desk::new();
    let studios = json!({"nodes": [
        mac("studio", 384, "Apple M3 Ultra"), mac("twin", 384, "Apple M3 Ultra"),
        mac("mini", 64, "Apple M4 Pro"),
    ]});
    let started = Instant::now();
    let output = desk.plan(&studios, &["--json"]);
    let took = started.elapsed();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    // A debug build on a busy machine; nothing is read but headers.
    assert!(took < Duration::from_secs(20), "{took:?}");
    assert!(said.contains("OPTIQ_CLUSTER_HEADROOM_GB is read; here it is DAISY_CLUSTER"), "{said}");
    assert!(said.contains("OPTIQ_VERBOSE is OptiQ's and not read"), "{said}");
    let plan: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let ranks = plan["ranks"].as_array().expect("ranks");
    let weights: u64 = ranks.iter().filter_map(|rank| rank["weight_bytes"].as_u64()).sum();
    assert!(weights > 380_000_000_000, "{weights}");
    assert_eq!(ranks.len(), 2, "{plan:#}");
    assert_eq!([&ranks[0]["node"], &ranks[1]["node"]], ["studio", "twin"]);
    assert_eq!(ranks[1]["layers"][1], LAYERS);
    // What else could be done is there as a command, and costs what the hop costs.
    let others: Vec<&str> = plan["others"]
        .as_array()
        .expect("others")
        .iter()
        .filter_map(|other| other["args"][1].as_str())
        .collect();
    assert_eq!(others, ["all"]);
    assert_eq!(plan["context"], 40_960);
}

#[test]
fn too_small_a_cluster_is_refused_with_sums_that_add_up() {
    let desk = Desk::new();
    let minis = json!({"nodes": [
        mac("studio", 256, "Apple M3 Ultra"),
        {"name": "mini", "memory_gib": 64, "available_gib": 40, "swap_used_gib": 5},
    ]});
    let output = desk.plan(&minis, &["--headroom-gb", "studio=4"]);
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(output.stdout.is_empty());
    let table: Vec<Vec<&str>> = said
        .lines()
        .filter(|line| line.contains(" GiB") || line.contains("short by"))
        .map(|line| line.split_whitespace().collect())
        .collect();
    assert!(!table.is_empty(), "{said}");
    let tenths = |cell: &str| -> u64 { cell.replace('.', "").parse().expect("a size") };
    let rows: Vec<Vec<&str>> = said
        .lines()
        .filter(|line| line.starts_with("  0") || line.starts_with("  1"))
        .map(|line| line.split_whitespace().collect())
        .collect();
    assert_eq!(rows.len(), 2, "{said}");
    for row in &rows {
        assert_eq!(tenths(row[3]) + tenths(row[4]), tenths(row[5]), "{said}");
    }
    assert!(said.contains("residency ceiling 73 % of 256.0  ← short by"), "{said}");
    assert!(said.contains("free 40.0 − 2.0 reserve  ← short by"), "{said}");
    assert!(
        said.contains("hint: quit apps on `mini`, or restart it: it has 5.0 GiB in swap"),
        "{said}"
    );
    assert!(said.contains("hint: a quantisation of about"), "{said}");
}

#[test]
fn what_cannot_be_meant_is_named() {
    let desk = Desk::new();
    let two = json!({"nodes": [mac("studio", 512, "Apple M3 Ultra"), mac("mini", 64, "Apple M4")]});
    for (more, code, part) in [
        (&["--nodes", "air"][..], 2, "no node named `air` answers"),
        (&["--nodes", "3"], 2, "3 ranks were asked for, but 2 node(s)"),
        (&["--headroom-gb", "air=3"], 2, "--headroom-gb: no node named `air` takes part"),
        (&["--context", "50000"], 2, "more than the model's own 40960"),
        (&["--layers", "40,9"], 2, "--layers 40,9 adds up to 49 layers, but the model has 48"),
        (&["--exclude", "studio"], 2, "`studio` drives"),
    ] {
        let output = desk.plan(&two, more);
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{more:?}: {said}");
        assert!(said.contains(part), "{more:?}: no `{part}` in {said}");
    }
    // Who asks for JSON gets the refusal so, too.
    let output = desk.plan(&json!({"nodes": [mac("mini", 64, "Apple M4")]}), &["--json"]);
    assert_eq!(output.status.code(), Some(1));
    let refused: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let said = refused["refused"].as_str().expect("a reason");
    assert!(said.contains("large does not fit") && said.contains("bound by"), "{said}");
    assert!(refused["hints"].as_array().is_some_and(|hints| !hints.is_empty()), "{refused}");
    let output = desk.plan(&json!({"nodes": [{"name": "a"}]}), &[]);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("facts.json: missing field `memory_gib`"), "{said}");
}

const LAYERS: u64 = 48;
const HIDDEN: u64 = 4096;
const HEAD: u64 = 128;
const WIDTH: u64 = 2560;
const EXPERTS: u64 = 128;
const VOCAB: u64 = 151_936;
