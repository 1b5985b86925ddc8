"""The structure of arguments and results: nested containers of tensors and constants.

A structure is recorded once. Later values are compared with it, flattened in its order, or rebuilt
around other tensors.
"""

import abc
import collections
import copy
import dataclasses
import enum
import pickle
import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, ClassVar

import torch

from abele import _torch
from abele.capture import reachable
from abele.program import aliasing
from abele.storage.values import bits
from poptorch._error import error

#: The last sentence of each message about arguments unlike the first call's.
ADVICE = (
    "A wrapped model is compiled once, for the arguments of its first call. "
    "Create a new wrapper, or call destroy() on this one, to compile for other arguments."
)
#: Types of constants without parts that compare by their bits.
PLAIN = (type(None), bool, int, float, complex, str, bytes)
_FIXED = (*PLAIN, torch.dtype, torch.device, torch.Size, range, enum.Enum)
# Devices have neither of the longer types.
_RESULT_TYPES = {torch.float64: torch.float32, torch.int64: torch.int32}


# -- users' containers -----------------------------------------------------------------------


class ICustomArgParser(abc.ABC):
    """Flattens one type of argument into tensors, and rebuilds it from tensors."""

    @abc.abstractmethod
    def yieldTensors(self, struct: Any) -> Iterator[Any]:
        """Yield the tensors in a value of the registered type, always in the same order."""

    @abc.abstractmethod
    def reconstruct(self, original_structure: Any, tensor_iterator: Iterator[Any]) -> Any:
        """Build a copy of a value of the registered type with other tensors.

        Args:
            original_structure: Value to copy all but the tensors from; not to be changed.
            tensor_iterator: As many tensors as `yieldTensors` gives, in its order.
        """


# Parsers of types; the order of registration matters to lookups.
_parsers: dict[type, ICustomArgParser] = {}


def registerCustomArgParser(arg_data_type: type, arg_parser: ICustomArgParser | None) -> None:
    """Register the parser of a type that contains tensors, for wrapped models and data loaders.

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
    """Return the argument parser registered for a value's type or a base class, or None."""
    if not _parsers:
        return None
    exact = _parsers.get(type(value))
    if exact is not None:
        return exact
    return next((p for kind, p in _parsers.items() if isinstance(value, kind)), None)


def _parser_of(value: Any) -> ICustomArgParser:
    parser = parser_for(value)
    assert parser is not None, "a parser was unregistered after the first call"
    return parser


def registered() -> dict[type, ICustomArgParser]:
    """Return all registered argument parsers by type, to send to a worker process."""
    return dict(_parsers)


def sendable(parsers: dict[type, ICustomArgParser]) -> dict[type, ICustomArgParser]:
    """Return the argument parsers that can be pickled, for a process that is not forked.

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


# -- structures ------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Leaf:
    """The record of a tensor in a structure: the shape and dtype that later tensors must have."""

    shape: torch.Size
    dtype: torch.dtype
    kind: ClassVar[type] = torch.Tensor
    keys = parts = ()


@dataclasses.dataclass(frozen=True)
class Constant:
    """The record of a non-tensor value in a structure, compiled into the program."""

    value: Any
    keys = parts = ()

    @property
    def kind(self) -> type:
        """The Python type of a constant in a structure."""
        return type(self.value)


@dataclasses.dataclass(frozen=True)
class Items:
    """The record of a list, tuple or named tuple in a structure."""

    kind: type
    parts: tuple["Structure", ...]

    @property
    def keys(self) -> Sequence[Any]:
        """The indices of the items of a list or tuple in a structure."""
        return range(len(self.parts))


@dataclasses.dataclass(frozen=True)
class Table:
    """The record of a dictionary of any class in a structure, with the first call's key order."""

    kind: type
    keys: tuple[Any, ...]
    parts: tuple["Structure", ...]
    empty: Any


@dataclasses.dataclass(frozen=True)
class Custom(Items):
    """The record of a value whose type has a registered parser, with an example to rebuild from."""

    example: Any


Structure = Leaf | Constant | Items | Table


def record(value: Any) -> Structure:
    """Return the structure of a value: its containers, tensors and constants."""
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
    """Raise poptorch.Error for a sparse, nested or quantized tensor: programs accept none."""
    kind = aliasing.other_kind(tensor)
    if kind is not None:
        raise error(
            f"Arguments and results are dense tensors, found one that is {kind}. {aliasing.INSTEAD}"
        )


