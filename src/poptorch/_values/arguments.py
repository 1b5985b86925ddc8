"""Arguments of a call, bound to the signature of a model's forward.

The first call decides what a program is made for. Later calls must bring the same structure: the
same containers, types, shapes and constants; anything else is an error, never a recompilation.
"""

import inspect
from collections.abc import Callable, Iterator, Sequence, Set
from dataclasses import dataclass
from typing import Any

import torch

from poptorch._error import error
from poptorch._values import structure
from poptorch._values.constant_arguments import Contents, cannot_change
from poptorch._values.structure import Constant, Custom, Leaf, Structure


@dataclass(frozen=True)
class Bound:
    """Arguments of a call: positional values, then keyword-only ones.

    Attributes:
        names: of the values by position.
        positional: as given by position or by name, or defaults.
        keywords: values whose names are not those of positions.
        defaulted: how many of the last positional values are defaults.
    """

    names: tuple[str, ...]
    positional: tuple[Any, ...]
    keywords: dict[str, Any]
    defaulted: int = 0


class Binder:
    """Binds calls to the signature of a model's ``forward``."""

    def __init__(self, forward: Callable):
        parameters = list(inspect.signature(forward).parameters.values())
        self._by_position = [
            p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)
        ]
        self._rest = next((p.name for p in parameters if p.kind is p.VAR_POSITIONAL), None)
        self._any_keyword = any(p.kind is p.VAR_KEYWORD for p in parameters)
        self._keyword_only = [p for p in parameters if p.kind is p.KEYWORD_ONLY]

    def bind(self, args: Sequence[Any], kwargs: dict[str, Any]) -> Bound:
        """Order the arguments of one call.

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
    """The arguments of the first call, with which all later ones are compared.

    Args:
        bound: the arguments.
        state: ids of the model's tensors, which are no constants wherever they turn up.

    Attributes:
        names, positional, keywords, defaulted: as in ``Bound``, with structures for values.
    """

    def __init__(self, bound: Bound, state: Set[int] = frozenset()):
        self.names = bound.names
        self.positional = tuple(map(structure.record, bound.positional))
        self.keywords = {k: structure.record(v) for k, v in bound.keywords.items()}
        self.defaulted = bound.defaulted
        explicit = self.positional[: len(self.positional) - bound.defaulted]
        leaves = tuple(part for part in explicit if isinstance(part, Leaf))
        #: What a call looks like that brings tensors by position and nothing else.
        constant_defaults = all(
            isinstance(part, Constant) and cannot_change(part.value)
            for part in self.positional[len(explicit) :]
        )
        self._state = state
        exempt = self._exempt(bound)
        self._contents = [
            Contents(value, name, exempt, public_only=isinstance(part, Custom))
            for name, value, part in self._constants(bound)
        ]
        plain = len(leaves) == len(explicit) and constant_defaults and not self.keywords
        self.plain = leaves if plain else None

    def check(self, bound: Bound) -> None:
        """Compare the arguments of a call.

        Raises:
            poptorch.Error: naming the first one that differs and how.
        """
        structure.check_count(len(self.positional), len(bound.positional))
        for name, spec, value in zip(self.names, self.positional, bound.positional, strict=True):
            structure.check_same(spec, structure.record(value), name)
        structure.check_keys(tuple(self.keywords), tuple(bound.keywords), "keyword arguments")
        for name, spec in self.keywords.items():
            structure.check_same(spec, structure.record(bound.keywords[name]), name)
        if self._contents:
            exempt = self._exempt(bound)
            for contents, (_, value, _) in zip(self._contents, self._constants(bound), strict=True):
                contents.check(value, exempt)

    def _constants(self, bound: Bound) -> Iterator[tuple[str, Any, Structure]]:
        """Yield the arguments' parts that may change although they are part of the program."""
        positional = zip(self.names, bound.positional, self.positional, strict=True)
        named = ((name, bound.keywords[name], spec) for name, spec in self.keywords.items())
        for name, value, spec in (*positional, *named):
            yield from structure.constants(value, spec, name)

    def _exempt(self, bound: Bound) -> Set[int]:
        """Return what need not be constant: the tensors of a call, and the model's own."""
        return self._state | {id(tensor) for tensor in self.tensors(bound)}

    def tensors(self, bound: Bound) -> Iterator[torch.Tensor]:
        """Yield the tensors of a call, in the order in which programs take them."""
        for spec, value in zip(self.positional, bound.positional, strict=True):
            yield from structure.tensors(value, spec)
        for name, spec in self.keywords.items():
            yield from structure.tensors(bound.keywords[name], spec)

    def rebuild(self, flat: Sequence[torch.Tensor]) -> tuple[list[Any], dict[str, Any]]:
        """Return arguments and keyword arguments with other tensors in them."""
        values = iter(flat)
        positional = [structure.rebuild(spec, values) for spec in self.positional]
        return positional, {k: structure.rebuild(s, values) for k, s in self.keywords.items()}
