"""Answers questions with mlx_lm, greedily: a JSON string per line in, a JSON object per line out.

  ask_mlx_lm.py MODEL TOKENS

Where MLX's environment names a ring, it is one of the ring's ranks and the first of them prints.
Runs in the environment of `scripts/setup reference`. Times are taken as Daisy takes its own: prefill ends with the
first token, decode is all after it.
"""

import json
import sys
import time

import mlx.core as mx
from mlx_lm import load, stream_generate
from mlx_lm.utils import sharded_load

group = mx.distributed.init()
model, tokenizer = load(sys.argv[1]) if group.size() == 1 else sharded_load(sys.argv[1], group, None)
tokens_max = int(sys.argv[2])
for line in sys.stdin:
    messages = [{"role": "user", "content": json.loads(line)}]
    prompt = tokenizer.apply_chat_template(messages, add_generation_prompt=True)
    began = time.perf_counter()
    stamps, text = [], ""
    for piece in stream_generate(model, tokenizer, prompt, max_tokens=tokens_max):
        stamps.append(time.perf_counter())
        text += piece.text
    row = {
        "prompt_tokens": len(prompt),
        "first_s": stamps[0] - began,
        "prefill": len(prompt) / (stamps[0] - began),
        "decode": (len(stamps) - 1) / (stamps[-1] - stamps[0]),
        "tokens": len(stamps),
        "text": text,
    }
    if group.rank() == 0:
        print(json.dumps(row), flush=True)
