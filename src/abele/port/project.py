"""The source files that are ported together, with their functions and classes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeAlias, TypeVar

import libcst as cst
from libcst import matchers as m

from abele.port.source import Source, findall

Owner: TypeAlias = cst.FunctionDef | cst.ClassDef | cst.Module

#: Imports that a name is followed through; packages may import each other in a circle.
_LONGEST = 20

_Node = TypeVar("_Node", cst.FunctionDef, cst.ClassDef)


class Project:
    """Source files of a program, with the functions and classes defined in the files."""

    def __init__(self, sources: Sequence[Source]):
        """Index the functions and classes of source files."""
        self.sources = tuple(sources)
        self._source_of: dict[cst.CSTNode, Source] = {}
        self._by_module = {_dotted(each): each for each in sources}
        self._functions: dict[str, cst.FunctionDef] = {}
        self._classes: dict[str, cst.ClassDef] = {}
        for source in sources:
            self._source_of[source.module] = source
            self._add(source)

    def _add(self, source: Source) -> None:
        module = _dotted(source)
        for node in findall(source.module, m.FunctionDef() | m.ClassDef()):
            self._source_of[node] = source
            path = [node.name.value]
            for outer in source.above(node):
                if isinstance(outer, cst.ClassDef | cst.FunctionDef):
                    path.insert(0, outer.name.value)
            name = f"{module}.{'.'.join(path)}"
            if isinstance(node, cst.FunctionDef):
                self._functions[name] = node
            else:
                self._classes[name] = node

    def source(self, owner: Owner) -> Source:
        """Return the source file of a function, class or module."""
        return self._source_of[owner]

    def functions(self) -> Iterator[tuple[Source, cst.FunctionDef]]:
        """Yield every function of the project with its file."""
        for node in self._functions.values():
            yield self._source_of[node], node

    def has(self, source: Source, package: str) -> bool:
        """Return whether a package that a file imports is among the files of the project."""
        names = tuple(f"{name}." for name in _full_names(source, package))
        return any(f"{each}.".startswith(names) for each in self._by_module)

    def function(self, source: Source, node: cst.BaseExpression) -> cst.FunctionDef | None:
        """Return the function of the project that an expression refers to, or None."""
        return self._lookup(self._functions, source, node)

    def class_of(self, source: Source, node: cst.BaseExpression) -> cst.ClassDef | None:
        """Return the class of the project that an expression refers to, or None."""
        return self._lookup(self._classes, source, node)

    def method(self, owner: cst.ClassDef, name: str) -> cst.FunctionDef | None:
        """Return a method of a class or of its bases, by name."""
        for each in self.bases(owner):
            for statement in each.body.body:
                if isinstance(statement, cst.FunctionDef) and statement.name.value == name:
                    return statement
        return None

    def bases(self, owner: cst.ClassDef) -> list[cst.ClassDef]:
        """Return a class and its bases in the project, in lookup order."""
        known = [owner]
        for each in known:
            for base in each.bases:
                node = self.class_of(self._source_of[each], base.value)
                if node is not None and node not in known:
                    known.append(node)
        return known

    def is_module(self, owner: cst.ClassDef) -> bool:
        """Return whether a class derives from ``torch.nn.Module``."""
        for each in self.bases(owner):
            source = self._source_of[each]
            for base in each.bases:
                name = source.imported(base.value)
                if name.startswith("torch.nn.") or name.endswith(".LightningModule"):
                    return True
        return False

    def _lookup(
        self, table: dict[str, _Node], source: Source, node: cst.BaseExpression
    ) -> _Node | None:
        name = source.qualified(node).replace(".<locals>", "")
        return self._named(table, source, name, set()) if name else None

    def _named(
        self, table: dict[str, _Node], source: Source, name: str, seen: set[str]
    ) -> _Node | None:
        """Return the function or class that a name refers to, following re-exports."""
        for full in _full_names(source, name):
            if full in table:
                return table[full]
            parts = full.split(".")
            for end in range(len(parts) - 1, 0, -1):
                at = self._by_module.get(".".join(parts[:end]))
                if at is None or at is source or full in seen or len(seen) > _LONGEST:
                    continue
                seen.add(full)
                for passed in at.passed_on(parts[end]):
                    found = self._named(table, at, ".".join((passed, *parts[end + 1 :])), seen)
                    if found is not None:
                        return found
        return None


def _dotted(source: Source) -> str:
    """Return the dotted module name of a source file."""
    return source.name.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def _full_names(source: Source, name: str) -> tuple[str, ...]:
    """Return the full names that a possibly relative name in a file may have."""
    module = _dotted(source)
    package = module if source.name.endswith("__init__.py") else module.rpartition(".")[0]
    rest = name.lstrip(".")
    above = len(name) - len(rest) - 1
    if above >= 0:
        parts = package.split(".") if package else []
        return (".".join((*parts[: max(len(parts) - above, 0)], rest)),)
    return f"{module}.{name}", name, f"{package}.{name}".lstrip(".")
