"""Finds imports of a program that are neither its own files nor installed.

Nothing is imported to find out. Of a package of the program each module is looked for, of any other
package only whether it is there: what is inside may be made when it is imported.
"""

from __future__ import annotations

import dataclasses
import importlib
import importlib.util
import sys
from collections.abc import Iterator, Sequence
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path

import libcst as cst
from libcst import matchers as m

from abele.port.analysis.search import findall
from abele.port.project import Project
from abele.port.source import Source

_STATEMENTS = m.Import() | m.ImportFrom()
_CAUGHT = frozenset(("ImportError", "ModuleNotFoundError", "Exception", "BaseException"))
_MOST = 8  # names in a sentence
_ENDS = frozenset(("sys.exit", "exit", "quit", "os._exit"))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Missing:
    """A module that is not there.

    Attributes:
        name: as it is imported, with the dots before it.
        path: of the file that imports it, below the folder of the program.
        line: in it, from 1.
        outside: it is above the folder of the program, with whose files it is not ported.
        needed: whether the program stops without it; else a function or a condition imports it.
    """

    name: str
    path: str
    line: int
    outside: bool
    needed: bool

    def __str__(self) -> str:
        """Return ``name (file:line)``."""
        return f"{self.name} ({self.path}:{self.line})"


def missing(project: Project, folder: Path) -> list[Missing]:
    """Modules that are imported and not there; without those that a program can do without.

    Args:
        project: the program.
        folder: which its files are in.
    """
    importlib.invalidate_caches()  # files may have appeared since somebody looked into a folder
    return [each for source in project.sources for each in _Imports(source, folder).missing()]


def sentence(absent: Sequence[Missing], project: Project) -> str:
    """What is said where a program cannot be ported for what is missing.

    Args:
        absent: at least one.
        project: the program.
    """
    outside = [str(each) for each in absent if each.outside]
    others = [str(each) for each in absent if not each.outside]
    parts: list[str] = []
    if others:
        verb = "import is" if len(others) == 1 else "imports are"
        said = f"{len(others)} {verb} neither a file of the program nor installed"
        parts.append(f"{said}: {_listed(others)}.")
    if outside:
        said = "above the folder that is ported; port the folder that has both"
        parts.append(f"{_listed(outside)}: {said}.")
    changes = next(_path_changes(project), None)
    if changes:
        said = "where it finds more; name these folders in PYTHONPATH"
        parts.append(f"The program changes sys.path ({changes}), {said}.")
    instead = "Install what is missing, or port without it: --allow-missing-imports."
    return " ".join([*parts, instead])


def _listed(names: Sequence[str]) -> str:
    more = [f"and {len(names) - _MOST} more"] if len(names) > _MOST else []
    return ", ".join([*names[:_MOST], *more])


def _path_changes(project: Project) -> Iterator[str]:
    """``file:line`` of the calls that change where Python looks for modules."""
    for source in project.sources:
        for call in findall(source.module, m.Call(func=m.Attribute(value=m.Attribute()))):
            assert isinstance(call, cst.Call)
            if source.imported(call.func).startswith("sys.path."):
                yield f"{source.name}:{source.position(call)[0]}"


