"""Times mlx_lm on a checkpoint: one JSON line per request on stdin, one per answer on stdout.

  {"prompt": TOKENS, "tokens": COUNT}  →  {"prefill_ms": …, "tpot_ms": …}

The first answer of all, {"ready": DEVICE}, comes when the model is loaded.
"""

import json
import sys
import time
from pathlib import Path

import mlx.core as mx
from mlx_lm.generate import generate_step
from mlx_lm.utils import load_model


# mlx_lm hands gather_qmm a scale that MLX 0.32.2 does not know.
if "global_scale" not in (mx.gather_qmm.__doc__ or "global_scale"):
    known_gather_qmm = mx.gather_qmm
    mx.gather_qmm = lambda *inputs, global_scale=None, **more: known_gather_qmm(*inputs, **more)


def main() -> None:
    loaded = load_model(Path(sys.argv[1]))
    model = loaded[0] if isinstance(loaded, tuple) else loaded
    mx.eval(model.parameters())
    answer({"ready": str(mx.default_device())})
    for line in sys.stdin:
        request = json.loads(line)
        prompt = mx.array([(7 * i + 3) % 200 + 32 for i in range(request["prompt"])])
        began = time.perf_counter()
        times = []
        for _ in generate_step(prompt, model, max_tokens=request["tokens"]):
            times.append(time.perf_counter())
        answer(
            {
                "prefill_ms": 1e3 * (times[0] - began),
                "tpot_ms": 1e3 * (times[-1] - times[0]) / max(1, len(times) - 1),
            }
        )


def answer(value: dict) -> None:
    print(json.dumps(value), flush=True)


main()
