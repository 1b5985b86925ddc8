"""Keeping the user's own module current: weights live on the device and are fetched when read.

While a module is wrapped for training its class, and those of its parameters and buffers, are
replaced by subclasses which first fetch newer weights from the device. ``isinstance`` still holds,
nothing has to be called, and nothing is copied until somebody looks.
"""

import functools
import weakref
from collections.abc import Iterator
from typing import Any

import torch

from abele._torch import without_torch_function
from poptorch._error import error

# What the wrapped classes themselves need; reading these never means reading weights.
_INTERNAL = frozenset({"__class__", "__dict__", "_poptorch_owner", "__weakref__"})
_owners: "weakref.WeakKeyDictionary[torch.nn.Module, weakref.ref]" = weakref.WeakKeyDictionary()


def owner_of(module: torch.nn.Module) -> Any | None:
    """The live training executor of a module, if it is wrapped."""
    reference = _owners.get(module)
    return None if reference is None else reference()


def is_wrapped(module: torch.nn.Module) -> bool:
    """Whether the module is wrapped for training (its executor may be gone)."""
    return module in _owners


def _fetch(tensor: torch.Tensor) -> None:
    owner = object.__getattribute__(tensor, "__dict__").get("_poptorch_owner")
    executor = None if owner is None else owner()
    if executor is not None:
        executor.copyWeightsToHostIfNeeded()


class _Fetching:
    """Mixin for tensors: any use fetches newer weights first."""

    def __getattribute__(self, name: str) -> Any:
        if name not in _INTERNAL:
            _fetch(self)
        return super().__getattribute__(name)

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        for value in _tensors((args, kwargs)):
            _fetch(value)
        with without_torch_function():
            return func(*args, **(kwargs or {}))

    def __reduce_ex__(self, protocol: Any) -> Any:
        _fetch(self)
        return _original(self).__reduce_ex__(protocol)

    def __deepcopy__(self, memo: dict) -> Any:
        if id(self) not in memo:
            _fetch(self)
            copied = torch.Tensor.clone(torch.Tensor.detach(self))
            memo[id(self)] = _with_class(copied, self)
        return memo[id(self)]


class PoptorchParameter(_Fetching, torch.nn.Parameter):
    """A parameter of a module that is wrapped for training."""


class PoptorchBuffer(_Fetching, torch.Tensor):
    """A buffer of a module that is wrapped for training."""


def _tensors(values: Any) -> Iterator[torch.Tensor]:
    if isinstance(values, _Fetching):
        yield values
    elif isinstance(values, tuple | list):
        for value in values:
            yield from _tensors(value)
    elif isinstance(values, dict):
        yield from _tensors(list(values.values()))


def _with_class(plain: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    if isinstance(like, torch.nn.Parameter):
        requires_grad = torch.Tensor.requires_grad.__get__(like)
        return torch.nn.Parameter(plain, requires_grad=requires_grad)
    return plain


def _original(tensor: torch.Tensor) -> torch.Tensor:
    """The same data under the class it had before wrapping."""
    with without_torch_function():
        plain = torch.Tensor.as_subclass(torch.Tensor.detach(tensor), torch.Tensor)
    return _with_class(plain, tensor)


@functools.cache
def _wrapped_class(original: type) -> type:
    """A subclass of a module's class whose weights are fetched when they are read."""

    def fetch(self: Any) -> bool:
        executor = owner_of(self)
        return executor is not None and executor.copyWeightsToHostIfNeeded()

    class Wrapped(original):
        """The user's class, wrapped for training."""

        _poptorch_original = original

        def __getattribute__(self, name: str) -> Any:
            if name in ("_parameters", "_buffers", "forward"):
                fetch(self)
            return super().__getattribute__(name)

        def __getattr__(self, name: str) -> Any:
            value = super().__getattr__(name)
            if isinstance(value, _Fetching):
                fetch(self)
            return value

        def copyWeightsToHostIfNeeded(self) -> bool:
            """Fetches newer weights; returns whether there were any."""
            return fetch(self)

        def destroy(self) -> None:
            """Destroys the executor that trains this module, if it is alive, and unwraps it."""
            executor = owner_of(self)
            if executor is not None:
                executor.destroy()
            unwrap(self)

        def state_dict(self, *args: Any, **kwargs: Any) -> Any:
            fetch(self)
            state = super().state_dict(*args, **kwargs)
            for key, value in state.items():
                if isinstance(value, _Fetching):
                    state[key] = plain_tensor(value)
            return state

        def __reduce_ex__(self, protocol: Any) -> Any:
            fetch(self)
            made, (_, *rest), *state = super().__reduce_ex__(protocol)
            return made, (original, *rest), *state

    Wrapped.__name__ = f"Poptorch{original.__name__}"
    Wrapped.__qualname__ = Wrapped.__name__
    Wrapped.__doc__ = original.__doc__
    return Wrapped


def plain_tensor(tensor: torch.Tensor) -> torch.Tensor:
    """The same storage as an ordinary tensor."""
    with without_torch_function():
        return torch.Tensor.as_subclass(torch.Tensor.detach(tensor), torch.Tensor)


def _stored(module: torch.nn.Module, kind: str) -> Iterator[torch.Tensor]:
    for child in module.modules():
        yield from (value for value in child.__dict__[kind].values() if value is not None)


def wrap(module: torch.nn.Module, executor: Any) -> None:
    """Ties a module to the executor that trains it.

    Raises:
        poptorch.Error: a buffer is of a class of its own.
    """
    for buffer in _stored(module, "_buffers"):
        if type(buffer) not in (torch.Tensor, PoptorchBuffer):
            raise error(
                "All buffers must be an instance of torch.Tensor, found one of "
                f"{type(buffer).__name__}."
            )
    reference = weakref.ref(executor)
    for kind, cls in (("_parameters", PoptorchParameter), ("_buffers", PoptorchBuffer)):
        for tensor in _stored(module, kind):
            tensor.__class__ = cls
            tensor._poptorch_owner = reference
    module.__class__ = _wrapped_class(type(module))
    _owners[module] = reference


def unwrap(module: torch.nn.Module) -> None:
    """Gives a module and its tensors their own classes back."""
    if _owners.pop(module, None) is None:
        return
    for kind, cls in (("_parameters", torch.nn.Parameter), ("_buffers", torch.Tensor)):
        for tensor in _stored(module, kind):
            if isinstance(tensor, _Fetching):
                del tensor._poptorch_owner
                tensor.__class__ = cls
    module.__class__ = type(module)._poptorch_original
