"""Marks on activations that stay in memory; those between marks are recomputed."""

import contextlib
import contextvars
from collections.abc import Iterator
from typing import Any

import torch

from abele.ops.checkpoint import checkpoint
from poptorch._error import error
from poptorch.options import Options

# autoRecomputation, by the original's numbers: None 0, Standard 1, NormOnly 2, Pipeline 3,
# RecomputeAll 4.
_MODES = range(5)
_IGNORES_MARKS = (0, 2)

_marking: contextvars.ContextVar[bool] = contextvars.ContextVar("marking", default=False)


def recomputationCheckpoint(*tensors: Any) -> Any:
    """Keep activations; a training program computes again what lies between two of them.

    Results stay the same to the bit; memory shrinks, time grows. What comes after the last
    checkpoint is kept, and so are the results of random operations, prints and host calls, so that
    backward sees the same dropout. Without any effect in inference and outside of a wrapper.

    Differs from the original: recomputation is on as soon as a training model has a checkpoint,
    pipelined or not; ``options._Popart.set("autoRecomputation", 0)`` turns it off. Pipelined stages
    are computed again only if that option asks for it (1, 3 or 4), since it costs time.

    Args:
        tensors: one or several tensors, or one list or tuple of them.

    Returns:
        The one tensor; a tuple of several; or the container that was passed, with its tensors.

    Raises:
        ValueError: something else than a tensor.
    """
    if len(tensors) == 1 and isinstance(tensors[0], list | tuple):
        container = tensors[0]
        marked = [_marked(each) for each in container]
        # Named tuples have a constructor of their own.
        make = getattr(container, "_make", type(container))
        return make(marked)
    marked = tuple(_marked(each) for each in tensors)
    return marked[0] if len(marked) == 1 else marked


def _marked(tensor: Any) -> torch.Tensor:
    if not isinstance(tensor, torch.Tensor):
        raise ValueError(
            f"All inputs must be tensors, recomputationCheckpoint was given {tensor!r} of type "
            f"{type(tensor).__name__}. Pass tensors, or one list or tuple of tensors."
        )
    return checkpoint(tensor) if _marking.get() else tensor


def is_on(options: Options, *, training: bool) -> bool:
    """Return whether checkpoints have an effect under these options.

    Raises:
        poptorch.Error: the mode has no meaning.
    """
    mode = options._Popart.options.get("autoRecomputation")
    if mode is not None and mode not in _MODES:
        raise error(
            f"Unknown autoRecomputation {mode!r}. Use 0 (none), 1 (standard), 3 (pipeline) or "
            "4 (all)."
        )
    return training and mode not in _IGNORES_MARKS


@contextlib.contextmanager
def marking(on: bool) -> Iterator[None]:
    """While open, checkpoints mark the program under capture if ``on``."""
    token = _marking.set(on)
    try:
        yield
    finally:
        _marking.reset(token)
