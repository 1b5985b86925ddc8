"""Lazy synchronization of the user's module: weights are fetched from the device when read.

While a module is wrapped for training its class, and those of its parameters and buffers, are
replaced by subclasses which first fetch newer weights from the device. ``isinstance`` still holds,
nothing has to be called, and nothing is copied until the weights are read.
"""

import functools
import types
import weakref
from collections.abc import Callable, Iterator
from copyreg import _reconstructor  # pyright: ignore[reportAttributeAccessIssue]
from typing import Any

import torch

from abele._torch import without_torch_function
from abele.capture.gradient_hooks import described
from abele.locks import Lock, Locks
from poptorch._error import error
from poptorch.enums import CommGroupType, VariableRetrievalMode

_Tensor: Any = torch.Tensor  # its attributes have no types
_DATA, _SETS_DATA = _Tensor.data.__get__, _Tensor.data.__set__
_FLAG = _Tensor.requires_grad.__set__
_IN_PLACE = {"__setitem__", "__iadd__", "__isub__", "__imul__", "__itruediv__"}
# What the wrapped classes themselves need; reading these never means reading weights.
_INTERNAL = frozenset({"__class__", "__dict__", "_poptorch_owner", "__weakref__"})


class Shared:
    """State shared by all wrappers of a module; it outlives each of them.

    Attributes:
        version: counts changes of the weights by whichever wrapper trains the module.
        around: the records of modules wrapped for training that contain or have contained this
            module, itself included.
        unwrapped_from: the executor that trains the module while it is unwrapped for a time.
        lock: held while a wrapper of this module, of a submodule or of a parent module is used.
        host_training: watches for training steps outside the executor while the module is wrapped.
    """

    lock: Lock | None = None

    def __init__(self):
        self.version = 0
        self.unwrapped_from: weakref.ref | None = None
        self.around: list[Shared] = []
        self.host_training: Any = None
        self._trainer: weakref.ref | None = None

    @property
    def wrapped(self) -> bool:
        """True if the module is wrapped for training, even after its executor ended."""
        return self._trainer is not None

    @property
    def trainer(self) -> Any | None:
        """The live executor that trains the module, or None."""
        return None if self._trainer is None else self._trainer()


_shared: "weakref.WeakKeyDictionary[torch.nn.Module, Shared]" = weakref.WeakKeyDictionary()


def shared_by(module: torch.nn.Module) -> Shared:
    """Return the state that all wrappers of a module share."""
    return _shared.setdefault(module, Shared())


_choosing = Lock()


def lock_of(module: torch.nn.Module) -> Lock | Locks:
    """Return the lock of a module's wrappers, which excludes wrappers with common submodules."""
    with _choosing:
        records = [shared_by(child) for child in module.modules()]
        locks = {id(each.lock): each.lock for each in records if each.lock is not None}
        first = next(iter(locks.values()), None) or Lock()
        for each in records:
            each.lock = each.lock or first
        return first if len(locks) <= 1 else Locks([locks[key] for key in sorted(locks)])


_wrappings = 0


def generation() -> int:
    """Return a counter that increases whenever a module is wrapped for training."""
    return _wrappings


def _note_parts(module: torch.nn.Module, shared: Shared) -> None:
    """Register a wrapped module with its submodules, for inference wrappers of related modules."""
    global _wrappings
    _wrappings += 1
    for child in module.modules():
        around = shared_by(child).around
        if shared not in around:
            around.append(shared)


def _fetch(tensor: Any) -> None:
    owner = object.__getattribute__(tensor, "__dict__").get("_poptorch_owner")
    executor = None if owner is None else owner()
    if executor is not None:
        executor.copyWeightsToHostIfNeeded()


