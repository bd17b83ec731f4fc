//! What configs are read as, and what they are refused for.

use serde_json::json;

use super::*;

fn llama() -> Value {
    json!({
        "model_type": "llama", "hidden_size": 576, "num_hidden_layers": 30,
        "num_attention_heads": 9, "num_key_value_heads": 3, "intermediate_size": 1536,
        "vocab_size": 49152, "rms_norm_eps": 1e-5, "rope_theta": 100_000.0,
        "max_position_embeddings": 8192, "tie_word_embeddings": true,
        "torch_dtype": "bfloat16", "eos_token_id": 2,
    })
}

fn with(changes: &[(&str, Value)]) -> Result<ModelConfig, String> {
    let mut config = llama();
    for (field, value) in changes {
        config[*field] = value.clone();
    }
    ModelConfig::parse(&config.to_string()).map_err(|error| error.to_string())
}

#[test]
fn a_llama_is_read() {
    let config = with(&[]).expect("valid");
    assert_eq!((config.family, config.head_dim, config.kv_width()), (Family::Llama, 64, 192));
    assert_eq!((config.dtype, config.eos.as_slice()), (Some(Dtype::Bf16), [2].as_slice()));
    assert!(
        config.tied
            && config.attention_bias == AttentionBias::None
            && config.quantisation.is_none()
    );
}

#[test]
fn variants_are_read() {
    let config = with(&[
        ("model_type", json!("qwen3")),
        ("head_dim", json!(128)),
        ("rope_theta", Value::Null),
        ("rope_parameters", json!({"rope_theta": 1e6, "rope_type": "default"})),
        ("use_sliding_window", json!(false)),
        ("sliding_window", json!(16)),
        ("layer_types", json!(["full_attention"])),
        ("eos_token_id", json!([1, 2])),
        ("quantization_config", json!({"group_size": 64, "bits": 4})),
    ])
    .expect("valid");
    assert_eq!((config.family, config.query_width()), (Family::Qwen3, 1152));
    assert!((config.rope.theta - 1e6).abs() < 1.0);
    assert_eq!(config.eos, [1, 2]);
    assert!(config.quantisation.is_some());
    let mistral = with(&[("model_type", json!("mistral")), ("sliding_window", Value::Null)]);
    assert_eq!(mistral.expect("valid").family, Family::Llama);
    assert!(with(&[("sliding_window", json!(8192))]).is_ok());
}

#[test]
fn an_unknown_architecture_lists_the_known() {
    let error = with(&[("model_type", json!("gemma3"))]).expect_err("refused");
    assert!(
        error.contains("`gemma3`") && error.contains("llama, mistral, qwen2, qwen3,"),
        "{error}"
    );
}

#[test]
fn refusals_name_the_field() {
    for (field, value) in [
        ("hidden_size", Value::Null),
        ("hidden_size", json!("576")),
        ("hidden_size", json!(-1)),
        ("hidden_size", json!(1_u64 << 40)),
        ("vocab_size", json!(i32::MAX)),
        ("num_hidden_layers", json!(0)),
        ("num_hidden_layers", json!(1_000_000)),
        ("num_key_value_heads", json!(4)),
        ("head_dim", json!(7)),
        ("head_dim", json!(i32::MAX - 1)),
        ("rms_norm_eps", json!("small")),
        ("rms_norm_eps", Value::Null),
        ("rope_theta", json!(-1)),
        ("rope_theta", json!(1e300)),
        ("rope_scaling", json!({"rope_type": "yarn", "factor": 8})),
        ("rope_scaling", json!([1])),
        ("rope_traditional", json!(true)),
        ("sliding_window", json!(4096)),
        ("layer_types", json!(["sliding_attention"])),
        ("hidden_act", json!("gelu")),
        ("tie_word_embeddings", json!(1)),
        ("torch_dtype", json!("float8")),
        ("eos_token_id", json!("</s>")),
        ("eos_token_id", json!([1, -2])),
        ("quantization", json!({"group_size": 64, "bits": 7})),
        ("max_position_embeddings", Value::Null),
        ("model_type", Value::Null),
    ] {
        let error = with(&[(field, value.clone())]).expect_err(field);
        assert!(error.contains(field), "{field} = {value}: {error}");
    }
}

#[test]
fn what_is_no_object_is_refused() {
    for text in ["", "[]", "null", "{", "{\"model_type\": \"llama\"}"] {
        assert!(ModelConfig::parse(text).is_err(), "{text}");
    }
}

