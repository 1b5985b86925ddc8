"""Modules of a program that have neither weights nor buffers, such as a loss of its own."""

from __future__ import annotations

import libcst as cst
from libcst import matchers as m

from abele.port.analysis.kinds import Thing
from abele.port.analysis.search import findall
from abele.port.project import Project
from abele.port.source import Source

_OWN = m.OneOf(*map(m.Name, ("Parameter", "register_buffer", "register_parameter")))
_ACTIVATIONS = ("Sigmoid", "Softmax", "LogSoftmax", "ReLU", "Tanh", "Identity", "Flatten")


def is_weightless(project: Project, model: Thing) -> bool:
    """Whether a module's class, and all that it is made of, keep no tensors.

    Args:
        project: the program.
        model: the module.
    """
    made = model.made.func if isinstance(model.made, cst.Call) else model.made
    cls = project.class_of(model.source, made)
    return cls is not None and _is_weightless(project, cls, frozenset())


def _is_weightless(project: Project, cls: cst.ClassDef, seen: frozenset[cst.ClassDef]) -> bool:
    if cls in seen:
        return True
    source = project.source(cls)
    bases = [source.imported(each.value) for each in cls.bases]
    own = [project.class_of(source, each.value) for each in cls.bases]
    known = all(
        name in ("torch.nn.Module", "torch.nn.modules.loss._Loss") or base is not None
        for name, base in zip(bases, own, strict=True)
    )
    if not known or findall(cls, _OWN):
        return False
    inner = {each for each in own if each is not None}
    for call in findall(cls, m.Call()):
        if _has_weights(source, call):
            return False
        made = project.class_of(source, call.func)
        if made is not None and project.is_module(made):
            inner.add(made)
    return all(_is_weightless(project, each, seen | {cls}) for each in inner)


def _has_weights(source: Source, call: cst.Call) -> bool:
    """Whether a call makes a module of a package that may have weights."""
    name = source.imported(call.func)
    last = name.rpartition(".")[2]
    module = last[:1].isupper() and not name.startswith("torch.nn.functional.")
    return bool(name) and module and not (last.endswith("Loss") or last in _ACTIVATIONS)
