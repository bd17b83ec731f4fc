//! Which tensors a shard finds, and what it says of those that it does not.

use daisy_proto::{Dtype, LayerRange, Rank};
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
        for (name, shape, kind) in spec.module_tensors(&module, &BTreeMap::new()).expect("fits") {
            let dtype = match kind {
                Kind::Packed => StoredDtype::U32,
                Kind::Bytes => StoredDtype::U8,
                Kind::Float => StoredDtype::Bf16,
            };
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
        (changed(scales, |entry| entry.shape = vec![96, 3]), "has shape [96, 3], expected [96, 2]"),
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
        ("model.layers.3.mlp.up_proj.weight", "`model.layers.3.mlp.up_proj.weight` belongs to no"),
        ("model.layers.1.mlp.up_proj.weight", "`model.layers.1.mlp.up_proj.weight` is there twice"),
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
    entries
        .retain(|entry| !["scales", "biases"].map(|s| format!("{path}.{s}")).contains(&entry.name));
    let weight = entries.iter_mut().find(|entry| entry.name == format!("{path}.weight"));
    let weight = weight.expect("exists");
    (weight.dtype, weight.shape) = (StoredDtype::F32, vec![96, 64]);
    let shard = Shard::of(Rank(1), LayerRange::new(1, 2));
    assert!(ModelSpec::new(&config).shard_tensors(&shard, &entries).is_ok());
}

