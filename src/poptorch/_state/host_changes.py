"""Weights and ``requires_grad`` flags that the host changes after compiling, without sending them.

    model.load_state_dict(state); wrapper(x)   ->   one warning: the device computes with the old

As in the original the device gets weights by ``copyWeightsToDevice`` only. A training wrapper looks
where the host has touched the module since the last call: the touch has fetched the weights, so
that the host's are the device's unless somebody wrote. An inference wrapper looks at the version of
one tensor per call. Bits decide, so that a value that is written and put back is no change.
"""

from collections.abc import Callable, Iterator
from typing import Any

import torch

from abele._torch import without_torch_function
from abele.program import Role
from abele.trace.module_state import named_tensors, plain
from abele.warn import user_line, warn_user
from poptorch._compiled.wrapped import WrappedModel

_Tensor: Any = torch.Tensor  # its attributes have no types
_DATA, _SETS_DATA = _Tensor.data.__get__, _Tensor.data.__set__
_FLAG = _Tensor.requires_grad.__set__
_STATE = {Role.PARAMETER, Role.BUFFER}
_OPERATORS = {"__setitem__", "__iadd__", "__isub__", "__imul__", "__itruediv__"}
# Loops that touch weights at every step are looked at so often, then at powers of two.
_LOOKS_AT_EACH = 8


class HostChangeWarning(UserWarning):
    """The host's module has changed, and the device still computes with what it had before.

    Differs from the original: an addition; there nothing is said.
    """


def may_write(func: Callable[..., Any]) -> bool:
    """Return whether a function of torch writes its first argument, or hands out its data."""
    name = getattr(func, "__name__", "")
    in_place = name.endswith("_") and not name.endswith("__")
    return in_place or name in _OPERATORS or func in (_DATA, _SETS_DATA, _FLAG)


class HostChanges:
    """Warns once of changes of the host's module that a wrapper does not know.

    Args:
        model: the wrapped model.
    """

    def __init__(self, model: WrappedModel):
        self._model = model
        self._trainable: dict[str, bool] = {}
        self._versions: list[tuple[str, torch.Tensor, int]] = []
        self._next = 0
        self._touches = 0
        self._line = ""
        self._written = False
        self._watching = True

    def begin(self) -> None:
        """Take the module as the program has it: just compiled."""
        self._trainable = {name: tensor.requires_grad for name, tensor in self._tensors()}
        self.weights_sent()

    def weights_sent(self) -> None:
        """Take the host's weights as those of the device."""
        self._line, self._written = "", False
        if not self._model.training:
            present = [(name, plain(tensor)) for name, tensor in self._tensors()]
            self._versions = [
                (name, tensor, tensor._version)
                for name, tensor in present
                if not tensor.is_inference()
            ]

    def note_write(self, func: Callable[..., Any]) -> None:
        """Note that the host calls a function on a weight for which ``may_write`` holds."""
        if not self._watching:
            return
        only_access = func == _DATA
        if not self._line or not (self._written or only_access):
            self._line = user_line()
        self._written = self._written or not only_access

    def look_after_touch(self) -> None:
        """Look at a training module that the host has read or written since the last call."""
        line, written = self._line, self._written
        self._line, self._written = "", False
        if not self._watching:
            return
        self._touches += 1
        often = self._touches <= _LOOKS_AT_EACH or not self._touches & (self._touches - 1)
        if written or often:
            self._look(dict(self._tensors()), line)

    def look_at_one(self) -> None:
        """Look at the version of the next tensor of an inference module."""
        if not self._versions:
            return
        self._next = (self._next or len(self._versions)) - 1
        _, tensor, version = self._versions[self._next]
        if tensor._version != version and self._watching:
            changed = {
                name for name, tensor, version in self._versions if tensor._version != version
            }
            self._look({n: t for n, t in self._tensors() if n in changed}, "")
            self.weights_sent()

    def _look(self, tensors: dict[str, torch.Tensor], line: str) -> None:
        at = f" at {line}" if line else ""
        changed = [name for name, tensor in tensors.items() if self._differs(name, tensor)]
        if changed:
            self._warn(
                f"{_listed(changed)} of the host's module changed after the device got it{at}. "
                "The device computes with its own values, and the next copy to the host overwrites "
                "the host's. Call copyWeightsToDevice() after each change."
            )
        elif self._model.training:
            flags = [n for n, t in tensors.items() if t.requires_grad != self._trainable.get(n)]
            if flags:
                self._warn(
                    f"requires_grad of {_listed(flags)} changed after the model was compiled{at}. "
                    "The program trains the parameters that it was compiled with. Call destroy() "
                    "of the wrapper: the next call compiles again."
                )

    def _warn(self, message: str) -> None:
        self._watching = False
        warn_user(message, HostChangeWarning)

    def _tensors(self) -> Iterator[tuple[str, torch.Tensor]]:
        with without_torch_function():
            yield from named_tensors(self._model.module)

    def _differs(self, name: str, tensor: torch.Tensor) -> bool:
        session = self._model.session
        if name in session.config.replica_groups:
            return False  # has one value per group
        if not self._is_read(name):
            return False  # of a module that poptorch.CPU calls on the host
        device = session.buffers[0].get(name)
        if device is None:
            device = session.params.get(name)
        with without_torch_function():
            return device is not None and not same_bits(plain(tensor), device)

    def _is_read(self, name: str) -> bool:
        """Return whether a program of the model computes with a parameter or buffer."""
        return any(
            slot.name == name and slot.role in _STATE and node.users
            for program in self._model.get_compiled().captured.programs
            for slot, node in zip(program.inputs, program.placeholders(), strict=True)
        )


def same_bits(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Return whether two tensors have one dtype, shape and value, bit by bit."""
    if (one.dtype, one.shape) != (other.dtype, other.shape):
        return False
    flat = [
        value.contiguous().reshape(-1).view(torch.uint8) for value in (one, other.to(one.device))
    ]
    return torch.equal(*flat)


def _listed(names: list[str]) -> str:
    more = len(names) - 3
    return ", ".join(names[:3]) + (f" and {more} more" if more > 0 else "")
