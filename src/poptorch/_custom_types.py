"""Containers of the user's own that hold tensors: how to take them apart and put them together."""

import abc
from collections.abc import Iterator
from typing import Any

from poptorch._error import error


class ICustomArgParser(abc.ABC):
    """Takes one type of argument apart and rebuilds it."""

    @abc.abstractmethod
    def yieldTensors(self, struct: Any) -> Iterator[Any]:
        """The tensors in ``struct``, always in the same order."""

    @abc.abstractmethod
    def reconstruct(self, original_structure: Any, tensor_iterator: Iterator[Any]) -> Any:
        """A structure like ``original_structure`` with tensors from the iterator."""


_parsers: dict[type, ICustomArgParser] = {}


def registerCustomArgParser(arg_type: type, parser: ICustomArgParser | None) -> None:
    """Uses ``parser`` for arguments of ``arg_type``; None takes it back.

    Raises:
        poptorch.Error: the parser does not derive from ``ICustomArgParser``.
    """
    if parser is None:
        _parsers.pop(arg_type, None)
        return
    if not isinstance(parser, ICustomArgParser):
        raise error(f"Custom parser {type(parser).__name__} must inherit from ICustomArgParser.")
    _parsers[arg_type] = parser


def parser_for(value: Any) -> ICustomArgParser | None:
    """The parser of a value: by exact type first, then in the order of registration."""
    if not _parsers:
        return None
    exact = _parsers.get(type(value))
    if exact is not None:
        return exact
    return next((p for kind, p in _parsers.items() if isinstance(value, kind)), None)
