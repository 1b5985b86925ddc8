"""Arguments of a wrapped model: bound to forward's signature, flattened, recorded, compared.

The first call decides what a program is made for. Later calls must bring the same structure: the
same containers, types, shapes and constants; anything else is an error, never a recompilation.
"""

import inspect
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from poptorch._custom_types import parser_for
from poptorch._error import error

_ADVICE = (
    "A wrapped model is compiled once, for the arguments of its first call. "
    "Create a new wrapper, or call destroy() on this one, to compile for other arguments."
)


@dataclass(frozen=True)
class Bound:
    """One call's arguments: values by position, then values that only have a name."""

    names: tuple[str, ...]
    positional: tuple[Any, ...]
    keywords: dict[str, Any]


class Binder:
    """Binds calls to the signature of a model's ``forward``."""

    def __init__(self, forward: Callable):
        self._parameters = list(inspect.signature(forward).parameters.values())
        self._by_position = [
            p for p in self._parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)
        ]
        self._rest = next((p for p in self._parameters if p.kind is p.VAR_POSITIONAL), None)
        self._any_keyword = any(p.kind is p.VAR_KEYWORD for p in self._parameters)
        self._keyword_only = [p for p in self._parameters if p.kind is p.KEYWORD_ONLY]

    def bind(self, args: Sequence[Any], kwargs: dict[str, Any]) -> Bound:
        """Orders the arguments of one call.

        Keywords that have a position are moved there; defaults fill gaps before them.

        Raises:
            AssertionError: too many arguments, an unknown keyword, or one given twice.
            poptorch.Error: a mandatory parameter is missing.
        """
        self._check(args, kwargs)
        given = dict(zip((p.name for p in self._by_position), args, strict=False))
        given |= {p.name: kwargs[p.name] for p in self._by_position if p.name in kwargs}
        last = max((i for i, p in enumerate(self._by_position) if p.name in given), default=-1)
        names, values = [], []
        for index, parameter in enumerate(self._by_position):
            if parameter.name in given or parameter.default is parameter.empty:
                values.append(_given(parameter, given))
            elif index < last:
                values.append(parameter.default)
            else:
                break
            names.append(parameter.name)
        for index, value in enumerate(args[len(self._by_position) :]):
            names.append(f"{self._rest.name}[{index}]")
            values.append(value)
        taken = {p.name for p in self._by_position}
        keywords = {name: value for name, value in kwargs.items() if name not in taken}
        for parameter in self._keyword_only:
            if parameter.default is parameter.empty:
                _given(parameter, keywords)
        return Bound(tuple(names), tuple(values), keywords)

    def _check(self, args: Sequence[Any], kwargs: dict[str, Any]) -> None:
        if len(args) > len(self._by_position) and self._rest is None:
            raise AssertionError(
                f"Too many arguments: forward takes {len(self._by_position)} positional "
                f"({', '.join(p.name for p in self._by_position)}), found {len(args)}."
            )
        named = {p.name for p in self._by_position[: len(args)]}
        known = {p.name for p in (*self._by_position, *self._keyword_only)}
        for name in kwargs:
            if name in named:
                raise AssertionError(f"Argument {name!r} was passed more than once.")
            if name not in known and not self._any_keyword:
                raise AssertionError(
                    f"{name!r} is not a valid parameter of forward. Valid are {sorted(known)}."
                )


def _given(parameter: inspect.Parameter, given: dict[str, Any]) -> Any:
    if parameter.name not in given:
        raise error(f"Mandatory parameter {parameter.name} missing in the call of the model.")
    return given[parameter.name]


@dataclass(frozen=True)
class Leaf:
    """A tensor, recorded by what a later one must have in common with it."""

    shape: tuple[int, ...]
    dtype: torch.dtype


@dataclass(frozen=True)
class Constant:
    """Any value that is not a tensor; it is part of the program."""

    value: Any


@dataclass(frozen=True)
class Node:
    """A container: its type, the keys of its parts if it has any, its parts, and an example."""

    kind: type
    keys: tuple[Any, ...] | None
    parts: tuple[Any, ...]
    example: Any = None


def record(value: Any) -> Leaf | Constant | Node:
    """Describes a structure of tensors and constants."""
    if isinstance(value, torch.Tensor):
        return Leaf(tuple(value.shape), value.dtype)
    parser = parser_for(value)
    if parser is not None:
        parts = tuple(record(tensor) for tensor in parser.yieldTensors(value))
        return Node(type(value), None, parts, value)
    if isinstance(value, dict):
        return Node(type(value), tuple(value), tuple(map(record, value.values())), value)
    if isinstance(value, tuple | list):
        return Node(type(value), None, tuple(map(record, value)), value)
    return Constant(value)


