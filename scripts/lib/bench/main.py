"""Runs one bench and shows its rows. `scripts/bench` starts this after it has built everything.

A bench is a module beside this one with `run(options)`, which yields rows (dicts), and `COLUMNS`. A row
may have `target` (a text) and `met` (true, false). Raw rows go to target/bench/NAME.jsonl by `Raw`.
"""

import argparse
import importlib
import json
import os
import sys

from common import Raw, load_average


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("name")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--target", action="store_true")
    parser.add_argument("--paths", help="hop: which paths, by commas")
    parser.add_argument("--bytes", help="hop: which sizes, by commas")
    options = parser.parse_args()
    bench = importlib.import_module(f"bench_{options.name}")
    options.raw = Raw(options.name)
    rows = []
    for row in bench.run(options):
        row = {"bench": options.name, **row, "load": load_average()}
        rows.append(row)
        if options.json:
            print(json.dumps(row), flush=True)
    table(rows, bench.COLUMNS, sys.stderr if options.json else sys.stdout)
    print(f"rounds: {os.path.relpath(options.raw.path)}", file=sys.stderr)
    if options.target and not all(row.get("met", True) for row in rows):
        sys.exit(1)


def table(rows, columns, out):
    columns = [name for name in [*columns, "target", "load"] if any(name in row for row in rows)]
    lines = [columns] + [[cell(row, name) for name in columns] for row in rows]
    widths = [max(len(line[i]) for line in lines) for i in range(len(columns))]
    for line in lines:
        print("  ".join(text.ljust(width) for text, width in zip(line, widths)).rstrip(), file=out)


def cell(row, name):
    value = row.get(name)
    if value is None:
        return "-"
    text = f"{value:.4g}" if isinstance(value, float) and value < 1000 else f"{value:.0f}" if isinstance(value, float) else str(value)
    if name == "target" and "met" in row:
        text += " met" if row["met"] else " MISSED"
    return text


main()
