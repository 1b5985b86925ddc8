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
from abele.program.core import marks_of, user_line

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


#: ``of_line`` and ``of_scope`` of the first reader of each parameter.
Readers = Mapping[str, Mapping[str, str]]

_KEYS = ("of_line", "of_scope")


def readers(params: Mapping[str, torch.Tensor]) -> Readers:
    """Return the first reader of each parameter, in the forward that has just been traced."""
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
    """List the nodes traced after ``last``, the newest first."""
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
    """Mark nodes computed for all parameters before any is updated, such as a scaling."""
    for node in nodes:
        marks = marks_of(node)
        if any(key in marks for key in _KEYS):
            continue
        wanted = {tuple(marks_of(user).get(key) for key in _KEYS) for user in node.users}
        wanted -= {(None, None)}
        if len(wanted) == 1:
            line, scope = wanted.pop()
            _mark(node, {"of_line": str(line), "of_scope": str(scope)})
