"""The registry of users' containers of tensors: how to flatten and rebuild them.

The registry serves arguments and results of wrapped models, loader items and worker processes.
"""

import abc
import pickle
from collections.abc import Iterator
from typing import Any

from poptorch._error import error


class ICustomArgParser(abc.ABC):
    """Takes one type of argument apart and rebuilds it."""

    @abc.abstractmethod
    def yieldTensors(self, struct: Any) -> Iterator[Any]:
        """Yield the tensors of a structure, always in the same order.

        Args:
            struct: A value of the registered type.
        """

    @abc.abstractmethod
    def reconstruct(self, original_structure: Any, tensor_iterator: Iterator[Any]) -> Any:
        """Return a structure like the original one, made of other tensors.

        Args:
            original_structure: What everything but the tensors is taken from; not to be changed.
            tensor_iterator: As many tensors as `yieldTensors` gives, in its order.
        """


# Parsers of types; the order of registration matters to lookups.
_parsers: dict[type, ICustomArgParser] = {}


def registerCustomArgParser(arg_data_type: type, arg_parser: ICustomArgParser | None) -> None:
    """Let wrapped models and loaders accept a type that contains tensors.

    Args:
        arg_data_type: The type; its subclasses are accepted too.
        arg_parser: Its parser, which replaces an earlier one; None removes that one.

    Raises:
        poptorch.Error: The type is no type, or the parser does not derive from
            `ICustomArgParser`.
    """
    if not isinstance(arg_data_type, type):
        raise error(
            f"registerCustomArgParser takes a type, not {arg_data_type!r}: "
            "registerCustomArgParser(MyBatch, MyBatchParser())"
        )
    if arg_parser is None:
        _parsers.pop(arg_data_type, None)
        return
    if not isinstance(arg_parser, ICustomArgParser):
        raise error(
            f"The parser of {arg_data_type.__name__} must inherit from ICustomArgParser; "
            f"{arg_parser!r} was given"
        )
    _parsers[arg_data_type] = arg_parser


def parser_for(value: Any) -> ICustomArgParser | None:
    """Return the parser of a value: by exact type, then in the order of registration."""
    if not _parsers:
        return None
    exact = _parsers.get(type(value))
    if exact is not None:
        return exact
    return next((p for kind, p in _parsers.items() if isinstance(value, kind)), None)


def registered() -> dict[type, ICustomArgParser]:
    """Return all parsers, for a worker process that starts with none."""
    return dict(_parsers)


def sendable(parsers: dict[type, ICustomArgParser]) -> dict[type, ICustomArgParser]:
    """Return the parsers that pickle, for a process that is not forked.

    A type that another process cannot import, such as one defined in a function, does not come
    from there, so its parser is not missed.
    """
    return {kind: parser for kind, parser in parsers.items() if _pickles((kind, parser))}


def _pickles(value: Any) -> bool:
    try:
        pickle.dumps(value)
    except Exception:  # noqa: BLE001 - whatever an object's own pickling raises
        return False
    return True
