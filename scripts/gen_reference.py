"""Writes the pages of docs/reference/ from signatures and docstrings.

python scripts/gen_reference.py            writes the pages
python scripts/gen_reference.py --check    exits 1 if they are stale
"""

import argparse
import ast
import enum
import importlib
import inspect
import itertools
import re
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "src"))

FOLDER = ROOT / "docs" / "reference"
NOTE = "<!-- Written by scripts/gen_reference.py from the docstrings; do not edit. -->"

# Page: its title, and sections of names, each "module:attribute" or a name of the package. Modules
# are those of poptorch, unless the name begins with popdist.
PAGES: dict[str, tuple[str, dict[str, list[str]]]] = {
    "wrapping": (
        "Wrapping a model",
        {
            "Functions": ["trainingModel", "inferenceModel", "load", "identity_loss"],
            "The wrapped model": ["PoplarExecutor", "_state.module_weights:ParameterProxy"],
            "A model out of a file": ["RestoredModule", "importPoptorchMetadataFromFile"],
            "Custom argument types": [
                "ICustomArgParser",
                "registerCustomArgParser",
                "registerGeometricCustomArgParsers",
            ],
            "Hooks": ["registerPreCompileHook", "registerPostCompileHook"],
            "Errors": ["Error", "RecoverableError", "UnrecoverableError", "createPoptorchError"],
            "Warnings": ["HostChangeWarning", "OtherPoptorchWarning"],
        },
    ),
    "options": (
        "All options",
        {
            "The root": ["Options"],
            "Namespaces": [
                "options.namespaces:_TrainingOptions",
                "options.namespaces:_PrecisionOptions",
                "options.namespaces:_DistributedOptions",
                "options.namespaces:_TensorLocationOptions",
                "TensorLocationSettings",
                "options.namespaces:_JitOptions",
                "options.namespaces:_PopartOptions",
            ],
            "What all of them can": ["OptionsDict"],
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
            "Classes": ["optim:SGD", "optim:Adam", "optim:AdamW", "optim:RMSprop", "optim:LAMB"],
            "What all of them can": ["optim:Optimizer", "optim:VariableAttributes"],
        },
    ),
    "data": ("Loading data", {"Loaders": ["DataLoader", "AsynchronousDataAccessor"]}),
    "enums": ("Enumerations", {}),
    "tools": (
        "Logging, printing, profiling, testing",
        {
            "Logging": ["setLogLevel", "poptorchAtExit"],
            "Printing": ["module_repr", "print"],
            "Devices": ["ipuHardwareIsAvailable", "ipuHardwareVersion"],
            "poptorch.profiling": ["profiling:Channel"],
            "poptorch.testing": ["testing:allclose"],
            "poptorch.poptorch_core": [
                "poptorch_core:isAlreadyRegistered",
                "poptorch_core:TestErrorType",
            ],
            "Earlier releases": ["autocast", "autocasting:Policy"],
        },
    ),
    "checkpoints": (
        "State for checkpoints, and processes that train together",
        {
            "poptorch.resuming": [
                "resuming:state_of",
                "resuming:put_back",
                "resuming:named_weights",
                "resuming:optimizer_state",
                "resuming:put_optimizer",
                "resuming:is_training_wrapper",
                "resuming:processes_of",
            ],
            "poptorch.processes": [
                "processes:connect",
                "processes:join",
                "processes:raise_as",
                "processes:problem_between",
            ],
        },
    ),
    "popdist": (
        "Programs for poprun",
        {
            "Who am I": [
                "popdist:isPopdistEnvSet",
                "popdist:getInstanceIndex",
                "popdist:getNumInstances",
                "popdist:getLocalInstanceIndex",
            ],
            "Replicas and devices": [
                "popdist:getNumTotalReplicas",
                "popdist:getNumLocalReplicas",
                "popdist:getReplicaIndexOffset",
                "popdist:getNumIpusPerReplica",
                "popdist:checkNumIpusPerReplica",
                "popdist:getDeviceId",
            ],
            "Acting": ["popdist:init", "popdist:execute_on_instances"],
            "Options": ["popdist.poptorch:Options"],
            "Checkpoints": [
                "popdist.checkpoint:Checkpointer",
                "popdist.checkpoint:CheckpointError",
                "popdist.checkpoint:CheckpointWarning",
            ],
            "Errors": ["popdist:Error"],
        },
    ),
}
# What users call a class whose own name is private.
SHOWN = {
    "options.namespaces:_TrainingOptions": "poptorch.Options.Training",
    "options.namespaces:_PrecisionOptions": "poptorch.Options.Precision",
    "options.namespaces:_DistributedOptions": "poptorch.Options.Distributed",
    "options.namespaces:_TensorLocationOptions": "poptorch.Options.TensorLocations",
    "options.namespaces:_JitOptions": "poptorch.Options.Jit",
    "options.namespaces:_PopartOptions": "poptorch.Options._Popart",
    "_state.module_weights:ParameterProxy": "poptorch.PoplarExecutor.PARAMETER",
}
# Public names that are neither class nor function.
VALUES = {
    "__version__": "The version as text: the interface's, then this package's.",
    "logger": "The logger of this package, called `poptorch::python`.",
}
MODULES = (
    *("enums", "ops", "optim", "options", "poptorch_core", "processes", "profiling", "resuming"),
    "testing",
)
_FIELD = re.compile(r"^\s*(\*{0,2}[\w, .*]+):\s+(.*)$")
_SECTION = re.compile(r"^(Args|Returns|Raises|Yields|Attributes):\s*$")
_OF_FIELDS = ("Args", "Raises", "Attributes")
_WIDTH = 80  # of a call that fits into a heading


