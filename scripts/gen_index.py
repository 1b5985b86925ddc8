"""Write src/INDEX.md: every module of the source tree with the first line of its docstring.

python scripts/gen_index.py            writes the page
python scripts/gen_index.py --check    exits 1 if it is stale
"""

import argparse
import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SOURCE, PAGE = ROOT / "src", ROOT / "src" / "INDEX.md"
HEAD = """\
# Modules

<!-- Written by scripts/gen_index.py from the docstrings; do not edit. -->

The [tour](abele/README.md) says which of them to read first.
"""


def main() -> int:
    """Write or check the page."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--check", action="store_true", help="only compare; exit 1 if stale")
    check, text = parser.parse_args().check, "".join(page())
    if PAGE.is_file() and PAGE.read_text(encoding="utf-8") == text:
        return 0
    if check:
        print(f"{PAGE.relative_to(ROOT)} is stale: run python scripts/gen_index.py")
        return 1
    PAGE.write_text(text, encoding="utf-8")
    return 0


def page() -> Iterator[str]:
    """Yield the page: a list of modules for each folder."""
    yield HEAD
    folder = None
    for path in sorted(SOURCE.rglob("*.py"), key=lambda path: (path.parent.parts, path.name)):
        described = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))
        if not described:
            continue
        if path.parent != folder:
            folder = path.parent
            yield f"\n## {folder.relative_to(SOURCE).as_posix()}\n\n"
        name = path.relative_to(SOURCE).as_posix()
        yield f"- [`{path.name}`]({name}): {described.splitlines()[0].rstrip('.')}\n"


if __name__ == "__main__":
    raise SystemExit(main())