def tensors(value: Any, like: Leaf | Constant | Node) -> Iterator[torch.Tensor]:
    """The tensors of a structure, in the order of the recorded one."""
    if isinstance(like, Leaf):
        yield value
    elif isinstance(like, Node):
        parser = parser_for(value)
        if parser is not None:
            yield from parser.yieldTensors(value)
            return
        parts = (value[key] for key in like.keys) if like.keys is not None else iter(value)
        for part, description in zip(parts, like.parts, strict=True):
            yield from tensors(part, description)


def rebuild(like: Leaf | Constant | Node, values: Iterator[Any]) -> Any:
    """The recorded structure with other tensors in it."""
    if isinstance(like, Leaf):
        return next(values)
    if isinstance(like, Constant):
        return like.value
    parser = parser_for(like.example)
    if parser is not None:
        return parser.reconstruct(like.example, values)
    parts = [rebuild(part, values) for part in like.parts]
    if like.keys is not None:
        return _dict_like(like, dict(zip(like.keys, parts, strict=True)))
    if hasattr(like.kind, "_fields"):  # a named tuple takes its parts one by one
        return like.kind(*parts)
    return like.kind(parts)


def _dict_like(like: Node, items: dict) -> Any:
    if like.kind is dict:
        return items
    # Subclasses such as transformers' ModelOutput are made from keywords or items.
    return like.kind(items)


def check_same(recorded: Any, found: Any, name: str) -> None:
    """Compares one argument with the recorded one.

    Raises:
        poptorch.Error: naming the part that differs and how.
    """
    if isinstance(recorded, Leaf):
        _check_tensor(recorded, found, name)
    elif isinstance(recorded, Constant):
        _check_constant(recorded, found, name)
    else:
        _check_container(recorded, found, name)


def _mismatch(what: str, name: str, expected: Any, found: Any) -> Exception:
    return error(f"{what} mismatch for {name}: expected {expected}, found {found}. {_ADVICE}")


def _check_tensor(recorded: Leaf, found: Any, name: str) -> None:
    if not isinstance(found, Leaf):
        raise _mismatch("Type", name, "a torch.Tensor", _kind(found))
    if found.dtype != recorded.dtype:
        raise _mismatch("Data type", name, recorded.dtype, found.dtype)
    if found.shape != recorded.shape:
        raise _mismatch("Shape", name, list(recorded.shape), list(found.shape))


def _check_constant(recorded: Constant, found: Any, name: str) -> None:
    if not isinstance(found, Constant) or type(found.value) is not type(recorded.value):
        raise _mismatch("Type", name, _kind(recorded), _kind(found))
    if found.value is not recorded.value and not bool(found.value == recorded.value):
        raise _mismatch("Value", name, repr(recorded.value), repr(found.value))


def _check_container(recorded: Node, found: Any, name: str) -> None:
    if not isinstance(found, Node) or found.kind is not recorded.kind:
        raise _mismatch("Type", name, _kind(recorded), _kind(found))
    if recorded.keys is not None:
        check_keys(recorded.keys, found.keys, name)
        parts = dict(zip(found.keys, found.parts, strict=True))
        for key, part in zip(recorded.keys, recorded.parts, strict=True):
            check_same(part, parts[key], f"{name}[{key}]")
        return
    if len(recorded.parts) != len(found.parts):
        raise _mismatch("Length", name, len(recorded.parts), len(found.parts))
    for index, (old, new) in enumerate(zip(recorded.parts, found.parts, strict=True)):
        check_same(old, new, f"{name}[{index}]")


def check_keys(expected: Sequence[Any], found: Sequence[Any], name: str) -> None:
    """Compares the keys of two dictionaries, in any order.

    Raises:
        poptorch.Error: naming missing and unexpected keys.
    """
    missing = [key for key in expected if key not in found]
    unexpected = [key for key in found if key not in expected]
    if missing or unexpected:
        parts = [f"Missing arguments: {', '.join(map(str, missing))}."] if missing else []
        if unexpected:
            parts.append(f"Unexpected arguments: {', '.join(map(str, unexpected))}.")
        raise error(f"Keys mismatch for {name}: {' '.join(parts)} {_ADVICE}")


def check_count(expected: int, found: int) -> None:
    """Compares the numbers of positional arguments.

    Raises:
        poptorch.Error: they differ.
    """
    if expected != found:
        raise error(
            f"Number of positional arguments mismatch: expected {expected}, found {found}. "
            f"{_ADVICE}"
        )


def _kind(recorded: Any) -> str:
    if isinstance(recorded, Leaf):
        return "a torch.Tensor"
    kind = type(recorded.value) if isinstance(recorded, Constant) else recorded.kind
    return kind.__name__
