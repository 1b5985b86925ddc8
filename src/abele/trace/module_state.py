"""Parameters and buffers of a module by name, and their substitution in calls."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Generator, Iterator, Mapping
from typing import Any, cast

import torch
from torch.nn.parameter import is_lazy

from abele import _torch
from abele.errors import CaptureError, ReassignedError
from abele.program.aliasing import INSTEAD, other_kind


@dataclasses.dataclass(frozen=True)
class ModuleState:
    """The parameters and buffers of a module, each once, under its first name.

    Attributes:
        module: the module itself.
        params: parameters by name, without class or history: plain tensors that share storage.
        buffers: registered buffers by name, as plain tensors, too.
        trainable: names of parameters that require gradients.
        originals: the parameters themselves, with class and hooks, by name.
    """

    module: torch.nn.Module
    params: Mapping[str, torch.Tensor]
    buffers: Mapping[str, torch.Tensor]
    trainable: frozenset[str]
    originals: Mapping[str, torch.Tensor]

    @property
    def modules(self) -> dict[str, torch.nn.Module]:
        """The module and its children by path."""
        return dict(named_modules(self.module))

    @classmethod
    def of(cls, module: torch.nn.Module) -> ModuleState:
        """Collect the state of ``module`` and its children; tied tensors appear once."""
        refuse_without_shapes(module)
        params = dict(_named(module, "_parameters"))
        buffers = dict(_named(module, "_buffers"))
        _refuse_other_kinds({**params, **buffers})
        _refuse_overlaps({**params, **buffers})
        return cls(
            module,
            {name: plain(value) for name, value in params.items()},
            {name: plain(value) for name, value in buffers.items()},
            frozenset(name for name, value in params.items() if value.requires_grad),
            params,
        )


def _refuse_other_kinds(tensors: Mapping[str, torch.Tensor]) -> None:
    for name, value in tensors.items():
        if value.is_meta:
            raise CaptureError(
                f"{name} is on the meta device and has no data. Load weights into the model, or "
                'call model.to_empty(device="cpu") and initialise it, before it is compiled.'
            )
        kind = other_kind(value)
        if kind is not None:
            raise CaptureError(f"{name} is {kind}; a program keeps dense tensors. {INSTEAD}")


def refuse_without_shapes(module: torch.nn.Module) -> None:
    """Raise CaptureError for TorchScript modules and lazy modules without shapes."""
    for path, child in named_modules(module):
        if isinstance(child, cast("Any", torch.jit).ScriptModule):
            raise CaptureError(
                f"Submodule {path or '(the model)'} is a TorchScript module, whose forward cannot "
                "be captured. Use the torch.nn.Module that it was made from."
            )
    for name, value in (*_named(module, "_parameters"), *_named(module, "_buffers")):
        if is_lazy(value):
            raise CaptureError(
                f"{name} is not initialised: it belongs to a lazy module, which chooses shapes at "
                "its first call. Call the model once on the host with an example, then make the "
                "optimizer and wrap it."
            )


def _refuse_overlaps(tensors: Mapping[str, torch.Tensor]) -> None:
    """Refuse state tensors that overlap in memory, as the device would separate them."""
    seen: dict[int, str] = {}
    for name, value in tensors.items():
        address = plain(value).data_ptr()
        if address and value.numel() and seen.setdefault(address, name) != name:
            raise CaptureError(
                f"{seen[address]} and {name} share their memory but are different tensors. Tie "
                "them by using one Parameter in both places, or clone one of them."
            )


def plain(tensor: torch.Tensor) -> torch.Tensor:
    """Return the same data as a ``torch.Tensor`` without subclass, hooks or autograd history."""
    return torch.Tensor.as_subclass(torch.Tensor.detach(tensor), torch.Tensor)


Store = dict[str, Any]


def named_modules(module: torch.nn.Module) -> Iterator[tuple[str, torch.nn.Module]]:
    """Yield a module and its descendants with their paths."""
    untyped: Any = module
    return untyped.named_modules()


def _stores(module: torch.nn.Module, kind: str) -> Iterator[tuple[str, torch.nn.Module, Store]]:
    # Through __dict__: wrapped modules intercept attribute reads to fetch weights.
    for prefix, owner in named_modules(module):
        yield prefix, owner, vars(owner)[kind]


def _named(module: torch.nn.Module, kind: str) -> Iterator[tuple[str, torch.Tensor]]:
    seen: set[int] = set()
    for prefix, _, store in _stores(module, kind):
        for key, value in store.items():
            if value is not None and id(value) not in seen:
                seen.add(id(value))
                yield (f"{prefix}.{key}" if prefix else key), value


def named_tensors(module: torch.nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield parameters, then buffers, each once and unwrapped, in the order of ``ModuleState``."""
    yield from _named(module, "_parameters")
    yield from _named(module, "_buffers")


