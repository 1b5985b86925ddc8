"""Writes the generated parts of README.md: what works, and how fast, from facts and records.

python scripts/gen_readme.py            rewrites the parts
python scripts/gen_readme.py --check    exits 1 if they are stale
"""

import argparse
import json
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "src"), str(ROOT)]

from benchmarks.table import page  # noqa: E402 - likewise

import poptorch  # noqa: E402 - after the path
import poptorch.testing  # noqa: E402 - not imported by the package
from poptorch.options import _table  # noqa: E402

README = ROOT / "README.md"
RECORDS = ROOT / "benchmarks" / "records"
LINKS = "benchmarks/records"
_KINDS = {
    "class": "classes",
    "function": "functions",
    "enum": "enumerations",
    "exception": "exceptions",
    "submodule": "submodules",
}
WORKS = re.compile(r"(<!-- generated.*?-->\n).*?(<!-- end -->)", re.S)
SPEED = re.compile(r"(<!-- speed -->\n).*?(<!-- end speed -->)", re.S)


def main() -> int:
    """Rewrite or check README.md."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--check", action="store_true", help="only compare; exit 1 if stale")
    options = parser.parse_args()
    old = README.read_text()
    new = WORKS.sub(lambda m: f"{m[1]}{works()}{m[2]}", old)
    new = SPEED.sub(lambda m: f"{m[1]}{page.compact(RECORDS, LINKS)}{m[2]}", new)
    if options.check:
        if new != old:
            print("README.md is stale: run python scripts/gen_readme.py")
        return int(new != old)
    README.write_text(new)
    return 0


def works() -> str:
    """Return names of PopTorch 3.4 that exist here, by group."""
    facts = json.loads((ROOT / "tests/poptorch/interface.json").read_text())
    lines = ["| part of PopTorch 3.4 | names | here | missing |", "|---|---:|---:|---|"]
    members = [n for n in facts["poptorch"]["PoplarExecutor"]["members"] if n[0] != "_"]
    optimizers = [
        n for n, entry in facts["poptorch.optim"].items() if len(entry.get("constructor", ())) > 2
    ]
    groups = [
        ("wrapper members", members, poptorch.PoplarExecutor),
        ("optimizers", optimizers, poptorch.optim),
    ]
    for kind, title in _KINDS.items():
        entries = [n for n, entry in facts["poptorch"].items() if entry["kind"] == kind]
        groups.append((title, entries, poptorch))
    for title, names, owner in groups:
        missing = [name for name in names if not hasattr(owner, name)]
        total = len(names)
        shown = ", ".join(f"`{name}`" for name in missing) or "-"
        lines.append(f"| {title} | {total} | {total - len(missing)} | {shown} |")
    rows = _table.TABLE
    counts = {status: sum(row.status is status for row in rows) for status in _table.Status}
    shown = ", ".join(f"{count} {status.value}" for status, count in counts.items())
    lines.append(f"| options | {len(rows)} | {len(rows)} | - |")
    return "\n".join([*lines, f"\nOf the {len(rows)} options: {shown}."]) + "\n"


if __name__ == "__main__":
    sys.exit(main())
