"""Finding the loss: nobody passes one, it is recognised by its operator.

While forward runs, every call of a known loss function is noted with the tensor it returned. A loss
that feeds another loss is an ordinary reduction; exactly one must remain.
"""

from __future__ import annotations

import contextlib
import contextvars
import inspect
from collections.abc import Callable, Generator
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own convention
from torch.overrides import TorchFunctionMode

from abele import _torch
from abele.errors import LossError
from abele.program import ancestors


def _loss_functions() -> dict[Callable[..., Any], str]:
    """Every loss of torch with its name: what ``torch.nn.functional`` lets reduce its result."""
    functions: dict[Callable[..., Any], str] = {}
    for name, function in inspect.getmembers(F, inspect.isfunction):
        if not name.startswith("_") and "reduction" in inspect.signature(function).parameters:
            functions[function] = name
            # ``torch`` has some of the same operators under the same name.
            functions[getattr(torch, name, function)] = name
    return functions


LOSS_FUNCTIONS = _loss_functions()

#: The name of a loss that somebody named himself.
MARKED = "identity_loss"

# How the user's programs mark a loss; a front-end says what its function is called.
_marking = contextvars.ContextVar("marking", default="mark_loss({})")
_active: contextvars.ContextVar[LossFinder | None] = contextvars.ContextVar("finder", default=None)


def mark_loss(tensor: torch.Tensor, name: str = MARKED) -> None:
    """Declare ``tensor`` a loss of the model being captured; do nothing outside of a capture."""
    finder = _active.get()
    if finder is not None:
        finder.losses.append((name, tensor))


@contextlib.contextmanager
def marking(call: str) -> Generator[None]:
    """While open, advice names this call for marking a loss.

    Args:
        call: as a program writes it, with ``{}`` for the loss.
    """
    token = _marking.set(call)
    try:
        yield
    finally:
        _marking.reset(token)


def marked(value: str) -> str:
    """Format the call by which a program marks a value as the loss."""
    return _marking.get().format(value)


class LossFinder(TorchFunctionMode):
    """While open, notes every loss that forward computes.

    Attributes:
        losses: name and value of each, in the order of computation.
    """

    def __init__(self):
        super().__init__()
        self.losses: list[tuple[str, torch.Tensor]] = []

    def __enter__(self):
        self._token = _active.set(self)
        return super().__enter__()

    def __exit__(self, *exc: object) -> None:
        _active.reset(self._token)
        untyped: Any = super()
        untyped.__exit__(*exc)

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Call the function and note its result if it is a loss."""
        result = func(*args, **(kwargs or {}))
        if func in LOSS_FUNCTIONS:
            self.losses.append((LOSS_FUNCTIONS[func], result))
        return result

    def final(self) -> tuple[str, torch.Tensor]:
        """Return the one loss that feeds no other loss, with the name of its function.

        Raises:
            LossError: none or several remain.
        """
        traced = [(_torch.traced_node(value), name, value) for name, value in self.losses]
        # A loss of constants only is in no trace; marking one value twice is one loss.
        nodes = {node: (name, value) for node, name, value in traced if node is not None}
        feeding = ancestors(*nodes)
        remaining = [entry for node, entry in nodes.items() if node not in feeding]
        function = marked("").partition("(")[0]
        if not remaining:
            raise LossError(
                "Couldn't find a loss in graph! A training model computes its loss inside forward, "
                f"found no torch loss function and no {function}. Compute the loss in forward, or "
                f"wrap your own in {marked('loss')}."
            )
        if len(remaining) > 1:
            names = ", ".join(name for name, _ in remaining)
            raise LossError(
                "Multiple independent losses found in graph. Graph must have one final loss. "
                f"Wrap final graph loss in {function}. "
                f"Found {len(remaining)}: {names}."
            )
        return remaining[0]
