"""Writes the licences of every crate that is in a Daisy binary, with their texts, as one Markdown page.

Usage: notices.py TARGET_TRIPLE >THIRD-PARTY.md. Texts come from the crates' own packages; crates with the same text
share it. Run it in the clone.
"""

import json
import pathlib
import subprocess
import sys

TEXTS = ("licen", "copying", "notice", "unlicense", "copyright")


def metadata(triple):
    command = ["cargo", "metadata", "--locked", "--format-version", "1", "--filter-platform", triple]
    return json.loads(subprocess.run(command, check=True, capture_output=True).stdout)


def linked(data):
    """Packages that the binary is made of: what daisy depends on to run, and what those depend on."""
    nodes = {node["id"]: node for node in data["resolve"]["nodes"]}
    waiting, found = [data["resolve"]["root"]], set()
    while waiting:
        package = waiting.pop()
        if package in found:
            continue
        found.add(package)
        for dependency in nodes[package]["deps"]:
            if any(kind["kind"] is None for kind in dependency["dep_kinds"]):
                waiting.append(dependency["pkg"])
    own = set(data["workspace_members"])
    return sorted((p for p in data["packages"] if p["id"] in found - own), key=lambda p: (p["name"], p["version"]))


def texts(package):
    """The licence files of a package, its vendored parts included, in a fixed order."""
    root = pathlib.Path(package["manifest_path"]).parent
    paths = sorted(path for path in root.rglob("*") if path.name.lower().startswith(TEXTS) and path.is_file())
    for path in paths:
        if path.suffix.lower() not in {".rs", ".py", ".c", ".h", ".json", ".toml"}:
            yield path.read_text(encoding="utf-8", errors="replace").strip()


def main(triple):
    packages = linked(metadata(triple))
    users = {}
    print("# Third-party software in this Daisy\n")
    print("Rust crates, from crates.io. The texts follow below.\n")
    print("| crate | version | licence | source |\n|---|---|---|---|")
    for package in packages:
        name = f"{package['name']} {package['version']}"
        source = package["repository"] or f"https://crates.io/crates/{package['name']}"
        print(f"| {package['name']} | {package['version']} | {package['license']} | {source} |")
        for text in dict.fromkeys(texts(package)):
            users.setdefault(text, []).append(name)
    for number, (text, names) in enumerate(users.items(), 1):
        print(f"\n## Text {number}\n\n{', '.join(names)}\n\n```\n{text}\n```")


if __name__ == "__main__":
    main(*sys.argv[1:])
