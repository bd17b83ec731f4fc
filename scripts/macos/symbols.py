"""Every name that a Mac binary takes is one that its library has, on the oldest macOS it is for.

Usage: symbols.py [--oldest VERSION] [--rpath PATH]... NAMES BINARY LIBRARY...

LIBRARY are the libraries that are shipped with BINARY: what it takes from them they must export. What it, and they,
take from the system must stand in the list NAMES (see stubs.py) under the path of its library; names that LIBRARY
takes prove themselves, for MLX's makers linked it with Apple's SDK. `--oldest` and `--rpath` are what BINARY must say
of itself. Each fault is a line; the exit status says whether there was any.
"""

import argparse
import pathlib
import sys

from macho import MachO
from stubs import libraries


def faults_of_names(binary, shipped, allowed):
    """What `binary` takes and nobody is known to give."""
    exports = {library.id: library.given for library in shipped}
    for name, library in sorted(binary.taken.items()):
        if library in exports:
            if name not in exports[library]:
                yield f"{name}: {library} does not export it"
        elif library not in allowed:
            yield f"{name}: it is taken from {library}, which scripts/macos/apple-symbols.txt does not know"
        elif name not in allowed[library]:
            yield f"{name}: it is not in scripts/macos/apple-symbols.txt under {library}"


def faults_of_libraries(files, allowed):
    """Libraries that neither are shipped nor the system's."""
    shipped = {file.id for file in files}
    for library in files[0].libraries:
        if library not in shipped and library not in allowed:
            yield f"{library}: it is linked, and neither shipped nor listed in scripts/macos/apple-symbols.txt"
    for file in files[1:]:
        for library in file.libraries:
            if library.startswith("@") and library not in shipped:
                yield f"{library}: {file.id} needs it, and it is not shipped"


def faults_of_commands(binary, files, oldest, rpaths):
    for file in files:
        if not file.is_signed:
            yield f"{file.id or 'the binary'} has no code signature: Macs with Apple silicon do not start it"
    if oldest and binary.oldest != oldest:
        yield f"the binary is for macOS {binary.oldest}, and should be for {oldest}"
    if rpaths and binary.rpaths != rpaths:
        yield f"the binary looks for libraries in {binary.rpaths}, and should in {rpaths}"


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--oldest")
    parser.add_argument("--rpath", action="append", default=[])
    parser.add_argument("names", type=pathlib.Path)
    parser.add_argument("binary", type=MachO)
    parser.add_argument("libraries", nargs="*", type=MachO)
    args = parser.parse_args()
    allowed = {library: set(names) for library, names in libraries(args.names.read_text()).items()}
    files = [args.binary, *args.libraries]
    faults = [
        *faults_of_names(args.binary, args.libraries, allowed),
        *faults_of_libraries(files, allowed),
        *faults_of_commands(args.binary, files, args.oldest, args.rpath),
    ]
    print("\n".join(faults) or f"{len(args.binary.taken)} names are taken, and all are there")
    return bool(faults)


if __name__ == "__main__":
    sys.exit(main())
