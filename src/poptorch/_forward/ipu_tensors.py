"""Tensors of a forward under way as programs of the original see them: on a device named "ipu".

Nothing moves. The user's code reads "ipu" where a traced tensor tells its device, and may give that
device to any function of torch; torch itself and the engine keep seeing where tensors really are.
"""

import contextlib
import re
import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from abele import _torch
from abele.program.core import is_library
from poptorch._logging import logger

_HOST = torch.device("cpu")
_IPU = torch.device("ipu")
_IPU_NAME = re.compile(r"ipu(:\d+)?")
_FACTORIES = frozenset(
    {
        torch.arange,
        torch.empty,
        torch.full,
        torch.full_like,
        torch.linspace,
        torch.logspace,
        torch.ones,
        torch.rand,
        torch.randint,
        torch.randn,
        torch.randperm,
        torch.range,
        torch.tensor,
        torch.zeros,
        torch.zeros_like,
    }
)


@contextlib.contextmanager
def on_ipu() -> Iterator[None]:
    """While open, the user's forward finds itself on a device named "ipu"."""
    with _torch.devices_shown(_shown), _torch.unchecked_distributions(), _DeviceNames():
        yield


def _shown(tensor: torch.Tensor, device: torch.device) -> torch.device:
    # 0 is this function, 1 the property, 2 who reads it.
    if is_library(sys._getframe(2).f_code.co_filename) or _torch.traced_node(tensor) is None:
        return device
    return _IPU


class _DeviceNames(TorchFunctionMode):
    """Takes "ipu" for the device where tensors are, and warns of tensors made without a device."""

    def __torch_function__(self, func: Callable, types: Any, args: Any = (), kwargs: Any = None):
        kwargs = dict(kwargs or {})
        if kwargs.get("device") is None and _is_factory(func, args, kwargs):
            logger.warning("No device set in torch.%s(): forcing to IPU", func.__name__)
        if _names_ipu(kwargs.get("device")):
            kwargs["device"] = _HOST
        names = (str, torch.device) if func is torch.Tensor.to else torch.device
        args = tuple(
            _HOST if isinstance(value, names) and _names_ipu(value) else value for value in args
        )
        return func(*args, **kwargs)


def _is_factory(func: Callable, args: tuple, kwargs: dict[str, Any]) -> bool:
    if func is torch.normal:
        return not any(isinstance(value, torch.Tensor) for value in (*args, *kwargs.values()))
    return func in _FACTORIES


def _names_ipu(device: Any) -> bool:
    if isinstance(device, torch.device):
        return device.type == "ipu"
    return isinstance(device, str) and _IPU_NAME.fullmatch(device) is not None