#[test]
fn groups_must_divide_the_columns() {
    let groups = |size: u32| config(&[("quantization", json!({"group_size": size, "bits": 4}))]);
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
    assert_eq!(spec.kv_bytes_per_token(0, Dtype::Bf16), 2 * 2 * 16 * 2);
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

/// A Qwen 3.5 with experts: layers of both kinds, and a tower beside it.
fn hybrid() -> ModelConfig {
    config(&[
        ("model_type", json!("qwen3_5_moe")),
        ("rope_theta", json!(1e7)),
        ("full_attention_interval", json!(3)),
        ("linear_num_key_heads", json!(2)),
        ("linear_num_value_heads", json!(4)),
        ("linear_key_head_dim", json!(16)),
        ("linear_value_head_dim", json!(8)),
        ("linear_conv_kernel_dim", json!(4)),
        ("num_experts", json!(4)),
        ("num_experts_per_tok", json!(1)),
        ("moe_intermediate_size", json!(32)),
        ("shared_expert_intermediate_size", json!(32)),
    ])
}

#[test]
fn what_is_beside_the_language_model_is_not_counted() {
    let config = hybrid();
    let (spec, entries) = (ModelSpec::new(&config), stored(&config));
    let counted = |entries: &[TensorEntry]| {
        spec.bytes_by_part(entries.iter().map(|entry| (entry.name.as_str(), entry.bytes)))
    };
    let alone = counted(&entries).expect("all known");
    let mut beside: Vec<TensorEntry> = entries
        .iter()
        .map(|entry| TensorEntry {
            name: format!("language_model.{}", entry.name),
            ..entry.clone()
        })
        .collect();
    for name in ["vision_tower.patch_embed.weight", "mtp.fc.weight", "model.visual.x"] {
        beside.push(TensorEntry { name: name.to_owned(), bytes: 1 << 40, ..entries[0].clone() });
    }
    assert_eq!(counted(&beside), Ok(alone));
    let shard = Shard::of(Rank(0), LayerRange::new(0, 3));
    let needed = spec.shard_tensors(&shard, &beside).expect("complete");
    assert_eq!(needed.len(), entries.len());
    assert!(needed.iter().any(|tensor| tensor.name == "model.layers.2.self_attn.q_norm.weight"));
}

#[test]
fn a_token_reads_a_part_of_the_experts_and_keeps_what_its_layer_keeps() {
    let config = hybrid();
    let (spec, entries) = (ModelSpec::new(&config), stored(&config));
    let parts = spec
        .bytes_by_part(entries.iter().map(|entry| (entry.name.as_str(), entry.bytes)))
        .expect("all known");
    // Three matrices of 32 by 64 in 2 bytes for each of 4 experts, of which a token reads 1.
    let experts = 3 * 4 * 32 * 64 * 2;
    assert_eq!(parts.experts, [experts; 3]);
    for layer in 0..3 {
        let all = parts.layers[layer as usize];
        assert_eq!(spec.active_bytes(layer, &parts), all - experts * 3 / 4);
    }
    // Layers 0 and 1 are delta nets, 2 is attention.
    let kept =
        |layer| (spec.kv_bytes_per_token(layer, Dtype::Bf16), spec.state_bytes(layer, Dtype::Bf16));
    let state = 3 * (2 * 32 + 32) * 2 + 4 * 16 * 8 * 4;
    assert_eq!([kept(0), kept(1), kept(2)], [(0, state), (0, state), (2 * 2 * 16 * 2, 0)]);
}

#[test]
fn parameters_are_the_numbers_of_all_tensors() {
    // Of a quantised one each packed word holds several, so only plain ones can be counted there.
    let config = hybrid();
    let counted: u64 =
        stored(&config).iter().map(|tensor| tensor.shape.iter().product::<u64>()).sum();
    assert_eq!(ModelSpec::new(&config).parameters(), counted);
}

#[test]
fn floats_are_held_in_the_compute_type_and_packed_words_as_they_are() {
    let tensor = |dtype, bytes| TensorEntry {
        name: String::new(),
        dtype,
        shape: vec![2, 3],
        offset: 0,
        bytes,
    };
    for (stored, bytes, held) in
        [(StoredDtype::Bf16, 12, 24), (StoredDtype::F32, 24, 24), (StoredDtype::U32, 24, 24)]
    {
        assert_eq!(ModelSpec::held_bytes(&tensor(stored, bytes), Dtype::F32), held, "{stored}");
    }
    assert_eq!(ModelSpec::held_bytes(&tensor(StoredDtype::F32, 24), Dtype::Bf16), 12);
}

#[test]
fn experts_come_in_three_forms() {
    let config = hybrid();
    let spec = ModelSpec::new(&config);
    let shard = Shard::of(Rank(1), LayerRange::new(1, 2));
    let complete = stored(&config);
    let (stacks, rest): (Vec<_>, Vec<_>) =
        complete.into_iter().partition(|entry| entry.name.contains("layers.1.mlp.switch_mlp"));
    assert_eq!(stacks.len(), 3);
    let entry = |name: &str, shape: &[u64]| TensorEntry {
        name: format!("model.layers.1.mlp.experts.{name}"),
        shape: shape.to_vec(),
        ..stacks[0].clone()
    };
    let fused = [entry("gate_up_proj", &[4, 64, 64]), entry("down_proj", &[4, 64, 32])];
    let separate: Vec<TensorEntry> = (0..4)
        .flat_map(|expert| {
            [("gate_proj", [32, 64]), ("up_proj", [32, 64]), ("down_proj", [64, 32])]
                .map(|(name, shape)| entry(&format!("{expert}.{name}.weight"), &shape))
        })
        .collect();
    let found = |experts: &[TensorEntry]| {
        let entries = [rest.as_slice(), experts].concat();
        spec.shard_tensors(&shard, &entries).map_err(|error| error.to_string())
    };
    for form in [stacks.as_slice(), &fused, &separate] {
        assert!(found(form).is_ok(), "{form:?}");
    }
    for (form, said) in [
        (&separate[..11], "`model.layers.1.mlp.experts.3.down_proj.weight` is missing"),
        (&fused[..1], "`model.layers.1.mlp.experts.down_proj` is missing"),
        (&[fused.as_slice(), &separate[1..2]].concat(), "belongs to no module"),
        (&[], "`model.layers.1.mlp.switch_mlp.gate_proj.weight` is missing"),
    ] {
        let error = found(form).expect_err(said);
        assert!(error.contains(said), "{error}");
    }
}
