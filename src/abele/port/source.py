"""Source files as syntax trees, with positions, parents and full names of nodes."""

from __future__ import annotations

import ast
import functools
import itertools
import sys
import tokenize
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeVar, cast

import libcst as cst
from libcst import matchers as m
from libcst import metadata

from abele.errors import PortError

_Kind = TypeVar("_Kind", bound=cst.CSTNode)
#: Nodes by the name of their class, with their positions.
_Nodes = dict[str, list[tuple[int, cst.CSTNode]]]
_DEEPEST = 2000  # levels of a syntax tree; libcst's parser ends the process between 4000 and 8000
_PIECES = 4096  # that are remembered
_ANYTHING = m.DoNotCare()


_NOTEBOOK = "{0} is a notebook. Save it as a script first: jupyter nbconvert --to script {0}"


def require_python(name: str, text: str) -> None:
    """Raise an error unless a source text compiles as Python 3.

    Raises:
        PortError: the text is not Python 3, or is a notebook.
        RecursionError: a statement is nested too deeply.
    """
    if text.lstrip().startswith("{") and '"nbformat"' in text:
        raise PortError(_NOTEBOOK.format(name))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            compile(text, name, "exec", dont_inherit=True)
            _require_shallow(ast.parse(text, name))
    except SyntaxError as error:
        raise PortError(_no_python(name, text.splitlines(), error)) from error
    except ValueError as error:  # a null byte, in some versions of Python
        raise PortError(f"{name}: this is no Python that can be read ({error})") from error


def _require_shallow(tree: ast.AST) -> None:
    """Raise an error for a tree that libcst's parser has too little stack for.

    Python 3.14 reads tens of thousands of levels; older versions raise an error first.
    """
    level = [tree]
    for _ in range(_DEEPEST):
        level = [child for node in level for child in ast.iter_child_nodes(node)]
        if not level:
            return
    raise RecursionError(f"more than {_DEEPEST} levels")


def _no_python(name: str, lines: list[str], error: SyntaxError) -> str:
    """Return the error message for source that Python 3 cannot parse."""
    number, column = error.lineno or 1, max(error.offset or 1, 1)
    where = f"{name}:{number}:{column}"
    line = lines[number - 1].strip() if 0 < number <= len(lines) else ""
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    shown = f": {line}" if line else ""
    return f"{where}: this is no Python that can be read ({version}: {error.msg}){shown}"


