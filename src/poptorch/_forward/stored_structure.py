"""Conversion of arguments, results and signatures to JSON, for exported files.

Tensors are recorded by shape and type, everything else by value. Classes are never imported: a
container class is used if the program that loads the file has imported its module itself.
"""

import collections
import contextlib
import inspect
import sys
from typing import Any

import torch

from abele.errors import SerializationError
from abele.storage.values import decode, encode
from poptorch._error import error
from poptorch._forward.arguments import Bound, Recorded
from poptorch._forward.structure import (
    Constant,
    Custom,
    Items,
    Leaf,
    Structure,
    Table,
    leaves,
    rebuild,
)

_SEQUENCES: dict[str, type] = {"list": list, "tuple": tuple, "Size": torch.Size}
_TABLES: dict[str, type] = {
    "dict": dict,
    "OrderedDict": collections.OrderedDict,
    "defaultdict": collections.defaultdict,
}
_KINDS = {kind.name: kind for kind in type(inspect.Parameter.VAR_KEYWORD)}
_FACTORIES: dict[str, type] = {kind.__name__: kind for kind in (list, dict, int, float, str, set)}


def structure_data(structure: Structure, name: str) -> Any:
    """Return a structure as JSON; raise poptorch.Error if a part of it cannot be stored."""
    if isinstance(structure, Leaf):
        return {"leaf": [list(structure.shape), encode(structure.dtype)]}
    if isinstance(structure, Constant):
        return {"constant": constant_data(structure.value, name)}
    if isinstance(structure, Custom):
        raise error(
            f"{name} is a {structure.kind.__name__}, which a custom parser takes apart. Such types "
            "cannot be stored in a file. Pass and return tensors in lists, tuples or dictionaries."
        )
    labelled = zip(structure.keys, structure.parts, strict=True)
    parts = [structure_data(part, f"{name}[{key}]") for key, part in labelled]
    if isinstance(structure, Items):
        return {"items": [_kind_data(structure.kind, _SEQUENCES), parts]}
    keys = [constant_data(key, f"a key of {name}") for key in structure.keys]
    factory = getattr(structure.empty, "default_factory", None)
    if factory is not None and factory not in _FACTORIES.values():
        raise error(
            f"{name} is a defaultdict of {factory!r}, which cannot be stored in a file. Use a dict."
        )
    names = [_kind_data(structure.kind, _TABLES), factory and factory.__name__]
    return {"table": [*names, keys, parts]}


def constant_data(value: Any, name: str) -> Any:
    """Return a Python constant as JSON; raise poptorch.Error if a file cannot store its type."""
    try:
        return encode(value)
    except SerializationError as problem:
        raise error(
            f"{name} is a Python constant that cannot be stored in a file: {problem} "
            "Make it an attribute of the model instead of an argument or a result."
        ) from problem


def _kind_data(kind: type, known: dict[str, type]) -> Any:
    if known.get(kind.__name__) is kind:
        return kind.__name__
    return [kind.__module__, kind.__qualname__, list(getattr(kind, "_fields", []))]


def structure_from(data: Any) -> Structure:
    """Rebuild a structure from the JSON of ``structure_data``; Error for unknown classes."""
    ((tag, content),) = data.items()
    if tag == "leaf":
        return Leaf(torch.Size(content[0]), decode(content[1]))
    if tag == "constant":
        return Constant(decode(content))
    if tag == "items":
        kind, parts = content
        return Items(_kind_from(kind, _SEQUENCES, (tuple, list)), tuple(map(structure_from, parts)))
    kind, factory, keys, parts = data["table"]
    table_kind = _kind_from(kind, _TABLES, (dict,))
    empty = None
    if issubclass(table_kind, collections.defaultdict):
        empty = collections.defaultdict(None if factory is None else _FACTORIES[factory])
    parts = tuple(map(structure_from, parts))
    return Table(table_kind, tuple(map(decode, keys)), parts, empty)


def _kind_from(data: Any, known: dict[str, type], bases: tuple[type, ...]) -> type:
    if isinstance(data, str):
        return known[data]
    module, name, fields = data
    # Looked up, not imported: what a file names is not executed.
    value = vars(sys.modules.get(module, object)).get(name)
    same_fields = list(getattr(value, "_fields", [])) == fields
    if isinstance(value, type) and issubclass(value, bases) and same_fields:
        return value
    if fields:
        # A named tuple says all about itself; its class is made again where it is unknown.
        return collections.namedtuple(name.rpartition(".")[2], fields)
    raise error(
        f"The file's arguments or results are of class {module}.{name}, which is not imported "
        f"here. Import {module} before loading the file."
    )


# -- calls -----------------------------------------------------------------------------------


def recorded_data(recorded: Recorded) -> dict[str, Any]:
    """Return the recorded arguments of the first call as JSON values."""
    named = zip(recorded.names, recorded.positional, strict=True)
    return {
        "names": list(recorded.names),
        "positional": [structure_data(structure, name) for name, structure in named],
        "keywords": {
            name: structure_data(structure, name) for name, structure in recorded.keywords.items()
        },
        "defaulted": recorded.defaulted,
    }


def bound_from(data: dict[str, Any], rows: float = 1) -> Bound:
    """Rebuild a call's arguments from the JSON of ``recorded_data``, with zeros as tensors.

    Args:
        data: result of ``recorded_data``.
        rows: factor by which the batch has grown since then.
    """

    def zeros(leaf: Leaf) -> torch.Tensor:
        shape = [round(size * rows) for size in leaf.shape[:1]] + list(leaf.shape[1:])
        return torch.zeros(shape, dtype=leaf.dtype)

    def example(part: Any) -> Any:
        structure = structure_from(part)
        return rebuild(structure, (zeros(leaf) for leaf in leaves(structure)))

    return Bound(
        tuple(data["names"]),
        tuple(map(example, data["positional"])),
        {name: example(part) for name, part in data["keywords"].items()},
        data["defaulted"],
    )


def signature_data(signature: inspect.Signature) -> list[list[Any]]:
    """Return the parameters of ``forward`` as JSON: name, kind and, in a list, the default if any.

    A default that cannot be stored is left out: after loading, that argument has to be passed.
    """
    parameters = []
    for parameter in signature.parameters.values():
        default = []
        if parameter.default is not parameter.empty:
            with contextlib.suppress(SerializationError):
                default = [encode(parameter.default)]
        parameters.append([parameter.name, parameter.kind.name, default])
    return parameters


def signature_from(data: list[list[Any]]) -> inspect.Signature:
    """Rebuild the signature of forward from the JSON of ``signature_data``."""
    parameters, mandatory = [], False
    for name, kind_name, default in reversed(data):
        kind = _KINDS[kind_name]
        by_position = kind in (kind.POSITIONAL_ONLY, kind.POSITIONAL_OR_KEYWORD)
        # A parameter whose default was left out makes those before it mandatory, too.
        value = inspect.Parameter.empty
        if default and not (by_position and mandatory):
            value = decode(default[0])
        mandatory |= by_position and not default
        parameters.append(inspect.Parameter(name, kind, default=value))
    return inspect.Signature(parameters[::-1])
