"""A module's parameters and buffers by name, and running it with others in their place."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator, Mapping

import torch

from abele.errors import ReassignedError


@dataclasses.dataclass(frozen=True)
class ModuleState:
    """What a module holds: each tensor once, under the first name it is reached by.

    Attributes:
        module: the module itself.
        params: parameters by name, without class or history: plain tensors that share storage.
        buffers: registered buffers by name, likewise.
        trainable: names of parameters that require gradients.
    """

    module: torch.nn.Module
    params: Mapping[str, torch.Tensor]
    buffers: Mapping[str, torch.Tensor]
    trainable: frozenset[str]

    @classmethod
    def of(cls, module: torch.nn.Module) -> ModuleState:
        """Collects the state of ``module`` and its children; tied tensors appear once."""
        params = dict(_named(module, "_parameters"))
        buffers = dict(_named(module, "_buffers"))
        return cls(
            module,
            {name: plain(value) for name, value in params.items()},
            {name: plain(value) for name, value in buffers.items()},
            frozenset(name for name, value in params.items() if value.requires_grad),
        )


def plain(tensor: torch.Tensor) -> torch.Tensor:
    """The same data as a ``torch.Tensor`` without subclass, hooks or autograd history."""
    return torch.Tensor.as_subclass(torch.Tensor.detach(tensor), torch.Tensor)


def _stores(module: torch.nn.Module, kind: str) -> Iterator[tuple[str, torch.nn.Module, dict]]:
    # Through __dict__: wrapped modules intercept attribute reads to fetch weights.
    for prefix, owner in module.named_modules():
        yield prefix, owner, owner.__dict__[kind]


def _named(module: torch.nn.Module, kind: str) -> Iterator[tuple[str, torch.Tensor]]:
    seen = set()
    for prefix, _, store in _stores(module, kind):
        for key, value in store.items():
            if value is not None and id(value) not in seen:
                seen.add(id(value))
                yield (f"{prefix}.{key}" if prefix else key), value


@contextlib.contextmanager
def substituted(
    state: ModuleState, params: Mapping[str, torch.Tensor], buffers: Mapping[str, torch.Tensor]
) -> Iterator[None]:
    """While open, the module computes with ``params`` and ``buffers`` instead of its own.

    Raises:
        ReassignedError: on leaving, if forward put another tensor in a substituted place.
    """
    swaps = []
    for kind, values in (("_parameters", params), ("_buffers", buffers)):
        replacement = {id(original): values[name] for name, original in _named(state.module, kind)}
        for prefix, owner, store in _stores(state.module, kind):
            for key, original in store.items():
                if original is not None:
                    name = f"{prefix}.{key}" if prefix else key
                    swaps.append((name, owner, store, key, original, replacement[id(original)]))
    for _, _, store, key, _, new in swaps:
        store[key] = new
    try:
        yield
        for name, owner, store, key, _, new in swaps:
            _check_kept(name, owner, store, key, new)
    finally:
        for _, _, store, key, original, _ in swaps:
            store[key] = original


def _check_kept(
    name: str, owner: torch.nn.Module, store: dict, key: str, expected: torch.Tensor
) -> None:
    kind = "Buffer" if store is owner.__dict__["_buffers"] else "Parameter"
    if key not in store:
        raise ReassignedError(
            f"{kind} {name} is removed from the model in forward. A static program keeps the "
            "state it was compiled with. Delete it before wrapping the model."
        )
    # Batch norm replaces its own counter in some torch versions; its statistics stay in place.
    if store[key] is not expected and not isinstance(owner, torch.nn.modules.batchnorm._BatchNorm):
        raise ReassignedError(
            f"{kind} {name} is reassigned within the model in forward. The program writes state "
            f"in place. Use self.{key}.copy_(...) instead of self.{key} = ..."
        )


def parameter_names(module: torch.nn.Module) -> dict[int, str]:
    """Name of every parameter by the ``id`` of its object; tied ones have one name."""
    return {id(value): name for name, value in _named(module, "_parameters")}