def _all(values: Iterable[Any]) -> tuple[Structure, ...]:
    return tuple(map(record, values))


def _emptied(value: dict) -> Any:
    # A defaultdict keeps its factory; other dictionaries are made from their items.
    if not isinstance(value, collections.defaultdict):
        return None
    empty = copy.copy(value)
    empty.clear()
    return empty


def nodes(structure: Structure) -> Iterator[Structure]:
    """Yield all nodes of a structure, depth first, starting with its root."""
    yield structure
    for part in structure.parts:
        yield from nodes(part)


def leaves(structure: Structure) -> Iterator[Leaf]:
    """Yield the tensor records of a structure, in order."""
    return (node for node in nodes(structure) if isinstance(node, Leaf))


def tensors(value: Any, like: Structure) -> Iterator[torch.Tensor]:
    """Yield the tensors of a value, in the order of its recorded structure."""
    if isinstance(like, Leaf):
        yield value
    elif isinstance(like, Custom):
        yield from _parser_of(value).yieldTensors(value)
    else:
        for key, part in zip(like.keys, like.parts, strict=True):
            yield from tensors(value[key], part)


def constants(
    value: Any, like: Structure, name: str
) -> Iterator[tuple[str, Any, Constant | Custom]]:
    """Yield the constants of an argument that can change between calls, with their names.

    Objects with a parser are among them: everything in them that is not a tensor is constant.
    """
    if isinstance(like, Custom) or (isinstance(like, Constant) and not cannot_change(like.value)):
        yield name, value, like
    else:
        for key, part in zip(like.keys, like.parts, strict=True):
            yield from constants(value[key], part, f"{name}[{key}]")


def rebuild(like: Structure, values: Iterator[Any]) -> Any:
    """Build a value of a recorded structure around new tensors."""
    if isinstance(like, Leaf):
        return next(values)
    if isinstance(like, Constant):
        return like.value
    if isinstance(like, Custom):
        return _parser_of(like.example).reconstruct(like.example, values)
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


# -- comparison of arguments -----------------------------------------------------------------


def cannot_change(value: Any) -> bool:
    """Return whether a constant is immutable, such as a number or a string."""
    return isinstance(value, _FIXED)


def same_bits(before: Any, now: Any) -> bool:
    """Return whether two constants without parts are equal in every bit.

    Bits count, because operators tell 0.0 from -0.0 and 1 from True. NaN equals itself.
    """
    return before is now or bits(before) == bits(now)


