"""Writes a checkpoint of a real model's layer shapes with random 4-bit weights: for measuring speed where no real model
of that size is at hand. Its answers are words without meaning.

  random_model.py OUT [--family qwen3|qwen3_moe|qwen3_5|qwen3_5_moe] [--layers N] [--tiny]

The shapes are those of Qwen3-8B, Qwen3-30B-A3B, Qwen3.5-27B and Qwen3.5-122B-A10B; --tiny makes them small enough to
try the scripts that use them. numpy alone. Token id = byte value for the first 256, so a prompt has as many tokens as
bytes. Start at FAMILIES.
"""

import argparse
import json
import math
from pathlib import Path

import numpy as np

GROUP_SIZE = 64

COMMON = {"rms_norm_eps": 1e-6, "hidden_act": "silu", "attention_bias": False, "tie_word_embeddings": False}
QWEN3 = COMMON | {
    "num_attention_heads": 32,
    "head_dim": 128,
    "vocab_size": 151_936,
    "max_position_embeddings": 40_960,
    "rope_theta": 1e6,
    "rope_scaling": None,
}
QWEN3_5 = COMMON | {
    "head_dim": 256,
    "vocab_size": 248_320,
    "max_position_embeddings": 262_144,
    "full_attention_interval": 4,
    "attn_output_gate": True,
    "linear_num_key_heads": 16,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "linear_conv_kernel_dim": 4,
    "rope_parameters": {
        "rope_type": "default",
        "rope_theta": 1e7,
        "partial_rotary_factor": 0.25,
        "mrope_interleaved": True,
        "mrope_section": [11, 11, 10],
    },
}
# Layers that are written unless --layers says otherwise, and the config.
FAMILIES = {
    "qwen3": (36, QWEN3 | {"hidden_size": 4096, "intermediate_size": 12_288, "num_key_value_heads": 8}),
    "qwen3_moe": (
        8,
        QWEN3
        | {
            "hidden_size": 2048,
            "intermediate_size": 6144,
            "num_key_value_heads": 4,
            "num_experts": 128,
            "num_experts_per_tok": 8,
            "moe_intermediate_size": 768,
            "norm_topk_prob": True,
            "decoder_sparse_step": 1,
            "mlp_only_layers": [],
        },
    ),
    "qwen3_5": (
        8,
        QWEN3_5
        | {
            "hidden_size": 5120,
            "intermediate_size": 17_408,
            "num_attention_heads": 24,
            "num_key_value_heads": 4,
            "linear_num_value_heads": 48,
        },
    ),
    "qwen3_5_moe": (
        4,
        QWEN3_5
        | {
            "hidden_size": 3072,
            "num_attention_heads": 32,
            "num_key_value_heads": 2,
            "linear_num_value_heads": 64,
            "num_experts": 256,
            "num_experts_per_tok": 8,
            "moe_intermediate_size": 1024,
            "shared_expert_intermediate_size": 1024,
        },
    ),
}
TINY = {
    "hidden_size": 128,
    "intermediate_size": 128,
    "moe_intermediate_size": 64,
    "shared_expert_intermediate_size": 64,
    "num_experts": 16,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "vocab_size": 512,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--family", choices=FAMILIES, default="qwen3")
    parser.add_argument("--layers", type=int)
    parser.add_argument("--tiny", action="store_true")
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    layers, text = FAMILIES[arguments.family]
    text = text | {"num_hidden_layers": arguments.layers or layers}
    if arguments.tiny:
        text |= {field: size for field, size in TINY.items() if field in text}
    sees = arguments.family.startswith("qwen3_5")
    modules = list(modules_of(text, "language_model." if sees else ""))
    write_weights(arguments.out / "model.safetensors", modules)
    config = {
        "model_type": arguments.family,
        "torch_dtype": "bfloat16",
        "bos_token_id": None,
        "eos_token_id": text["vocab_size"] - 1,
        "quantization": {"group_size": GROUP_SIZE, "bits": 4, "mode": "affine"}
        | {name: {"group_size": GROUP_SIZE, "bits": 8, "mode": "affine"} for name, _, kind in modules if kind == "gate"},
    }
    nested = {"text_config": text | {"model_type": f"{arguments.family}_text"}}
    write_json(arguments.out / "config.json", config | (nested if sees else text))
    write_json(arguments.out / "tokenizer.json", tokenizer(text["vocab_size"]))
    write_json(
        arguments.out / "tokenizer_config.json",
        {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "chat_template": "{% for message in messages %}{{ message['content'] }}{% endfor %}",
        },
    )


def modules_of(config: dict, prefix: str):
    """Names with shapes and kinds: `matrix` [out, in] or a stack of them, `gate` (a matrix in 8 bits), `norm`, `conv`,
    and the bare vectors `A_log` and `dt_bias`."""
    hidden, vocab = config["hidden_size"], config["vocab_size"]
    yield f"{prefix}model.embed_tokens", (vocab, hidden), "matrix"
    for layer in range(config["num_hidden_layers"]):
        path = f"{prefix}model.layers.{layer}"
        for part in (norms(config), mixer(config, layer), feed_forward(config)):
            for name, shape, kind in part:
                yield f"{path}.{name}", shape, kind
    yield f"{prefix}model.norm", (hidden,), "norm"
    yield f"{prefix}lm_head", (vocab, hidden), "matrix"


def norms(config: dict):
    for name in ("input_layernorm", "post_attention_layernorm"):
        yield name, (config["hidden_size"],), "norm"


def mixer(config: dict, layer: int):
    hidden, dim = config["hidden_size"], config["head_dim"]
    hybrid = "linear_num_value_heads" in config
    if not hybrid or (layer + 1) % config["full_attention_interval"] == 0:
        query, kv = config["num_attention_heads"] * dim, config["num_key_value_heads"] * dim
        yield "self_attn.q_proj", (2 * query if hybrid else query, hidden), "matrix"
        yield "self_attn.k_proj", (kv, hidden), "matrix"
        yield "self_attn.v_proj", (kv, hidden), "matrix"
        yield "self_attn.o_proj", (hidden, query), "matrix"
        yield "self_attn.q_norm", (dim,), "norm"
        yield "self_attn.k_norm", (dim,), "norm"
        return
    heads, value_dim = config["linear_num_value_heads"], config["linear_value_head_dim"]
    keys, values = config["linear_num_key_heads"] * config["linear_key_head_dim"], heads * value_dim
    yield "linear_attn.in_proj_qkv", (2 * keys + values, hidden), "matrix"
    yield "linear_attn.in_proj_z", (values, hidden), "matrix"
    yield "linear_attn.in_proj_b", (heads, hidden), "matrix"
    yield "linear_attn.in_proj_a", (heads, hidden), "matrix"
    yield "linear_attn.conv1d", (2 * keys + values, config["linear_conv_kernel_dim"], 1), "conv"
    yield "linear_attn.A_log", (heads,), "A_log"
    yield "linear_attn.dt_bias", (heads,), "dt_bias"
    yield "linear_attn.norm", (value_dim,), "norm"
    yield "linear_attn.out_proj", (hidden, values), "matrix"


def feed_forward(config: dict):
    hidden = config["hidden_size"]

    def network(path: str, width: int, *stack: int):
        yield f"{path}.gate_proj", (*stack, width, hidden), "matrix"
        yield f"{path}.up_proj", (*stack, width, hidden), "matrix"
        yield f"{path}.down_proj", (*stack, hidden, width), "matrix"

    if "num_experts" not in config:
        yield from network("mlp", config["intermediate_size"])
        return
    yield "mlp.gate", (config["num_experts"], hidden), "gate"
    yield from network("mlp.switch_mlp", config["moe_intermediate_size"], config["num_experts"])
    if "shared_expert_intermediate_size" in config:
        yield from network("mlp.shared_expert", config["shared_expert_intermediate_size"])
        yield "mlp.shared_expert_gate", (1, hidden), "gate"


def write_weights(path: Path, modules) -> None:
    """Two passes, so that the file is never in memory: sizes for the header, then the data."""
    header, offset, parts = {"__metadata__": {"format": "mlx"}}, 0, []
    for module, shape, kind in modules:
        for suffix, dtype, stored, fill in stored_as(shape, kind):
            size = math.prod(stored) * (2 if dtype == "BF16" else 4)
            header[module + suffix] = {"dtype": dtype, "shape": stored, "data_offsets": [offset, offset + size]}
            parts.append((size, dtype, fill))
            offset += size
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    random = np.random.SFC64(1)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for size, dtype, fill in parts:
            if fill is None:
                # A large stack of experts is written in pieces.
                for start in range(0, size, PIECE_BYTES):
                    random.random_raw(min(PIECE_BYTES, size - start) // 8).tofile(file)
            elif dtype == "F32":
                np.full(size // 4, fill, np.float32).tofile(file)
            else:
                np.full(size // 2, bfloat16(fill)).tofile(file)


def stored_as(shape: tuple, kind: str):
    """Suffix, type, shape and filling; none: random bits. A matrix has uniform values `scale · q + bias` about zero,
    with a power of two as the scale, which bfloat16 holds exactly, near the spread that keeps activations of order
    one."""
    if kind == "norm":
        return [(".weight", "BF16", shape, 1.0)]
    if kind == "conv":
        return [(".weight", "BF16", shape, 0.25)]
    if kind == "A_log":
        return [("", "F32", shape, 0.0)]
    if kind == "dt_bias":
        return [("", "BF16", shape, -2.0)]
    *leading, columns = shape
    bits = 8 if kind == "gate" else 4
    scale = 2.0 ** round(math.log2(4 / 2**bits / math.sqrt(columns)))
    groups = (*leading, columns // GROUP_SIZE)
    return [
        (".weight", "U32", (*leading, columns * bits // 32), None),
        (".scales", "BF16", groups, scale),
        (".biases", "BF16", groups, -(2**bits - 1) / 2 * scale),
    ]


def bfloat16(value: float) -> np.uint16:
    """The upper half of the float: exact for what 4 bits need, and near enough for 8."""
    return np.uint16(np.float32(value).view(np.uint32) >> 16)


def tokenizer(vocab_size: int) -> dict:
    """Bytes, then a word for every other id, so that any token that is drawn is text."""
    vocab = {byte_level_char(byte): byte for byte in range(256)}
    vocab |= {f"Ġw{token}": token for token in range(256, vocab_size)}
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    return {
        "version": "1.0",
        "added_tokens": [],
        "normalizer": None,
        "pre_tokenizer": level,
        "post_processor": None,
        "decoder": level,
        "model": {"type": "BPE", "vocab": vocab, "merges": []},
    }


def byte_level_char(byte: int) -> str:
    stays = [b for b in range(256) if 33 <= b <= 126 or 161 <= b <= 172 or b >= 174]
    moved = [b for b in range(256) if b not in stays]
    return chr(byte) if byte in stays else chr(256 + moved.index(byte))


def write_json(path: Path, value: dict) -> None:
    path.write_text(json.dumps(value, ensure_ascii=False) + "\n", encoding="utf-8")


PIECE_BYTES = 1 << 28

main()
