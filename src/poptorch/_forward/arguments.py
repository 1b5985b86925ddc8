"""Arguments of a wrapped model's calls: binding to forward's signature, and comparison.

A program is compiled for the first call's arguments. Later calls must have the same structure: the
same containers, types, shapes and constants; anything else is an error, never a recompilation.
Numbers and texts do not change. Arrays, objects and functions do: the same object may hold other
values at the next call, and the program would go on with the first ones.
"""

import decimal
import inspect
import types
from collections.abc import Callable, Iterator, Sequence, Set
from dataclasses import dataclass
from typing import Any

import numpy
import torch

from abele.capture import reachable
from abele.trace.module_state import plain
from poptorch._error import error
from poptorch._forward import structure
from poptorch._forward.structure import Constant, Custom, Leaf, Structure
from poptorch.options import Options

_BYTES = (bytearray, memoryview)
_ARRAYS = (torch.Tensor, numpy.ndarray)
_NOTHING = object()
_OFF, _ZEROS, _NORMAL, _UNIFORM = range(4)


@dataclass(frozen=True)
class Bound:
    """The arguments of a call to a wrapped model: positional values, then keyword-only values.

    Attributes:
        names: names of the positional values.
        positional: passed by position or by name, or defaults.
        keywords: values of keyword-only parameters, by name.
        defaulted: how many of the last positional values are defaults.
    """

    names: tuple[str, ...]
    positional: tuple[Any, ...]
    keywords: dict[str, Any]
    defaulted: int = 0


class Binder:
    """Binds the arguments of calls to the signature of a model's ``forward``."""

    def __init__(self, forward: Callable):
        parameters = list(inspect.signature(forward).parameters.values())
        self._by_position = [
            p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)
        ]
        self._rest = next((p.name for p in parameters if p.kind is p.VAR_POSITIONAL), None)
        self._any_keyword = any(p.kind is p.VAR_KEYWORD for p in parameters)
        self._keyword_only = [p for p in parameters if p.kind is p.KEYWORD_ONLY]

    def bind(self, args: Sequence[Any], kwargs: dict[str, Any]) -> Bound:
        """Bind one call's arguments to forward's parameters, in the order of its signature.

        Keywords that have a position are moved there; defaults fill what is not given.

        Raises:
            AssertionError: too many arguments, an unknown keyword, or one given twice.
            poptorch.Error: a mandatory parameter is missing.
        """
        self._check(args, kwargs)
        by_name = dict(zip((p.name for p in self._by_position), args, strict=False))
        by_name |= {p.name: kwargs[p.name] for p in self._by_position if p.name in kwargs}
        rest = tuple(args[len(self._by_position) :])
        names = [p.name for p in self._by_position]
        names += [f"{self._rest}[{index}]" for index in range(len(rest))]
        values = tuple(_value(parameter, by_name) for parameter in self._by_position)
        keywords = {name: value for name, value in kwargs.items() if name not in by_name}
        keywords |= {p.name: _value(p, keywords) for p in self._keyword_only}
        return Bound(tuple(names), values + rest, keywords, len(names) - len(by_name) - len(rest))

    def _check(self, args: Sequence[Any], kwargs: dict[str, Any]) -> None:
        if len(args) > len(self._by_position) and self._rest is None:
            raise AssertionError(
                f"Too many arguments: forward takes {len(self._by_position)} positional "
                f"({', '.join(p.name for p in self._by_position)}), found {len(args)}."
            )
        named = {p.name for p in self._by_position[: len(args)]}
        valid = {p.name for p in (*self._by_position, *self._keyword_only)}
        for name in kwargs:
            if name in named:
                raise AssertionError(f"Argument {name!r} was passed more than once.")
            if name not in valid and not self._any_keyword:
                raise AssertionError(
                    f"{name!r} is not a valid parameter of forward. Valid are {sorted(valid)}."
                )


def _value(parameter: inspect.Parameter, by_name: dict[str, Any]) -> Any:
    if parameter.name in by_name:
        return by_name[parameter.name]
    if parameter.default is parameter.empty:
        raise error(f"Mandatory parameter {parameter.name} missing in the call of the model.")
    return parameter.default