class Source:
    """A Python source file of the ported program, with its syntax tree.

    Attributes:
        name: path relative to the ported folder, with ``/``.
    """

    def __init__(self, name: str, text: str):
        """Parse a source file.

        Args:
            name: path relative to the ported folder.
            text: Python 3 code.

        Raises:
            PortError: the text is not Python 3.
        """
        require_python(name, text)
        try:
            parsed = cst.parse_module(text)
        except cst.ParserSyntaxError as error:
            where = f"{name}:{error.raw_line}:{error.raw_column + 1}"
            raise PortError(f"{where}: libcst does not read this: {error.message}") from error
        self._set(name, text, parsed)

    def _set(self, name: str, text: str, parsed: cst.Module) -> None:
        """Store a file's name, text and syntax tree."""
        self.name, self.text = name, text
        self._wrapper = metadata.MetadataWrapper(parsed, unsafe_skip_copy=True)
        self.module = self._wrapper.module
        self._known_names: dict[cst.CSTNode, frozenset[metadata.QualifiedName]] = {}

    @classmethod
    def read(cls, path: Path, name: str | None = None) -> Source:
        """Read and parse a source file.

        Args:
            path: path of the file.
            name: name of the source; the file name if None.

        Raises:
            PortError: the file cannot be read, or is not Python 3.
        """
        name = path.name if name is None else name
        if path.suffix == ".ipynb":
            raise PortError(_NOTEBOOK.format(name))
        try:
            with tokenize.open(path) as file:
                text = file.read()
        except (OSError, SyntaxError, UnicodeDecodeError) as error:
            raise PortError(f"{name} cannot be read: {error}") from error
        return cls(name, text)

    @functools.cached_property
    def _positions(self) -> Any:
        return self._wrapper.resolve(metadata.PositionProvider)

    @functools.cached_property
    def _parents(self) -> Any:
        return self._wrapper.resolve(metadata.ParentNodeProvider)

    @functools.cached_property
    def _scopes(self) -> Any:
        return self._wrapper.resolve(metadata.ScopeProvider)

    def position(self, node: cst.CSTNode) -> tuple[int, int]:
        """Return the line and column of a syntax node, both from 1."""
        start = self._positions[node].start
        return start.line, start.column + 1

    def line(self, number: int) -> str:
        """Return the text of a source line, stripped."""
        return self._lines[number - 1].strip() if 0 < number <= len(self._lines) else ""

    @functools.cached_property
    def _lines(self) -> list[str]:
        return self.text.splitlines()

    def parent(self, node: cst.CSTNode) -> cst.CSTNode | None:
        """Return the parent of a syntax node."""
        return self._parents.get(node)

    def above(self, node: cst.CSTNode) -> Iterator[cst.CSTNode]:
        """Return the ancestors of a syntax node, innermost first."""
        parent = self.parent(node)
        while parent is not None:
            yield parent
            parent = self.parent(parent)

    def between(self, node: cst.CSTNode, outer: cst.CSTNode) -> Iterator[cst.CSTNode]:
        """Return a node's ancestors inside an outer node; all of them if it is no ancestor."""
        return itertools.takewhile(lambda each: each is not outer, self.above(node))

    def enclosing(self, node: cst.CSTNode, *kinds: type[_Kind]) -> _Kind | None:
        """Return the innermost ancestor of a syntax node that has one of several types."""
        for each in self.above(node):
            if isinstance(each, kinds):
                return each
        return None

    def qualified(self, node: cst.CSTNode) -> str:
        """Return the full name of an expression by the file's imports; ``""`` if unknown.

        Names that the file defines have no prefix.
        """
        return min((each.name for each in self._names(node)), default="")

    def imported(self, node: cst.CSTNode) -> str:
        """Return the full name of an imported object; ``""`` for other expressions."""
        known = metadata.QualifiedNameSource.IMPORT
        return min((each.name for each in self._names(node) if each.source is known), default="")

    def _names(self, node: cst.CSTNode) -> frozenset[metadata.QualifiedName]:
        """Return the cached full names that an expression may refer to."""
        if node not in self._known_names:
            scope = self._scopes.get(node) if _is_dotted(node) else None
            if scope is None:
                return frozenset()
            names = scope.get_qualified_names_for(cast("Any", node))
            self._known_names[node] = frozenset(names)
        return self._known_names[node]

    def imported_as(self, module: str) -> bool:
        """Return whether a module is imported under its own name, without ``as``."""
        return any(
            assignment.name == module
            for assignment in self._scopes[self.module][module]
            if isinstance(assignment, metadata.ImportAssignment)
        )

    def passed_on(self, name: str) -> list[str]:
        """Return the full names that a name which this file re-exports may refer to."""
        known = metadata.QualifiedNameSource.IMPORT
        names = self._scopes[self.module].get_qualified_names_for(name)
        every = sorted(each.name for each in names if each.source is known)
        for statement in self.module.body:
            for node in statement.body if isinstance(statement, cst.SimpleStatementLine) else ():
                if isinstance(node, cst.ImportFrom) and isinstance(node.names, cst.ImportStar):
                    module = "" if node.module is None else self.code(node.module)
                    start = "." * len(node.relative) + module
                    every.append(start + ("." if module else "") + name)
        return every

    def code(self, node: cst.CSTNode) -> str:
        """Return the source text of a syntax node."""
        return self.module.code_for_node(node)


def _is_dotted(node: cst.CSTNode) -> bool:
    """Return whether an expression is a name or a dotted name."""
    while isinstance(node, cst.Attribute):
        node = node.value
    return isinstance(node, cst.Name)


def findall(node: cst.CSTNode, matcher: Any) -> list[Any]:
    """Return the nodes of a syntax tree that match, in source order.

    Args:
        node: the root, which may be one of the results.
        matcher: a libcst matcher, or several joined with ``|``.
    """
    matchers: dict[str, list[Any]] = {}
    for each in getattr(matcher, "options", (matcher,)):
        matchers.setdefault(type(each).__name__, []).append(each)
    nodes = _inside(node)
    matches = [
        (position, each)
        for name, options in matchers.items()
        for position, each in nodes.get(name, ())
        if _matches(each, options)
    ]
    if _matches(node, matchers.get(type(node).__name__, [])):
        matches.append((-1, node))
    return [each for _, each in sorted(matches, key=lambda pair: pair[0])]


def _matches(node: cst.CSTNode, options: list[Any]) -> bool:
    """Return whether a syntax node matches any of several matchers of its class."""
    return any(_is_any(each) or m.matches(node, each) for each in options)


def _is_any(matcher: Any) -> bool:
    """Return whether a matcher accepts every syntax node of its class."""
    fields = cast("dict[str, Any]", vars(matcher))
    return all(each is _ANYTHING for each in fields.values())


@functools.lru_cache(_PIECES)
def _inside(node: cst.CSTNode) -> _Nodes:
    nodes: _Nodes = {}
    rest, position = [*node.children][::-1], 0
    while rest:
        each = rest.pop()
        nodes.setdefault(type(each).__name__, []).append((position, each))
        rest += [*each.children][::-1]
        position += 1
    return nodes
