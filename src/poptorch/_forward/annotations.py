"""Names, attributes and hints that stay with the operators they surround.

None of them changes a number. They reach the nodes of the captured program as marks, to be read in
listings and by whoever inspects a program.
"""

import json
from typing import Any

import torch

from abele import _torch
from abele.trace import scopes
from poptorch._error import error, require
from poptorch._forward.tracing import current

_ATTRIBUTES = "attributes"


class NameScope:
    """Prefixes the names of the operators inside.

    Args:
        name: one part of the path.

    Raises:
        AssertionError: the name is not a string.
    """

    def __init__(self, name: str):
        require(isinstance(name, str), f"The name of a NameScope must be a string, not {name!r}")
        self.name = name

    def __enter__(self) -> None:
        scopes.push(self.name)

    def __exit__(self, type: Any, value: Any, traceback: Any) -> None:
        scopes.pop()


class Attribute:
    """Attaches attributes to the operators inside; leaving it restores those around it.

    Args:
        **kwargs: a dictionary under each name: ``Attribute(__outline={"layer": "embedding"})``.
    """

    def __init__(self, **kwargs: dict[str, Any]):
        self._attributes = kwargs
        self._outer: list[Any] = []

    def __enter__(self) -> None:
        outer = scopes.current(_ATTRIBUTES)
        self._outer.append(outer)
        scopes.mark(_ATTRIBUTES, {**(outer or {}), **self._attributes})

    def __exit__(self, type: Any, value: Any, traceback: Any) -> None:
        scopes.mark(_ATTRIBUTES, self._outer.pop())


def nop(tensor: torch.Tensor) -> torch.Tensor:
    """Return a copy.

    Args:
        tensor: any shape and dtype.

    Raises:
        poptorch.Error: it is not a tensor.
    """
    return _tensor("nop", tensor).clone()


def set_available_memory(tensor: torch.Tensor, available_memory_proportion: float) -> torch.Tensor:
    """Note how much scratch memory the operator that made a tensor may use.

    Differs from the original: the note can be read from the program and has no effect.

    Args:
        tensor: result of a product, convolution or lookup.
        available_memory_proportion: from 0 to 1.

    Returns:
        The tensor.

    Raises:
        poptorch.Error: it is not a tensor.
    """
    node = _torch.traced_node(_tensor("set_available_memory", tensor))
    if node is not None:
        custom = node.meta.setdefault("custom", {})
        custom["available_memory_proportion"] = available_memory_proportion
    return tensor


def _tensor(name: str, value: Any) -> torch.Tensor:
    if not isinstance(value, torch.Tensor):
        raise error(f"poptorch.{name} takes a torch.Tensor, found a {type(value).__name__}.")
    return value


def accessAttributes(attribute_id_str: str) -> dict[str, Any]:
    """Read attributes that were passed along as text.

    Differs from the original: attributes travel as the text of a JSON object; there are no numbers
    of attributes kept elsewhere.

    Args:
        attribute_id_str: such a text.

    Raises:
        ValueError: not a string, or not a JSON object.
    """
    if not isinstance(attribute_id_str, str):
        raise ValueError(f"accessAttributes takes a string, found {attribute_id_str!r}.")
    try:
        attributes = json.loads(attribute_id_str)
    except json.JSONDecodeError:
        attributes = None
    if not isinstance(attributes, dict):
        raise ValueError(
            f"Attributes must be the text of a JSON object, found {attribute_id_str!r}."
        )
    return attributes


def getIpuTensorId(x: torch.Tensor) -> int:
    """Return a number for a value of the program being captured.

    Args:
        x: a tensor of a forward under way.

    Returns:
        The same number for the same value, until it is written to.

    Raises:
        poptorch.Error: the tensor belongs to no capture.
    """
    node = _torch.traced_node(_tensor("getIpuTensorId", x))
    if node is None or current() is None:
        raise error(
            "getIpuTensorId takes an IPU tensor, and this one lives on the host. Call it in the "
            "forward of a wrapped model, on its inputs, parameters or what is computed from them."
        )
    return next(number for number, other in enumerate(_torch.traced_nodes(), 1) if other is node)


# Operators of the original's namespace that programs call by name. They are made of others, so
# nothing of them is left in a captured program.
torch.library.define("poptorch::push_name_scope", "(str name) -> ()")
torch.library.define("poptorch::pop_name_scope", "() -> ()")
torch.library.define("poptorch::internal_cast", "(Tensor x, str kind) -> Tensor")

_CASTS = {"FLOAT": torch.float32, "FLOAT16": torch.float16}


@torch.library.impl("poptorch::push_name_scope", "CompositeImplicitAutograd")
def _push_name_scope(name: str) -> None:
    scopes.push(name)


@torch.library.impl("poptorch::pop_name_scope", "CompositeImplicitAutograd")
def _pop_name_scope() -> None:
    scopes.pop()


@torch.library.impl("poptorch::internal_cast", "CompositeImplicitAutograd")
def _internal_cast(x: torch.Tensor, kind: str) -> torch.Tensor:
    if kind not in _CASTS:
        raise error(f"internal_cast knows {sorted(_CASTS)}, found {kind!r}.")
    return x.to(_CASTS[kind])