class Recorded:
    """The recorded arguments of a wrapped model's first call, with which later calls are compared.

    Args:
        state: ids of the model's tensors, which are not compared as constants.

    Attributes:
        names, positional, keywords, defaulted: as in ``Bound``, with structures for values.
        plain: the positional tensors if a call has no other arguments that can change, else None.
    """

    def __init__(self, bound: Bound, state: Set[int] = frozenset()):
        self.names = bound.names
        self.positional = tuple(map(structure.record, bound.positional))
        self.keywords = {k: structure.record(v) for k, v in bound.keywords.items()}
        self.defaulted = bound.defaulted
        self._state = state
        exempt = self._exempt(bound)
        self._contents = [
            Contents(value, name, exempt, public_only=isinstance(part, Custom))
            for name, value, part in self._constants(bound)
        ]
        explicit = len(self.positional) - bound.defaulted
        leaves = tuple(part for part in self.positional[:explicit] if isinstance(part, Leaf))
        fixed = all(
            isinstance(part, Constant) and structure.cannot_change(part.value)
            for part in self.positional[explicit:]
        )
        self.plain = leaves if len(leaves) == explicit and fixed and not self.keywords else None

    def check(self, bound: Bound) -> None:
        """Compare a call's arguments with the first call's; poptorch.Error if they differ."""
        expected, found = len(self.positional), len(bound.positional)
        if expected != found:
            raise error(
                f"Number of positional arguments mismatch: expected {expected}, found {found}. "
                f"{structure.ADVICE}"
            )
        structure.check_keys(tuple(self.keywords), tuple(bound.keywords), "keyword arguments")
        for name, value, spec in self._parts(bound):
            structure.check_same(spec, structure.record(value), name)
        if self._contents:
            exempt = self._exempt(bound)
            for contents, (_, value, _) in zip(self._contents, self._constants(bound), strict=True):
                contents.check(value, exempt)

    def _parts(self, bound: Bound) -> Iterator[tuple[str, Any, Structure]]:
        """Yield the name, value and structure of each argument of a call, in program order."""
        yield from zip(self.names, bound.positional, self.positional, strict=True)
        yield from ((name, bound.keywords[name], spec) for name, spec in self.keywords.items())

    def _constants(self, bound: Bound) -> Iterator[tuple[str, Any, Structure]]:
        """Yield constant arguments whose values could change, such as arrays and objects."""
        for name, value, spec in self._parts(bound):
            yield from structure.constants(value, spec, name)

    def _exempt(self, bound: Bound) -> Set[int]:
        """Return the ids of tensors not compared as constants: inputs and the model's state."""
        return self._state | {id(tensor) for tensor in self.tensors(bound)}

    def tensors(self, bound: Bound) -> Iterator[torch.Tensor]:
        """Yield the tensors of a call's arguments, in the order of the program's inputs."""
        for _, value, spec in self._parts(bound):
            yield from structure.tensors(value, spec)

    def rebuild(self, flat: Sequence[torch.Tensor]) -> tuple[list[Any], dict[str, Any]]:
        """Return positional and keyword arguments of the recorded structure with new tensors."""
        values = iter(flat)
        positional = [structure.rebuild(spec, values) for spec in self.positional]
        return positional, {k: structure.rebuild(s, values) for k, s in self.keywords.items()}


class Contents:
    """The recorded contents of a constant argument, copied at the first call for comparison.

    Args:
        value: the argument; arrays and tensors in it are copied.
        name: name of the argument.
        exempt: ids of tensors that are no constants: inputs, and the state of the model.
        public_only: ignore attributes whose names begin with an underscore.

    Raises:
        poptorch.Error: it is an iterator, which gives its values once, or a set of tensors.
    """

    def __init__(self, value: Any, name: str, exempt: Set[int], *, public_only: bool = False):
        if isinstance(value, Iterator):
            raise error(
                f"Argument {name} of type {type(value).__name__} gives its values once, and a "
                "program runs many times. Pass a tensor, or a list of them."
            )
        self._name, self._public_only = name, public_only
        self._contents: dict[str, Any] = {}
        for path, part in self._walk(value, exempt):
            if isinstance(part, set | frozenset) and any(isinstance(x, _ARRAYS) for x in part):
                raise error(f"{path} is a set of tensors, which has no order. Pass a list of them.")
            self._contents[path] = _copied(part)

    def check(self, value: Any, exempt: Set[int]) -> None:
        """Compare a later call's constant argument; raise poptorch.Error naming what differs."""
        left = dict(self._contents)
        for path, part in self._walk(value, exempt):
            before = left.pop(path, _NOTHING)
            if not _same(before, part):
                raise _changed(path, before, part)
        for path, before in left.items():
            raise _changed(path, before, _NOTHING)

    def _walk(self, value: Any, exempt: Set[int]) -> Iterator[tuple[str, Any]]:
        def is_entered(part: Any) -> bool:
            return id(part) not in exempt and not isinstance(part, set | frozenset)

        for path, part in reachable.walk(value, self._name, is_entered):
            hidden = self._public_only and "._" in path[len(self._name) :]
            if id(part) not in exempt and not hidden:
                yield path, part


