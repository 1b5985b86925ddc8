"""Collects changes that only the new mode sees: each becomes a branch beside the old code."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Sequence
from typing import Any

import libcst as cst

from abele.port.edits import Change, Edits, changed, parsed, with_header
from abele.port.modes.branches import Branches
from abele.port.modes.siblings import with_siblings
from abele.port.modes.specialised import Specialised
from abele.port.modes.switch import Switch

_GUARDED = ("import popdist", "import poptorch")


class ModeEdits(Edits):
    """Changes of a file as one mode sees it, to be merged into the whole file."""

    def __init__(
        self, source: Specialised, switch: Switch, condition: Callable[[cst.CSTNode], str]
    ):
        """Begin without any.

        Args:
            source: the file.
            switch: of the program.
            condition: the text of "this run is in the new mode" where a node is; ``""`` if that is
                not known there.
        """
        super().__init__(source)
        self._source: Specialised = source
        self._switch, self._condition = switch, condition
        self._everywhere: dict[cst.CSTNode, list[Change]] = {}
        self._branching: set[cst.CSTNode] = set()
        self._first: dict[cst.CSTNode, list[Any]] = {}
        self._methods: dict[cst.ClassDef, dict[str, None]] = {}

    def change(self, node: cst.CSTNode, change: Change) -> None:
        """Change a node in the new mode."""
        self._branching.add(node)
        super().change(node, change)

    def always(self, node: cst.CSTNode, change: Change) -> None:
        """Change a node in all modes."""
        self._everywhere.setdefault(node, []).append(change)
        super().change(node, change)

    def always_before(self, statement: cst.CSTNode, text: str) -> None:
        """Put statements before one, in all modes."""
        self._first.setdefault(statement, []).extend(parsed(text))

    def method(self, cls: cst.ClassDef, text: str) -> None:
        """Have one more method in a class, once."""
        self._methods.setdefault(cls, {})[text] = None

    def _top(self) -> str:
        """The definitions of one line, which the other modes do without."""
        lines = textwrap.indent("\n".join(self._lines), "    ")
        return f"if poptorch is not None:\n{lines}\n" if lines else ""

    def guarded(self) -> list[str]:
        """Imports that the other modes do without."""
        return [line for line in self._imports if line.startswith(_GUARDED)]

    def text(self) -> str:
        """The whole file with all changes made."""
        branches = Branches(
            source=self._source,
            switch=self._switch,
            condition=self._condition,
            changed=self._branching,
            everywhere=self._everywhere,
            around={node: (each.before, each.after) for node, each in self._around.items()},
            first=self._first,
            methods=self._methods,
            new=self.applied,
            old=lambda node: changed(self._source, node, self._everywhere),
        )
        module = with_siblings(branches.module(), self._switch, self._source.whole)
        plain = {line: None for line in self._imports if not line.startswith(_GUARDED)}
        before = parsed(_guard(self.guarded()), blank=1)
        return with_header(module, plain, [*before, *self._defined()]).code


def _guard(imports: Sequence[str]) -> str:
    """Imports that may fail, as text: the other modes do without."""
    if not imports:
        return ""
    names = sorted({line.split()[1].partition(".")[0] for line in imports})
    body = "".join(f"    {line}\n" for line in sorted(imports))
    return (
        f"try:\n{body}except ImportError:  # the other modes do without\n"
        f"    {' = '.join(names)} = None\n"
    )
