"""Writes what the fit check offers as an edit of the port."""

from __future__ import annotations

import ast
import re
import tokenize
from collections.abc import Iterator, Sequence
from pathlib import Path

from abele.port.rungs.mending import replaced

_OFFERED = "these changes, "
_ROWS = re.compile(r"# batch_size=(\d+) in poptorch\.DataLoader")
_PLACE_OF_SIZE = 2


def of_fit(said: str, port: Path) -> str:
    """The edit in words and lines; empty if the fit check offers none, or the lines are not there.

    Args:
        said: what ``abele fit`` has printed.
        port: the script that it ran.
    """
    lines = _offered(said)
    if not lines or not port.is_file():
        return ""
    with tokenize.open(port) as file:
        text = file.read()
    tree, rows = ast.parse(text), text.splitlines()
    wrapper = _call(tree, "poptorch.trainingModel") or _call(tree, "poptorch.inferenceModel")
    if wrapper is None:
        return ""
    name = _options(wrapper)
    edits = [_of_options(lines, name, tree, rows, port), _of_model(lines, wrapper, rows, port)]
    edits += [_of_size(int(size), name, tree, rows, port) for size in _sizes(lines)]
    return "\n".join(filter(None, edits))


def _offered(said: str) -> list[str]:
    """The lines of Python that the fit check offers."""
    _, mark, rest = said.partition(_OFFERED)
    if not mark:
        return []
    return [line.strip() for line in rest.splitlines() if line.startswith(" " * 6)]


def _sizes(lines: Sequence[str]) -> Iterator[str]:
    for line in lines:
        if match := _ROWS.fullmatch(line):
            yield match[1]


def _call(tree: ast.AST, name: str) -> ast.Call | None:
    """The first call of a function."""
    return next(iter(_calls(tree, name)), None)


def _calls(tree: ast.AST, name: str) -> Iterator[ast.Call]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and ast.unparse(node.func) == name:
            yield node


def _options(wrapper: ast.Call) -> str:
    """What the program calls the options of a wrapper."""
    options = [each.value for each in wrapper.keywords if each.arg == "options"]
    options += wrapper.args[1:2]
    return ast.unparse(options[0]) if options else ""


def _of_options(
    lines: Sequence[str], name: str, tree: ast.Module, rows: Sequence[str], port: Path
) -> str:
    """Lines about options, after the statement that makes them, or the condition around several."""
    settings = [line for line in lines if line.startswith("options.")]
    made = [
        each
        for each in ast.walk(tree)
        if isinstance(each, ast.Assign)
        and [ast.unparse(target) for target in each.targets] == [name]
        and "Options(" in ast.unparse(each.value)
    ]
    if not settings or not made:
        return ""
    last = max(made, key=_end)
    if len(made) > 1:
        last = next((each for each in tree.body if each.lineno <= last.lineno <= _end(each)), last)
    new = [f"+ {name}.{line.removeprefix('options.')}" for line in settings]
    why = "after the options are made, and before they are used."
    return "\n".join([f"{port}:{_end(last)}: {why}", f"  {rows[_end(last) - 1].strip()}", *new])


def _of_model(lines: Sequence[str], wrapper: ast.Call, rows: Sequence[str], port: Path) -> str:
    """Lines about the model, before it is wrapped."""
    new = [f"+ {line}" for line in lines if not line.startswith(("options.", "#"))]
    if not new:
        return ""
    text = f"  {rows[wrapper.lineno - 1].strip()}"
    return "\n".join([f"{port}:{wrapper.lineno}: before the model is wrapped.", *new, text])


def _of_size(size: int, name: str, tree: ast.Module, rows: Sequence[str], port: Path) -> str:
    """The number of rows of a micro-batch, where the loader of these options is given it."""
    for call in _calls(tree, "poptorch.DataLoader"):
        if not call.args or ast.unparse(call.args[0]) != name:
            continue
        sizes = [each.value for each in call.keywords if each.arg == "batch_size"]
        sizes += call.args[_PLACE_OF_SIZE : _PLACE_OF_SIZE + 1]
        value = sizes[0] if sizes else call
        row = rows[value.lineno - 1]
        if isinstance(value, ast.Constant):
            new = f"{row[: value.col_offset]}{size}{row[value.end_col_offset :]}"
            why = f"{size} rows at a time."
            return replaced(f"{port}:{value.lineno}", row.strip(), new.strip(), why)
        return f"{port}:{call.lineno}: give this loader batch_size={size}.\n  {row.strip()}"
    return ""


def _end(node: ast.stmt) -> int:
    return node.end_lineno or node.lineno