def main() -> int:
    """Write or check the pages."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--check", action="store_true", help="only compare; exit 1 if stale")
    options = parser.parse_args()
    FOLDER.mkdir(exist_ok=True)
    current = pages()
    stale = [path for path, text in current.items() if not same(path, text)]
    # Other generators write into the folder too.
    ours = {path for path in FOLDER.glob("*.md") if path.read_text("utf-8").startswith(NOTE)}
    stale += sorted(ours - set(current))
    if options.check:
        for path in stale:
            print(f"{path.relative_to(ROOT)} is stale: run python scripts/gen_reference.py")
        return int(bool(stale))
    for path in stale:
        if path in current:
            path.write_text(current[path], encoding="utf-8")
        else:
            path.unlink()
    return 0


def pages() -> dict[Path, str]:
    """Return the text of every file of the folder."""
    return {FOLDER / "README.md": contents()} | {FOLDER / f"{n}.md": page(n) for n in PAGES}


def same(path: Path, text: str) -> bool:
    """Return whether a file holds this text."""
    return path.is_file() and path.read_text(encoding="utf-8") == text


def contents() -> str:
    """Return the page that lists the others."""
    lines = [NOTE, "", "# API reference", ""]
    lines.append("Every public name, from its signature and docstring. What each option and")
    lines.append("environment variable does, as one table: [compatibility](compatibility.md).")
    lines.append("")
    lines.append(
        "Commands: [findings of `abele port`](port_codes.md), [options of `poprun`](poprun.md),"
    )
    lines.append("[configuration of CosmicTagger](cosmictagger.md).")
    for name, (title, _) in PAGES.items():
        lines += ["", f"## [{title}]({name}.md)", ""]
        for section, names in sections(name).items():
            shown = [short(find(entry)[0]) for entry in names]
            links = ", ".join(f"[`{each}`]({name}.md#{_anchor(each)})" for each in shown)
            lines.append(f"- {section}: {links}" if len(sections(name)) > 1 else links)
    lines += ["", "## Values", ""]
    lines += [f"- `poptorch.{name}`: {text}" for name, text in VALUES.items()]
    lines += ["", "## Modules", ""]
    for name in MODULES:
        text = inspect.getdoc(importlib.import_module(f"poptorch.{name}")) or ""
        lines.append(f"- `poptorch.{name}`: {_inline(text.splitlines()[0])}")
    lines.append("")
    lines.append("`poptorch.testing` needs an import of its own; the others come with `poptorch`.")
    return "\n".join(lines) + "\n"


def short(shown: str) -> str:
    """Return the name without the package."""
    return shown.removeprefix("poptorch.")


def _anchor(text: str) -> str:
    # How GitHub names headings.
    return re.sub(r"[^\w-]", "", text.lower())


def sections(name: str) -> dict[str, list[str]]:
    """Return the names on a page; whole modules are looked up here."""
    if name == "enums":
        kinds = vars(importlib.import_module("poptorch.enums"))
        chosen = [k for k, v in kinds.items() if inspect.isclass(v) and issubclass(v, enum.Enum)]
        return {"Alphabetically": sorted(chosen)}
    if name == "ops":
        module = importlib.import_module("poptorch.ops")
        elsewhere = {"identity_loss"}
        return {"Alphabetically": sorted(set(module.__all__) - elsewhere, key=str.lower)}
    return PAGES[name][1]


def entries(name: str) -> Iterator[tuple[str, object]]:
    """Full name and object of everything on a page."""
    for names in sections(name).values():
        for entry in names:
            yield find(entry)


def find(entry: str) -> tuple[str, object]:
    """Return the object behind ``module:attribute`` or the name of a public object."""
    module, _, attribute = entry.rpartition(":")
    if module.split(".")[0] != "popdist":
        module = f"poptorch.{module}" if module else "poptorch"
    owner = importlib.import_module(module)
    return SHOWN.get(entry, f"{module}.{attribute}"), getattr(owner, attribute)


def page(name: str) -> str:
    """Return the text of one page."""
    chosen = sections(name)
    parts = [NOTE, "", f"# {PAGES[name][0]}"]
    documented = {item: shown for shown, item in entries(name) if inspect.isclass(item)}
    for section, names in chosen.items():
        parts += ["", f"## {section}"] if len(chosen) > 1 else []
        for entry in names:
            parts += ["", *describe(*find(entry), documented, _is_private(entry))]
    return "\n".join(parts) + "\n"


def _is_private(entry: str) -> bool:
    # Nobody calls the constructor of what is reached through something else.
    return entry in SHOWN


def describe(
    shown: str, item: object, documented: dict[object, str], private: bool
) -> Iterator[str]:
    """Heading, signature and text of one object, then its members."""
    yield f"### `{short(shown)}`"
    if inspect.isclass(item) and issubclass(item, enum.Enum):
        yield from ("", *text_of(item), "", *_members_of_enum(item))
        return
    if not private:
        yield from ("", "```python", *signature(shown, item), "```")
    text = text_of(item)
    if private and "**Parameters**" in text:
        text = text[: text.index("**Parameters**") - 1]
    yield from ("", *text)
    if not inspect.isclass(item):
        return
    bases = [base for base in item.__mro__[1:] if base in documented]
    if bases:
        base = short(documented[bases[0]])
        yield from ("", f"Also has the members of [`{base}`](#{_anchor(base)}).")
    hidden = {base for each in bases for base in each.__mro__}
    for name, member in members(item, hidden):
        yield from ("", *describe_member(shown, name, member))


def describe_member(owner: str, name: str, item: object) -> Iterator[str]:
    """Heading with the call, text, and for an option what becomes of it."""
    call = name
    if isinstance(item, property):
        yield f"#### `{name}`"
    else:
        call = "\n".join(signature(name, item))
        fits = len(call) <= _WIDTH and "\n" not in call
        yield f"#### `{call if fits else name}`"
        if not fits:
            yield from ("", "```python", *call.splitlines(), "```")
    text = text_of(item)
    if isinstance(item, property):
        text[:1] = [f"*Property.* {line}" for line in text[:1]]
    yield from ("", *text)
    status_text = status(owner, name)
    if status_text:
        yield from ("", f"*{status_text}*")


def status(owner: str, setter: str) -> str:
    """Return what the option table says of a setter; nothing for other members."""
    if owner.startswith("popdist"):
        return ""
    table = importlib.import_module("poptorch.options._table")
    namespace = owner.rpartition(".")[2]
    rows = [row for row in table.TABLE if (row.namespace, row.setter) == (namespace, setter)]
    if not rows or namespace == "_Popart":
        return ""
    if all(row.status is table.Status.NO_EFFECT for row in rows):
        return "No effect."
    if all(row.type == "method" for row in rows):
        return ""
    part = "Part" if any(row.when == "compile" for row in rows) else "Not part"
    return f"Honoured. {part} of what is compiled."


def _members_of_enum(kind: type[enum.Enum]) -> Iterator[str]:
    meanings = _meanings(kind)
    yield from ("| member | value | meaning |", "|---|---|---|")
    for member in kind:
        yield f"| `{member.name}` | `{member.value!r}` | {meanings.get(member.name, '')} |"


def _meanings(kind: type[enum.Enum]) -> dict[str, str]:
    """Return the text below each member; Python drops it, the source has it."""
    body = ast.parse(textwrap.dedent(inspect.getsource(kind))).body[0].body
    pairs = itertools.pairwise(body)
    return {
        node.targets[0].id: _inline(" ".join(text.value.value.split()))
        for node, text in pairs
        if isinstance(node, ast.Assign) and isinstance(text, ast.Expr)
    }


def members(cls: type, hidden: set[type]) -> Iterator[tuple[str, object]]:
    """Yield public members that the class's own package defines, in the order of definition."""
    package = cls.__module__.split(".")[0]
    seen = set()
    for base in cls.__mro__:
        if base.__module__.split(".")[0] != package or base in hidden:
            continue
        for name, raw in vars(base).items():
            called = name == "__call__" and raw.__doc__
            if (name.startswith("_") and not called) or name in seen:
                continue
            seen.add(name)
            if isinstance(raw, property):
                yield name, raw
            elif isinstance(raw, staticmethod | classmethod) or inspect.isfunction(raw):
                yield name, getattr(cls, name)