@contextlib.contextmanager
def substituted(
    state: ModuleState,
    params: Mapping[str, torch.Tensor],
    buffers: Mapping[str, torch.Tensor],
    value_of: Callable[[torch.Tensor], torch.Tensor | None],
) -> Generator[None]:
    """Call the module with other parameters and buffers in a ``with`` block.

    Args:
        state: the module and its own tensors.
        params: by name.
        buffers: by name.
        value_of: returns the value of a tensor that is computed from constants, else None.

    Raises:
        ReassignedError: on leaving, if forward put another tensor in a substituted place.
    """
    stores: list[tuple[str, torch.nn.Module, Store, Store, Store]] = []
    replacement = in_place_of(state, params, buffers)
    for kind in ("_parameters", "_buffers"):
        for prefix, owner, store in _stores(state.module, kind):
            original = dict(store)
            store.update({k: replacement[id(v)] for k, v in original.items() if v is not None})
            stores.append((prefix, owner, store, original, dict(store)))
    try:
        yield
        kept = {id(store): expected for _, _, store, _, expected in stores}
        allowed = _Allowed(frozenset(map(id, replacement.values())), value_of)
        _check_kept(state.module, kept, allowed)
    finally:
        for _, _, store, original, _ in stores:
            store.clear()
            store.update(original)


@dataclasses.dataclass(frozen=True)
class _Allowed:
    """Traced tensors that forward may assign to an empty attribute of a module.

    ``self.loss = nn.CrossEntropyLoss(weight=self.weights)`` creates a module with such a tensor.

    Attributes:
        stand_ins: the ``id`` of the tensors that stand for parameters and buffers.
        value_of: returns the value of a tensor that is computed from constants, else None.
    """

    stand_ins: frozenset[int]
    value_of: Callable[[torch.Tensor], torch.Tensor | None]

    def __contains__(self, tensor: torch.Tensor | None) -> bool:
        if tensor is None or id(tensor) in self.stand_ins:
            return True
        if isinstance(tensor, torch.nn.Parameter):  # a new one is to be trained
            return False
        # A buffer that forward makes and writes to may be a counter, which would start anew.
        written = isinstance(tensor, _torch.FakeTensor) and tensor._version > 0
        return not written and self.value_of(tensor) is not None


def _check_kept(module: torch.nn.Module, kept: Mapping[int, Store], allowed: _Allowed) -> None:
    """Refuse parameters and buffers that forward replaced by other tensors.

    Args:
        module: after forward; it may have other children than before.
        kept: contents of each module's tensor dictionaries before forward, by their ``id``.
        allowed: tensors that an empty attribute may get.
    """
    for kind, noun in (("_parameters", "Parameter"), ("_buffers", "Buffer")):
        for prefix, _, store in _stores(module, kind):
            expected = kept.get(id(store), {})
            for key in {**expected, **store}:
                path = f"{prefix}.{key}" if prefix else key
                _check_place(noun, path, expected.get(key), store, allowed)


def _check_place(
    noun: str,
    path: str,
    before: torch.Tensor | None,
    store: Store,
    allowed: _Allowed,
) -> None:
    key = path.rpartition(".")[2]
    now = store.get(key)
    if now is before or (before is None and now in allowed):
        return
    if before is None:
        raise ReassignedError(
            f"{noun} {path} is added to the model in forward. A static program keeps the "
            f"state it was compiled with. Register {key} in __init__."
        )
    if key not in store:
        raise ReassignedError(
            f"{noun} {path} is removed from the model in forward. A static program keeps the "
            "state it was compiled with. Delete it before wrapping the model."
        )
    raise ReassignedError(
        f"{noun} {path} is reassigned within the model in forward. The program "
        f"writes state in place. Use self.{key}.copy_(...) instead of self.{key} = ..."
    )


def in_place_of(
    state: ModuleState, params: Mapping[str, torch.Tensor], buffers: Mapping[str, torch.Tensor]
) -> dict[int, torch.Tensor]:
    """Return the stand-in of each parameter and buffer, by the ``id`` of the module's object."""
    return {
        id(original): values[name]
        for kind, values in (("_parameters", params), ("_buffers", buffers))
        for name, original in _named(state.module, kind)
    }


def parameter_names(module: torch.nn.Module) -> dict[int, str]:
    """Return the name of every parameter by its ``id``; tied parameters have one name."""
    return {id(value): name for name, value in _named(module, "_parameters")}


def tensor_ids(module: torch.nn.Module) -> frozenset[int]:
    """Return the ``id`` of every parameter and buffer of a module."""
    return frozenset(id(v) for kind in ("_parameters", "_buffers") for _, v in _named(module, kind))
