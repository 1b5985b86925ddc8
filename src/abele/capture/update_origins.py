"""Which line of forward, and which module, an operation of the update is about.

An update changes parameters, so its operations get line and module of the first operation of
forward that reads theirs, as the marks ``of_line`` and ``of_scope`` of ``origins``. Operations for
several parameters, such as the count of steps, get none.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator, Mapping, Sequence

import torch

from abele import _torch
from abele.capture.origins import origin_of
from abele.program.core import marks_of

#: ``of_line`` and ``of_scope`` of the first reader of each parameter.
Readers = Mapping[str, Mapping[str, str]]

_KEYS = ("of_line", "of_scope")


def readers(params: Mapping[str, torch.Tensor]) -> Readers:
    """Who reads each parameter first, in the forward that has just been traced."""
    listed: dict[str, Mapping[str, str]] = {}
    for name, param in params.items():
        node = _torch.traced_node(param)
        for user in () if node is None else node.users:
            origin = origin_of(user)
            if origin["of_line"]:
                listed[name] = {key: str(origin[key]) for key in _KEYS}
                break
    return listed


@contextlib.contextmanager
def update_origins(origins: Readers) -> Generator[Callable[[str], None]]:
    """While open, an update is traced.

    Args:
        origins: what ``readers`` gave; where it is empty nothing is done.

    Yields:
        a function that is told the name of each parameter when its operations have been traced.
    """
    if not origins:
        yield lambda name: None
        return
    begin = _newest()
    newest = begin

    def note(name: str) -> None:
        nonlocal newest
        for node in _since(newest):
            # Nodes that were copied for this parameter have the marks of another one.
            _mark(node, origins.get(name, {}))
        newest = _newest()

    yield note
    _mark_before(_since(begin))


def _newest() -> torch.fx.Node | None:
    return next(iter(reversed(_torch.traced_nodes())), None)


def _since(last: torch.fx.Node | None) -> Sequence[torch.fx.Node]:
    """Nodes traced after ``last``, the newest first."""
    nodes: list[torch.fx.Node] = []
    for node in reversed(_torch.traced_nodes()):
        if node is last:
            break
        nodes.append(node)
    return nodes


def _mark(node: torch.fx.Node, origin: Mapping[str, str]) -> None:
    others = {key: value for key, value in marks_of(node).items() if key not in _KEYS}
    node.meta["custom"] = {**others, **origin}


def _mark_before(nodes: Sequence[torch.fx.Node]) -> None:
    """What is computed for all parameters in turn, before any is updated, such as a scaling."""
    for node in nodes:
        marks = marks_of(node)
        if any(key in marks for key in _KEYS):
            continue
        wanted = {tuple(marks_of(user).get(key) for key in _KEYS) for user in node.users}
        wanted -= {(None, None)}
        if len(wanted) == 1:
            line, scope = wanted.pop()
            _mark(node, {"of_line": str(line), "of_scope": str(scope)})
