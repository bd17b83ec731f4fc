"""Our words are architecture.md's: a synonym in prose or code of this repository is an error.

Reads the files that git tracks. A line may hold a listed word on purpose when it ends with the
marker `words:ok`.
"""

import pathlib
import re
import subprocess
import sys

# Word that is not ours → the one that is.
SYNONYMS = {
    r"\bpipeline stages?\b": "rank",
    r"\bmaster node\b": "driver",
    r"\bworker nodes?\b": "node or rank",
    r"\bplacement\b": "plan",
    r"\btime[- ]to[- ]first[- ]byte\b": "TTFT",
    r"\bactivations? (?:over|across) the wire\b": "hidden state",
    r"\bteh\b|\brecieve|\bseperat|\boccured\b|\bneccess|\bsucess|\blenght\b|\bwich\b": "(spelling)",
}
SUFFIXES = {".rs", ".md", ".sh", ".py", ".toml"}
SELF = pathlib.Path("scripts/lib/words.py")

tracked = subprocess.run(["git", "ls-files", "-co", "--exclude-standard"], check=True, capture_output=True, text=True)
faults = []
for path in map(pathlib.Path, tracked.stdout.splitlines()):
    if path == SELF or path.suffix not in SUFFIXES or not path.is_file():
        continue
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        if line.rstrip().endswith("words:ok"):
            continue
        for pattern, ours in SYNONYMS.items():
            found = re.search(pattern, line, re.IGNORECASE)
            if found:
                faults.append(f"{path}:{number}: `{found.group()}`: write {ours}")
print("\n".join(faults))
sys.exit(bool(faults))
