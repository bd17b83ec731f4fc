//! Layers that not every family has: experts, and gated delta nets with their states.

use mlx_rs::memory;
use serde_json::{Value, json};

use super::super::ffi;
use super::checkpoint::{Checkpoint, LAYERS, RawTensor, poison};
use super::*;
use crate::model::ModelSpec;

/// Four layers each: dense ones among sparse ones, and every kind of mixer in one period.
fn styles() -> Vec<(&'static str, Value)> {
    let base = |model_type: &str, more: &[Value]| {
        let mut style = json!({"model_type": model_type, "rope_theta": 1e6});
        for (field, value) in more.iter().flat_map(|more| more.as_object().expect("an object")) {
            style[field] = value.clone();
        }
        style
    };
    let experts = json!({
        "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32,
        "norm_topk_prob": true,
    });
    let shared = json!({"shared_expert_intermediate_size": 32});
    let hybrid = json!({
        "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 16,
        "linear_value_head_dim": 8, "linear_conv_kernel_dim": 4, "full_attention_interval": 3,
    });
    let dense = json!({"mlp_only_layers": [1]});
    let quantised = json!({"quantization": {
        "group_size": 32, "bits": 4, "model.layers.0.mlp.gate": {"group_size": 64, "bits": 8},
        "model.layers.2.mlp.switch_mlp.down_proj": {"group_size": 32, "bits": 3},
    }});
    let mxfp4 = json!({"quantization": {"group_size": 32, "bits": 4, "mode": "mxfp4"}});
    vec![
        ("qwen3_moe", base("qwen3_moe", &[experts.clone(), dense.clone()])),
        ("qwen3_moe 4-bit", base("qwen3_moe", &[experts.clone(), dense.clone(), quantised])),
        (
            "qwen3_next",
            base("qwen3_next", &[experts.clone(), shared.clone(), hybrid.clone(), dense]),
        ),
        ("qwen3_5", base("qwen3_5", std::slice::from_ref(&hybrid))),
        ("qwen3_5_moe", base("qwen3_5_moe", &[experts.clone(), shared.clone(), hybrid.clone()])),
        ("qwen3_5_moe mxfp4", base("qwen3_5_moe", &[experts, shared, hybrid, mxfp4])),
    ]
}

fn answer(checkpoint: &Checkpoint, cut: &[u32]) -> Vec<Vec<u32>> {
    let mut chain = Chain::load(checkpoint, cut, None);
    let mut hidden = chain.prefill(&[row(1, 0, 40), row(2, 0, 3)], &prompt(43, 1));
    let mut seen = vec![bits(&chain.logits(&hidden))];
    for step in 0..3 {
        hidden = chain.decode(hidden, &[draw(1, 40 + step), draw(2, 3 + step)]).1;
        seen.push(bits(&chain.logits(&hidden)));
    }
    seen
}

#[test]
fn cuts_give_the_bits_of_one_rank() {
    for (name, style) in styles() {
        let checkpoint = Checkpoint::write(&style);
        let whole = answer(&checkpoint, &[LAYERS]);
        assert!(whole[0] != whole[1], "{name}: the logits never change");
        for cut in [[1, 3].as_slice(), &[2, 2], &[1, 2, 1]] {
            assert!(whole == answer(&checkpoint, cut), "{name} cut into {cut:?}");
        }
    }
}

#[test]
fn only_the_shards_bytes_are_read() {
    for (name, style) in styles() {
        let others_are_nan = |tensors: &mut Vec<RawTensor>| {
            tensors.iter_mut().filter(|t| !t.name.contains(".layers.2.")).for_each(poison);
        };
        let poisoned = Checkpoint::write_edited(&style, others_are_nan);
        let shard = Shard::of(Rank(1), LayerRange::new(2, 3));
        let mut engine = load_shard(&poisoned, shard, false, None).expect(name);
        let hidden = Hidden::new(Dtype::F32, 5, 64, [0, 0, 0x80, 0x3f].repeat(5 * 64).into());
        let out = engine.forward(&[row(1, 0, 5)], hidden.expect("fits")).expect("answers").data;
        let values = out.chunks(4).map(|b| f32::from_le_bytes(b.try_into().expect("four")));
        assert!(values.into_iter().all(f32::is_finite), "{name}");
    }
}

