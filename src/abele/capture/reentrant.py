"""Refuses reentrant checkpoints, whose backward calls backward and leaves gradients on parameters.

A program asks for the gradients of its parameters and has one backward: some of these checkpoints
would fail in it, and others would not be asked, so that what they compute would not train.
"""

from __future__ import annotations

import linecache
import re
from collections.abc import Sequence

import torch

from abele import _torch
from abele.errors import CaptureError
from abele.program.printing import user_line

_NAME = "CheckpointFunctionBackward"
# Of the frames of what is computed inside; that of other checkpoints is in another function.
_INSIDE = re.compile(r'torch/utils/checkpoint\.py", line \d+, in forward\b')


def refuse_reentrant_checkpoints(heads: Sequence[torch.Tensor]) -> None:
    """Look for reentrant checkpoints in what some tensors are computed from.

    Args:
        heads: traced, the tensors from which backward starts.

    Raises:
        CaptureError: there is one; names the line of forward that calls it.
    """
    waiting = [head.grad_fn for head in heads]
    seen = set(waiting)
    while waiting:
        function = waiting.pop()
        if function is None:
            continue
        if function.name() == _NAME:
            raise CaptureError(
                f"forward uses torch.utils.checkpoint with use_reentrant=True{_place()}, which "
                "calls backward inside backward; a program has one. Pass use_reentrant=False: the "
                "numbers are the same."
            )
        below = {each for each, _ in function.next_functions} - seen
        seen |= below
        waiting.extend(below)


def _place() -> str:
    """The line that calls the first such checkpoint of the trace, to be put into a sentence."""
    for node in _torch.traced_nodes():
        trace = node.meta.get("stack_trace") or ""
        inside = _INSIDE.search(trace)
        line = inside and user_line(trace[: inside.start()])
        if line:
            file, number, _ = line
            return f" at {file}:{number}: `{linecache.getline(file, number).strip()}`"
    return ""
