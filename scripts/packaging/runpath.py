"""Shortens the run path of an ELF binary in place, from `KEPT:DROPPED` to `KEPT`.

Usage: runpath.py BINARY KEPT DROPPED. What scripts/setup puts there for this machine has no place in a package.
"""

import pathlib
import sys


def main(binary, kept, dropped):
    path = pathlib.Path(binary)
    data = path.read_bytes()
    whole = b"\0" + f"{kept}:{dropped}".encode() + b"\0"
    if data.count(whole) != 1:
        sys.exit(f"{binary}: its run path is not {kept}:{dropped}")
    short = b"\0" + kept.encode()
    path.write_bytes(data.replace(whole, short.ljust(len(whole), b"\0")))


if __name__ == "__main__":
    main(*sys.argv[1:])