class _Imports:
    """The imports of one file."""

    def __init__(self, source: Source, folder: Path):
        self._source, self._folder = source, folder.resolve()
        self._here = self._folder.joinpath(source.name).parent
        self._roots = (self._folder, self._here)  # where Python looks first

    def missing(self) -> Iterator[Missing]:
        for node in findall(self._source.module, _STATEMENTS):
            absent = dict.fromkeys(self._absent(node))
            if not absent:
                continue
            needed = self._is_needed(node)
            if needed is None:
                continue
            line, _ = self._source.position(node)
            for name in absent:
                yield Missing(
                    name=name, path=self._source.name, line=line, needed=needed,
                    outside=isinstance(node, cst.ImportFrom) and self._package(node) is None,
                )  # fmt: skip

    # -- what is there -----------------------------------------------------------------------

    def _absent(self, node: cst.CSTNode) -> Iterator[str]:
        """The modules of a statement that are not there."""
        if isinstance(node, cst.Import):
            for alias in node.names:
                name = self._source.code(alias.name)
                if not self._is_there(name):
                    yield name
        elif isinstance(node, cst.ImportFrom):
            dots = "." * len(node.relative)
            name = "" if node.module is None else self._source.code(node.module)
            places = [str(self._package(node) or "")] if dots else None
            if dots and places == [""]:
                yield f"{dots}{name}"
                return
            if name and not self._is_there(name, places):
                yield f"{dots}{name}"
                return
            if not isinstance(node.names, cst.ImportStar):
                for alias in node.names:
                    inner = f"{name}.{self._source.code(alias.name)}".strip(".")
                    if not self._may_give(name, inner, places):
                        yield f"{dots}{inner}"

    def _package(self, node: cst.ImportFrom) -> Path | None:
        """The folder that the dots of a statement mean; None above that of the program."""
        above = (self._here, *self._here.parents)[: len(node.relative)]
        return above[-1] if above and above[-1].is_relative_to(self._folder) else None

    def _is_there(self, name: str, places: list[str] | None = None) -> bool:
        return self._spec(name, places) is not None

    def _may_give(self, package: str, name: str, places: list[str] | None) -> bool:
        """Whether a package may have a name: its file makes names, and without one it has none."""
        if package:
            of_package = self._spec(package, places)
            is_file = of_package is not None and of_package.origin is not None
        else:
            is_file = Path(places[0], "__init__.py").is_file() if places else True
        return is_file or self._is_there(name, places)

    def _spec(self, name: str, places: list[str] | None) -> ModuleSpec | None:
        """How Python would find a module; a package that is not of the program is not looked into.

        Args:
            name: with its packages.
            places: where the first of these has to be; None wherever Python looks.
        """
        first, *rest = name.split(".")
        spec = self._anywhere(first) if places is None else PathFinder.find_spec(first, places)
        if places is None and not self._is_own(spec):
            return spec
        for part in rest:
            inside = None if spec is None else spec.submodule_search_locations
            spec = None if inside is None else PathFinder.find_spec(part, list(inside))
        return spec

    def _anywhere(self, name: str) -> ModuleSpec | None:
        spec = PathFinder.find_spec(name, [*map(str, self._roots), *sys.path])
        if spec is not None:
            return spec
        is_there = ModuleSpec(name, None, origin="there")
        try:
            spec = importlib.util.find_spec(name)
        except ValueError:  # it was imported, and does not say from where
            return is_there
        # Of the library of Python, also what it has on other systems.
        return is_there if spec is None and name in sys.stdlib_module_names else spec

    def _is_own(self, spec: ModuleSpec | None) -> bool:
        """Whether a module that has no package is one of the program."""
        if spec is None:
            return False
        files = list(spec.submodule_search_locations or ())
        files += [spec.origin] if spec.origin and spec.has_location and not files else []
        return any(Path(each).resolve().parent in self._roots for each in files)

    # -- whether it is needed ----------------------------------------------------------------

    def _is_needed(self, node: cst.CSTNode) -> bool | None:
        """Whether the program stops without what a statement imports; None if it goes on."""
        needed, inner = True, node
        for each in self._source.above(node):
            if isinstance(each, cst.Try | cst.TryStar) and self._goes_on(each, inner):
                return None
            if isinstance(each, cst.With) and any(map(self._suppresses, each.items)):
                return None
            if isinstance(each, cst.If):
                if "TYPE_CHECKING" in self._source.code(each.test):
                    return None
                needed = needed and "__name__" in self._source.code(each.test)
            needed = needed and not isinstance(each, cst.FunctionDef)
            inner = each
        return needed

    def _goes_on(self, guard: cst.Try | cst.TryStar, inner: cst.CSTNode) -> bool:
        """Whether a ``try`` takes the place of what is missing in one of its blocks."""
        handlers: Sequence[cst.ExceptHandler | cst.ExceptStarHandler] = guard.handlers
        if inner is guard.body:
            return any(self._catches(each.type) and not self._ends(each) for each in handlers)
        if inner is guard.finalbody:
            return False
        tried = any(any(self._absent(each)) for each in findall(guard.body, _STATEMENTS))
        return tried if inner is guard.orelse else not tried

    def _catches(self, kind: cst.BaseExpression | None) -> bool:
        if kind is None:
            return True
        kinds = [each.value for each in kind.elements] if isinstance(kind, cst.Tuple) else [kind]
        return any(self._source.code(each) in _CAUGHT for each in kinds)

    def _ends(self, handler: cst.ExceptHandler | cst.ExceptStarHandler) -> bool:
        """Whether a handler ends the program, with an error or without."""
        for statement in handler.body.body:
            for each in getattr(statement, "body", ()):
                call = each.value if isinstance(each, cst.Expr) else None
                if isinstance(each, cst.Raise):
                    return True
                if isinstance(call, cst.Call) and self._source.code(call.func) in _ENDS:
                    return True
        return False

    def _suppresses(self, item: cst.WithItem) -> bool:
        call = item.item
        if not isinstance(call, cst.Call) or "suppress" not in self._source.code(call.func):
            return False
        return any(self._catches(each.value) for each in call.args)
