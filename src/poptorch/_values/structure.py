"""The shape of arguments and results: nested containers of tensors and constants.

A structure is recorded once. Later ones are compared with it, taken apart in its order, or built
again around other tensors.
"""

import collections
import copy
import dataclasses
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch

from abele import _torch
from abele.capture import reachable
from abele.program import dense
from abele.storage.values import bits
from poptorch._error import error
from poptorch._values.constant_arguments import cannot_change, same_bits, told_apart
from poptorch._values.custom_types import parser_for

#: The last sentence of each message about arguments that differ.
ADVICE = (
    "A wrapped model is compiled once, for the arguments of its first call. "
    "Create a new wrapper, or call destroy() on this one, to compile for other arguments."
)


@dataclasses.dataclass(frozen=True)
class Leaf:
    """A tensor, recorded by what a later one must have in common with it."""

    shape: torch.Size
    dtype: torch.dtype


@dataclasses.dataclass(frozen=True)
class Constant:
    """Any value that is not a tensor; it is part of the program."""

    value: Any


@dataclasses.dataclass(frozen=True)
class Items:
    """A list, a tuple or a named tuple."""

    kind: type
    parts: tuple["Structure", ...]


@dataclasses.dataclass(frozen=True)
class Table:
    """A dictionary of any class; the order of its keys is that of the first one seen."""

    kind: type
    keys: tuple[Any, ...]
    parts: tuple["Structure", ...]
    empty: Any


@dataclasses.dataclass(frozen=True)
class Custom:
    """A value of a type with a registered parser, and an example that others are made from."""

    kind: type
    parts: tuple["Structure", ...]
    example: Any


Structure = Leaf | Constant | Items | Table | Custom


def record(value: Any) -> Structure:
    """Describe a structure of tensors and constants."""
    if isinstance(value, torch.Tensor):
        require_dense(value)
        return Leaf(value.shape, value.dtype)
    parser = parser_for(value)
    if parser is not None:
        return Custom(type(value), _all(parser.yieldTensors(value)), value)
    if isinstance(value, dict):
        return Table(type(value), tuple(value), _all(value.values()), _emptied(value))
    if isinstance(value, tuple | list):
        return Items(type(value), _all(value))
    return Constant(value)


def require_dense(tensor: torch.Tensor) -> None:
    """Refuse a tensor that no program can take.

    Raises:
        poptorch.Error: it is sparse, nested or quantized.
    """
    kind = dense.other_kind(tensor)
    if kind is not None:
        raise error(
            f"Arguments and results are dense tensors, found one that is {kind}. {dense.INSTEAD}"
        )


def _all(values: Iterable[Any]) -> tuple[Structure, ...]:
    return tuple(record(value) for value in values)


def _emptied(value: dict) -> Any:
    # A defaultdict keeps its factory; other dictionaries are made from their items.
    if not isinstance(value, collections.defaultdict):
        return None
    empty = copy.copy(value)
    empty.clear()
    return empty


def tensors(value: Any, like: Structure) -> Iterator[torch.Tensor]:
    """Yield the tensors of a structure, in the order of the recorded one."""
    if isinstance(like, Leaf):
        yield value
    elif isinstance(like, Custom):
        parser = parser_for(value)
        assert parser is not None, "a parser was unregistered after the first call"
        yield from parser.yieldTensors(value)
    elif isinstance(like, Table):
        for key, part in zip(like.keys, like.parts, strict=True):
            yield from tensors(value[key], part)
    elif isinstance(like, Items):
        for item, part in zip(value, like.parts, strict=True):
            yield from tensors(item, part)


def constants(
    value: Any, like: Structure, name: str
) -> Iterator[tuple[str, Any, Constant | Custom]]:
    """Yield the parts of an argument that are part of the program and can change, with their names.

    Objects with a parser are among them: all in them that is not a tensor is.
    """
    if isinstance(like, Custom) or (isinstance(like, Constant) and not cannot_change(like.value)):
        yield name, value, like
    elif isinstance(like, Table):
        for key, part in zip(like.keys, like.parts, strict=True):
            yield from constants(value[key], part, f"{name}[{key}]")
    elif isinstance(like, Items):
        for index, (item, part) in enumerate(zip(value, like.parts, strict=True)):
            yield from constants(item, part, f"{name}[{index}]")


def taken_apart(result: Any) -> tuple[Structure, list[torch.Tensor]]:
    """Return what forward returned: its structure, and its tensors.

    Raises:
        poptorch.Error: it hides tensors where nothing can be put back.
    """
    structure = record(result)
    refuse_hidden_tensors(structure)
    return structure, list(tensors(result, structure))


def leaves(structure: Structure) -> Iterator[Leaf]:
    """Yield what is recorded of each tensor of a structure, in order."""
    if isinstance(structure, Leaf):
        yield structure
    elif not isinstance(structure, Constant):
        for part in structure.parts:
            yield from leaves(part)


def rebuild(like: Structure, values: Iterator[Any]) -> Any:
    """Return the recorded structure with other tensors in it."""
    if isinstance(like, Leaf):
        return next(values)
    if isinstance(like, Constant):
        return like.value
    if isinstance(like, Custom):
        parser = parser_for(like.example)
        assert parser is not None, "a parser was unregistered after the first call"
        return parser.reconstruct(like.example, values)
    parts = [rebuild(part, values) for part in like.parts]
    if isinstance(like, Table):
        return _filled(like, dict(zip(like.keys, parts, strict=True)))
    if hasattr(like.kind, "_fields"):  # a named tuple takes its parts one by one
        return like.kind(*parts)
    return like.kind(parts)


