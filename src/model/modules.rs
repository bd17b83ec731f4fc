//! Which modules a layer has, with their shapes: what follows from a config alone. How the weights
//! of each are stored is for [`super::spec`] to say.

use super::config::ModelConfig;
use super::family::Family;
use super::layers::{Experts, GatedDelta};
use super::spec::Part;

/// A module of the model: something with weights, named by its path in a checkpoint of MLX's.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Module {
    pub path: String,
    pub part: Part,
    pub kind: ModuleKind,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ModuleKind {
    /// `[rows, columns]`: a linear layer's `[out, in]`, an embedding's `[vocab, hidden]`.
    Matrix { rows: u32, columns: u32, bias: bool },
    /// A norm's weight.
    Vector { size: u32 },
    /// A vector without a name of its own within its module.
    Bare { size: u32 },
    /// A depthwise convolution's weight: `[channels, kernel, 1]`, or with its last axes swapped.
    Convolution { channels: u32, kernel: u32 },
    /// The gate, up and down projections of `count` experts between `hidden` and `width`.
    Experts { count: u32, hidden: u32, width: u32 },
}

pub(super) fn layer_modules(config: &ModelConfig, layer: u32) -> Vec<(&'static str, ModuleKind)> {
    let norm = ModuleKind::Vector { size: config.hidden };
    let mut modules = vec![("input_layernorm", norm), ("post_attention_layernorm", norm)];
    match config.delta_of(layer) {
        Some(delta) => modules.extend(delta_modules(config, delta)),
        None => modules.extend(attention_modules(config)),
    }
    if let Some(experts) = config.experts_of(layer) {
        modules.extend(expert_modules(config.hidden, experts));
    } else {
        let names = ["mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"];
        modules.extend(mlp_modules(names, config.hidden, config.intermediate, config.mlp_bias));
    }
    modules
}

fn attention_modules(config: &ModelConfig) -> Vec<(&'static str, ModuleKind)> {
    let (hidden, query, kv) = (config.hidden, config.query_width(), config.kv_width());
    let bias = config.attention_bias;
    // Gated attention projects its gates along with its queries.
    let queries = if config.family.is_hybrid() { 2 * query } else { query };
    let mut modules = vec![
        ("self_attn.q_proj", matrix(queries, hidden, bias.on_inputs())),
        ("self_attn.k_proj", matrix(kv, hidden, bias.on_inputs())),
        ("self_attn.v_proj", matrix(kv, hidden, bias.on_inputs())),
        ("self_attn.o_proj", matrix(hidden, query, bias.on_output())),
    ];
    if !matches!(config.family, Family::Llama | Family::Qwen2) {
        let head = ModuleKind::Vector { size: config.head_dim };
        modules.extend([("self_attn.q_norm", head), ("self_attn.k_norm", head)]);
    }
    modules
}

fn delta_modules(config: &ModelConfig, delta: &GatedDelta) -> Vec<(&'static str, ModuleKind)> {
    let (hidden, values, heads) = (config.hidden, delta.value_width(), delta.value_heads);
    let mut modules = if config.family == Family::Qwen3Next {
        let all = delta.conv_width() + values;
        vec![
            ("linear_attn.in_proj_qkvz", matrix(all, hidden, false)),
            ("linear_attn.in_proj_ba", matrix(2 * heads, hidden, false)),
        ]
    } else {
        vec![
            ("linear_attn.in_proj_qkv", matrix(delta.conv_width(), hidden, false)),
            ("linear_attn.in_proj_z", matrix(values, hidden, false)),
            ("linear_attn.in_proj_b", matrix(heads, hidden, false)),
            ("linear_attn.in_proj_a", matrix(heads, hidden, false)),
        ]
    };
    let (channels, kernel) = (delta.conv_width(), delta.kernel);
    modules.extend([
        ("linear_attn.conv1d", ModuleKind::Convolution { channels, kernel }),
        ("linear_attn.A_log", ModuleKind::Bare { size: heads }),
        ("linear_attn.dt_bias", ModuleKind::Bare { size: heads }),
        ("linear_attn.norm", ModuleKind::Vector { size: delta.value_dim }),
        ("linear_attn.out_proj", matrix(hidden, values, false)),
    ]);
    modules
}

fn expert_modules(hidden: u32, experts: &Experts) -> Vec<(&'static str, ModuleKind)> {
    let &Experts { count, width, shared_width, .. } = experts;
    let mut modules = vec![
        ("mlp.gate", matrix(count, hidden, false)),
        ("mlp.switch_mlp", ModuleKind::Experts { count, hidden, width }),
    ];
    if let Some(width) = shared_width {
        let names = [
            "mlp.shared_expert.gate_proj",
            "mlp.shared_expert.up_proj",
            "mlp.shared_expert.down_proj",
        ];
        modules.extend(mlp_modules(names, hidden, width, false));
        modules.push(("mlp.shared_expert_gate", matrix(1, hidden, false)));
    }
    modules
}

const fn mlp_modules(
    [gate, up, down]: [&'static str; 3],
    hidden: u32,
    width: u32,
    bias: bool,
) -> [(&'static str, ModuleKind); 3] {
    let inner = matrix(width, hidden, bias);
    [(gate, inner), (up, inner), (down, matrix(hidden, width, bias))]
}

const fn matrix(rows: u32, columns: u32, bias: bool) -> ModuleKind {
    ModuleKind::Matrix { rows, columns, bias }
}
