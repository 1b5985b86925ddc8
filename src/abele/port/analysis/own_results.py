"""Finds models whose forward returns an object of the user's class, not tensors."""

from __future__ import annotations

import libcst as cst
from libcst import matchers as m

from abele.port.analysis.kinds import Thing
from abele.port.analysis.search import findall
from abele.port.project import Project

_TAKEN = ("tuple", "list", "dict", "OrderedDict", "NamedTuple", "ModelOutput")


def class_returned(project: Project, model: Thing) -> str:
    """The name of the class of what forward returns; ``""`` if a program can return it.

    Args:
        project: the program.
        model: the model.
    """
    made = model.made.func if isinstance(model.made, cst.Call) else model.made
    cls = project.class_of(model.source, made)
    forward = None if cls is None else project.method(cls, "forward")
    if forward is None:
        return ""
    source = project.source(forward)
    for each in findall(forward, m.Return(value=m.Call())):
        returned = project.class_of(source, cst.ensure_type(each.value, cst.Call).func)
        if (
            returned is not None
            and not project.is_module(returned)
            and not _is_taken(project, returned)
        ):
            return returned.name.value
    return ""


def _is_taken(project: Project, cls: cst.ClassDef) -> bool:
    """Whether a class is a tuple, list or dictionary."""
    bases = [base.value for each in project.bases(cls) for base in each.bases]
    names = [project.source(cls).code(each).rpartition(".")[2] for each in bases]
    return any(name in _TAKEN for name in names)
