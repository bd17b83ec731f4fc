"""The measuring half of scripts/gpu-check: see there. Standard library only.

Every result is a row, `{"part", "what", …}`; rows are written as they come, so that a run which is
cut short still tells what it found. A part that fails is a row with `error`, and the next one runs.
"""

import argparse
import http.client
import json
import os
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import traceback
import urllib.parse
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROUNDS = 5
SPLIT_PROMPTS = ["What is the capital of France?", "Name three fruits.", "x"]


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("parts", nargs="+", choices=PARTS)
    parser.add_argument("--daisy", type=Path, required=True)
    parser.add_argument("--data", type=Path, required=True, help="tests/data/tiny")
    parser.add_argument("--smollm2", type=Path)
    parser.add_argument("--large", type=Path)
    parser.add_argument("--family", type=Path, action="append", default=[], help="a random model, as often as wanted")
    parser.add_argument("--parity", type=Path)
    parser.add_argument("--profile", type=Path)
    parser.add_argument("--mlx-lm", help="a python3 that has mlx_lm")
    parser.add_argument("--gpus", type=int, default=len(gpus()), help="how many of them to use")
    parser.add_argument("--out", type=Path, required=True)
    run = Run(parser.parse_args())
    for part in run.args.parts:
        began = time.monotonic()
        run.part = part
        try:
            PARTS[part](run)
        except Exception as error:  # the other parts still tell something
            traceback.print_exc()
            run.row("failed", error=f"{type(error).__name__}: {error}")
        print(f"--- {part}: {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)
    print_table(run.rows)
    return int(any("error" in row for row in run.rows))


class Run:
    def __init__(self, args):
        self.args = args
        self.part = ""
        self.rows = []
        self.lock = threading.Lock()
        args.out.mkdir(parents=True, exist_ok=True)

    def row(self, what: str, **values) -> None:
        with self.lock:
            self.rows.append({"part": self.part, "what": what} | values)
            text = "\n".join(json.dumps(row) for row in self.rows)
            (self.args.out / "rows.jsonl").write_text(text + "\n", encoding="utf-8")
            print(json.dumps(self.rows[-1]), file=sys.stderr, flush=True)


class Cluster:
    """Nodes on loopback, each on the machine's next GPU (where it has one, all on that), and a model served over them."""

    def __init__(self, run: Run, model: Path, ranks: int, more: list[str] = []):
        self.daisy, self.processes = run.args.daisy, []
        self.gpus = run.args.gpus
        self.work = Path(tempfile.mkdtemp(prefix="daisy-gpu."))
        self.log = run.args.out / "daisy.log"
        try:
            self.start(model, ranks, more)
        except BaseException:
            self.stop()
            raise

    def start(self, model: Path, ranks: int, more: list[str]) -> None:
        homes = [self.work / f"node{i}" for i in range(ranks)]
        ids = [self.call(home, "cluster", "id").strip() for home in homes]
        for home in homes:
            for other, peer in zip(homes, ids):
                if other != home:
                    self.call(home, "cluster", "trust", peer)
        peers = []
        for home in homes:
            said = self.spawn(home, "cluster", "up", "--name", home.name, "--listen", "127.0.0.1:0")
            peers += ["--peer", said.await_line(r"is up").split()[-1]]
        began = time.monotonic()
        served = self.spawn(homes[0], "cluster", "serve", "--model", str(model), "--nodes", "all", "--port", "0", *peers[2:], *more)
        address = served.await_line(r"OpenAI endpoint").split()[-1]
        self.load_s = time.monotonic() - began
        self.url = urllib.parse.urlparse(address)
        self.ranks = [line for line in served.lines if re.match(r"\[rank \d+\] pid", line)]

    def call(self, home: Path, *args: str) -> str:
        done = subprocess.run([self.daisy, *args], env=self.env(home), capture_output=True, text=True, timeout=60)
        if done.returncode != 0:
            raise RuntimeError(f"daisy {' '.join(args)}: {done.stderr.strip()}")
        return done.stdout

    def spawn(self, home: Path, *args: str) -> "Said":
        self.processes.append(Said([self.daisy, *args], self.env(home), self.log))
        return self.processes[-1]

    def env(self, home: Path) -> dict:
        own = {"DAISY_HOME": str(home)}
        if self.gpus > 1:
            own["CUDA_VISIBLE_DEVICES"] = str(int(home.name.removeprefix("node")) % self.gpus)
        return os.environ | own

    def ask(self, content: str, tokens: int, **more) -> dict:
        body = {
            "model": "default",
            "messages": [{"role": "user", "content": content}],
            "max_tokens": tokens,
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True},
        } | more
        client = http.client.HTTPConnection(self.url.hostname, self.url.port, timeout=300)
        began = time.perf_counter()
        client.request("POST", self.url.path, json.dumps(body), {"Content-Type": "application/json"})
        response = client.getresponse()
        if response.status != 200:
            raise RuntimeError(f"{response.status}: {response.read(500).decode(errors='replace')}")
        text, first, answer = "", None, {}
        for line in response:
            line = line.decode().strip()
            if not line.startswith("data: ") or line == "data: [DONE]":
                continue
            event = json.loads(line[len("data: ") :])
            if "error" in event:
                raise RuntimeError(event["error"]["message"])
            now = time.perf_counter()
            for choice in event["choices"]:
                if choice["delta"].get("content"):
                    first = first or now
                    last = now
                    text += choice["delta"]["content"]
            answer |= {key: event[key] for key in ("usage", "timings") if event.get(key)}
        client.close()
        answer |= {"text": text, "ttft_ms": 1e3 * ((first or time.perf_counter()) - began)}
        produced = answer["usage"]["completion_tokens"]
        # By the client's clock, from the first piece of text to the last.
        answer["tpot_ms"] = 1e3 * (last - first) / (produced - 1) if first and produced > 1 else None
        return answer

    def stop(self) -> None:
        for said in reversed(self.processes):
            said.stop()
        shutil.rmtree(self.work, ignore_errors=True)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stop()


