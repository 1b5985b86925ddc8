"""Options as JSON and back, every value of every namespace, without pickling anything."""

import enum
from typing import Any

from abele.errors import SerializationError
from abele.storage.values import decode, encode
from poptorch import enums
from poptorch.options import (
    Options,
    ParallelPhasedExecution,
    Phase,
    PipelinedExecution,
    SerialPhasedExecution,
    ShardedExecution,
    Stage,
    TensorLocationSettings,
)
from poptorch.options._container import OptionsDict
from poptorch.options.popart import _PopartOptions

_STRATEGIES: dict[str, type] = {
    kind.__name__: kind
    for kind in (
        ParallelPhasedExecution,
        PipelinedExecution,
        SerialPhasedExecution,
        ShardedExecution,
    )
}
_ENUMS: dict[str, type[enum.Enum]] = {
    name: kind
    for name, kind in vars(enums).items()
    if isinstance(kind, type) and issubclass(kind, enum.Enum)
}
_HOUSEKEEPING = frozenset({"_values", "_is_frozen", "_namespaces", "_popart"})


def options_data(options: Options) -> dict[str, Any]:
    """All values of ``options`` as JSON.

    Raises:
        SerializationError: a value that a file cannot hold.
    """
    return {
        **_container_data(options),
        "namespaces": {
            name: _namespace_data(namespace) for name, namespace in options._namespaces.items()
        },
    }


def _namespace_data(namespace: Any) -> dict[str, Any]:
    if isinstance(namespace, _PopartOptions):
        return {"options": encode(namespace.options, _encode)}
    return _container_data(namespace)


def _container_data(container: OptionsDict) -> dict[str, Any]:
    private = {k: v for k, v in vars(container).items() if k not in _HOUSEKEEPING}
    return {"values": encode(container._values, _encode), "private": encode(private, _encode)}


def options_from(data: dict[str, Any]) -> Options:
    """Return the options that ``options_data`` wrote, not frozen.

    Differs from the original: a subclass of Options comes back as Options.

    Raises:
        AssertionError: a value is not one that its option takes.
    """
    options = Options()
    _fill(options, data)
    for name, content in data["namespaces"].items():
        namespace = options._namespaces[name]
        if isinstance(namespace, _PopartOptions):
            namespace.options = decode(content["options"], _DECODERS)
        else:
            _fill(namespace, content)
    return options


def _fill(container: OptionsDict, data: dict[str, Any]) -> None:
    values = decode(data["values"], _DECODERS)
    container._check(values, create=True)
    container._values.clear()
    container._values.update(values)
    for name, value in decode(data["private"], _DECODERS).items():
        setattr(container, name, value)


def _encode(value: Any) -> dict[str, Any]:
    if isinstance(value, enum.Enum) and type(value) in _ENUMS.values():
        return {"enum": [type(value).__name__, value.name]}
    if isinstance(value, TensorLocationSettings):
        return {"location": _container_data(value)}
    if _STRATEGIES.get(type(value).__name__) is type(value):
        return {"strategy": [type(value).__name__, encode(vars(value), _encode)]}
    if isinstance(value, Stage):
        return {"stage": [value.blocks, value._ipu_id]}
    if isinstance(value, Phase):
        return {"phase": [_encode(stage) for stage in value.stages]}
    raise SerializationError(
        f"An option holds a {type(value).__name__}, which cannot be stored in a file: {value!r}."
    )


def _location(content: Any) -> TensorLocationSettings:
    made = TensorLocationSettings()
    _fill(made, content)
    return made


def _strategy(content: Any) -> Any:
    name, state = content
    made = object.__new__(_STRATEGIES[name])
    made.__dict__.update(decode(state, _DECODERS))
    return made


def _stage(content: Any) -> Stage:
    blocks, ipu = content
    made = Stage(*blocks)
    return made if ipu is None else made.ipu(ipu)


_DECODERS = {
    "enum": lambda content: _ENUMS[content[0]][content[1]],
    "location": _location,
    "strategy": _strategy,
    "stage": _stage,
    "phase": lambda content: Phase(*(decode(stage, _DECODERS) for stage in content)),
}
