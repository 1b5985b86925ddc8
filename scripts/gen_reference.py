"""Writes the pages of docs/reference/ from signatures and docstrings.

python scripts/gen_reference.py            writes the pages
python scripts/gen_reference.py --check    exits 1 if they are stale
"""

import argparse
import enum
import importlib
import inspect
import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "src"))

FOLDER = ROOT / "docs" / "reference"
NOTE = "<!-- Written by scripts/gen_reference.py from the docstrings; do not edit. -->"

# Page: its title, and sections of names, each "module:attribute" or a whole module.
PAGES: dict[str, tuple[str, dict[str, list[str]]]] = {
    "wrapping": (
        "Wrapping a model",
        {
            "Functions": ["trainingModel", "inferenceModel", "load", "identity_loss"],
            "The wrapped model": ["PoplarExecutor"],
            "Custom argument types": ["ICustomArgParser", "registerCustomArgParser"],
            "Hooks": ["registerPreCompileHook", "registerPostCompileHook"],
            "Errors": ["Error", "RecoverableError", "UnrecoverableError"],
        },
    ),
    "options": (
        "Options",
        {
            "The root": ["Options"],
            "Namespaces": [
                "options.training:_TrainingOptions",
                "options.precision:_PrecisionOptions",
                "options.distributed:_DistributedOptions",
                "options.locations:_TensorLocationOptions",
                "TensorLocationSettings",
                "options.jit:_JitOptions",
                "options.popart:_PopartOptions",
            ],
            "Execution strategies": [
                "PipelinedExecution",
                "ShardedExecution",
                "SerialPhasedExecution",
                "ParallelPhasedExecution",
                "Stage",
                "Phase",
            ],
            "Errors": ["ConfigFileError"],
        },
    ),
    "ops": ("Operations and annotations", {}),
    "optim": (
        "Optimizers",
        {
            "poptorch.optim": [
                f"optim:{name}"
                for name in ("SGD", "Adam", "AdamW", "RMSprop", "LAMB", "VariableAttributes")
            ]
            + ["optim:Optimizer"]
        },
    ),
    "data": ("Loading data", {"Loaders": ["DataLoader", "AsynchronousDataAccessor"]}),
    "enums": ("Enumerations", {}),
    "tools": (
        "Logging, profiling, testing",
        {
            "Logging": ["setLogLevel", "poptorchAtExit"],
            "Devices": ["ipuHardwareIsAvailable", "ipuHardwareVersion"],
            "poptorch.profiling": ["profiling:Channel"],
            "poptorch.testing": ["testing:allclose"],
            "poptorch.poptorch_core": ["poptorch_core:isAlreadyRegistered"],
            "Earlier releases": ["autocast", "autocasting:Policy"],
        },
    ),
}
_FIELD = re.compile(r"^\s*(\*{0,2}[\w, .*]+):\s+(.*)$")
_SECTION = re.compile(r"^(Args|Returns|Raises|Yields|Attributes):\s*$")


