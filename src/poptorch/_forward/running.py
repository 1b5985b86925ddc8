"""The state of forward's current run: capture mode, loss, device, and substituted functions."""

import contextlib
import contextvars
import re
import sys
from collections.abc import Callable, Iterator
from typing import Any, ClassVar

import torch
from torch.overrides import TorchFunctionMode

from abele import _torch
from abele.capture import losses
from abele.contexts import held
from abele.program.core import is_library
from abele.warn import user_line
from poptorch._error import error
from poptorch._logging import logger

# What forward is being captured for: None outside, then whether it is training.
_capturing: contextvars.ContextVar[bool | None] = contextvars.ContextVar("capturing", default=None)
# Whoever wants to know whether forward asks that.
_observer: contextvars.ContextVar["Asked | None"] = contextvars.ContextVar("observer", default=None)
_REDUCTIONS = ("sum", "mean", "none")


def identity_loss(x: torch.Tensor, reduction: str) -> torch.Tensor:
    """Mark a value as the loss that training minimises.

    Args:
        x: any shape; its gradient starts the backward pass.
        reduction: ``"sum"`` or ``"mean"`` over all elements, or ``"none"`` (gradient of ones).

    Returns:
        The reduced value; works on the host too, with gradients.

    Raises:
        AssertionError: unknown reduction.
        poptorch.Error: it is no tensor, or training a loss that is not of a floating point type.
    """
    if reduction not in _REDUCTIONS:
        raise AssertionError(
            f"Unsupported reduction type {reduction!r} in identity_loss, at {user_line()}. Use one "
            f"of {_REDUCTIONS}."
        )
    if not isinstance(x, torch.Tensor):
        raise error(
            f"identity_loss takes a torch.Tensor, found {x!r} of type {type(x).__name__}, at "
            f"{user_line()}. A loss is computed from the model's parameters: pass the tensor "
            "itself, not its value."
        )
    if _capturing.get() and not x.is_floating_point():
        raise error(
            f"The loss given to identity_loss is of type {x.dtype}, which has no gradient, at "
            f"{user_line()}. Compute the loss in floating point: identity_loss(x.float(), ...)."
        )
    loss = x if reduction == "none" else getattr(x, reduction)()
    losses.mark_loss(loss)
    return loss


def isRunningOnIpu() -> bool:
    """Return whether forward is being captured for the device; False in plain runs on the host."""
    return capturing() is not None


def capturing() -> bool | None:
    """Return None outside of a capture of forward, else whether the capture is for training."""
    observer = _observer.get()
    if observer is not None:
        observer.any = True
    return _capturing.get()


def is_captured() -> bool:
    """Return whether forward is being captured, without recording the query in ``Asked``."""
    return _capturing.get() is not None


class Asked:
    """A context manager that records in ``any`` whether forward queries its device."""

    any = False

    def __enter__(self) -> "Asked":
        self._token = _observer.set(self)
        return self

    def __exit__(self, *error: object) -> None:
        _observer.reset(self._token)


def running_on_ipu(*, training: bool) -> contextlib.AbstractContextManager[None]:
    """Make ``isRunningOnIpu()`` return True inside the block."""
    return held(_capturing, training)


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
    """Show tensors as on a device named "ipu" to the user's forward inside the block."""
    with _torch.devices_shown(_shown), _torch.unchecked_distributions(), _DeviceNames():
        yield


def _shown(tensor: torch.Tensor, device: torch.device) -> torch.device:
    # 0 is this function, 1 the property, 2 who reads it.
    if is_library(sys._getframe(2).f_code.co_filename) or _torch.traced_node(tensor) is None:
        return device
    return _IPU


class _DeviceNames(TorchFunctionMode):
    """Maps the device name "ipu" to the CPU, and warns of tensors created without a device."""

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


class _OverwriteContextManager:
    """A context manager that applies the registered function substitutions during a capture.

    ``poptorch._poplar_executor`` only imports this class, which has the original's name: a client
    executes that module again to register, which would make an empty list there.
    """

    _subsitution_manager_types: ClassVar[list[type]] = []

    def __enter__(self) -> "_OverwriteContextManager":
        with contextlib.ExitStack() as stack:
            for manager_type in self._subsitution_manager_types:
                manager = manager_type()
                stack.callback(manager.restore)  # also if only some are in place
                manager.replace()
            self._active = stack.pop_all()
        return self

    def __exit__(self, *exception: object) -> None:
        self._active.close()

    @classmethod
    def registerSubsitutionManager(cls, type: type) -> None:
        """Register a class that substitutes functions while forward is captured.

        Args:
            type: a class without arguments that has `replace` and `restore`; once is enough.

        Raises:
            poptorch.Error: it is no such class.
        """
        if not all(callable(getattr(type, name, None)) for name in ("replace", "restore")):
            raise error(
                f"registerSubsitutionManager takes a class with replace() and restore(), found "
                f"{type!r}."
            )
        if type not in cls._subsitution_manager_types:
            cls._subsitution_manager_types.append(type)
