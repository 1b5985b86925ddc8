"""Write `docs/reference/compatibility.md` from the option table.

python scripts/gen_compatibility.py           write the page
python scripts/gen_compatibility.py --check   exit 1 if the page is not up to date
"""

import argparse
import enum
import functools
import importlib
import inspect
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "reference" / "compatibility.md"
TESTS = ROOT / "tests"

HEAD = """\
<!-- Written by scripts/gen_compatibility.py from src/poptorch/options/_table.py; do not edit. -->

# Options and what they do here

Every option of PopTorch 3.4 can be set. What a value other than the default leads to is its status:

- **honoured**: it does what it did.
- **no effect**: accepted, and the results are the same without it.
- **rejected**: wrapping a model fails, because the results would not be what was asked for.

*When* tells whether a change needs a new program (compile) or not (run). *Test* is the file that
says most about the option; `test_option_table.py` covers every row of the table."""

FUNCTIONS_HEAD = """
## Functions and classes

Every public name of PopTorch 3.4 exists, with its parameters and defaults
(`tests/poptorch/test_interface.py`). *no effect* means accepted, checked, and without influence on
results. A note says where behaviour differs."""

OPTIMIZERS_HEAD = """
## Optimizers of torch.optim

*honoured* are those that PopTorch 3.4 takes beside its own, *beyond the original* those that only
this one does: a learning rate may change at any time, so schedulers work; weight decay and epsilon
may if they were not at their defaults; state is torch's own, on the host before and after. Target
`reference` gives plain PyTorch's bits with each. `foreach`, `fused` and `capturable` change
nothing, `amsgrad` and `differentiable` are refused."""

# Accepted and checked; placement, memory and naming change no result here.
NO_EFFECT = {
    "set_available_memory",
    "set_overlap_for_input",
    "set_overlap_for_output",
    "Attribute",
    "MultiConv",
    "TensorLocationSettings",
    "nop",
    "registerGeometricCustomArgParsers",
}


def _type_text(row) -> str:
    if isinstance(row.default, enum.Enum):
        return type(row.default).__name__
    if isinstance(row.type, str):
        return row.type
    kinds = row.type if isinstance(row.type, tuple) else (row.type,)
    return " or ".join(kind.__name__ for kind in kinds)


def _default_text(row) -> str:
    if row.type == "method":
        return ""
    if isinstance(row.default, enum.Enum):
        return f"`{row.default.name}`"
    value = row.fresh()
    return "not set" if repr(value) == "not set" else f"`{value!r}`"


def _option_text(row) -> str:
    if row.namespace == "_Popart" and row.setter == "set":
        return f'`set("{row.name}")`'
    setter = f"`{row.setter}`" if row.setter else "no setter"
    stored = row.type == "method" or row.name.startswith("_") or row.name == row.setter
    return setter if stored else f"{setter} (`{row.name}`)"


def _line(row) -> str:
    cells = (
        _option_text(row),
        _type_text(row),
        _default_text(row),
        row.when,
        row.status.value,
        row.note,
        _test_of(row.name if row.setter in ("set", "") else row.setter),
    )
    return "| " + " | ".join(cells) + " |"


# By update rule, what a user may not expect.
OPTIMIZERS = {
    "sgd": "dampening acts on the first step too",
    "asgd": "the mean of the weights, `ax`, comes to the host when the wrapper ends",
    "rprop": "as in torch, a learning rate that changes after the first step has no effect",
}


