"""Writes the text stubs that a Mac binary links against in place of Apple's SDK.

Usage: stubs.py NAMES SDK. NAMES lists, under the path of each of Apple's libraries, the names that are
taken from it; what is not listed does not link.
"""

import pathlib
import sys


def libraries(text):
    """The listed names by the install name of their library."""
    found = {}
    for line in text.splitlines():
        line = line.partition("#")[0].strip()
        if line.startswith("/"):
            names = found.setdefault(line, [])
        elif line:
            names.append(line)
    return found


def stub(install_name, names):
    symbols = ", ".join(f"'{name}'" for name in names)
    return (
        "--- !tapi-tbd\ntbd-version: 4\ntargets: [ arm64-macos ]\n"
        f"install-name: '{install_name}'\n"
        f"exports:\n  - targets: [ arm64-macos ]\n    symbols: [ {symbols} ]\n...\n"
    )


def place(install_name):
    """Where a linker looks for it: neither has the version in its name."""
    path = pathlib.PurePosixPath(install_name)
    if ".framework" in install_name:
        return f"System/Library/Frameworks/{path.name}.framework/{path.name}.tbd"
    return f"usr/lib/{path.name.partition('.')[0]}.tbd"


def main(names, sdk):
    for install_name, symbols in libraries(pathlib.Path(names).read_text()).items():
        path = pathlib.Path(sdk, place(install_name))
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(stub(install_name, symbols))


if __name__ == "__main__":
    main(*sys.argv[1:])