def same_bytes(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Return whether two strided tensors are equal in dtype, shape and bytes, NaN included."""
    if (one.dtype, one.shape) != (other.dtype, other.shape):
        return False
    flat = (x.contiguous().reshape(-1).view(torch.uint8) for x in (one, other.to(one.device)))
    return torch.equal(*flat)


def check_same(recorded: Structure, actual: Structure, name: str) -> None:
    """Compare an argument's structure with the recorded one; poptorch.Error if they differ."""
    if type(recorded) is not type(actual) or recorded.kind is not actual.kind:
        raise _mismatch("Type", name, _kind(recorded), _kind(actual))
    if isinstance(recorded, Leaf) and isinstance(actual, Leaf):
        if actual.dtype != recorded.dtype:
            raise _mismatch("Data type", name, recorded.dtype, actual.dtype)
        if actual.shape != recorded.shape:
            raise _mismatch("Shape", name, list(recorded.shape), list(actual.shape))
    elif isinstance(recorded, Constant) and isinstance(actual, Constant):
        if cannot_change(actual.value) and not same_bits(recorded.value, actual.value):
            raise _mismatch("Value", name, *_texts(recorded.value, actual.value))
    else:
        if isinstance(recorded, Table):
            check_keys(recorded.keys, actual.keys, name)
        elif len(recorded.parts) != len(actual.parts):
            raise _mismatch("Length", name, len(recorded.parts), len(actual.parts))
        parts = dict(zip(map(bits, actual.keys), actual.parts, strict=True))
        for key, part in zip(recorded.keys, recorded.parts, strict=True):
            check_same(part, parts[bits(key)], f"{name}[{key}]")


def check_keys(expected: Sequence[Any], actual: Sequence[Any], name: str) -> None:
    """Compare dictionary keys in any order; raise poptorch.Error for missing or unexpected keys."""
    # Forward may compute with keys, and 1, 1.0 and True are equal.
    before, now = {bits(key) for key in expected}, {bits(key) for key in actual}
    missing = [str(key) for key in expected if bits(key) not in now]
    unexpected = [str(key) for key in actual if bits(key) not in before]
    if missing or unexpected:
        parts = [f"Missing arguments: {', '.join(missing)}."] if missing else []
        if unexpected:
            parts.append(f"Unexpected arguments: {', '.join(unexpected)}.")
        raise error(f"Keys mismatch for {name}: {' '.join(parts)} {ADVICE}")


def _mismatch(attribute: str, name: str, expected: Any, actual: Any) -> Exception:
    return error(f"{attribute} mismatch for {name}: expected {expected}, found {actual}. {ADVICE}")


def _kind(recorded: Structure) -> str:
    return "a torch.Tensor" if isinstance(recorded, Leaf) else recorded.kind.__name__


def _texts(before: Any, now: Any) -> tuple[str, str]:
    """Format two constants for an error message; NaN of equal text are shown with their bits."""
    texts = repr(before), repr(now)
    if texts[0] != texts[1] or not isinstance(before, float):
        return texts
    first, second = (struct.pack(">d", value).hex() for value in (before, now))
    return f"{texts[0]} (bits {first})", f"{texts[1]} (bits {second})"


# -- results ---------------------------------------------------------------------------------


def taken_apart(result: Any) -> tuple[Structure, list[torch.Tensor]]:
    """Split a result of forward into its structure and its tensors.

    Raises:
        poptorch.Error: it hides tensors where nothing can be put back, naming the type that needs a
            parser.
    """
    structure = record(result)
    for node in nodes(structure):
        if isinstance(node, Constant):
            _refuse_hidden_tensors(node.value)
    return structure, list(tensors(result, structure))


def _refuse_hidden_tensors(value: Any) -> None:
    kind = type(value).__name__
    if isinstance(value, Iterator):
        raise error(
            f"forward returned a {kind}, which gives its values once and only after forward has "
            "ended. Return a list or a tuple of them."
        )
    direct = getattr(value, "__dict__", {}).values()
    parts = reachable.walk(value, "", lambda part: not isinstance(part, torch.nn.Module))
    if any(isinstance(part, torch.Tensor) for part in direct) or any(
        isinstance(part, _torch.FakeTensor) for _, part in parts
    ):
        raise error(
            f"forward returned a {kind}, whose tensors cannot be replaced by results. Return "
            "tuples, lists or dictionaries, or register a parser: "
            f"poptorch.registerCustomArgParser({kind}, ...)."
        )


Deliver = Callable[[list[torch.Tensor]], Any]


def delivery(like: Structure) -> Deliver:
    """Return a function that packs a program's output tensors into a recorded result structure.

    A tensor, and a tuple or list of tensors, need no walk through the structure.
    """
    if isinstance(like, Leaf):
        return lambda outputs: to_host(outputs[0])
    plain = type(like) is Items and like.kind in (tuple, list)
    if plain and all(isinstance(part, Leaf) for part in like.parts):
        return lambda outputs: like.kind(map(to_host, outputs))
    return lambda outputs: rebuild(like, map(to_host, outputs))


def to_host(tensor: torch.Tensor) -> torch.Tensor:
    """Return an output tensor as a host tensor, in a dtype that devices support."""
    dtype = tensor.dtype
    if dtype in _RESULT_TYPES or not tensor.is_cpu:
        tensor = tensor.to("cpu", _RESULT_TYPES.get(dtype, dtype))
    tensor.backward = _refuse_backward
    tensor.__getstate__ = dict  # so that the line above is not saved with the tensor
    return tensor


def _refuse_backward(*args: Any, **kwargs: Any) -> None:
    del args, kwargs
    raise error(
        "backward() was called on a result of a wrapped model. Results carry no gradient history: "
        "a model wrapped by poptorch.trainingModel runs backward and the optimizer inside the "
        "call. Remove backward() and optimizer.step()."
    )
