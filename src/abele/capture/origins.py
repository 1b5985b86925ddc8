"""Origins of the nodes of backward and update: lines and modules of forward.

Every function of autograd's graph is tied to the operation of forward that made it; while backward
runs, the nodes traced under a function get that operation's line, module and marks, as the entries
``of_line``, ``of_scope`` and ``of_MARK`` of ``node.meta["custom"]``. Done only for programs that
need them.
"""

from __future__ import annotations

import contextlib
import contextvars
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch.autograd.graph import Node
from torch.overrides import TorchFunctionMode
from torch.utils.hooks import RemovableHandle

from abele import _torch
from abele.containers import is_sequence
from abele.program import Program, Role, Slot, marks_of, node_argument, writes
from abele.program.core import node_phase, user_line
from abele.step.replica_groups import ACCUMULATOR

_wanted: contextvars.ContextVar[bool] = contextvars.ContextVar("origins", default=False)


@contextlib.contextmanager
def wanted() -> Generator[None]:
    """While open, all captures of this thread note the origins of backward."""
    token = _wanted.set(True)
    try:
        yield
    finally:
        _wanted.reset(token)


def are_wanted() -> bool:
    """Return whether a caller of capture wants origins to be noted."""
    return _wanted.get()


Follow = Callable[[torch.Tensor], contextlib.AbstractContextManager[None]]


@contextlib.contextmanager
def backward_origins(*, wanted: bool) -> Generator[Follow]:
    """While open around forward, remembers what makes autograd's functions.

    Args:
        wanted: otherwise nothing is done.

    Yields:
        a function of the loss; what it returns is to be open while backward is traced.
    """
    if not wanted:
        yield lambda loss: contextlib.nullcontext()
        return
    with _Makers() as makers:
        yield makers.following


class _Makers(TorchFunctionMode):
    def __init__(self):
        super().__init__()
        self._maker: dict[Node, torch.fx.Node] = {}
        self._current: torch.fx.Node | None = None
        self._last: torch.fx.Node | None = None

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        for tensor in result if is_sequence(result) else (result,):
            if isinstance(tensor, torch.Tensor) and tensor.grad_fn is not None:
                node = _torch.traced_node(tensor)
                if node is not None:
                    self._maker.setdefault(tensor.grad_fn, node)
        return result

    @contextlib.contextmanager
    def following(self, loss: torch.Tensor) -> Generator[None]:
        nodes = _torch.traced_nodes()
        self._last = next(iter(reversed(nodes)), None)
        handles: list[RemovableHandle] = []
        for function, maker in self._all_makers(loss):
            handles.append(function.register_prehook(self._entering(maker)))
        yield
        self._flush()
        for handle in handles:
            handle.remove()

    def _all_makers(self, loss: torch.Tensor) -> Iterator[tuple[Node, torch.fx.Node | None]]:
        """Yield all functions below the loss with their makers, which inner functions inherit."""
        waiting: list[tuple[Node, torch.fx.Node | None]] = []
        if loss.grad_fn is not None:
            waiting.append((loss.grad_fn, None))
        seen: set[Node] = set()
        while waiting:
            function, user = waiting.pop(0)
            if function in seen:
                continue
            seen.add(function)
            maker = self._maker.get(function, user)
            yield function, maker
            waiting += [(below, maker) for below, _ in function.next_functions if below is not None]

    def _entering(self, maker: torch.fx.Node | None) -> Callable[[Any], None]:
        def enter(gradients: Any) -> None:
            self._flush()
            self._current = maker

        return enter

    def _flush(self) -> None:
        """Mark the nodes traced since the last call with their origin."""
        newest = None
        for node in reversed(_torch.traced_nodes()):
            newest = newest or node
            if node is self._last:
                break
            if self._current is not None:
                node.meta["custom"] = {**node.meta.get("custom", {}), **origin_of(self._current)}
        self._last = newest


def origin_of(node: torch.fx.Node) -> dict[str, Any]:
    """Return marks and line of an operation of forward, for those derived from it."""
    frame = user_line(node.meta.get("stack_trace"))
    custom: dict[str, Any] = node.meta.get("custom") or {}
    return {
        **{f"of_{key}": value for key, value in custom.items() if key != "phase"},
        "of_scope": custom.get("scope", ""),
        "of_line": f"{frame[0]}:{frame[1]} in {frame[2]}" if frame else "",
    }


_KEYS = ("of_line", "of_scope")


def mark_updates(programs: Sequence[Program]) -> None:
    """Mark operations of updates with line and module of the first reader of their parameter.

    Operations that serve several parameters, such as a scaling, get no marks.
    """
    origins: dict[str, tuple[str, str]] = {}
    for program in programs:
        for node, slot in zip(program.placeholders(), program.inputs, strict=True):
            if slot.role is Role.PARAMETER and slot.name not in origins:
                found = (origin_of(user) for user in node.users)
                of_lines = ((each["of_line"], each["of_scope"]) for each in found)
                first = next((each for each in of_lines if each[0]), None)
                if first is not None:
                    origins[slot.name] = first
    for program in programs:
        _mark_update(program, origins)


def _mark_update(program: Program, origins: Mapping[str, tuple[str, str]]) -> None:
    """Mark the operations of an update from the writes that they lead to."""
    slots = dict(zip(program.placeholders(), program.inputs, strict=True))
    marks: dict[torch.fx.Node, tuple[str, str]] = {}
    for node in reversed(program.graph.graph.nodes):
        if node.op != "call_function":
            continue
        if writes(node):
            wanted = {origins.get(_parameter_of(slots[node_argument(node, 0)]))} - {None}
        elif node_phase(node) == "update":
            wanted = {marks.get(user) for user in node.users} - {None}
        else:
            continue
        if len(wanted) == 1 and (origin := wanted.pop()) is not None:
            marks[node] = origin
            if node_phase(node) == "update":
                custom = dict(zip(_KEYS, origin, strict=True))
                node.meta["custom"] = {**marks_of(node), **custom}


def _parameter_of(slot: Slot) -> str:
    """Return the name of the parameter that state belongs to."""
    if slot.role is Role.OPTIMIZER_STATE:
        return slot.name.rpartition(".")[0]
    return slot.name.removeprefix(ACCUMULATOR) if slot.role is Role.ACCUMULATOR else slot.name
