"""What the benches share: pinning, raw rows, and a cluster of nodes on loopback.

Standard library only. Nothing here measures.
"""

import contextlib
import http.client
import json
import os
import re
import shutil
import signal
import subprocess
import tempfile
import time
import urllib.parse
from pathlib import Path
from statistics import median

ROOT = Path(__file__).resolve().parents[3]
PATIENCE_S = 180


def load_average():
    return round(os.getloadavg()[0], 1)


class Raw:
    """Every round's row, for those who doubt a median."""

    def __init__(self, name):
        folder = Path(os.environ["DAISY_BENCH_OUT"])
        folder.mkdir(parents=True, exist_ok=True)
        self.path = folder / f"{name}.jsonl"
        self.file = self.path.open("w", encoding="utf-8")

    def add(self, row):
        self.file.write(json.dumps({**row, "load": load_average()}) + "\n")
        self.file.flush()


def pinned(core, command, priority=10):
    """Runs on one core, ahead of ordinary work where the kernel allows it."""
    if shutil.which("chrt") and may_be_real_time():
        command = ["chrt", "-f", str(priority), *command]
    if shutil.which("taskset"):
        command = ["taskset", "-c", str(core % os.cpu_count()), *command]
    return command


def may_be_real_time():
    return subprocess.run(["chrt", "-f", "1", "true"], capture_output=True).returncode == 0


def medians(rounds, key):
    return median(row[key] for row in rounds)


class Cluster:
    """Nodes in homes of their own and a model served over them. `wraps` is a function per node that turns a
    command into the one to run: pinning goes there."""

    def __init__(self, model, wraps, preload="", serve_args=()):
        self.stack = contextlib.ExitStack()
        self.homes = [Path(self.stack.enter_context(tempfile.TemporaryDirectory())) for _ in wraps]
        self.processes = []
        try:
            self.start(model, wraps, preload, serve_args)
        except BaseException:
            self.close()
            raise

    def start(self, model, wraps, preload, serve_args):
        ids = [self.daisy(home, "cluster", "id").strip() for home in self.homes]
        for home, own in zip(self.homes, ids):
            for other in ids:
                if other != own:
                    self.daisy(home, "cluster", "trust", other)
        addrs = []
        for number, (home, wrap) in enumerate(zip(self.homes, wraps)):
            command = [os.environ["DAISY_BIN"], "cluster", "up", "--name", f"node{number}", "--listen", "127.0.0.1:0"]
            log = self.spawn(wrap(command), home, "node", preload)
            addrs.append(self.line(log, r"is up.* (\S+)$"))
        peers = [word for addr in addrs[1:] for word in ("--peer", addr)]
        command = [os.environ["DAISY_BIN"], "cluster", "serve", "--model", str(model), "--nodes", "all", "--port", "0", *peers, *serve_args]
        log = self.spawn(command, self.homes[0], "serve", "")
        self.line(log, r"is ready, (context)")
        self.url = urllib.parse.urlparse(self.line(log, r"OpenAI endpoint.* (\S+)$"))
        self.nodes = [process.pid for process in self.processes[:-1]]
        self.ranks = [int(pid) for pid in re.findall(r"\] pid (\d+)", log.read_text(encoding="utf-8"))]

    def daisy(self, home, *args):
        return subprocess.run(
            [os.environ["DAISY_BIN"], *args], env=self.env(home, ""), check=True, text=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        ).stdout

    def env(self, home, preload):
        env = {**os.environ, "DAISY_HOME": str(home)}
        if preload:
            env["LD_PRELOAD"] = preload
        return env

    def spawn(self, command, home, name, preload):
        log = home / f"{name}.log"
        with log.open("wb") as file:
            process = subprocess.Popen(command, env=self.env(home, preload), stdin=subprocess.DEVNULL, stdout=file, stderr=file)
        self.processes.append(process)
        return log

    def line(self, log, pattern):
        until = time.monotonic() + PATIENCE_S
        while True:
            text = log.read_text(encoding="utf-8", errors="replace")
            found = re.search(pattern, text, re.MULTILINE)
            if found:
                return found.group(1)
            if self.processes[-1].poll() is not None or time.monotonic() > until:
                raise SystemExit(f"error: no line like `{pattern}` came:\n{text}")
            time.sleep(0.05)

    def ask(self, text, max_tokens, **more):
        """One greedy completion, not streamed. Its `timings` are the driver's own."""
        body = {"model": "default", "messages": [{"role": "user", "content": text}], "temperature": 0, "max_tokens": max_tokens, **more}
        client = http.client.HTTPConnection(self.url.hostname, self.url.port, timeout=600)
        client.request("POST", "/v1/chat/completions", json.dumps(body), {"Content-Type": "application/json"})
        response = client.getresponse()
        answer = json.loads(response.read())
        if response.status != 200:
            raise SystemExit(f"error: {response.status} {answer}")
        client.close()
        return answer

    def close(self):
        for process in reversed(self.processes):
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self.stack.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()
