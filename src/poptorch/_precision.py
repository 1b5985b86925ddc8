"""Activations and weights of different types: layers follow their activations.

Programs halve a model but feed it floats, or the other way round. Plain PyTorch refuses that in
dense and convolution layers; a device of this programming model casts the weights.
"""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch.overrides import TorchFunctionMode

# All take input, weight and bias, in this order.
_LAYERS = frozenset(
    {
        F.linear,
        F.conv1d,
        F.conv2d,
        F.conv3d,
        F.conv_transpose1d,
        F.conv_transpose2d,
        F.conv_transpose3d,
    }
)


class WeightsFollowActivations(TorchFunctionMode):
    """While open, layers cast weight and bias to the type of their input."""

    def __torch_function__(self, func: Callable, types: Any, args: Any = (), kwargs: Any = None):
        """Calls ``func``, with cast weights if it is a layer."""
        kwargs = kwargs or {}
        if func in _LAYERS:
            like = args[0] if args else kwargs["input"]
            args = (*args[:1], *(_cast(value, like) for value in args[1:3]), *args[3:])
            named = {n: _cast(kwargs[n], like) for n in ("weight", "bias") if n in kwargs}
            kwargs = {**kwargs, **named}
        return func(*args, **kwargs)


def _cast(value: torch.Tensor | None, like: torch.Tensor) -> torch.Tensor | None:
    if value is None or value.dtype == like.dtype or not like.is_floating_point():
        return value
    return value.to(like.dtype)
