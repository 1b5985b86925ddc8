"""Results of a call: ordinary host tensors without gradient history."""

from typing import Any

import torch

from poptorch._error import error

_TYPES = {torch.float64: torch.float32, torch.int64: torch.int32}


def to_host(tensor: torch.Tensor) -> torch.Tensor:
    """Return a device's result as a tensor of the host, of the types that devices have."""
    dtype = tensor.dtype
    if dtype in _TYPES or not tensor.is_cpu:
        tensor = tensor.to("cpu", _TYPES.get(dtype, dtype))
    tensor.backward = _refuse_backward
    tensor.__getstate__ = dict  # so that the line above is not saved with the tensor
    return tensor


def _refuse_backward(*args: Any, **kwargs: Any) -> None:
    del args, kwargs
    raise error(
        "backward() was called on a result of a wrapped model. Results carry no gradient history: "
        "a model wrapped by poptorch.trainingModel runs backward and the optimizer inside the "
        "call. Remove backward() and optimizer.step()."
    )
