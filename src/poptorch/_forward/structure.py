"""The shape of arguments and results: nested containers of tensors and constants.

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

#: The last sentence of each message about arguments that differ.
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


def _parser_of(value: Any) -> ICustomArgParser:
    parser = parser_for(value)
    assert parser is not None, "a parser was unregistered after the first call"
    return parser


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


# -- structures ------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Leaf:
    """A tensor, recorded by the attributes that a later one must share."""

    shape: torch.Size
    dtype: torch.dtype
    kind: ClassVar[type] = torch.Tensor
    keys = parts = ()


@dataclasses.dataclass(frozen=True)
class Constant:
    """Any value that is not a tensor; it is part of the program."""

    value: Any
    keys = parts = ()

    @property
    def kind(self) -> type:
        """The type of a value in a structure."""
        return type(self.value)


@dataclasses.dataclass(frozen=True)
class Items:
    """A list, a tuple or a named tuple."""

    kind: type
    parts: tuple["Structure", ...]

    @property
    def keys(self) -> Sequence[Any]:
        """Indices or keys of the parts of a container."""
        return range(len(self.parts))


@dataclasses.dataclass(frozen=True)
class Table:
    """A dictionary of any class; the order of its keys is that of the first one seen."""

    kind: type
    keys: tuple[Any, ...]
    parts: tuple["Structure", ...]
    empty: Any


@dataclasses.dataclass(frozen=True)
class Custom(Items):
    """A value of a type with a registered parser, and an example that others are made from."""

    example: Any


Structure = Leaf | Constant | Items | Table


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
    """Raise poptorch.Error for a sparse, nested or quantized tensor, which no program takes."""
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
    """Yield a structure and all its parts, depth first."""
    yield structure
    for part in structure.parts:
        yield from nodes(part)


def leaves(structure: Structure) -> Iterator[Leaf]:
    """Yield the records of a structure's tensors, in order."""
    return (node for node in nodes(structure) if isinstance(node, Leaf))


def tensors(value: Any, like: Structure) -> Iterator[torch.Tensor]:
    """Yield the tensors of a structure, in the order of the recorded one."""
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
    """Yield the parts of an argument that are part of the program and can change, with their names.

    Objects with a parser are among them: all in them that is not a tensor is.
    """
    if isinstance(like, Custom) or (isinstance(like, Constant) and not cannot_change(like.value)):
        yield name, value, like
    else:
        for key, part in zip(like.keys, like.parts, strict=True):
            yield from constants(value[key], part, f"{name}[{key}]")


def rebuild(like: Structure, values: Iterator[Any]) -> Any:
    """Return the recorded structure with other tensors in it."""
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
    """Return whether a constant is a number, a text or the like, which no call can find changed."""
    return isinstance(value, _FIXED)


def same_bits(before: Any, now: Any) -> bool:
    """Return whether two constants without parts give the same program.

    Bits count, because operators tell 0.0 from -0.0 and 1 from True. NaN equals itself.
    """
    return before is now or bits(before) == bits(now)


def same_bytes(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Return whether two strided tensors have one dtype, shape and value, NaN included."""
    if (one.dtype, one.shape) != (other.dtype, other.shape):
        return False
    flat = (x.contiguous().reshape(-1).view(torch.uint8) for x in (one, other.to(one.device)))
    return torch.equal(*flat)


def check_same(recorded: Structure, actual: Structure, name: str) -> None:
    """Compare an argument with the recorded one; raise poptorch.Error for what differs."""
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
    """Compare keys in any order; raise poptorch.Error naming missing and unexpected ones."""
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
    """Return two constants as text; NaN that are written alike with their bits."""
    texts = repr(before), repr(now)
    if texts[0] != texts[1] or not isinstance(before, float):
        return texts
    first, second = (struct.pack(">d", value).hex() for value in (before, now))
    return f"{texts[0]} (bits {first})", f"{texts[1]} (bits {second})"


# -- results ---------------------------------------------------------------------------------


def taken_apart(result: Any) -> tuple[Structure, list[torch.Tensor]]:
    """Return the structure of what forward returned, and its tensors.

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
    """Return a function that puts computed tensors into a recorded structure, on the host.

    A tensor, and a tuple or list of tensors, need no walk through the structure.

    Args:
        like: of the results; every tensor in it is computed.
    """
    if isinstance(like, Leaf):
        return lambda outputs: to_host(outputs[0])
    plain = type(like) is Items and like.kind in (tuple, list)
    if plain and all(isinstance(part, Leaf) for part in like.parts):
        return lambda outputs: like.kind(map(to_host, outputs))
    return lambda outputs: rebuild(like, map(to_host, outputs))


def to_host(tensor: torch.Tensor) -> torch.Tensor:
    """Return a device's result as a tensor of the host, of the types that devices have."""
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