def _copied(value: Any) -> Any:
    """Return a copy of a constant's own value, to compare later calls with."""
    if isinstance(value, torch.Tensor):
        return plain(value).clone()
    if isinstance(value, numpy.ndarray):
        return type(value) if value.dtype.hasobject else value.copy()
    if isinstance(value, _BYTES):
        return type(value), bytes(value)
    return set(value) if isinstance(value, set) else value


def _same(before: Any, now: Any) -> bool:
    if isinstance(before, torch.Tensor):
        alike = isinstance(now, torch.Tensor) and now.layout is before.layout is torch.strided
        return alike and now.device == before.device and structure.same_bytes(before, plain(now))
    if isinstance(now, numpy.ndarray) and now.dtype.hasobject:
        return before is type(now)
    if isinstance(before, numpy.ndarray):
        same_kind = isinstance(now, numpy.ndarray) and now.dtype == before.dtype
        return same_kind and now.shape == before.shape and now.tobytes() == before.tobytes()
    if isinstance(now, _BYTES):
        return before == (type(now), bytes(now))
    if type(before) is not type(now):
        return False
    if isinstance(now, numpy.generic):
        return before.dtype == now.dtype and before.tobytes() == now.tobytes()
    if isinstance(now, decimal.Decimal):
        return before.as_tuple() == now.as_tuple()  # with the sign of zero
    if isinstance(now, types.FunctionType):  # what it encloses are parts
        return before.__code__ == now.__code__ and before.__globals__ is now.__globals__
    if isinstance(now, (*structure.PLAIN, set, frozenset)):
        return structure.same_bits(before, now)
    return before is now or _equal(before, now)


def _equal(left: Any, right: Any) -> bool:
    """Return whether two objects of one class are equal, except parts compared separately."""
    has_parts = next(reachable.parts(right), None) is not None
    if has_parts and type(right).__eq__ in (object.__eq__, list.__eq__, tuple.__eq__, dict.__eq__):
        return True
    try:
        return bool(left == right)
    except Exception:  # noqa: BLE001 - a comparison of arrays as if they were numbers
        return has_parts


def _changed(path: str, before: Any, now: Any) -> Exception:
    advice = "Pass what changes as a tensor."
    if isinstance(before, _ARRAYS) or isinstance(now, _ARRAYS):
        advice = (
            "Pass what changes as tensors, alone or in tuples, lists and dictionaries, or in a "
            "type with a parser: poptorch.registerCustomArgParser(...)."
        )
    return error(
        f"Value mismatch for {path}: expected {_described(before)}, found {_described(now)}. What "
        "is no tensor argument is a constant of the program, which was compiled for the first "
        f"call's. {advice} Or create a new wrapper, or call destroy() on this one, to compile for "
        "other constants."
    )


def _described(value: Any) -> str:
    if value is _NOTHING:
        return "nothing"
    if isinstance(value, torch.Tensor):
        return f"a tensor {list(value.shape)} {value.dtype} ({_beginning(value.flatten())})"
    if isinstance(value, numpy.ndarray):
        return f"an array {list(value.shape)} {value.dtype} ({_beginning(value.ravel())})"
    text = repr(value)
    return text if len(text) <= 200 else f"{text[:200]}..."


def _beginning(flat: Any) -> str:
    more = ", ..." if len(flat) > 4 else ""
    return ", ".join(str(number) for number in flat[:4].tolist()) + more


def synthetic_inputs(
    options: Options, like: Sequence[torch.Tensor], device: torch.device
) -> list[torch.Tensor] | None:
    """Return synthetic input tensors as the options request, or None without such a request.

    Args:
        options: ``syntheticDataMode`` 0 off, 1 zeros, 2 random normal, 3 random uniform in 0..1.
        like: input tensors of a call, for shapes and dtypes. Integers become zeros,
            which are valid as classes and indices.
        device: device of the new tensors.

    Raises:
        poptorch.Error: the mode does not exist.
    """
    mode = int(options._Popart.options.get("syntheticDataMode", _OFF))
    if mode == _OFF:
        return None
    if mode not in (_ZEROS, _NORMAL, _UNIFORM):
        raise error(
            f"syntheticDataMode is {mode}; it must be 0 (off), 1 (zeros), 2 (random normal) or "
            "3 (random uniform)."
        )
    # A generator of its own: what the model draws must not depend on this option.
    generator = torch.Generator(device).manual_seed(0)
    tensors = []
    for tensor in like:
        fresh = torch.zeros(tensor.shape, dtype=tensor.dtype, device=device)
        if mode != _ZEROS and tensor.dtype.is_floating_point:
            fill = fresh.normal_ if mode == _NORMAL else fresh.uniform_
            fill(generator=generator)
        tensors.append(fresh)
    return tensors