def main() -> int:
    """Writes or checks the pages."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--check", action="store_true", help="only compare; exit 1 if stale")
    options = parser.parse_args()
    FOLDER.mkdir(exist_ok=True)
    wanted = {FOLDER / f"{name}.md": page(name) for name in PAGES}
    wanted[FOLDER / "README.md"] = contents()
    stale = [path for path, text in wanted.items() if not same(path, text)]
    stale += sorted(set(FOLDER.glob("*.md")) - set(wanted))
    if options.check:
        for path in stale:
            print(f"{path.relative_to(ROOT)} is stale: run python scripts/gen_reference.py")
        return int(bool(stale))
    for path in stale:
        if path in wanted:
            path.write_text(wanted[path], encoding="utf-8")
        else:
            path.unlink()
    return 0


def same(path: Path, text: str) -> bool:
    """Whether a file holds this text."""
    return path.is_file() and path.read_text(encoding="utf-8") == text


def contents() -> str:
    """The page that lists the others."""
    lines = [NOTE, "", "# API reference", ""]
    lines.append("What each option and variable does: [compatibility](../compatibility.md).")
    lines.append("")
    for name, (title, _) in PAGES.items():
        found = ", ".join(f"`{entry[0].rpartition('.')[2]}`" for entry in entries(name))
        lines.append(f"- [{title}]({name}.md): {found}")
    return "\n".join(lines) + "\n"


def sections(name: str) -> dict[str, list[str]]:
    """The names on a page; whole modules are looked up here."""
    if name == "enums":
        kinds = vars(importlib.import_module("poptorch.enums"))
        chosen = [k for k, v in kinds.items() if inspect.isclass(v) and issubclass(v, enum.Enum)]
        return {"poptorch.enums": sorted(chosen)}
    if name == "ops":
        module = importlib.import_module("poptorch.ops")
        return {"poptorch.ops": sorted(module.__all__, key=str.lower)}
    return PAGES[name][1]


def entries(name: str) -> Iterator[tuple[str, object]]:
    """Full name and object of everything on a page."""
    for names in sections(name).values():
        for entry in names:
            yield find(entry)


def find(entry: str) -> tuple[str, object]:
    """The object behind ``module:attribute`` or the name of a public object."""
    module, _, attribute = entry.rpartition(":")
    owner = importlib.import_module(f"poptorch.{module}" if module else "poptorch")
    shown = f"poptorch.{module}.{attribute}" if module else f"poptorch.{attribute}"
    return shown.replace("options.options", "options"), getattr(owner, attribute)


def page(name: str) -> str:
    """The text of one page."""
    parts = [NOTE, "", f"# {PAGES[name][0]}"]
    for section, names in sections(name).items():
        parts += ["", f"## {section}"]
        for entry in names:
            parts += ["", *describe(*find(entry), level=3)]
    return "\n".join(parts) + "\n"


def describe(shown: str, item: object, level: int) -> Iterator[str]:
    """Heading, signature and text of one object, then its members."""
    short = shown.rpartition(".")[2]
    yield f"{'#' * level} `{short}`"
    if inspect.isclass(item) and issubclass(item, enum.Enum):
        yield from ("", *text_of(item), "", "| member | value |", "|---|---|")
        yield from (f"| `{member.name}` | `{member.value!r}` |" for member in item)
        return
    if not isinstance(item, property):
        yield from ("", "```python", *signature(shown, item), "```")
    yield from ("", *text_of(item))
    if inspect.isclass(item):
        for name, member in members(item):
            yield from ("", *describe(name, member, level + 1))


def members(cls: type) -> Iterator[tuple[str, object]]:
    """Public members that this package defines, in the order of definition."""
    seen = set()
    for base in cls.__mro__:
        if base.__module__.split(".")[0] != "poptorch":
            continue
        for name, raw in vars(base).items():
            if name.startswith("_") or name in seen:
                continue
            seen.add(name)
            if isinstance(raw, property):
                yield name, raw
            elif isinstance(raw, staticmethod | classmethod) or inspect.isfunction(raw):
                yield name, getattr(cls, name)


def signature(shown: str, item: object) -> list[str]:
    """The call, on one line or one parameter per line."""
    try:
        found = inspect.signature(item)
    except (TypeError, ValueError):
        return [shown]
    entries = [p.replace(annotation=p.empty) for n, p in found.parameters.items() if n != "self"]
    line = _plain(f"{shown}{found.replace(parameters=entries, return_annotation=found.empty)}")
    if len(line) <= 88:
        return [line]
    return [f"{shown}(", *(f"    {_plain(str(entry))}," for entry in entries), ")"]


def _plain(text: str) -> str:
    """Defaults as one writes them: an enumeration's member without its value."""
    return re.sub(r"<([\w.]+): [^>]*>", r"\1", text)


def text_of(item: object) -> list[str]:
    """A docstring as Markdown: fields become lists."""
    # A class without a docstring of its own would show its base's.
    own = not inspect.isclass(item) or "__doc__" in vars(item)
    text = (inspect.getdoc(item) or "") if own else ""
    lines: list[str] = []
    field_indent = None
    for line in text.splitlines():
        head = _SECTION.match(line)
        if head:
            lines += [f"**{head[1]}**", ""]
            field_indent = 4
            continue
        if field_indent is not None and line and not line.startswith(" "):
            field_indent = None
        lines.append(_field(line) if field_indent is not None else line)
    return lines


def _field(line: str) -> str:
    """One line of an Args, Raises or Attributes section."""
    if len(line) - len(line.lstrip()) > 4:
        return f"  {line.strip()}"
    match = _FIELD.match(line)
    return f"- `{match[1]}`: {match[2]}" if match else line.strip()


if __name__ == "__main__":
    sys.exit(main())