@functools.cache
def _tests() -> dict[str, str]:
    """Return the text of every test file by its name."""
    # Of the folders that test poptorch; others mention its options in passing, or write them.
    folders = ("conformance", "footguns", "poptorch", "unit")
    paths = [path for each in folders for path in sorted((TESTS / each).rglob("test_*.py"))]
    paths = [path for path in paths if TESTS / "unit" / "port" not in path.parents]
    return {path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8") for path in paths}


def _test_of(name: str) -> str:
    """Return a link to the test file that says most about a name."""
    path = "tests/poptorch/options/test_option_table.py"
    # As a member of the package or of an object first: ``print`` alone is in every file.
    for before in (r"poptorch\.", r"\.", r"\b"):
        word = re.compile(rf"{before}{re.escape(name)}\b")
        counts = {path: len(word.findall(text)) for path, text in _tests().items()}
        best = max(counts, key=counts.__getitem__)
        if counts[best]:
            path = best
            break
    return f"[{Path(path).stem}](../../{path})"


def _functions() -> Iterator[str]:
    facts = json.loads((TESTS / "poptorch/interface.json").read_text(encoding="utf-8"))
    yield FUNCTIONS_HEAD
    yield "\n| name | status | note | test |"
    yield "|---|---|---|---|"
    for module in ("poptorch", "poptorch.optim", "poptorch.profiling", "poptorch.testing"):
        for name, entry in facts[module].items():
            if entry["kind"] in ("function", "class"):
                yield _function_line(module, name)
    for name in facts["poptorch"]["PoplarExecutor"]["members"]:
        if not name.startswith("_"):
            yield _function_line("poptorch.PoplarExecutor", name)


def _function_line(owner: str, name: str) -> str:
    module, _, cls = owner.partition(".Pop")
    holder = importlib.import_module(module)
    holder = getattr(holder, f"Pop{cls}") if cls else holder
    status = "no effect" if name in NO_EFFECT else "honoured"
    shown = f"{owner.removeprefix('poptorch.')}.{name}" if owner != "poptorch" else name
    cells = (f"`{shown}`", status, _differs(getattr(holder, name)), _test_of(name))
    return "| " + " | ".join(cells) + " |"


def _differs(item: object) -> str:
    """Return what the docstring says on differences, on one line."""
    match = re.search(
        r"Differs from (?:the original|torch): (.*?)(?:\n\s*\n|\Z)",
        inspect.getdoc(item) or "",
        re.S,
    )
    return " ".join(match[1].split()) if match else ""


def _optimizers() -> Iterator[str]:
    from abele.step.optimizers import KINDS, REFUSED

    yield OPTIMIZERS_HEAD
    yield "\n| class | status | note |"
    yield "|---|---|---|"
    for kind in KINDS:
        original = hasattr(importlib.import_module("poptorch.optim"), kind.base.__name__)
        status = "honoured" if original else "beyond the original"
        yield f"| `torch.optim.{kind.base.__name__}` | {status} | {OPTIMIZERS.get(kind.rule, '')} |"
    for kind, reason in REFUSED.items():
        yield f"| `torch.optim.{kind.__name__}` | rejected | {reason} |"
    yield "| others | rejected | no rule computes what they do |"


def page() -> str:
    """Return the text of the page."""
    from poptorch.options import _table

    parts = [HEAD]
    for namespace in _table.NAMESPACES:
        rows = [row for row in _table.TABLE if row.namespace == namespace]
        parts.append(
            f"\n## {namespace}\n\n| option | type | default | when | status | note | test |"
        )
        parts.append("|---|---|---|---|---|---|---|")
        parts.extend(_line(row) for row in rows)
    parts.extend(_functions())
    parts.extend(_optimizers())
    parts.append(_environment())
    return "\n".join(parts) + "\n"


def _environment() -> str:
    from abele.variables import VARIABLES as OWN
    from poptorch._wrapper.process import VARIABLES

    lines = [
        "\n## Environment variables",
        "\nOne that is set without effect, or whose text cannot be read, is reported once.",
        "\n| variable | effect | note |",
        "|---|---|---|",
    ]
    lines += [f"| `{v.name}` | {'yes' if v.effect else 'no'} | {v.note} |" for v in VARIABLES]
    lines.append(
        "\nThose of abele; a misspelt one is reported once. `abele doctor` shows what is set."
    )
    lines += ["\n| variable | effect |", "|---|---|"]
    lines += [f"| `{name}` | {effect} |" for name, effect in OWN.items()]
    return "\n".join(lines)


def main(argv: list[str] | None = None) -> int:
    """Write or check the page; return the exit status."""
    parser = argparse.ArgumentParser(description="Write docs/reference/compatibility.md.")
    parser.add_argument("--check", action="store_true", help="only tell whether it is up to date")
    arguments = parser.parse_args(argv)
    text = page()
    if not arguments.check:
        PAGE.write_text(text, encoding="utf-8")
        return 0
    if PAGE.is_file() and PAGE.read_text(encoding="utf-8") == text:
        return 0
    name = PAGE.relative_to(ROOT)
    print(f"{name} is not up to date: run python scripts/gen_compatibility.py", file=sys.stderr)
    return 1


if __name__ == "__main__":
    # The checkout's own packages, whether or not a version is installed.
    sys.path.insert(0, str(ROOT / "src"))
    sys.exit(main())
