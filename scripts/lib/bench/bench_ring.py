"""ring: two of Daisy's ranks against two of mlx_lm's over its ring, and against two of OptiQ's, by turns.

All compute SmolLM2-135M, a rank to a core, with OpenBLAS where this machine has it. It is written as a Qwen 2, whose
layers are a llama's with biases (here all zero), because mlx_lm and OptiQ cut no llama. Prefill is the prompt's length
by the time to the first token, decode all after it; Daisy and OptiQ are timed by the client over HTTP.
"""

import contextlib
import http.client
import json
import os
import re
import signal
import socket
import subprocess
import tempfile
import time
from pathlib import Path

from common import PATIENCE_S, ROOT, Cluster, medians

COLUMNS = ["side", "what", "prompt_tokens", "theirs", "daisy", "ratio"]
TOKENS = 48
TEXT = (
    "A town by the sea had a lighthouse that nobody had climbed for years. One autumn a girl found its key in a "
    "box of buttons, and with it a note in a hand that she did not know. Tell the rest of the story."
)
CONVERT = """
import json, sys
from pathlib import Path
import mlx.core as mx
source, out = map(Path, sys.argv[1:])
out.mkdir()
config = json.loads((source / "config.json").read_text())
tensors = {}
for file in source.glob("*.safetensors"):
    tensors |= mx.load(str(file))
head = config["hidden_size"] // config["num_attention_heads"]
for layer in range(config["num_hidden_layers"]):
    for name, heads in ("q", "num_attention_heads"), ("k", "num_key_value_heads"), ("v", "num_key_value_heads"):
        tensors[f"model.layers.{layer}.self_attn.{name}_proj.bias"] = mx.zeros(config[heads] * head, dtype=mx.float32)
mx.save_safetensors(str(out / "model.safetensors"), tensors, metadata={"format": "mlx"})
index = {"metadata": {}, "weight_map": dict.fromkeys(tensors, "model.safetensors")}
(out / "model.safetensors.index.json").write_text(json.dumps(index))
config |= {"model_type": "qwen2", "architectures": ["Qwen2ForCausalLM"]}
for name in "attention_bias", "mlp_bias":
    config.pop(name, None)
(out / "config.json").write_text(json.dumps(config))
for name in "tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "generation_config.json":
    if (source / name).exists():
        (out / name).write_bytes((source / name).read_bytes())
"""


def run(options):
    preload = os.environ["DAISY_OPENBLAS"]
    rounds = []
    with contextlib.ExitStack() as stack:
        work = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        model = work / "smollm2-as-qwen2"
        python = os.environ["DAISY_BENCH_PYTHON"]
        subprocess.run([python, "-c", CONVERT, os.environ["DAISY_BENCH_MODEL"], model], check=True)
        cores = [["taskset", "-c", str(core % os.cpu_count())] for core in (0, 1)]
        wraps = [lambda command, core=core: [*core, *command] for core in cores]
        daisy = stack.enter_context(Cluster(model, wraps, preload))
        sides = {"mlx_lm": stack.enter_context(MlxRing(model, cores, preload, work))}
        if os.environ.get("DAISY_OPTIQ_PYTHON"):
            sides["OptiQ"] = stack.enter_context(OptiQ(model, cores, preload, work))
        for number in range(options.rounds + 1):
            text = f"Part {number}. {TEXT}"
            row = {"round": number, "daisy": stream(daisy.url.port, "default", text)}
            for name, side in sides.items():
                with side.awake():
                    row[name] = side.ask(text)
            # Not every server says how many tokens it took; the template and the tokenizer are the same.
            for answer in (row["daisy"], *(row[name] for name in sides)):
                answer["prefill"] = row["daisy"]["prompt_tokens"] / answer["first_s"]
            if number:
                rounds.append(row)
                options.raw.add(row)
    for name in sides:
        for what in ("prefill", "decode"):
            values = [{"theirs": row[name][what], "daisy": row["daisy"][what]} for row in rounds]
            for row in values:
                row["ratio"] = row["daisy"] / row["theirs"]
            yield {
                "side": name,
                "what": f"{what} tok/s",
                "prompt_tokens": rounds[0]["daisy"]["prompt_tokens"],
                **{key: medians(values, key) for key in ("theirs", "daisy", "ratio")},
            }


