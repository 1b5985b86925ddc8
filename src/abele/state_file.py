"""Files of plain state: torch's own format, whole or absent, read without unpickling code.

``torch.load(path, weights_only=True)`` reads them without this package. torch's format is a zip
whose members carry checksums, so damage is found before anything is read.
"""

from __future__ import annotations

import io
import zipfile
from collections import Counter, OrderedDict
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch

from abele import atomic
from abele.errors import SerializationError

_PLAIN = (type(None), bool, int, float, complex, str, bytes, torch.dtype, torch.device, torch.Size)
_MAPPINGS = (dict, OrderedDict, Counter)


def write(path: Path, content: Mapping[str, Any]) -> None:
    """Writes a file at once or not at all.

    Args:
        path: the file; folders are made, an older file is replaced.
        content: what ``plain`` returned.

    Raises:
        OSError: the folder is not writable, or the disk is full; an older file stays.
    """
    try:
        with atomic.replacing(path) as file:
            torch.save(dict(content), file)
    except RuntimeError as error:  # how torch reports a failing write
        raise OSError(str(error).splitlines()[0]) from error


def to_bytes(content: Any) -> bytes:
    """The same as bytes."""
    stream = io.BytesIO()
    torch.save(content, stream)
    return stream.getvalue()


def from_bytes(data: bytes) -> Any:
    """What ``to_bytes`` or a file's bytes hold, on the host.

    Raises:
        ValueError: damaged, or something else.
    """
    problem = damage(io.BytesIO(data), len(data))
    if problem is not None:
        raise ValueError(problem)
    try:
        return torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
    except Exception as error:  # an unpickler fails in every possible way
        first = str(error).splitlines()[0] if str(error) else ""
        raise ValueError(f"{type(error).__name__}: {first}") from error


def damage(file: Path | BinaryIO, size: int | None = None) -> str | None:
    """What is wrong with a file, as far as its checksums tell; None where nothing is.

    Args:
        file: a path or an open file.
        size: its bytes, to be named in the answer; a path is asked for its own.
    """
    if isinstance(file, Path):
        if not file.is_file():
            return "there is no such file"
        size = file.stat().st_size
    if not zipfile.is_zipfile(file):
        return f"it is not complete ({size} bytes are there)"
    try:
        with zipfile.ZipFile(file) as archive:
            bad = archive.testzip()
    except (zipfile.BadZipFile, NotImplementedError, EOFError) as error:
        return f"its table of contents is damaged ({error})"
    return None if bad is None else f"its part {bad} is damaged"


def plain(value: Any, name: str = "state") -> Any:
    """A value made of what such a file can hold; numpy's numbers become Python's.

    Args:
        value: tensors, numbers, strings, None and torch's dtypes and devices, in dictionaries,
            lists, tuples and sets.
        name: what to call it in a message.

    Raises:
        SerializationError: something else is in it; the message says where.
    """
    if isinstance(value, torch.Tensor):
        held = torch.Tensor.as_subclass(value.detach(), torch.Tensor).cpu()
        # A file holds whole storages: what is a small part of one is taken out of it.
        return held if held.untyped_storage().nbytes() == held.nbytes else held.clone()
    if isinstance(value, np.generic):
        return value.item()
    if type(value) in _PLAIN:
        return value
    if type(value) in _MAPPINGS:
        return type(value)(
            {plain(k, f"a key of {name}"): plain(v, f"{name}[{k!r}]") for k, v in value.items()}
        )
    if type(value) in (list, tuple):
        return type(value)(plain(item, f"{name}[{index}]") for index, item in enumerate(value))
    if type(value) is set:
        return {plain(item, f"an item of {name}") for item in value}
    raise SerializationError(
        f"{name} is a {type(value).__name__}, which cannot be stored in a file that is read "
        "without running code. Let its state_dict() return tensors, numbers, strings, None and "
        "containers of these."
    )
