"""split: what a second rank adds to each token, with a checkpoint so small that little else is left.

One cluster of one rank and one of two, both up for the whole run, asked by turns. TPOT is the driver's own
(`timings`). The hop of the same number of bytes is measured before and after in the same call, so that what the
ranks themselves add (`beyond_ms`) stands apart from the wire.
"""

import json
import os
import shutil
import tempfile
from pathlib import Path
from statistics import median

import bench_hop
from common import ROOT, Cluster, medians, pinned

COLUMNS = ["ranks", "tpot_ms", "added_ms", "hops_ms", "beyond_ms"]
TOKENS = 300
TARGET_MS = 0.5


def run(options):
    with tempfile.TemporaryDirectory() as folder:
        model, hidden_bytes = endless(Path(folder))
        with (
            Cluster(model, [on(0)]) as one,
            Cluster(model, [on(0), on(1)], serve_args=["--layers", "2,3"]) as two,
        ):
            hops = hop(hidden_bytes)
            rounds = []
            for number in range(options.rounds + 1):
                row = {"round": number}
                for ranks, cluster in ((1, one), (2, two)):
                    answer = cluster.ask("Count.", TOKENS)
                    assert answer["usage"]["completion_tokens"] == TOKENS, answer["usage"]
                    row[f"tpot{ranks}_ms"] = answer["timings"]["decode_ms"] / (TOKENS - 1)
                row["added_ms"] = row["tpot2_ms"] - row["tpot1_ms"]
                if number:  # the first one warms
                    rounds.append(row)
                    options.raw.add(row)
            hops = median([hops, hop(hidden_bytes)])
    added = medians(rounds, "added_ms")
    yield {"ranks": 1, "tpot_ms": medians(rounds, "tpot1_ms")}
    yield {
        "ranks": 2,
        "tpot_ms": medians(rounds, "tpot2_ms"),
        "added_ms": added,
        "hops_ms": hops,
        "beyond_ms": added - hops,
        "target": f"beyond <= {TARGET_MS}",
        "met": added - hops <= TARGET_MS,
    }


def on(core):
    return lambda command: pinned(core, command)


def hop(size):
    """There and back, in ms: what a token waits for the wire."""
    rounds = bench_hop.measure("lo", ([], []), ("127.0.0.1", "127.0.0.1"), {}, 1, [size])
    return next(row["p50_us"] for row in rounds if row["kind"] == "link") / 1000


def endless(folder):
    """The tiny checkpoint with a long context and without an end token: its answers end by number."""
    model = folder / "tiny"
    shutil.copytree(ROOT / "tests/data/tiny/llama-f32", model)
    config = edit(model / "config.json", max_position_embeddings=32768, eos_token_id=[])
    edit(model / "generation_config.json", eos_token_id=[])
    edit(model / "tokenizer_config.json", eos_token=None)
    return model, config["hidden_size"] * 4


def edit(path, **changes):
    value = {**json.loads(path.read_text(encoding="utf-8")), **changes}
    path.write_text(json.dumps(value), encoding="utf-8")
    return value