#[test]
fn a_step_is_one_submission() {
    for (name, style) in styles() {
        let mut chain = Chain::load(&Checkpoint::write(&style), &[2, 2], None);
        let hidden = chain.prefill(&[row(1, 0, 5)], &prompt(5, 1));
        chain.decode(hidden, &[draw(1, 5)]);
        let counts: Vec<u64> = chain.ranks.iter().map(Engine::submissions).collect();
        assert_eq!(counts, [3, 2], "{name}");
    }
}

#[test]
fn a_recurrent_state_goes_on_or_starts_anew() {
    for (name, style) in styles().into_iter().filter(|(name, _)| *name != "qwen3_moe") {
        let mut chain = Chain::load(&Checkpoint::write(&style), &[2, 2], None);
        let tokens = prompt(9, 1);
        let first = chain.prefill(&[row(1, 0, 9)], &tokens);
        let back = chain.ranks[0].embed_forward(&[row(1, 5, 1)], &[1]);
        if name.starts_with("qwen3_moe") {
            assert!(back.is_ok(), "{name}");
            continue;
        }
        let error = back.expect_err(name).to_string();
        assert!(error.contains("sequence 1 goes back to position 5 of 9"), "{name}: {error}");
        assert_eq!(chain.ranks[0].cached(SeqId(1)), 9, "{name}");
        let again = chain.prefill(&[row(1, 0, 9)], &tokens);
        assert_eq!(bits(&chain.logits(&first)), bits(&chain.logits(&again)), "{name}");
    }
}

/// What the planner reckons with is what MLX holds, sequence by sequence.
#[test]
fn caches_take_the_bytes_that_the_spec_says() {
    // What MLX holds is counted for the whole process.
    if !alone(concat!(module_path!(), "::caches_take_the_bytes_that_the_spec_says")) {
        return;
    }
    for (name, style) in styles() {
        let checkpoint = Checkpoint::write(&style);
        let spec = ModelSpec::new(&checkpoint.config);
        for (start, end) in [(0, LAYERS), (0, 2)] {
            let shard = Shard::of(Rank(1), LayerRange::new(start, end));
            let mut engine = load_shard(&checkpoint, shard, false, None).expect(name);
            let ones: Vec<u8> = [0, 0, 0x80, 0x3f].repeat(70 * 64);
            let hidden = Hidden::new(Dtype::F32, 70, 64, ones.into()).expect("fits");
            // Freed buffers are used again for what is up to two pages smaller.
            memory::set_cache_limit(0).expect("set");
            // Constants that the first step makes are not of its sequence.
            engine.forward(&[row(99, 0, 70)], hidden.clone()).expect(name);
            engine.release(&[SeqId(99)]);
            ffi::synchronize().expect("done");
            let before = engine.active_bytes().expect("counted");
            for seq in 0..SEQUENCES {
                engine.forward(&[row(seq, 0, 70)], hidden.clone()).expect(name);
            }
            ffi::synchronize().expect("done");
            let held = engine.active_bytes().expect("counted") - before;
            let of_layer = |layer| {
                256 * spec.kv_bytes_per_token(layer, Dtype::F32)
                    + spec.state_bytes(layer, Dtype::F32)
            };
            let expected = SEQUENCES * (start..end).map(of_layer).sum::<u64>();
            let allowed = expected / 50 + 1024;
            let what =
                format!("{name}, layers {start} to {end}: {held} bytes, expected {expected}");
            assert!(held.abs_diff(expected) <= allowed, "{what}");
        }
    }
}