/// A Qwen of each newer family, as their configs are.
fn qwen(model_type: &str) -> Value {
    let mut text = json!({
        "model_type": model_type, "hidden_size": 64, "num_hidden_layers": 8,
        "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32,
        "intermediate_size": 96, "vocab_size": 100, "rms_norm_eps": 1e-6, "rope_theta": 1e7,
        "max_position_embeddings": 4096, "tie_word_embeddings": false, "hidden_act": "silu",
    });
    let mut add = |more: Value| {
        for (field, value) in more.as_object().expect("an object") {
            text[field] = value.clone();
        }
    };
    if matches!(model_type, "qwen3_moe" | "qwen3_next" | "qwen3_5_moe") {
        add(json!({
            "num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 32,
            "norm_topk_prob": true, "shared_expert_intermediate_size": 48,
        }));
    }
    if matches!(model_type, "qwen3_next" | "qwen3_5" | "qwen3_5_moe") {
        add(json!({
            "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 16,
            "linear_value_head_dim": 16, "linear_conv_kernel_dim": 4,
        }));
    }
    if !model_type.starts_with("qwen3_5") {
        return text;
    }
    text["model_type"] = json!(format!("{model_type}_text"));
    text["attn_output_gate"] = json!(true);
    json!({"model_type": model_type, "vision_config": {}, "text_config": text})
}

fn parse(config: &Value) -> Result<ModelConfig, String> {
    ModelConfig::parse(&config.to_string()).map_err(|error| error.to_string())
}

#[test]
fn newer_families_are_read() {
    let read = |model_type| parse(&qwen(model_type)).expect(model_type);
    let qwen2 = read("qwen2");
    assert_eq!(qwen2.attention_bias, AttentionBias::Inputs);
    let moe = read("qwen3_moe");
    let experts = moe.experts.as_ref().expect("experts");
    assert_eq!((experts.count, experts.per_token, experts.shared_width), (8, 2, None));
    assert!(moe.delta.is_none() && moe.experts_of(0).is_some());
    let next = read("qwen3_next");
    let kinds: Vec<bool> = (0..8).map(|layer| next.delta_of(layer).is_some()).collect();
    assert_eq!(kinds, [true, true, true, false, true, true, true, false]);
    assert_eq!((next.rope.dims, next.delta.expect("nets").conv_width()), (8, 128));
    assert_eq!(next.experts.expect("experts").shared_width, Some(48));
    let dense = read("qwen3_5");
    assert!(dense.experts.is_none() && dense.delta.is_some() && dense.hidden == 64);
    let sparse = read("qwen3_5_moe");
    assert_eq!((sparse.model_type.as_str(), sparse.family), ("qwen3_5_moe", Family::Qwen35Moe));
    // A model of text alone has its config without another around it.
    let text = parse(&qwen("qwen3_5")["text_config"]).expect("valid");
    assert_eq!(text.family, Family::Qwen35);
    // Some layers may be dense, and an all-sparse model need not say how wide that would be.
    let mut some = qwen("qwen3_moe");
    (some["mlp_only_layers"], some["decoder_sparse_step"]) = (json!([3]), json!(2));
    let some = parse(&some).expect("valid");
    let sparse: Vec<u32> = (0..8).filter(|layer| some.experts_of(*layer).is_some()).collect();
    assert_eq!(sparse, [1, 5, 7]);
    let mut narrow = qwen("qwen3_moe");
    narrow["intermediate_size"] = Value::Null;
    assert_eq!(parse(&narrow).expect("valid").intermediate, 32);
}

