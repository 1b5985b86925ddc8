"""The file that ``save`` writes: what is in it, how it is opened, and what is wrong with others.

It is a container of the engine (a checked zip without anything pickled) whose manifest holds the
version, options, arguments and results; the programs, their code and the tensors are its members.
"""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from abele.compile.portable_executable import rule_from
from abele.errors import AbeleError, CorruptExecutable
from abele.step.update_rules import UpdateRule
from abele.storage.container import Container
from poptorch._error import Error
from poptorch._logging import logger
from poptorch._version import __version__

KIND = "poptorch-model"
DEFAULT_NAME = "model.poptorch"


class InvalidFile(Error, AssertionError):
    """A file that no ``save`` wrote, or that is damaged.

    Two bases, because programs for the original catch either.
    """


def destination(filename: str | os.PathLike[str]) -> Path:
    """Return the path of a file that was requested under this name.

    Raises:
        AssertionError: a file stands where a folder is needed.
    """
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
    """Open a file that ``save`` wrote.

    Raises:
        InvalidFile: it is missing, damaged or something else.
    """
    with contextlib.ExitStack() as stack:
        with meaning(filename):
            file = stack.enter_context(Container(Path(filename), KIND))
        yield file


@contextlib.contextmanager
def meaning(filename: str | os.PathLike[str]) -> Iterator[None]:
    """While open, anything that goes wrong in making sense of a file is an InvalidFile."""
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
    """Return an error message if the file has another version, else None."""
    version = file.content.get("version")
    if version == __version__:
        return None
    return (
        f"Invalid file {file.path}: PopTorch version mismatch: it was saved by {version!r}, this "
        f"is {__version__!r}. Export the model again with this version."
    )


# -- the part with the model -----------------------------------------------------------------


def state_members(state: dict[str, torch.Tensor]) -> tuple[list[str], dict[str, torch.Tensor]]:
    """Names for the manifest and tensors for the file; names of tensors may hold any character."""
    return list(state), {f"state/{index}": value for index, value in enumerate(state.values())}


def state_in(file: Container) -> dict[str, torch.Tensor]:
    """Return the session's state that a file with a model stores."""
    names = file.content["model"]["state"]
    return {name: file.tensor(f"state/{index}") for index, name in enumerate(names)}


def rule_in(file: Container) -> UpdateRule | None:
    """Return the optimizer's update rule; None for inference."""
    data: dict[str, Any] | None = file.content["model"]["rule"]
    return None if data is None else rule_from(data)
