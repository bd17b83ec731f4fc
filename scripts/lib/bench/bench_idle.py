"""idle: CPU time of a loaded cluster of two that nobody asks anything, from /proc."""

import os
import tempfile
import time
from pathlib import Path

from bench_split import endless
from common import Cluster

COLUMNS = ["process", "cpu_percent"]
SECONDS = 20
TARGET_PERCENT = 1.0


def run(options):
    with tempfile.TemporaryDirectory() as folder:
        model, _ = endless(Path(folder))
        with Cluster(model, [list, list], serve_args=["--layers", "2,3"]) as cluster:
            cluster.ask("Count.", 50)
            time.sleep(1)
            processes = {f"node {n}": pid for n, pid in enumerate(cluster.nodes)}
            processes |= {f"rank {n}": pid for n, pid in enumerate(cluster.ranks)}
            before = {name: cpu_s(pid) for name, pid in processes.items()}
            began = time.monotonic()
            time.sleep(SECONDS)
            elapsed = time.monotonic() - began
            for name, pid in processes.items():
                percent = (cpu_s(pid) - before[name]) / elapsed * 100
                row = {"process": name, "cpu_percent": percent}
                options.raw.add(row)
                yield {**row, "target": f"< {TARGET_PERCENT:g} %", "met": percent < TARGET_PERCENT}


def cpu_s(pid):
    """User and system time of all threads. The name in brackets may hold spaces."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
