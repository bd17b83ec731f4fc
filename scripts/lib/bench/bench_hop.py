"""hop: N bytes there and back over the product's two edges, against blocking TCP without delay, by turns.

Paths: `lo` is loopback; `veth1500` two network namespaces and a link of 1500 bytes; `veth1500-nogso` the same
with one system call per packet, as a Mac without its batching call has it; `rtt0.6` the same with 0.3 ms of
delay each way, about what a Thunderbolt bridge has. The delay comes from a program between two TUN devices,
since not every kernel has one of its own.
"""

import contextlib
import json
import os
import subprocess
import sys
from statistics import median

from common import pinned

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
from tun import open_tun  # noqa: E402

COLUMNS = ["path", "bytes", "raw_us", "link_us", "link_p99_us", "ratio"]
SIZES = [4096, 12288, 65536, 1 << 20]
TARGETS = {"lo": 2.2, "veth1500": 3.2, "rtt0.6": 1.15}
TARGET_BYTES = 12288
DELAY_US = 300


def run(options):
    sizes = [int(size) for size in options.bytes.split(",")] if options.bytes else SIZES
    for path in options.paths.split(",") if options.paths else PATHS:
        if os.geteuid() != 0 and path != "lo":
            print(f"skipped {path}: network namespaces need root", file=sys.stderr)
            continue
        with contextlib.ExitStack() as stack:
            within, addrs, env = PATHS[path](stack)
            rounds = measure(path, within, addrs, env, options.rounds, sizes)
        for row in rounds:
            options.raw.add(row)
        for size in sizes:
            yield summary(path, size, [row for row in rounds if row["bytes"] == size])


def summary(path, size, rounds):
    raw = [row for row in rounds if row["kind"] == "raw"]
    link = [row for row in rounds if row["kind"] == "link"]
    ratios = [l["p50_us"] / r["p50_us"] for r, l in zip(raw, link, strict=True)]
    row = {
        "path": path,
        "bytes": size,
        "raw_us": median(r["p50_us"] for r in raw),
        "link_us": median(l["p50_us"] for l in link),
        "link_p99_us": median(l["p99_us"] for l in link),
        "ratio": median(ratios),
    }
    if size == TARGET_BYTES and path in TARGETS:
        row["target"] = f"<= {TARGETS[path]}"
        row["met"] = row["ratio"] <= TARGETS[path]
    return row


def measure(path, within, addrs, env, rounds, sizes):
    """`within` are the prefixes of both ends' commands, the driver's first."""
    hop = os.environ["DAISY_HOP"]
    env = {**os.environ, **env}
    serve = [*within[1], *pinned(1, [hop, "serve", f"{addrs[1]}:{PORT}"])]
    drive = [*within[0], *pinned(0, [hop, "drive", f"{addrs[1]}:{PORT}", addrs[0], path, str(rounds), *map(str, sizes)])]
    server = subprocess.Popen(serve, env=env, stdout=subprocess.DEVNULL)
    try:
        lines = subprocess.run(drive, env=env, check=True, text=True, stdout=subprocess.PIPE).stdout
        server.wait(30)
    finally:
        server.kill()
        server.wait()
    return [json.loads(line) for line in lines.splitlines()]


def loopback(_stack):
    return ([], []), ("127.0.0.1", "127.0.0.1"), {}


def veth1500(stack):
    near, far = namespaces(stack)
    ip("-n", near, "link", "add", "end", "mtu", "1500", "type", "veth", "peer", "name", "end", "mtu", "1500", "netns", far)
    return addressed(near, far)


def veth1500_nogso(stack):
    within, addrs, _ = veth1500(stack)
    return within, addrs, {"DAISY_UDP_GSO": "off"}


def rtt(stack):
    near, far = namespaces(stack)
    devices = []
    for name in (near, far):
        devices.append(open_tun("end", name))
        stack.callback(os.close, devices[-1])
    ends = addressed(near, far)
    # Above the two ends: a wire is not late because its ends are busy.
    command = pinned(0, [os.environ["DAISY_WIRE"], str(DELAY_US)], priority=20)
    if command[0] == "taskset":
        command = command[3:]
    wire = subprocess.Popen(command, stdin=devices[0], stdout=devices[1])
    stack.callback(wire.wait)
    stack.callback(wire.kill)
    return ends


def namespaces(stack):
    names = [f"dz{os.getpid()}{end}" for end in "ab"]
    for name in names:
        ip("netns", "add", name)
        stack.callback(ip, "netns", "del", name)
        ip("-n", name, "link", "set", "lo", "up")
    return names


def addressed(near, far):
    for name, own, other in ((near, ADDRS[0], ADDRS[1]), (far, ADDRS[1], ADDRS[0])):
        ip("-n", name, "addr", "add", own, "peer", other, "dev", "end")
        ip("-n", name, "link", "set", "end", "up")
    return tuple(["ip", "netns", "exec", name] for name in (near, far)), ADDRS, {}


def ip(*args):
    subprocess.run(["ip", *args], check=True)


PATHS = {"lo": loopback, "veth1500": veth1500, "veth1500-nogso": veth1500_nogso, "rtt0.6": rtt}
ADDRS = ("10.213.97.1", "10.213.97.2")
PORT = 41751
