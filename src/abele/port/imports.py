"""Finds imports of a program that are neither its own files nor installed.

Nothing is imported to find out, so of a package that is not the program's only its presence counts.
"""

from __future__ import annotations

import dataclasses
import importlib
import importlib.util
import sys
from collections.abc import Iterator, Sequence
from importlib.machinery import PathFinder
from pathlib import Path

import libcst as cst
from libcst import matchers as m

from abele.port.analysis.search import findall
from abele.port.project import Project
from abele.port.source import Source

_MOST = 8  # names in a sentence


@dataclasses.dataclass(frozen=True, kw_only=True)
class Missing:
    """A module that is not there.

    Attributes:
        name: as it is imported, with the dots before it.
        path: of the file that imports it, below the folder of the program.
        line: in it, from 1.
        outside: whether it is above the folder of the program, with whose files it is not ported.
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
    """Return modules that are imported and not there, except those under ``try`` and ``with``.

    Args:
        project: the program.
        folder: the folder that has its files.
    """
    importlib.invalidate_caches()  # files may have appeared since somebody looked into a folder
    return [each for source in project.sources for each in _missing_of(source, folder.resolve())]


def sentence(absent: Sequence[Missing], project: Project) -> str:
    """Return the message for a program that cannot be ported for what is missing, at least one."""
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
    """Yield ``file:line`` of the calls that change where Python looks for modules."""
    for source in project.sources:
        for call in findall(source.module, m.Call(func=m.Attribute(value=m.Attribute()))):
            if source.imported(call.func).startswith("sys.path."):
                yield f"{source.name}:{source.position(call)[0]}"


def _missing_of(source: Source, folder: Path) -> Iterator[Missing]:
    """Yield the modules that one file imports and that are not there."""
    here = folder.joinpath(source.name).parent
    for node in findall(source.module, m.Import() | m.ImportFrom()):
        needed = _is_needed(source, node)
        if needed is None:
            continue
        line, _ = source.position(node)
        dots = len(node.relative) if isinstance(node, cst.ImportFrom) else 0
        above = (here, *here.parents)[dots - 1] if dots else folder
        outside = not above.is_relative_to(folder)
        for name in dict.fromkeys(_names(source, node)):
            if outside or not _is_there(name, [above] if dots else [folder, here], bool(dots)):
                yield Missing(
                    name="." * dots + name,
                    path=source.name,
                    line=line,
                    outside=outside,
                    needed=needed,
                )


def _names(source: Source, node: cst.Import | cst.ImportFrom) -> Iterator[str]:
    """Yield the dotted names of the modules that a statement imports."""
    if isinstance(node, cst.Import):
        yield from (source.code(alias.name) for alias in node.names)
    elif node.module is not None:
        yield source.code(node.module)
    elif not isinstance(node.names, cst.ImportStar):
        yield from (source.code(alias.name) for alias in node.names)


def _is_there(name: str, folders: Sequence[Path], relative: bool) -> bool:
    """Return whether a module is in some folders, or installed."""
    parts = name.split(".")
    for folder in folders:
        if folder.joinpath(*parts).is_dir() or folder.joinpath(*parts).with_suffix(".py").is_file():
            return True
        if relative and len(parts) == 1 and folder.joinpath("__init__.py").is_file():
            return True  # a name that the package's own file makes
        if folder.joinpath(parts[0], "__init__.py").is_file() and len(parts) == 1:
            return True
    own = any(
        folder.joinpath(f"{parts[0]}.py").is_file() or folder.joinpath(parts[0]).is_dir()
        for folder in folders
    )
    if relative or (own and len(parts) > 1):
        return False
    if parts[0] in sys.stdlib_module_names or PathFinder.find_spec(parts[0]) is not None:
        return True
    try:
        return importlib.util.find_spec(parts[0]) is not None
    except ValueError:  # it was imported, and does not say from where
        return True


def _is_needed(source: Source, node: cst.CSTNode) -> bool | None:
    """Return whether the program stops without what a statement imports; None if it goes on."""
    needed, inner = True, node
    for each in source.above(node):
        if isinstance(each, cst.Try | cst.TryStar) and inner is not each.finalbody:
            return None
        if isinstance(each, cst.With) and "suppress" in source.code(each.items[0]):
            return None
        if isinstance(each, cst.If):
            if "TYPE_CHECKING" in source.code(each.test):
                return None
            needed = needed and "__name__" in source.code(each.test)
        needed = needed and not isinstance(each, cst.FunctionDef)
        inner = each
    return needed