def _filled(like: Table, items: dict) -> Any:
    if like.kind is dict:
        return items
    if like.empty is not None:
        return copy.copy(like.empty) | items
    # Dataclasses that are dictionaries (transformers' ModelOutput) take their fields by name.
    return like.kind(**items) if dataclasses.is_dataclass(like.kind) else like.kind(items)


def check_same(recorded: Structure, actual: Structure, name: str) -> None:
    """Compare one argument with the recorded one.

    Raises:
        poptorch.Error: naming the part that differs and how.
    """
    if isinstance(recorded, Leaf):
        _check_tensor(recorded, actual, name)
    elif isinstance(recorded, Constant):
        _check_constant(recorded, actual, name)
    elif isinstance(recorded, Table):
        _check_table(recorded, actual, name)
    else:
        _check_items(recorded, actual, name)


def _mismatch(attribute: str, name: str, expected: Any, actual: Any) -> Exception:
    return error(f"{attribute} mismatch for {name}: expected {expected}, found {actual}. {ADVICE}")


def _check_tensor(recorded: Leaf, actual: Structure, name: str) -> None:
    if not isinstance(actual, Leaf):
        raise _mismatch("Type", name, "a torch.Tensor", _kind(actual))
    if actual.dtype != recorded.dtype:
        raise _mismatch("Data type", name, recorded.dtype, actual.dtype)
    if actual.shape != recorded.shape:
        raise _mismatch("Shape", name, list(recorded.shape), list(actual.shape))


def _check_constant(recorded: Constant, actual: Structure, name: str) -> None:
    if not isinstance(actual, Constant) or type(actual.value) is not type(recorded.value):
        raise _mismatch("Type", name, _kind(recorded), _kind(actual))
    if cannot_change(actual.value) and not same_bits(recorded.value, actual.value):
        raise _mismatch("Value", name, *told_apart(recorded.value, actual.value))


def _check_table(recorded: Table, actual: Structure, name: str) -> None:
    if not isinstance(actual, Table) or actual.kind is not recorded.kind:
        raise _mismatch("Type", name, _kind(recorded), _kind(actual))
    check_keys(recorded.keys, actual.keys, name)
    parts = dict(zip(map(bits, actual.keys), actual.parts, strict=True))
    for key, part in zip(recorded.keys, recorded.parts, strict=True):
        check_same(part, parts[bits(key)], f"{name}[{key}]")


def _check_items(recorded: Items | Custom, actual: Structure, name: str) -> None:
    if not isinstance(actual, type(recorded)) or actual.kind is not recorded.kind:
        raise _mismatch("Type", name, _kind(recorded), _kind(actual))
    if len(recorded.parts) != len(actual.parts):
        raise _mismatch("Length", name, len(recorded.parts), len(actual.parts))
    for index, (old, new) in enumerate(zip(recorded.parts, actual.parts, strict=True)):
        check_same(old, new, f"{name}[{index}]")


def check_keys(expected: Sequence[Any], actual: Sequence[Any], name: str) -> None:
    """Compare the keys of two dictionaries, in any order.

    Raises:
        poptorch.Error: naming missing and unexpected keys.
    """
    # Forward may compute with keys, and 1, 1.0 and True are equal.
    before, now = {bits(key) for key in expected}, {bits(key) for key in actual}
    missing = [str(key) for key in expected if bits(key) not in now]
    unexpected = [str(key) for key in actual if bits(key) not in before]
    if missing or unexpected:
        parts = [f"Missing arguments: {', '.join(missing)}."] if missing else []
        if unexpected:
            parts.append(f"Unexpected arguments: {', '.join(unexpected)}.")
        raise error(f"Keys mismatch for {name}: {' '.join(parts)} {ADVICE}")


def check_count(expected: int, actual: int) -> None:
    """Compare the numbers of positional arguments.

    Raises:
        poptorch.Error: they differ.
    """
    if expected != actual:
        raise error(
            f"Number of positional arguments mismatch: expected {expected}, found {actual}. "
            f"{ADVICE}"
        )


def _kind(recorded: Structure) -> str:
    if isinstance(recorded, Leaf):
        return "a torch.Tensor"
    kind = type(recorded.value) if isinstance(recorded, Constant) else recorded.kind
    return kind.__name__


def refuse_hidden_tensors(structure: Structure) -> None:
    """Refuse results that hide tensors inside what nothing can be put back into.

    Raises:
        poptorch.Error: naming the type that needs a parser.
    """
    if isinstance(structure, Constant):
        kind = type(structure.value).__name__
        if isinstance(structure.value, Iterator):
            raise error(
                f"forward returned a {kind}, which gives its values once and only after forward "
                "has ended. Return a list or a tuple of them."
            )
        if _hides_tensors(structure.value):
            raise error(
                f"forward returned a {kind}, whose tensors cannot be replaced by results. Return "
                "tuples, lists or dictionaries, or register a parser: "
                f"poptorch.registerCustomArgParser({kind}, ...)."
            )
    elif not isinstance(structure, Leaf):
        for part in structure.parts:
            refuse_hidden_tensors(part)


def _hides_tensors(value: Any) -> bool:
    direct = getattr(value, "__dict__", {}).values()
    parts = reachable.walk(value, "", lambda part: not isinstance(part, torch.nn.Module))
    return any(isinstance(part, torch.Tensor) for part in direct) or any(
        isinstance(part, _torch.FakeTensor) for _, part in parts
    )
