"""Origins of backward nodes: source lines and modules of forward.

Every function of autograd's graph has an operation of forward that created it; while backward
runs, the nodes traced under a function get that operation's line, module and marks, as the entries
``of_line``, ``of_scope`` and ``of_MARK`` of ``node.meta["custom"]``. Done only for programs that
need them.
"""

from __future__ import annotations

import contextlib
import contextvars
from collections.abc import Callable, Generator, Iterator
from typing import Any

import torch
from torch.autograd.graph import Node
from torch.overrides import TorchFunctionMode
from torch.utils.hooks import RemovableHandle

from abele import _torch
from abele.containers import is_sequence
from abele.contexts import held
from abele.program.core import user_line

_wanted: contextvars.ContextVar[bool] = contextvars.ContextVar("origins", default=False)


def wanted() -> contextlib.AbstractContextManager[None]:
    """Record origins of backward nodes in all captures of this thread, in a ``with`` block."""
    return held(_wanted, True)


def are_wanted() -> bool:
    """Return whether captures of this thread record the origins of backward nodes."""
    return _wanted.get()


Follow = Callable[[torch.Tensor], contextlib.AbstractContextManager[None]]


@contextlib.contextmanager
def backward_origins(*, wanted: bool) -> Generator[Follow]:
    """Record in a ``with`` block which forward nodes created autograd's functions.

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
        """Yield autograd functions below the loss with the forward nodes that created them."""
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
        """Mark the backward nodes traced since the last call with their origin."""
        newest = None
        for node in reversed(_torch.traced_nodes()):
            newest = newest or node
            if node is self._last:
                break
            if self._current is not None:
                node.meta["custom"] = {**node.meta.get("custom", {}), **origin_of(self._current)}
        self._last = newest


def origin_of(node: torch.fx.Node) -> dict[str, Any]:
    """Return marks and source line of a forward node, for the nodes derived from it."""
    frame = user_line(node.meta.get("stack_trace"))
    custom: dict[str, Any] = node.meta.get("custom") or {}
    return {
        **{f"of_{key}": value for key, value in custom.items() if key != "phase"},
        "of_scope": custom.get("scope", ""),
        "of_line": f"{frame[0]}:{frame[1]} in {frame[2]}" if frame else "",
    }
