"""Blocks: named regions of a model that an execution strategy places.

They act while a model is captured and do nothing otherwise, so an annotated model still runs on the
host and keeps its parameter names.
"""

import contextlib
import operator
from collections.abc import Callable, Iterator
from typing import Any, SupportsIndex

import torch

from abele import _torch
from poptorch._error import error, require
from poptorch._forward.tracing import current


class Block(torch.nn.Module):
    """A region of forward, opened by ``with``.

    Operators after a block and before the next are an error when the model is compiled.

    Differs from the original: after a block inside another, operators belong to the outer one.

    Args:
        user_id: name for the execution strategy; by default ``0``, ``1``, ... at every entry.
        ipu_id: number of the device, from 0, unless the stage says otherwise.

    Raises:
        AssertionError: ``ipu_id`` is no such number.
    """

    def __init__(self, user_id: str | None = None, ipu_id: int | None = None):
        super().__init__()
        self._user_id = user_id
        self._ipu_id = _number(ipu_id)

    @staticmethod
    def useAutoId() -> None:
        """Start the names of blocks without one at ``0`` again."""
        tracing = current()
        if tracing is not None:
            tracing.restart_names()

    @staticmethod
    def start(user_id: str | None = None, ipu_id: int | None = None) -> None:
        """Begin a block that lasts until the next one.

        Args:
            user_id: as for the class.
            ipu_id: as for the class.
        """
        tracing = current()
        if tracing is not None:
            name = tracing.next_name() if user_id is None else str(user_id)
            tracing.begin(name, _number(ipu_id))

    def __enter__(self) -> None:
        tracing = current()
        if tracing is not None:
            name = tracing.next_name() if self._user_id is None else str(self._user_id)
            tracing.enter(name, self._ipu_id)

    def __exit__(self, type: Any, value: Any, traceback: Any) -> None:
        tracing = current()
        if tracing is not None:
            tracing.leave()

    def extra_repr(self) -> str:
        """Name and device, for the module's text form."""
        return f"user_id={self._user_id}, ipu_id={self._ipu_id}"


class _Beginning:
    """Begins a block; one without a name takes one at its first use and keeps it."""

    def __init__(self, user_id: str | None, ipu_id: int | None):
        self._user_id, self._ipu_id = user_id, _number(ipu_id)
        self._named_here = False

    def begin(self) -> None:
        tracing = current()
        if tracing is None:
            return
        if self._user_id is None:
            self._user_id, self._named_here = tracing.next_name(), True
        elif self._named_here:
            tracing.keep_name(self._user_id)
        tracing.begin(str(self._user_id), self._ipu_id)

    def __call__(self, module: torch.nn.Module, inputs: Any) -> None:
        """Enter the block, as a forward pre-hook."""
        self.begin()

    def __repr__(self) -> str:
        return f"BeginBlock(user_id={self._user_id}, ipu_id={self._ipu_id})"


class LegacyBeginBlockFn(torch.nn.Module):
    """Begins a block, then calls something that is not a module.

    Args:
        layer_to_call: any callable.
        user_id: as for ``Block``.
        ipu_id: as for ``Block``.
    """

    def __init__(
        self, layer_to_call: Callable, user_id: str | None = None, ipu_id: int | None = None
    ):
        super().__init__()
        self._layer_to_call = layer_to_call
        self._beginning = _Beginning(user_id, ipu_id)

    @property
    def _user_id(self) -> str | None:
        """The block's name; programs that print their partition read it."""
        return self._beginning._user_id

    @property
    def _ipu_id(self) -> int | None:
        return self._beginning._ipu_id

    def __call__(self, *input: Any, **kwargs: Any) -> Any:
        """Call the callable inside the block."""
        self._beginning.begin()
        return self._layer_to_call(*input, **kwargs)

    def extra_repr(self) -> str:
        """Return the block and what is called, for the module's text form."""
        return f"{self._beginning!r} {self._layer_to_call!r}"


def BeginBlock(
    layer_to_call: torch.nn.Module, user_id: str | None = None, ipu_id: int | None = None
) -> torch.nn.Module:
    """Have a block begin whenever a module is called; it lasts until the next one.

    Args:
        layer_to_call: the module, which keeps its class and the names of its parameters.
        user_id: name for the execution strategy; by default one chosen at the first use.
        ipu_id: number of the device, unless the stage says otherwise.

    Returns:
        The same module; for a callable that is no module, a module that calls it.

    Raises:
        poptorch.Error: the module begins a block already, or cannot be called.
        AssertionError: ``ipu_id`` is no number of a device.
    """
    if not isinstance(layer_to_call, torch.nn.Module):
        if not callable(layer_to_call):
            raise error(
                "BeginBlock takes a module or a function, and this is not an instance of "
                f"torch.nn.Module: {layer_to_call!r}."
            )
        return LegacyBeginBlockFn(layer_to_call, user_id, ipu_id)
    present = [hook for _, hook in _hooks_of(layer_to_call)]
    if present:
        raise error(
            f"{type(layer_to_call).__name__} module has already been assigned to a block: "
            f"{present[0]!r}. Call poptorch.removeBlocks(module) first to assign it to another."
        )
    layer_to_call.register_forward_pre_hook(_Beginning(user_id, ipu_id))
    return layer_to_call


def BlockFunction(user_id: str | None = None, ipu_id: int | None = None) -> Callable:
    """Decorate a function or method so that each call of it is a ``Block``.

    Args:
        user_id: as for ``Block``.
        ipu_id: as for ``Block``.
    """

    def decorate(function: Callable) -> Callable:
        def in_block(*args: Any, **kwargs: Any) -> Any:
            with Block(user_id, ipu_id):
                return function(*args, **kwargs)

        return in_block

    return decorate


def removeBlocks(module: torch.nn.Module) -> None:
    """Undo ``BeginBlock`` for a module and everything in it.

    Args:
        module: the module; changed in place.

    Raises:
        AssertionError: it is not a module.
    """
    require(
        isinstance(module, torch.nn.Module),
        f"removeBlocks takes a torch.nn.Module, not {module!r}",
    )
    for child in module.modules():
        for key, _ in _hooks_of(child):
            del _torch.forward_pre_hooks(child)[key]


@contextlib.contextmanager
def without_blocks(module: torch.nn.Module) -> Iterator[None]:
    """While open, neither a module nor anything in it begins a block; then what did does again."""
    before = [(child, dict(_hooks_of(child))) for child in module.modules()]
    removeBlocks(module)
    try:
        yield
    finally:
        removeBlocks(module)
        for child, hooks in before:
            _torch.forward_pre_hooks(child).update(hooks)


def _number(ipu_id: int | None) -> int | None:
    if ipu_id is None:
        return None
    right = isinstance(ipu_id, SupportsIndex) and operator.index(ipu_id) >= 0
    require(right, f"ipu_id is the number of a device, from 0, not {ipu_id!r}")
    return operator.index(ipu_id)


def _hooks_of(module: torch.nn.Module) -> list[tuple[int, _Beginning]]:
    hooks = _torch.forward_pre_hooks(module).items()
    return [(key, hook) for key, hook in hooks if isinstance(hook, _Beginning)]