class Said:
    """A process and its lines, which go to a log too."""

    def __init__(self, command: list, env: dict, log: Path):
        self.lines, self.changed = [], threading.Condition()
        self.process = subprocess.Popen(
            command, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        self.reader = threading.Thread(target=self.read, args=[log], daemon=True)
        self.reader.start()

    def read(self, log: Path) -> None:
        with log.open("a", encoding="utf-8") as file:
            for line in self.process.stdout:
                file.write(line)
                file.flush()
                with self.changed:
                    self.lines.append(line.rstrip())
                    self.changed.notify_all()
        with self.changed:
            self.lines.append("(it ended)")
            self.changed.notify_all()

    def await_line(self, pattern: str, seconds: float = 200) -> str:
        until = time.monotonic() + seconds
        with self.changed:
            while True:
                for line in self.lines:
                    if re.search(pattern, line):
                        return line
                left = until - time.monotonic()
                if left <= 0 or "(it ended)" in self.lines:
                    raise RuntimeError(f"no line with {pattern!r} in:\n" + "\n".join(self.lines[-12:]))
                self.changed.wait(left)

    def stop(self) -> None:
        self.process.send_signal(signal.SIGINT)
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.reader.join(5)


class MlxLm:
    """mlx_lm in a process of its own, on the same GPU."""

    def __init__(self, run: Run, model: Path):
        script = Path(__file__).with_name("mlx_lm_worker.py")
        self.log = (run.args.out / "mlx_lm.log").open("a")
        self.process = subprocess.Popen(
            [run.args.mlx_lm, script, model], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.log, text=True
        )
        self.device = self.answer()["ready"]

    def answer(self) -> dict:
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError("mlx_lm ended: see mlx_lm.log")
        return json.loads(line)

    def ask(self, prompt: int, tokens: int) -> dict:
        self.process.stdin.write(json.dumps({"prompt": prompt, "tokens": tokens}) + "\n")
        self.process.stdin.flush()
        return self.answer()

    def stop(self) -> None:
        self.process.stdin.close()
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
        self.log.close()


def gpus() -> list[str]:
    query = ["nvidia-smi", "--query-gpu=name,driver_version,memory.total", "--format=csv,noheader"]
    try:
        return subprocess.run(query, capture_output=True, text=True).stdout.splitlines()
    except FileNotFoundError:
        return []


def machine(run: Run) -> None:
    run.row("processor", is_=f"{os.cpu_count()} cores", load=os.getloadavg()[0])
    for line in gpus()[: run.args.gpus]:
        run.row("gpu", is_=line)


def tiny(run: Run) -> None:
    """Every tiny checkpoint in one and two ranks, four at a time: the same text."""

    def one(folder: Path) -> None:
        answers = {}
        try:
            for ranks in (1, 2):
                with Cluster(run, folder, ranks) as cluster:
                    greedy = [cluster.ask(prompt, 32)["text"] for prompt in SPLIT_PROMPTS]
                    drawn = cluster.ask(SPLIT_PROMPTS[0], 32, temperature=0.8, top_p=0.95, seed=7)["text"]
                    answers[ranks] = greedy + [drawn]
                    on = cluster.ranks[0].split(" | ")[3]
            run.row(folder.name, on=on, **same(answers))
        except Exception as error:
            run.row(folder.name, error=str(error))

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(one, sorted(path for path in run.args.data.iterdir() if path.is_dir())))


