"""Writes a Qwen3 checkpoint of the shape of the 8B model with random 4-bit weights (4.3 GiB): for
measuring speed where no real model of that size is at hand. Its answers are words without meaning.

  random_model.py OUT [--layers N]

numpy alone. Token id = byte value for the first 256, so a prompt has as many tokens as bytes.
"""

import argparse
import json
import math
from pathlib import Path

import numpy as np

HIDDEN, INTERMEDIATE, HEADS, KV_HEADS, HEAD_DIM, VOCAB = 4096, 12288, 32, 8, 128, 151_936
GROUP_SIZE = 64


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--layers", type=int, default=36)
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    write_weights(arguments.out / "model.safetensors", tensors(arguments.layers))
    config = {
        "model_type": "qwen3",
        "architectures": ["Qwen3ForCausalLM"],
        "hidden_size": HIDDEN,
        "intermediate_size": INTERMEDIATE,
        "num_hidden_layers": arguments.layers,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "head_dim": HEAD_DIM,
        "vocab_size": VOCAB,
        "max_position_embeddings": 40_960,
        "rms_norm_eps": 1e-6,
        "rope_theta": 1e6,
        "rope_scaling": None,
        "hidden_act": "silu",
        "attention_bias": False,
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
        "bos_token_id": None,
        "eos_token_id": VOCAB - 1,
        "quantization": {"group_size": GROUP_SIZE, "bits": 4, "mode": "affine"},
    }
    write_json(arguments.out / "config.json", config)
    write_json(arguments.out / "tokenizer.json", tokenizer())
    write_json(
        arguments.out / "tokenizer_config.json",
        {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "chat_template": "{% for message in messages %}{{ message['content'] }}{% endfor %}",
        },
    )


def tensors(layers: int):
    """Names with shapes `[out, in]`, or `[n]` for a norm."""
    yield "model.embed_tokens", (VOCAB, HIDDEN)
    for layer in range(layers):
        path = f"model.layers.{layer}"
        for name, shape in {
            "input_layernorm": (HIDDEN,),
            "self_attn.q_proj": (HEADS * HEAD_DIM, HIDDEN),
            "self_attn.k_proj": (KV_HEADS * HEAD_DIM, HIDDEN),
            "self_attn.v_proj": (KV_HEADS * HEAD_DIM, HIDDEN),
            "self_attn.q_norm": (HEAD_DIM,),
            "self_attn.k_norm": (HEAD_DIM,),
            "self_attn.o_proj": (HIDDEN, HEADS * HEAD_DIM),
            "post_attention_layernorm": (HIDDEN,),
            "mlp.gate_proj": (INTERMEDIATE, HIDDEN),
            "mlp.up_proj": (INTERMEDIATE, HIDDEN),
            "mlp.down_proj": (HIDDEN, INTERMEDIATE),
        }.items():
            yield f"{path}.{name}", shape
    yield "model.norm", (HIDDEN,)
    yield "lm_head", (VOCAB, HIDDEN)


def write_weights(path: Path, modules) -> None:
    """Two passes, so that the file is never in memory: sizes for the header, then the data."""
    header, offset, parts = {"__metadata__": {"format": "mlx"}}, 0, []
    for module, shape in modules:
        for suffix, dtype, stored, fill in stored_as(shape):
            size = math.prod(stored) * (4 if dtype == "U32" else 2)
            header[f"{module}.{suffix}"] = {"dtype": dtype, "shape": stored, "data_offsets": [offset, offset + size]}
            parts.append((size, fill))
            offset += size
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    random = np.random.SFC64(1)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for size, fill in parts:
            if fill is None:
                random.random_raw(size // 8).tofile(file)
            else:
                np.full(size // 2, bfloat16(fill)).tofile(file)


def stored_as(shape: tuple):
    """A norm is ones. A matrix has uniform 4-bit values `scale · q + bias` about zero, with a power of two as the
    scale, which bfloat16 holds exactly, near the spread that keeps activations of order one."""
    if len(shape) == 1:
        return [("weight", "BF16", shape, 1.0)]
    rows, columns = shape
    scale = 2.0 ** round(math.log2(0.25 / math.sqrt(columns)))
    groups = (rows, columns // GROUP_SIZE)
    return [
        ("weight", "U32", (rows, columns // 8), None),
        ("scales", "BF16", groups, scale),
        ("biases", "BF16", groups, -7.5 * scale),
    ]


def bfloat16(value: float) -> np.uint16:
    """The upper half of the float: exact for what is written here."""
    return np.uint16(np.float32(value).view(np.uint32) >> 16)


def tokenizer() -> dict:
    """Bytes, then a word for every other id, so that any token that is drawn is text."""
    vocab = {byte_level_char(byte): byte for byte in range(256)}
    vocab |= {f"Ġw{token}": token for token in range(256, VOCAB)}
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


main()
