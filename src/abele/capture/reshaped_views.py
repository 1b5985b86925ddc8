"""Refuses writes through views that changed their shape in place, as by ``view.t_()``.

While forward is traced, autograd derives the gradient of such a write from how the view was made,
and misses what it became. Plain PyTorch reads its strides instead.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from abele.errors import CaptureError
from abele.warn import user_line

_OUT_OF_PLACE = {
    torch.Tensor.t_: "t",
    torch.Tensor.transpose_: "transpose",
    torch.Tensor.swapaxes_: "swapaxes",
    torch.Tensor.swapdims_: "swapdims",
    torch.Tensor.squeeze_: "squeeze",
    torch.Tensor.unsqueeze_: "unsqueeze",
    torch.Tensor.as_strided_: "as_strided",
}


@dataclasses.dataclass
class _Reshaped:
    """A view, the version of its memory then, and what changed it where."""

    view: torch.Tensor  # kept, because writes count even if forward drops it afterwards
    version: int
    by: str
    line: str


class ReshapedViews:
    """The views that forward has given another shape in place."""

    def __init__(self):
        self._reshaped: list[_Reshaped] = []

    def called(
        self, function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> Any:
        """Call a function of torch, and remember its first argument if that is such a view."""
        name = _OUT_OF_PLACE.get(function)
        if name is None:
            return function(*args, **kwargs)
        view, before = args[0], args[0]._version
        result = function(*args, **kwargs)
        for each in self._reshaped:
            if each.version == before and _whole(each.view) is _whole(view):
                each.version = view._version  # the memory is as it was
        if view._is_view():
            self._reshaped.append(_Reshaped(view, view._version, name, user_line()))
        return result

    def check(self) -> None:
        """Refuse views whose memory was written afterwards and that need a gradient.

        Raises:
            CaptureError: names the line where the view got its shape.
        """
        for each in self._reshaped:
            if each.view.requires_grad and each.view._version != each.version:
                raise CaptureError(
                    f"forward changes the shape of a view in place at {each.line}, and writes into "
                    "its memory later; a program does not get the gradient of that. Make another "
                    f"view instead: `view = view.{each.by}(...)`."
                )


def _whole(tensor: torch.Tensor) -> torch.Tensor:
    return tensor if tensor._base is None else tensor._base