def smollm2(run: Run) -> None:
    for dtype in ([], ["--dtype", "bf16"]):
        answers = {}
        for ranks in (1, 2):
            with Cluster(run, run.args.smollm2, ranks, dtype) as cluster:
                answers[ranks] = [cluster.ask(prompt, 48)["text"] for prompt in SPLIT_PROMPTS]
                answers[ranks].append(cluster.ask("Tell me of the sea.", 200)["text"])
        run.row(f"SmolLM2-135M {' '.join(dtype) or 'own dtype'}", says=answers[1][0], **same(answers))
    speeds(run, "SmolLM2-135M", run.args.smollm2, filler="Tell me a long story about the sea. ", filler_tokens=9)


def large(run: Run) -> None:
    speeds(run, "8B-shaped 4-bit", run.args.large, filler="wave ", filler_tokens=5)


def families(run: Run) -> None:
    """Real layer shapes of other families, few layers each: against mlx_lm, and where the time goes."""
    for model in run.args.family:
        name = f"{model.name}, {layers_of(model)} layers"
        try:
            speeds(run, name, model, filler="wave ", filler_tokens=5)
            tokens_time(run, name, model)
        except Exception as error:  # the other families still tell something
            run.row(name, error=f"{type(error).__name__}: {error}")


def layers_of(model: Path) -> int:
    config = json.loads((model / "config.json").read_text())
    return config.get("text_config", config)["num_hidden_layers"]


def same(answers: dict) -> dict:
    equal = answers[1] == answers[2]
    return {"split": "equal"} if equal else {"split": "DIFFERS", "error": f"1: {answers[1]} 2: {answers[2]}"}