def stream(port, model, text):
    """One greedy answer over HTTP, timed by when its pieces come."""
    body = {
        "model": model,
        "messages": [{"role": "user", "content": text}],
        "temperature": 0,
        "max_tokens": TOKENS,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    client = http.client.HTTPConnection("127.0.0.1", port, timeout=600)
    began = time.perf_counter()
    client.request("POST", "/v1/chat/completions", json.dumps(body), {"Content-Type": "application/json"})
    response = client.getresponse()
    if response.status != 200:
        raise SystemExit(f"error: {response.status} {response.read(500)}")
    stamps, usage, answer = [], {}, ""
    for line in response:
        line = line.decode().strip()
        if not line.startswith("data: {"):
            continue
        event = json.loads(line[len("data: ") :])
        usage = event.get("usage") or usage
        for choice in event.get("choices", []):
            if choice["delta"].get("content"):
                stamps.append(time.perf_counter())
                answer += choice["delta"]["content"]
    client.close()
    tokens = usage.get("completion_tokens", len(stamps))
    return {
        "prompt_tokens": usage.get("prompt_tokens", 0),
        "first_s": stamps[0] - began,
        "decode": (tokens - 1) / (stamps[-1] - stamps[0]),
        "tokens": tokens,
        "text": answer,
    }


def free_ports(count):
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [bound.getsockname()[1] for bound in sockets]


class Ring:
    """Two processes on MLX's ring, a core each."""

    def __init__(self, commands, cores, preload, work, name):
        hosts = work / f"{name}.json"
        hosts.write_text(json.dumps([[f"127.0.0.1:{port}"] for port in free_ports(len(commands))]))
        self.processes, self.logs = [], [work / f"{name}.{rank}.log" for rank in range(len(commands))]
        for rank, (command, core) in enumerate(zip(commands, cores)):
            env = {**os.environ, "MLX_HOSTFILE": str(hosts), "MLX_RANK": str(rank), "HF_HUB_OFFLINE": "1", "PYTHONUNBUFFERED": "1"}
            if preload:
                env["LD_PRELOAD"] = preload
            log = self.logs[rank].open("wb")
            out = subprocess.PIPE if rank == 0 and name == "mlx_lm" else log
            self.processes.append(
                subprocess.Popen([*core, *command], env=env, stdin=subprocess.PIPE, stdout=out, stderr=log)
            )

    @contextlib.contextmanager
    def awake(self):
        """It stands still at all other times: a rank of a ring that waits for the other one spins."""
        self.signal(signal.SIGCONT)
        yield
        self.signal(signal.SIGSTOP)

    def signal(self, number):
        for process in self.processes:
            process.send_signal(number)

    def said(self):
        return "".join(re.sub("\x1b.*?m", "", log.read_text(errors="replace")[-1500:]) for log in self.logs)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for process in self.processes:
            process.kill()
            process.wait()


class MlxRing(Ring):
    def __init__(self, model, cores, preload, work):
        script = ROOT / "scripts/lib/bench/ask_mlx_lm.py"
        command = [os.environ["DAISY_BENCH_PYTHON"], str(script), str(model), str(TOKENS)]
        super().__init__([command, command], cores, preload, work, "mlx_lm")

    def ask(self, text):
        line = b""
        with contextlib.suppress(BrokenPipeError):
            for process in self.processes:
                process.stdin.write(json.dumps(text).encode() + b"\n")
                process.stdin.flush()
            line = self.processes[0].stdout.readline()
        if not line:
            raise SystemExit(f"error: mlx_lm ended:\n{self.said()}")
        return json.loads(line)


class OptiQ(Ring):
    """Its ranks as its launcher starts them, without the launcher; the endpoint is rank 0's."""

    def __init__(self, model, cores, preload, work):
        [self.port] = free_ports(1)
        code = (
            "from optiq import settings; settings.set_override('cluster_headroom_gb', '2')\n"
            "from optiq.cluster.serve import cluster_serve\n"
            f"cluster_serve({str(model)!r}, host='127.0.0.1', port={self.port})"
        )
        command = [os.environ["DAISY_OPTIQ_PYTHON"], "-c", code]
        super().__init__([command, command], cores, preload, work, "optiq")
        until = time.monotonic() + PATIENCE_S
        while True:
            with contextlib.suppress(OSError):
                client = http.client.HTTPConnection("127.0.0.1", self.port, timeout=5)
                client.request("GET", "/v1/models")
                response = client.getresponse()
                if response.status == 200:
                    self.model = json.loads(response.read())["data"][0]["id"]
                    return
            if time.monotonic() > until or any(process.poll() is not None for process in self.processes):
                raise SystemExit(f"error: OptiQ did not come up:\n{self.said()}")
            time.sleep(0.2)

    def ask(self, text):
        return stream(self.port, self.model, text)
