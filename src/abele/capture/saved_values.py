"""Values that autograd saves for backward, and writes of forward into them.

    y = relu(x); y.mul_(2)   ->   y = relu(x); saved = clone(y); z = mul(y, 2)

Plain PyTorch refuses such a backward, because y is gone. Compilers differentiate a program without
writes, and so does this: backward gets copies from before the write.
"""

from __future__ import annotations

import contextlib
from collections.abc import Generator

import torch

from abele import _torch
from abele.program import node_argument
from abele.program.aliasing import base, written

# What torch says; see tests/unit/capture/test_saved_values.py.
_CHANGED = "modified by an inplace operation"


class CopiesNeeded(Exception):
    """Forward writes into a value that autograd has saved: it has to be traced with copies."""


@contextlib.contextmanager
def writes_noticed(*, copies: bool) -> Generator[None]:
    """Translate what torch says of a write into a saved value, while backward is traced.

    Args:
        copies: backward has copies already.

    Raises:
        CopiesNeeded: torch says so, and there are none.
    """
    try:
        yield
    except RuntimeError as error:
        if _CHANGED in str(error) and not copies:
            raise CopiesNeeded from None
        raise


@contextlib.contextmanager
def copied(*, wanted: bool) -> Generator[None]:
    """While open, autograd saves copies of the values of a trace.

    On leaving, when backward is traced, only copies of values that are written to are left.
    """
    if not wanted:
        yield
        return
    copies: list[torch.fx.Node] = []

    def copy(value: torch.Tensor) -> torch.Tensor:
        if not isinstance(value, _torch.FakeTensor):
            return value
        result = value.clone()
        node = _torch.traced_node(result)
        copies.extend([] if node is None else [node])
        return result

    with torch.autograd.graph.saved_tensors_hooks(copy, lambda value: value):
        yield
    _remove_needless(copies)


def _remove_needless(copies: list[torch.fx.Node]) -> None:
    """Have copies of memory that no later node writes to show that memory itself."""
    needless = set(copies)
    changed: set[torch.fx.Node] = set()
    for node in reversed(copies[0].graph.nodes) if copies else ():
        changed.update(base(target) for target in written(node))
        if node in needless and base(node_argument(node, 0)) not in changed:
            node.target, node.kwargs = torch.ops.aten.alias.default, {}