def speeds(run: Run, name: str, model: Path, filler: str, filler_tokens: int) -> None:
    """One rank, two ranks and mlx_lm in turn, all loaded at once; the first round warms up."""
    sides, texts = {}, {}
    try:
        for ranks in (1, 2):
            sides[f"{ranks} rank{'s' * (ranks > 1)}"] = Cluster(run, model, ranks)
        if run.args.mlx_lm:
            try:
                sides["mlx_lm"] = MlxLm(run, model)
            except Exception as error:
                run.row(f"{name}, mlx_lm", error=str(error))
        for side, loaded in sides.items():
            if isinstance(loaded, Cluster):
                run.row(f"{name}, {side}", load_s=round(loaded.load_s, 1), ranks=loaded.ranks)
        for label, size, tokens in (("short", 24, 192), ("long", 2048, 96)):
            measured = {side: [] for side in sides}
            for turn in range(ROUNDS + 1):
                for side, loaded in sides.items():
                    if isinstance(loaded, Cluster):
                        # Another prompt each turn, or a cached prefix could answer.
                        answer = loaded.ask(f"{turn} " + filler * (size // filler_tokens), tokens)
                        texts.setdefault((label, turn), {})[side] = answer["text"]
                        prompt = answer["usage"]["prompt_tokens"]
                        own = answer["timings"]
                        produced = answer["usage"]["completion_tokens"]
                        if produced < 2:
                            raise RuntimeError(f"{name}: an answer of {produced} token has no time per token")
                        sample = {
                            "prompt": prompt,
                            "tokens": produced,
                            "prefill_ms": own["prefill_ms"],
                            "tpot_ms": own["decode_ms"] / (produced - 1),
                            "client_ttft_ms": answer["ttft_ms"],
                            "client_tpot_ms": answer["tpot_ms"],
                        }
                    else:
                        sample = loaded.ask(prompt, tokens) | {"prompt": prompt, "tokens": tokens}
                    if turn > 0:
                        measured[side].append(sample)
            report(run, f"{name}, {label}", measured)
        differ = [key for key, by_side in texts.items() if len(set(by_side.values())) > 1]
        extra = {"error": f"{differ}"} if differ else {}
        run.row(f"{name}, all answers", split="DIFFERS" if differ else "equal", answers=len(texts), **extra)
    finally:
        for loaded in sides.values():
            loaded.stop()


def report(run: Run, what: str, measured: dict) -> None:
    reference = None
    for side in reversed(measured):  # mlx_lm first: the others are divided by it
        samples = measured[side]
        middle = lambda key: statistics.median(sample[key] for sample in samples if sample.get(key) is not None)
        prefill, tpot, prompt = middle("prefill_ms"), middle("tpot_ms"), middle("prompt")
        values = {
            "prompt": prompt,
            "prefill_ms": round(prefill, 1),
            "prefill_tok_s": round(prompt / prefill * 1e3),
            "tpot_ms": round(tpot, 3),
            "decode_tok_s": round(1e3 / tpot, 1),
        }
        if side == "mlx_lm":
            reference = tpot, prefill
        elif reference:
            values |= {"tpot_ratio": round(tpot / reference[0], 2), "prefill_ratio": round(prefill / reference[1], 2)}
        raw = [{key: round(value, 3) for key, value in sample.items() if value is not None} for sample in samples]
        run.row(f"{what}, {side}", **values, raw=raw)


def parity(run: Run) -> None:
    """Logits of every cut, bit for bit. TF32 off: the reference computed in f32."""
    log = run.args.out / "parity.log"
    more = {"MLX_ENABLE_TF32": "0", "MLX_CUDA_USE_CUDNN_SDPA": "0", "DAISY_TEST_MODEL": str(run.args.smollm2)}
    with log.open("w") as file:
        try:
            subprocess.run(
                [run.args.parity, "--test-threads=1"],
                env=os.environ | more, stdout=file, stderr=subprocess.STDOUT, timeout=240,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            run.row("ran out of time", error="240 s were not enough")
    text = log.read_text(errors="replace")
    for kind in ("every_cut", ""):
        results = re.findall(rf"^test (\S*{kind}\S*) \.\.\. (?:.*\n)*?.*?\b(ok|FAILED)$", text, re.M)
        failed = [name for name, result in results if result == "FAILED"]
        extra = {"error": f"{failed}: see parity.log"} if failed or not results else {}
        run.row(f"tests {kind or 'in all'}", passed=len(results) - len(failed), failed=len(failed), **extra)


def profile(run: Run) -> None:
    tokens_time(run, "a token's time", run.args.large)


def tokens_time(run: Run, what: str, model: Path) -> None:
    """Where a token's time goes in one rank, of all layers, of half of them and of one."""
    done = subprocess.run(
        [run.args.profile, "--ignored", "--nocapture"],
        env=os.environ | {"MLX_CUDA_USE_CUDNN_SDPA": "0", "DAISY_PROFILE_MODEL": str(model)},
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    lines = [line.split("PROFILE ", 1)[1] for line in done.stdout.splitlines() if "PROFILE " in line]
    extra = {} if lines else {"error": (done.stdout + done.stderr)[-600:]}
    run.row(what, lines=lines, **extra)


PARTS = {
    part.__name__: part for part in (machine, smollm2, large, profile, families, tiny, parity)
}


def print_table(rows: list) -> None:
    print()
    for row in rows:
        values = {key: value for key, value in row.items() if key not in ("part", "what", "raw", "lines", "ranks")}
        text = "  ".join(f"{key.rstrip('_')} {str(value)[:160]}" for key, value in values.items())
        print(f"{row['part']:8}  {row['what']:34}  {text}")
        for line in row.get("lines", []) + row.get("ranks", []):
            print(f"{'':12}{line}")


if __name__ == "__main__":
    sys.exit(main())
