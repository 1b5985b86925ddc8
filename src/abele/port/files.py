"""Reads a program from source files and writes the ported program."""

from __future__ import annotations

import dataclasses
import difflib
import io
import json
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import libcst as cst
from libcst import matchers as m

from abele.errors import PortError
from abele.port.engine import Port, summary
from abele.port.finding import docs_of
from abele.port.project import Project
from abele.port.source import Source, findall
from abele.storage.atomic import replacing, write_text

DIFF, RECORD, SUMMARY = "port.diff", "port.json", "port.txt"
_LAYOUT = 1
_NO_SOURCES = frozenset((".venv", "venv", "build", "dist", "__pycache__", "node_modules"))


def read(path: Path) -> Project:
    """Read a script with its local imports, or all files of a folder.

    Raises:
        PortError: there is no such script, or a file cannot be read.
    """
    if path.is_dir():
        sources = list(_below(path))
        if not sources:
            raise PortError(f"there is no Python file in {path}")
        return Project(sources)
    if not path.exists():
        raise PortError(f"there is no file {path}")
    return Project(_with_imports(path))


def _below(folder: Path) -> Iterator[Source]:
    """Yield the source files of a folder; print why a file, such as a notebook's, is left out."""
    for each in sorted(folder.rglob("*.py")):
        below = each.relative_to(folder)
        if any(part in _NO_SOURCES or part.startswith(".") for part in below.parts):
            continue
        folders = [folder / above for above in below.parents if above.name]
        if not any((above / RECORD).exists() for above in folders):  # else of an earlier port
            try:
                yield Source.read(each, below.as_posix())
            except PortError as error:
                print(f"abele port: {error}. This file is left out.", file=sys.stderr)


def _with_imports(script: Path) -> list[Source]:
    """Return a script and the local files that it imports, directly or indirectly."""
    folder = script.parent
    sources = [Source.read(script)]
    seen = {script.resolve()}
    for source in sources:
        for path in _imported(source, folder):
            if path.resolve() not in seen:
                seen.add(path.resolve())
                sources.append(Source.read(path, path.relative_to(folder).as_posix()))
    return sources


def _imported(source: Source, folder: Path) -> Iterator[Path]:
    """Return the files below a folder that a file imports."""
    here = folder.joinpath(source.name).parent
    for node in findall(source.module, m.Import() | m.ImportFrom()):
        for base, dotted in _modules(source, node, folder, here):
            parts = dotted.split(".") if dotted else []
            above = [base.joinpath(*parts[: count + 1]) for count in range(len(parts))]
            packages = above or [base]
            files = [each / "__init__.py" for each in packages]  # each runs when it is imported
            if parts:
                files.append(packages[-1].with_name(f"{parts[-1]}.py"))
            for each in files:
                if each.is_file() and each.is_relative_to(folder):
                    yield each


def _modules(
    source: Source, node: cst.CSTNode, folder: Path, here: Path
) -> Iterator[tuple[Path, str]]:
    """Return folders, and dotted names in them, that an import may refer to."""
    if isinstance(node, cst.Import):
        for alias in node.names:
            yield folder, source.code(alias.name)
    elif isinstance(node, cst.ImportFrom):
        dots = len(node.relative)
        base = folder if not dots else (here, *here.parents)[min(dots - 1, len(here.parents))]
        dotted = "" if node.module is None else source.code(node.module)
        yield base, dotted
        if not isinstance(node.names, cst.ImportStar):
            for alias in node.names:
                yield base, f"{dotted}.{source.code(alias.name)}".strip(".")


def difference(result: Port) -> str:
    """Return the unified diff between the original and the ported files."""
    lines: list[str] = []
    for name, after in result.after.items():
        lines += difflib.unified_diff(
            result.before.get(name, "").splitlines(keepends=True),
            after.splitlines(keepends=True),
            f"a/{name}",
            f"b/{name}",
        )
    return "".join(lines)


def record(result: Port) -> dict[str, Any]:
    """Return the content of ``port.json``, the record of a port."""
    return {
        "layout": _LAYOUT,
        "verdict": result.verdict.value,
        "files": {name: text != result.after[name] for name, text in result.before.items()},
        "findings": [
            dataclasses.asdict(each) | {"verdict": each.verdict.value, "docs": docs_of(each.code)}
            for each in result.findings
        ],
    }


def _like(original: Path, text: str) -> bytes:
    """Encode text with the line ends and encoding of an original file."""
    data = original.read_bytes() if original.exists() else b""
    encoding, _ = tokenize.detect_encoding(io.BytesIO(data).readline)
    return (text.replace("\n", "\r\n") if b"\r\n" in data else text).encode(encoding)


def write(result: Port, source: Path, output: Path) -> None:
    """Write the ported program, the diff and the record of the port.

    Args:
        result: the result of porting.
        source: the script or folder that was ported.
        output: a folder that is empty, missing, or contains an earlier port.

    Raises:
        PortError: the program or other files would be overwritten.
    """
    folder = source if source.is_dir() else source.parent
    if output.resolve() == folder.resolve():
        raise PortError(f"{output} has the program itself; give another folder, such as ported/")
    if output.exists() and not output.is_dir():
        raise PortError(f"{output} is a file; give a folder that is empty or not there")
    if output.is_dir() and any(output.iterdir()) and not (output / RECORD).exists():
        raise PortError(f"{output} has other files; give a folder that is empty or not there")
    try:
        for name, text in result.after.items():
            path = output / name
            path.parent.mkdir(parents=True, exist_ok=True)
            with replacing(path) as file:
                file.write(_like(folder / name, text))
        write_text(output / DIFF, difference(result))
        write_text(output / SUMMARY, summary(result, verbose=True) + "\n")
        write_text(output / RECORD, json.dumps(record(result), indent=1) + "\n")
    except OSError as error:
        raise PortError(f"{output} cannot be written: {error}") from error