class _Fetching(torch.Tensor):
    """A tensor that fetches newer weights from the device before any use."""

    _poptorch_owner: weakref.ref

    def __getattribute__(self, name: str) -> Any:
        if name not in _INTERNAL:
            _fetch(self)
        return super().__getattribute__(name)

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if not all(issubclass(each, torch.Tensor) for each in types):
            return NotImplemented  # a proxy stands beside it, and knows what it stands for
        for value in _fetching((args, kwargs)):
            _fetch(value)
        if args and _may_write(func):
            _note_write(args[0], only_access=func == _DATA)
        with without_torch_function():
            return func(*args, **(kwargs or {}))

    def __repr__(self, **kwargs: Any) -> str:
        return _of_own_class(plain_tensor(self), self).__repr__(**kwargs)

    def __format__(self, format_spec: str) -> str:
        # Torch formats the value of a 0-d tensor, but of a subclass only its text.
        return format(_of_own_class(plain_tensor(self), self), format_spec)

    def __reduce_ex__(self, proto: Any) -> Any:
        return _of_own_class(plain_tensor(self), self).__reduce_ex__(proto)

    def __deepcopy__(self, memo: dict) -> Any:
        if id(self) not in memo:
            memo[id(self)] = _of_own_class(plain_tensor(self).clone(), self)
        return memo[id(self)]


class PoptorchParameter(_Fetching, torch.nn.Parameter):
    """A parameter of a module that is wrapped for training."""

    def register_hook(self, hook: Callable) -> Any:
        _refuse_late_hook(self, hook)
        return super().register_hook(hook)

    def register_post_accumulate_grad_hook(self, hook: Callable) -> Any:
        _refuse_late_hook(self, hook)
        return super().register_post_accumulate_grad_hook(hook)


def _refuse_late_hook(parameter: PoptorchParameter, hook: Callable) -> None:
    executor = parameter._poptorch_owner()
    if executor is not None and executor.isCompiled():
        raise error(
            f"{described(hook)} comes too late for a parameter of a model that is compiled: the "
            "program has the hooks that were there before. Register it before the first call, or "
            "call destroy() on the wrapper first."
        )


class PoptorchBuffer(_Fetching):
    """A buffer of a module that is wrapped for training."""


def _fetching(values: Any) -> Iterator[_Fetching]:
    if isinstance(values, _Fetching):
        yield values
    elif isinstance(values, tuple | list):
        for value in values:
            yield from _fetching(value)
    elif isinstance(values, dict):
        for value in values.values():
            yield from _fetching(value)


def plain_tensor(tensor: torch.Tensor) -> torch.Tensor:
    """Return an ordinary tensor on the storage of a wrapped weight, after fetching new weights."""
    with without_torch_function():
        _fetch(tensor)
        return torch.Tensor.as_subclass(torch.Tensor.detach(tensor), torch.Tensor)


def _may_write(func: Callable[..., Any]) -> bool:
    """Return whether a torch function writes its first argument, or exposes its data."""
    name = getattr(func, "__name__", "")
    in_place = name.endswith("_") and not name.endswith("__")
    return in_place or name in _IN_PLACE or func in (_DATA, _SETS_DATA, _FLAG)


def _note_write(written: Any, *, only_access: bool) -> None:
    """Notify the executor that the host may write a weight: the first one in ``written``."""
    for value in _fetching(written):
        executor = object.__getattribute__(value, "__dict__")["_poptorch_owner"]()
        if executor is not None:
            executor._weights.host_changes.note_write(only_access=only_access)
        return


