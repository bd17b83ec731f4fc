//! What a shard reads of a checkpoint, and what it refuses.

use std::fs;

use super::super::compute_dtype;
use super::checkpoint::{Checkpoint, LAYERS, RawTensor, poison, styles};
use super::*;
use crate::model::{Expected, Part, StoredDtype};

#[test]
fn only_the_shards_bytes_are_read() {
    for (name, style) in styles() {
        let clean = Checkpoint::write(&style);
        // Rank 1 holds layer 2 alone; all else is NaN, in the same files.
        let others_are_nan = |tensors: &mut Vec<RawTensor>| {
            tensors.iter_mut().filter(|t| !t.name.contains(".layers.2.")).for_each(poison);
        };
        let poisoned = Checkpoint::write_edited(&style, others_are_nan);
        let shard = Shard::of(Rank(1), LayerRange::new(2, 3));
        let rows = [row(1, 0, 5)];
        let data: Vec<u8> = (0_u8..=255).cycle().take(5 * 64 * 4).map(|b| b & 0x3f).collect();
        let hidden = Hidden::new(Dtype::F32, 5, 64, data.into()).expect("the size fits");
        let [clean, poisoned] = [clean, poisoned].map(|checkpoint| {
            let mut engine = load_shard(&checkpoint, shard, false, None).expect("loads");
            engine.forward(&rows, hidden.clone()).expect("answers").data
        });
        let values = clean.chunks(4).map(|b| f32::from_le_bytes(b.try_into().expect("four")));
        assert!(values.into_iter().all(f32::is_finite), "{name}");
        assert_eq!(clean, poisoned, "{name}");
    }
}

#[test]
fn rank_0_reads_embedding_and_head_but_no_later_layer() {
    let style = &styles()[0].1;
    let checkpoint = Checkpoint::write_edited(style, |tensors| {
        tensors.iter_mut().filter(|t| t.name.contains(".layers.3.")).for_each(poison);
    });
    let shard = Shard::of(Rank(0), LayerRange::new(0, 3));
    let mut engine = load_shard(&checkpoint, shard, true, None).expect("loads");
    let hidden = engine.embed_forward(&[row(1, 0, 3)], &prompt(3, 1)).expect("answers");
    bits(&engine.logits(hidden).expect("logits"));
}

#[test]
fn a_fault_of_the_shard_is_named_and_of_another_is_not() {
    type Edit = fn(&mut Vec<RawTensor>, usize);
    let faults: [(Edit, &str); 4] = [
        (|tensors, at| drop(tensors.remove(at)), "`model.layers.1.mlp.up_proj.weight` is missing"),
        (
            |tensors, at| {
                let name = "model.layers.1.mlp.extra.weight".to_owned();
                tensors.push(RawTensor { name, ..tensors[at].clone() });
            },
            "`model.layers.1.mlp.extra.weight` belongs to no module",
        ),
        (
            |tensors, at| tensors[at].shape = vec![64, 96],
            "`model.layers.1.mlp.up_proj.weight` has shape [64, 96], expected [96, 64]",
        ),
        (
            |tensors, at| tensors[at].dtype = "I16",
            "`model.layers.1.mlp.up_proj.weight` has type I16",
        ),
    ];
    for (edit, said) in faults {
        let checkpoint = Checkpoint::write_edited(&styles()[0].1, |tensors| {
            let up = |tensor: &RawTensor| tensor.name == "model.layers.1.mlp.up_proj.weight";
            let at = tensors.iter().position(up).expect("exists");
            edit(tensors, at);
        });
        let shard = |start, end| Shard::of(Rank(1), LayerRange::new(start, end));
        let error = load_shard(&checkpoint, shard(1, 2), true, None).expect_err(said);
        assert!(error.to_string().contains(said), "{error}");
        assert!(load_shard(&checkpoint, shard(2, 4), true, None).is_ok(), "{said}");
    }
}

#[test]
fn damaged_files_are_named() {
    let checkpoint = Checkpoint::write(&styles()[0].1);
    let shard = Shard::of(Rank(0), LayerRange::new(0, LAYERS));
    let whole = fs::read(&checkpoint.files[1]).expect("readable");
    let huge = [&u64::MAX.to_le_bytes(), &whole[8..]].concat();
    let cases: [(&[u8], &str); 5] = [
        (&whole[..whole.len() - 1], "cut short"),
        (&whole[..40], "before its header does"),
        (&whole[..3], "before its header does"),
        (b"", "before its header does"),
        (&huge, "the header claims"),
    ];
    for (bytes, said) in cases {
        fs::write(&checkpoint.files[1], bytes).expect("written");
        let error = load_shard(&checkpoint, shard, true, None).expect_err(said).to_string();
        assert!(error.contains(said) && error.contains("model-2.safetensors"), "{error}");
    }
    fs::remove_file(&checkpoint.files[1]).expect("removed");
    let error = load_shard(&checkpoint, shard, true, None).expect_err("gone").to_string();
    assert!(error.contains("model-2.safetensors"), "{error}");
}

#[test]
fn progress_counts_layers_up_to_the_shards() {
    let checkpoint = Checkpoint::write(&styles()[0].1);
    let request = LoadRequest {
        files: checkpoint.files.clone(),
        config: checkpoint.config.clone(),
        shard: Shard::of(Rank(1), LayerRange::new(1, 4)),
        is_last: true,
        dtype: None,
    };
    let mut seen = Vec::new();
    let engine = Engine::load(&request, &mut |progress| seen.push(progress)).expect("loads");
    let done: Vec<u32> = seen.iter().map(|progress| progress.layers_done).collect();
    assert_eq!(done, [0, 1, 2, 3, 3]);
    assert!(seen.iter().all(|progress| progress.layers_total == 3));
    assert!(engine.resident_bytes() > 0);
    assert!(engine.device().starts_with("cpu (") || engine.device().starts_with("gpu"));
}

#[test]
fn a_gpu_computes_in_the_type_of_the_layers_matrices() {
    let float = |name: &str, part, shape: &[u64], dtype| Expected {
        name: name.to_owned(),
        part,
        shape: shape.to_vec(),
        dtype,
    };
    // As a rank's shard comes: an embedding and a wide norm first, packed weights, then scales.
    let expected = [
        float("embedding", Part::Embedding, &[61, 64], StoredDtype::F32),
        float("norm", Part::Layer(0), &[64], StoredDtype::F32),
        float("weight", Part::Layer(0), &[64, 8], StoredDtype::U32),
        float("scales", Part::Layer(0), &[64, 2], StoredDtype::F16),
        float("head", Part::Head, &[61, 64], StoredDtype::F32),
    ];
    // Its config says bfloat16.
    let config = Checkpoint::write(&styles()[0].1).config;
    assert_eq!(compute_dtype(true, &config, &expected), Dtype::F16);
    assert_eq!(compute_dtype(true, &config, &expected[1..4]), Dtype::F16);
    assert_eq!(compute_dtype(true, &config, &expected[..1]), Dtype::Bf16);
    assert_eq!(compute_dtype(false, &config, &expected), Dtype::F32);
}