def signature(shown: str, item: object) -> list[str]:
    """Return the call, on one line or one parameter per line."""
    try:
        call = inspect.signature(item)
    except (TypeError, ValueError):
        return [shown]
    entries = [p.replace(annotation=p.empty) for n, p in call.parameters.items() if n != "self"]
    line = _plain(f"{shown}{call.replace(parameters=entries, return_annotation=call.empty)}")
    if len(line) <= 88:
        return [line]
    return [f"{shown}(", *(f"    {_plain(str(entry))}," for entry in entries), ")"]


def _plain(text: str) -> str:
    """Defaults as this project writes them: members by name, double quotes."""
    return re.sub(r"'([^'\"]*)'", r'"\1"', re.sub(r"<([\w.]+): [^>]*>", r"\1", text))


def _inline(text: str) -> str:
    """Return one line of prose as Markdown."""
    text = re.sub(r"``([^`]+)``", r"`\1`", text)
    text = re.sub(r"^Differs from the (\w+):", r"**Differs from the \1:**", text)
    return re.sub(r"::$", ":", text)


def text_of(item: object) -> list[str]:
    """Return a docstring as Markdown: fields become lists."""
    # A class without a docstring of its own would show its base's.
    has_docstring = not inspect.isclass(item) or "__doc__" in vars(item)
    text = (inspect.getdoc(item) or "") if has_docstring else ""
    lines: list[str] = []
    section = None
    for line in text.splitlines():
        head = _SECTION.match(line)
        if head:
            section = head[1]
            lines += [f"**{'Parameters' if section == 'Args' else section}**", ""]
            continue
        if section and line and not line.startswith(" "):
            section = None
        if section in _OF_FIELDS:
            lines.append(_field(_inline(line)))
        else:
            lines.append(_inline(line.removeprefix("    ") if section else line))
    return lines


def _field(line: str) -> str:
    """Return one line of an Args, Raises or Attributes section."""
    if len(line) - len(line.lstrip()) > 4:
        return f"  {line.strip()}"
    match = _FIELD.match(line)
    return f"- `{match[1]}`: {match[2]}" if match else line.strip()


if __name__ == "__main__":
    sys.exit(main())