def _of_own_class(plain: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """Convert a plain tensor to a parameter if ``like`` is one."""
    if isinstance(like, torch.nn.Parameter):
        return torch.nn.Parameter(plain, requires_grad=like.requires_grad)
    return plain


class _Wrapped(torch.nn.Module):
    """The mixin of a wrapped module's class that fetches weights when they are read."""

    _poptorch_original: type[torch.nn.Module]

    def __getattribute__(self, name: str) -> Any:
        if name in ("_parameters", "_buffers", "forward"):
            _fetch_for(self)
            if name == "forward" and (watch := shared_by(self).host_training) is not None:
                watch.note_forward()
        return super().__getattribute__(name)

    def __getattr__(self, name: str) -> Any:
        value = super().__getattr__(name)
        if isinstance(value, _Fetching):
            _fetch_for(self)
        return value

    def copyWeightsToHostIfNeeded(self) -> bool:
        """Fetch newer weights from the device and return whether there were any."""
        return _fetch_for(self)

    def destroy(self) -> None:
        """Destroy the executor that trains this module, if it is alive, and unwrap it."""
        executor = shared_by(self).trainer
        if executor is not None:
            executor.destroy()
        unwrap(self)

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        _fetch_for(self)
        state = super().state_dict(*args, **kwargs)
        for key, value in state.items():
            if isinstance(value, _Fetching):
                state[key] = plain_tensor(value)
        return state

    def __reduce_ex__(self, protocol: Any) -> Any:
        _fetch_for(self)
        made, args, *state = super().__reduce_ex__(protocol)
        if args == (type(self),):
            # Copies and files hold the user's class. pickle insists that the usual constructor
            # makes the class of the object at hand; the older one does the same without opinion.
            made, args = _reconstructor, (self._poptorch_original, object, None)
        return made, args, *state


def user_class(module: torch.nn.Module) -> type[torch.nn.Module]:
    """Return a module's own class, also while it is wrapped for training."""
    return getattr(type(module), "_poptorch_original", type(module))


def _fetch_for(module: torch.nn.Module) -> bool:
    executor = shared_by(module).trainer
    return executor is not None and executor.copyWeightsToHostIfNeeded()


@functools.cache
def _wrapped_class(original: type[torch.nn.Module]) -> type[torch.nn.Module]:
    """Return a subclass of a module's class that fetches weights when they are read."""
    content = {"_poptorch_original": original, "__doc__": original.__doc__}
    # Not type(...): the user's class may have a metaclass.
    return types.new_class(
        f"Poptorch{original.__name__}",
        (_Wrapped, original),
        exec_body=lambda ns: ns.update(content),
    )


def _stored(module: torch.nn.Module, kind: str) -> Iterator[Any]:
    for child in module.modules():
        yield from (value for value in child.__dict__[kind].values() if value is not None)


def wrap(module: torch.nn.Module, executor: Any, watch: Any) -> None:
    """Bind a module to the executor that trains it, replacing its class and those of its tensors.

    The executor is referenced weakly; ``watch`` observes training steps on the host.

    Raises:
        poptorch.Error: a buffer is of a class of its own, or another live wrapper trains a tensor
            of this module.
    """
    for tensor in (*_stored(module, "_parameters"), *_stored(module, "_buffers")):
        owner = object.__getattribute__(tensor, "__dict__").get("_poptorch_owner")
        if owner is not None and owner() is not None and owner() is not executor:
            raise error(
                "This model shares a parameter or buffer with another model that is wrapped for "
                "training. Two devices cannot train the same tensor: call destroy() on the other "
                "wrapper first."
            )
    for buffer in _stored(module, "_buffers"):
        if type(buffer) not in (torch.Tensor, PoptorchBuffer):
            raise error(
                "All buffers must be an instance of torch.Tensor, found one of "
                f"{type(buffer).__name__}."
            )
    reference = weakref.ref(executor)
    watch.begin(_stored(module, "_parameters"))
    for kind, cls in (("_parameters", PoptorchParameter), ("_buffers", PoptorchBuffer)):
        for tensor in _stored(module, kind):
            tensor.__class__ = cls
            tensor._poptorch_owner = reference
    module.__class__ = _wrapped_class(type(module))
    shared_by(module)._trainer = reference
    shared_by(module).host_training = watch
    _note_parts(module, shared_by(module))


def unwrap(module: torch.nn.Module) -> None:
    """Restore the original classes of a wrapped module and of its tensors."""
    shared = shared_by(module)
    if not shared.wrapped:
        return
    shared._trainer = None
    shared.host_training.end()
    for kind, cls in (("_parameters", torch.nn.Parameter), ("_buffers", torch.Tensor)):
        for tensor in _stored(module, kind):
            if isinstance(tensor, _Fetching):
                del tensor._poptorch_owner
                # Through object: the class itself is what is being replaced.
                object.__setattr__(tensor, "__class__", cls)
    original: type[torch.nn.Module] = object.__getattribute__(module, "_poptorch_original")
    module.__class__ = original


def unwrapModelIfNecessary(model: torch.nn.Module) -> None:
    """Fetch the weights of a wrapped module and unwrap it until ``rewrapModelIfNecessary``.

    Does nothing if the module is not wrapped. Until ``rewrapModelIfNecessary`` its weights are
    those of this moment, whatever its executor trains meanwhile.
    """
    shared = shared_by(model)
    if not shared.wrapped:
        return
    _fetch_for(model)
    shared.unwrapped_from = shared._trainer
    unwrap(model)


def rewrapModelIfNecessary(model: torch.nn.Module) -> None:
    """Undo ``unwrapModelIfNecessary`` if the executor is alive and no other has wrapped."""
    shared = shared_by(model)
    reference, shared.unwrapped_from = shared.unwrapped_from, None
    executor = None if reference is None else reference()
    if executor is not None and not shared.wrapped:
        wrap(model, executor, shared.host_training)


# -- a parameter read through a wrapper ------------------------------------------------------


class ParameterProxy:
    """A stand-in for a parameter of a wrapped model; not a ``torch.nn.Parameter`` itself.

    Attributes, operators and torch functions are those of the parameter.
    """

    __slots__ = ("_executor", "_name", "_parameter")
    _executor: Any
    _name: str
    _parameter: torch.nn.Parameter

    def __init__(self, executor: Any, name: str, parameter: torch.nn.Parameter):
        for slot, value in zip(self.__slots__, (executor, name, parameter), strict=True):
            object.__setattr__(self, slot, value)

    def replicaGrouping(
        self,
        comm_group_type: CommGroupType,
        shards: int,
        variable_retrieval_mode: VariableRetrievalMode,
    ) -> None:
        """Give a parameter separate values in groups of replicas; call it before the first run.

        The parameter must have a leading dimension, one entry per group; forward sees it without.

        Args:
            comm_group_type: which replicas are in a group; All means no groups.
            shards: replicas per group; ignored by All and NoGrouping.
            variable_retrieval_mode: whether the host gets one value per group or per replica.

        Raises:
            poptorch.Error: the model is compiled already.
        """
        if self._executor.isCompiled():
            raise error(
                f"replicaGrouping() of {self._name} comes too late: the model is compiled. Call it "
                "before the first run, or call destroy() first."
            )
        self._executor.per_replica_params[self._name] = (
            comm_group_type,
            shards,
            variable_retrieval_mode,
        )

    @classmethod
    def __torch_function__(
        cls, func: Callable, types: Any, args: tuple = (), kwargs: dict | None = None
    ) -> Any:
        return func(*_plain(args), **_plain(kwargs or {}))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._parameter, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._parameter, name, _plain(value))

    def __delattr__(self, name: str) -> None:
        delattr(self._parameter, name)

    def __dir__(self) -> list[str]:
        return sorted({*dir(self._parameter), "replicaGrouping"})


def _plain(value: Any) -> Any:
    """Replace parameter proxies by the parameters themselves in nested containers."""
    if isinstance(value, ParameterProxy):
        return value._parameter
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if type(value) in (tuple, list):
        return type(value)(map(_plain, value))
    return value


def _forwarded(name: str) -> Callable:
    def method(self: ParameterProxy, *args: Any, **kwargs: Any) -> Any:
        return getattr(self._parameter, name)(*_plain(args), **_plain(kwargs))

    method.__name__ = name
    return method


# Python looks operators up on the class, so __getattr__ is not asked for them.
_OWN = {*vars(ParameterProxy), "__class__", "__new__", "__init__", "__getattribute__", "__del__"}
_OWN |= {"__init_subclass__", "__subclasshook__", "__torch_dispatch__"}
for _name in set(dir(torch.Tensor)) - _OWN:
    if _name.startswith("__") and callable(getattr(torch.Tensor, _name)):
        setattr(ParameterProxy, _name, _forwarded(_name))
