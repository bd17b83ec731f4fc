"""Every crate that Daisy links has a licence that fits a program under Apache-2.0 OR MIT."""

import json
import re
import subprocess
import sys

ALLOWED = {
    "0BSD", "Apache-2.0", "Apache-2.0 WITH LLVM-exception", "BSD-1-Clause", "BSD-2-Clause", "BSD-3-Clause",
    "BSL-1.0", "CC0-1.0", "CDLA-Permissive-2.0", "ISC", "MIT", "MIT-0", "OpenSSL", "Unicode-3.0", "Unlicense", "Zlib",
}


def fits(expression):
    """An SPDX expression of names, AND, OR and brackets, by Python's own and/or."""
    if not expression:
        return False
    tokens = re.findall(r"\(|\)|[^\s()/]+(?: WITH [^\s()]+)?|/", expression)
    words = {"AND": "and", "OR": "or", "/": "or", "(": "(", ")": ")"}
    return eval(" ".join(words.get(token, str(token in ALLOWED)) for token in tokens))  # noqa: S307


metadata = json.loads(
    subprocess.run(["cargo", "metadata", "--locked", "--format-version", "1"], check=True, capture_output=True).stdout
)
faults = [
    f"{package['name']} {package['version']}: {package['license']}"
    for package in metadata["packages"]
    if not fits(package["license"])
]
print("\n".join(faults))
sys.exit(bool(faults))
