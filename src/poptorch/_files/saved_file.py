"""The format of the files that ``save`` writes: contents, opening, and error messages.

It is a container of the engine (a checked zip without anything pickled) whose manifest holds the
version, options, arguments and results; the programs, their code and the tensors are its members.
Options are stored as JSON, every value of every namespace.
"""

import contextlib
import enum
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from abele.compilation.portable_executable import rule_from
from abele.errors import AbeleError, CorruptExecutable, SerializationError
from abele.step.update_rules import UpdateRule
from abele.storage.container import Container
from abele.storage.values import decode, encode
from poptorch import enums
from poptorch._error import Error
from poptorch._logging import logger
from poptorch._version import __version__
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
from poptorch.options.namespaces import _PopartOptions

KIND = "poptorch-model"
DEFAULT_NAME = "model.poptorch"


class InvalidFile(Error, AssertionError):
    """The error for a file that is damaged or was not written by ``save``.

    Two bases, because programs for the original catch either.
    """


def destination(filename: str | os.PathLike[str]) -> Path:
    """Return the path to save a model to, given a file name or a folder."""
    path = Path(filename)
    if path.is_dir():
        path = path / DEFAULT_NAME
        logger.warning("save(): %s is a directory: the model is saved to %s", filename, path)
    for folder in path.parents:
        if folder.exists() and not folder.is_dir():
            raise AssertionError(
                f"Cannot save to {path}: {folder} is not a directory. Choose another file name."
            )
    return path


@contextlib.contextmanager
def opened(filename: str | os.PathLike[str]) -> Iterator[Container]:
    """Open a file that ``save`` wrote, as a context manager.

    Raises:
        InvalidFile: the file is missing, damaged or not one of ``save``.
    """
    with contextlib.ExitStack() as stack:
        with meaning(filename):
            file = stack.enter_context(Container(Path(filename), KIND))
        yield file


@contextlib.contextmanager
def meaning(filename: str | os.PathLike[str]) -> Iterator[None]:
    """Convert errors of reading a saved file to InvalidFile, as a context manager."""
    try:
        yield
    except CorruptExecutable as problem:
        raise InvalidFile(f"Invalid file {filename}: {problem}") from problem
    except Error:
        raise  # it says what is missing here
    except AbeleError as problem:
        raise InvalidFile(f"Invalid file {filename}: {problem}") from problem
    except OSError as problem:
        reason = problem.strerror or str(problem)
        raise InvalidFile(f"Invalid file {filename}: {reason}.") from problem
    except Exception as problem:  # contents that mean nothing can fail in any way
        raise InvalidFile(
            f"Invalid file {filename}: its contents make no sense "
            f"({type(problem).__name__}: {problem})."
        ) from problem


def version_mismatch(file: Container) -> str | None:
    """Return an error message if another version of poptorch saved the file, else None."""
    version = file.content.get("version")
    if version == __version__:
        return None
    return (
        f"Invalid file {file.path}: PopTorch version mismatch: it was saved by {version!r}, this "
        f"is {__version__!r}. Export the model again with this version."
    )


# -- the part with the model -----------------------------------------------------------------


def state_members(state: dict[str, torch.Tensor]) -> tuple[list[str], dict[str, torch.Tensor]]:
    """Return a state's tensor names for the manifest, and its tensors under file-safe names."""
    return list(state), {f"state/{index}": value for index, value in enumerate(state.values())}


def state_in(file: Container) -> dict[str, torch.Tensor]:
    """Return the session state stored in a saved model file."""
    names = file.content["model"]["state"]
    return {name: file.tensor(f"state/{index}") for index, name in enumerate(names)}


def rule_in(file: Container) -> UpdateRule | None:
    """Return the optimizer's update rule stored in a saved model file; None for inference."""
    data: dict[str, Any] | None = file.content["model"]["rule"]
    return None if data is None else rule_from(data)


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
    """Return all values of a wrapper's `Options` as JSON."""
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
    """Rebuild an unfrozen `Options` from the JSON of ``options_data``.

    Differs from the original: a subclass of Options comes back as Options.
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
