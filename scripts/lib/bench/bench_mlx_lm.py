"""mlx_lm: one rank against mlx_lm, with the same checkpoint, prompt, BLAS and cores, by turns.

Both load once and stay. The BLAS of prefill matters most on a CPU, so there are rows for the reference BLAS
that comes with MLX's wheel and for OpenBLAS. mlx_lm cannot cut a llama into ranks, so two of Daisy's ranks have
nothing to stand beside here and are shown alone.
"""

import json
import os
import subprocess

from common import ROOT, Cluster, medians

COLUMNS = ["blas", "what", "prompt_tokens", "mlx_lm", "daisy", "ratio", "two_ranks"]
TOKENS = 48
PROMPT = (
    "A town by the sea had a lighthouse that nobody had climbed for years. One autumn a girl found its key in a "
    "box of buttons, and with it a note in a hand that she did not know. It said that the lamp must be lit before "
    "the third storm, that the stairs were sound but for the ninth, and that whoever came should bring oil, a "
    "cloth and patience. She told her brother, who laughed, and her grandmother, who did not. "
    "Tell the rest of the story."
)


def run(options):
    for blas, preload in (("openblas", os.environ["DAISY_OPENBLAS"]), ("reference", "")):
        if blas == "openblas" and not preload:
            continue
        yield from compare(options, blas, preload)


def compare(options, blas, preload):
    model = os.environ["DAISY_BENCH_MODEL"]
    rounds = []
    with (
        Cluster(model, [list], preload) as one,
        Cluster(model, [list, list], preload) as two,
        Reference(model, preload) as reference,
    ):
        for number in range(options.rounds + 1):
            # Another first word each time: no cache of prompts can help either side.
            text = f"Part {number}. {PROMPT}"
            theirs = reference.ask(text)
            row = {"blas": blas, "round": number, "prompt_tokens": theirs["prompt_tokens"]}
            row |= {"mlx_lm_prefill": theirs["prefill"], "mlx_lm_decode": theirs["decode"]}
            for name, cluster in (("daisy", one), ("two_ranks", two)):
                answer = cluster.ask(text, TOKENS)
                assert answer["usage"]["prompt_tokens"] == theirs["prompt_tokens"], (answer["usage"], theirs)
                row[f"{name}_prefill"] = answer["timings"]["prompt_tokens_per_second"]
                row[f"{name}_decode"] = answer["timings"]["completion_tokens_per_second"]
                row[f"{name}_same_text"] = answer["choices"][0]["message"]["content"] == theirs["text"]
            if number:
                rounds.append(row)
                options.raw.add(row)
    for what in ("prefill", "decode"):
        for row in rounds:
            row["ratio"] = row[f"daisy_{what}"] / row[f"mlx_lm_{what}"]
        ratio = medians(rounds, "ratio")
        yield {
            "blas": blas,
            "what": f"{what} tok/s",
            "prompt_tokens": rounds[0]["prompt_tokens"],
            "mlx_lm": medians(rounds, f"mlx_lm_{what}"),
            "daisy": medians(rounds, f"daisy_{what}"),
            "ratio": ratio,
            "two_ranks": medians(rounds, f"two_ranks_{what}"),
            "target": ">= 1",
            "met": ratio >= 1.0,
        }


class Reference:
    """mlx_lm in a process of its own, one question a line."""

    def __init__(self, model, preload):
        env = {**os.environ, "HF_HUB_OFFLINE": "1"}
        if preload:
            env["LD_PRELOAD"] = preload
        script = ROOT / "scripts/lib/bench/ask_mlx_lm.py"
        command = [os.environ["DAISY_BENCH_PYTHON"], str(script), model, str(TOKENS)]
        self.process = subprocess.Popen(command, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def ask(self, text):
        self.process.stdin.write(json.dumps(text) + "\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit("error: mlx_lm ended; its output stands above")
        return json.loads(line)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.stdin.close()
        self.process.wait(60)