/// The names and forms of the original checkpoints give the bits of MLX's.
#[test]
fn original_forms_are_understood() {
    for (name, style) in styles() {
        if style.get("quantization").is_some() {
            continue;
        }
        let (hybrid, sees) = (name != "qwen3_moe", name.starts_with("qwen3_5"));
        let own = Checkpoint::write(&style);
        let original = Checkpoint::write_edited(&style, |tensors| {
            let stored = tensors.drain(..).map(|tensor| less_one(tensor, hybrid));
            *tensors = if sees { as_seen(stored) } else { stored.flat_map(by_expert).collect() };
            if hybrid {
                tensors.push(RawTensor { name: "mtp.fc.weight".into(), ..tensors[0].clone() });
            }
        });
        assert!(answer(&own, &[LAYERS]) == answer(&original, &[2, 2]), "{name}");
    }
}

/// As a hybrid's original stores it: norms less 1, and a convolution's axes swapped.
fn less_one(mut tensor: RawTensor, hybrid: bool) -> RawTensor {
    const NORMS: [&str; 4] =
        ["layernorm.weight", "model.norm.weight", "q_norm.weight", "k_norm.weight"];
    if hybrid && tensor.name.ends_with("conv1d.weight") {
        tensor.shape.swap(1, 2);
    }
    if hybrid && NORMS.iter().any(|norm| tensor.name.ends_with(norm)) {
        // The upper half of an f32 is a bfloat16, and near 1 the difference is exact.
        let less = |&[low, high]: &[u8; 2]| {
            let value = f32::from_le_bytes([0, 0, low, high]) - 1.0;
            value.to_le_bytes()[2..].to_vec()
        };
        tensor.bytes = tensor.bytes.as_chunks::<2>().0.iter().flat_map(less).collect();
    }
    tensor
}

/// A stack as a matrix for each expert; other tensors as they are.
fn by_expert(tensor: RawTensor) -> Vec<RawTensor> {
    if !tensor.name.contains("switch_mlp") {
        return vec![tensor];
    }
    let count = tensor.shape[0];
    let size = tensor.bytes.len() / count as usize;
    let expert = |number: u32| RawTensor {
        name: tensor.name.replace("switch_mlp", &format!("experts.{number}")),
        shape: tensor.shape[1..].to_vec(),
        bytes: tensor.bytes[number as usize * size..][..size].to_vec(),
        ..tensor.clone()
    };
    (0..count).map(expert).collect()
}

/// As an original that also sees: another prefix, gate and up projections in one stack, and a tower.
fn as_seen(tensors: impl Iterator<Item = RawTensor>) -> Vec<RawTensor> {
    let mut stored: Vec<RawTensor> = tensors.collect();
    let gates: Vec<RawTensor> = stored
        .iter()
        .filter(|tensor| tensor.name.contains("switch_mlp.gate_proj"))
        .cloned()
        .collect();
    for gate in gates {
        let up = gate.name.replace("gate_proj", "up_proj");
        let up = stored.remove(stored.iter().position(|tensor| tensor.name == up).expect("a pair"));
        let of_expert = gate.bytes.len() / gate.shape[0] as usize;
        let pairs = gate.bytes.chunks(of_expert).zip(up.bytes.chunks(of_expert));
        let bytes = pairs.flat_map(|(gate, up)| [gate, up].concat()).collect();
        let shape = vec![gate.shape[0], 2 * gate.shape[1], gate.shape[2]];
        let joined = stored.iter_mut().find(|tensor| tensor.name == gate.name).expect("itself");
        let name = gate.name.replace("switch_mlp.gate_proj.weight", "experts.gate_up_proj");
        *joined = RawTensor { name, shape, bytes, ..gate };
    }
    for tensor in &mut stored {
        let name = tensor.name.replace("switch_mlp.down_proj.weight", "experts.down_proj");
        tensor.name = name.replacen("model.", "model.language_model.", 1);
    }
    let name = "model.visual.merger.norm.weight".into();
    stored.push(RawTensor { name, ..stored[0].clone() });
    stored
}

const SEQUENCES: u64 = 3;