/// Options that would change what is computed: of an architecture, a field with a value that is not
/// implemented, and what the refusal says.
#[test]
fn options_that_are_not_implemented_are_refused_by_name() {
    let rope = |more: Value| {
        let mut rope = json!({"rope_type": "default", "rope_theta": 1e7});
        for (field, value) in more.as_object().expect("an object") {
            rope[field] = value.clone();
        }
        rope
    };
    for (model_type, field, value, said) in [
        ("qwen2", "attention_bias", json!(false), "`attention_bias` is false"),
        ("qwen2", "tie_word_embeddings", Value::Null, "lacks `tie_word_embeddings`"),
        ("qwen2", "rope_theta", Value::Null, "lacks `rope_theta`"),
        ("qwen2", "mlp_bias", json!(true), "`mlp_bias` is true"),
        ("qwen2", "use_sliding_window", json!(true), ""),
        ("qwen2", "sliding_window", json!(128), "`sliding_window` is 128"),
        ("qwen2", "num_experts", json!(8), "`num_experts` is 8"),
        ("qwen2", "use_qk_norm", json!(true), "`use_qk_norm` is true"),
        ("qwen2", "hidden_act", json!("gelu"), "`hidden_act` is gelu"),
        ("qwen2", "final_logit_softcapping", json!(30), "`final_logit_softcapping` is 30"),
        ("qwen2", "model_file", json!("own.py"), "`model_file` is own.py"),
        ("qwen2", "attn_output_gate", json!(true), "`attn_output_gate` is true"),
        ("qwen2", "partial_rotary_factor", json!(0.5), "`partial_rotary_factor` is 0.5"),
        ("qwen3_moe", "attention_bias", json!(true), "`attention_bias` is true"),
        ("qwen3_moe", "norm_topk_prob", Value::Null, "lacks `norm_topk_prob`"),
        ("qwen3_moe", "num_experts_per_tok", json!(9), "at most num_experts, got 9 of 8"),
        ("qwen3_moe", "mlp_only_layers", json!(["a"]), "`mlp_only_layers` must be"),
        ("qwen3_moe", "moe_intermediate_size", Value::Null, "lacks `moe_intermediate_size`"),
        ("qwen3_moe", "moe_intermediate_size", json!(i32::MAX), "`moe_intermediate_size` must be"),
        ("qwen3_moe", "rope_scaling", json!({"rope_type": "yarn", "factor": 4}), "is yarn"),
        ("qwen3_next", "attn_output_gate", json!(false), "`attn_output_gate` is false"),
        ("qwen3_next", "linear_conv_kernel_dim", json!(1), "`linear_conv_kernel_dim` must be"),
        ("qwen3_next", "linear_num_value_heads", json!(3), "a multiple of linear_num_key_heads"),
        ("qwen3_next", "linear_key_head_dim", json!(1 << 30), "a size within reason"),
        (
            "qwen3_next",
            "layer_types",
            json!(["linear_attention", "full_attention"]),
            "`layer_types` is \"full_attention\" for layer 1",
        ),
        ("qwen3_5", "mamba_ssm_dtype", json!("bfloat16"), "`text_config.mamba_ssm_dtype`"),
        ("qwen3_5", "output_gate_type", json!("sigmoid"), "`text_config.output_gate_type`"),
        ("qwen3_5", "num_experts", json!(8), "`text_config.num_experts` is 8"),
        ("qwen3_5", "model_type", json!("qwen3_5_moe_text"), "`text_config.model_type` must be"),
        ("qwen3_5", "model_type", json!("qwen4_text"), "`qwen4_text` is not supported"),
        ("qwen3_5", "hidden_size", Value::Null, "lacks `text_config.hidden_size`"),
        (
            "qwen3_5",
            "rope_parameters",
            rope(json!({"mrope_section": [11, 11, 10]})),
            "`text_config.rope_parameters.mrope_section` is [11, 11, 10]",
        ),
        (
            "qwen3_5",
            "rope_parameters",
            rope(json!({"mrope_section": [2, 2]})),
            "must be a list of three numbers",
        ),
        (
            "qwen3_5",
            "rope_parameters",
            rope(json!({"rope_type": "mrope"})),
            "`text_config.rope_parameters.rope_type` is mrope",
        ),
        (
            "qwen3_5",
            "rope_parameters",
            rope(json!({"attention_factor": 1.5})),
            "`text_config.rope_parameters.attention_factor` is 1.5",
        ),
        ("qwen3_5_moe", "norm_topk_prob", json!(false), "`text_config.norm_topk_prob` is false"),
        ("qwen3_5_moe", "decoder_sparse_step", json!(2), "`text_config.decoder_sparse_step` is 2"),
        ("qwen3_5_moe", "mlp_only_layers", json!([1]), "`text_config.mlp_only_layers` is [1]"),
        (
            "qwen3_5_moe",
            "quantization",
            json!({"group_size": 32, "bits": 4, "mode": "mxfp3"}),
            "`text_config.quantization.mode` is mxfp3",
        ),
        (
            "qwen3_5_moe",
            "quantization_config",
            json!({"quant_method": "fp8"}),
            "`text_config.quantization_config.quant_method` is fp8",
        ),
    ] {
        let mut config = qwen(model_type);
        let text = if config.get(TEXT).is_some() { &mut config[TEXT] } else { &mut config };
        text[field] = value.clone();
        match parse(&config) {
            Ok(_) => assert!(said.is_empty(), "{model_type}: {field} = {value} is accepted"),
            Err(error) => {
                let named = !said.is_empty() && error.contains(said);
                assert!(named, "{model_type}: {field} = {value}: {error}");
            }
        }
    }
    let mut torn = qwen("qwen3_5");
    torn["tie_word_embeddings"] = json!(true);
    let error = parse(&torn).expect_err("they disagree");
    assert!(error.contains("`text_config.tie_word_embeddings` must be the same"), "{error}");
}
