"""State files: torch's format with a SHA-256, atomically written, read without unpickling.

``torch.load(path, weights_only=True)`` reads them without this package. torch's format is a zip
whose checksums torch ignores, so the comment at the end of the zip holds a SHA-256 of all bytes
before it. Files without one, such as those of ``torch.save``, are read too.
"""

from __future__ import annotations

import hashlib
import io
import os
import pickle
import zipfile
from collections import Counter, OrderedDict
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any, cast

import numpy as np
import torch

from abele.containers import is_set
from abele.errors import SerializationError
from abele.storage import atomic, files

_PLAIN = (type(None), bool, int, float, complex, str, bytes, torch.dtype, torch.device, torch.Size)
_MAPPINGS = (dict, OrderedDict, Counter)
_MARK = b"sha256:"  # begins the comment
_COMMENT_BYTES = len(_MARK) + 64
_NO_COMMENT = b"\0\0"  # its length, the last field of a zip; the digest is of a zip without one


class DamagedFileError(ValueError):
    """Bytes of a state file are missing or altered."""


class _Hashing:
    """A file that computes the SHA-256 of the bytes written to it."""

    def __init__(self, file: IO[bytes]):
        self._file, self.digest = file, hashlib.sha256()
        self.error: OSError | None = None

    def write(self, data: Any) -> int:
        self.digest.update(data)
        try:
            return self._file.write(data)
        except OSError as error:
            self.error = error  # torch goes on, and reports what that leads to
            raise

    def flush(self) -> None:
        self._file.flush()


def _save(content: Mapping[str, Any], file: IO[bytes]) -> None:
    hashing = _Hashing(file)
    try:
        torch.save(dict(content), hashing)  # type: ignore[arg-type]
    except RuntimeError as error:
        raise hashing.error or OSError(str(error).splitlines()[0]) from error
    file.seek(-len(_NO_COMMENT), os.SEEK_END)
    comment = _MARK + hashing.digest.hexdigest().encode()
    file.write(len(comment).to_bytes(2, "little") + comment)


def write(path: Path, content: Mapping[str, Any]) -> None:
    """Write a state file atomically.

    Args:
        path: the file; folders are created, an older file is replaced.
        content: what ``plain`` returned.

    Raises:
        OSError: the folder is not writable, or the disk is full; an older file stays.
    """
    with atomic.replacing(path) as file:
        _save(content, file)


def to_bytes(content: Mapping[str, Any]) -> bytes:
    """Serialize plain state as the bytes of a state file."""
    stream = io.BytesIO()
    _save(content, stream)
    return stream.getvalue()


def from_bytes(data: bytes) -> Any:
    """Deserialize the bytes of a state file, to tensors on the host.

    Raises:
        DamagedFileError: bytes are missing or wrong.
        ValueError: the bytes are right, but only running code could read the content.
        MemoryError: the content does not fit into memory.
    """
    _check(data)
    try:
        return torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        raise ValueError(f"{type(error).__name__}: {_first_line(error)}") from error
    except Exception as error:  # damage can make torch raise any exception
        if isinstance(error, MemoryError) or "allocate memory" in str(error):
            raise MemoryError(_first_line(error)) from error
        raise DamagedFileError(f"{type(error).__name__}: {_first_line(error)}") from error


def read(path: Path) -> Any:
    """Load the content of a state file, on the host.

    Raises:
        OSError: it cannot be read.
        Exception: as from ``from_bytes``.
    """
    # Read completely first: torch takes an error of the disk for damage.
    with files.open_regular(path) as file:
        data = file.read()
    return from_bytes(data)


def _check(data: bytes) -> None:
    """Compare a state file's bytes with the digest at its end, if it has one."""
    comment = data[-_COMMENT_BYTES:]
    if not comment.startswith(_MARK):
        if not zipfile.is_zipfile(io.BytesIO(data)):
            raise DamagedFileError(f"it is not complete ({len(data)} bytes are there)")
        return
    digest = hashlib.sha256(memoryview(data)[: -_COMMENT_BYTES - len(_NO_COMMENT)])
    digest.update(_NO_COMMENT)
    if digest.hexdigest().encode() != comment.removeprefix(_MARK):
        raise DamagedFileError("it is not what was written: its digest differs")


def _first_line(error: Exception) -> str:
    return str(error).splitlines()[0] if str(error) else type(error).__name__


def plain(value: Any, name: str = "state") -> Any:
    """Convert a value to the types of a state file; numpy's numbers become Python's.

    Args:
        value: tensors, numbers, strings, None and torch's dtypes and devices, in dictionaries,
            lists, tuples and sets.
        name: of the value in error messages.

    Raises:
        SerializationError: something else is in it; the message says where.
    """
    if isinstance(value, torch.Tensor):
        tensor = torch.Tensor.as_subclass(value.detach(), torch.Tensor).cpu()
        # torch stores whole storages, so a part of one is copied out of it.
        return tensor if tensor.untyped_storage().nbytes() == tensor.nbytes else tensor.clone()
    if isinstance(value, np.generic):
        return cast("Any", value).item()
    if type(value) in _PLAIN:
        return value
    if type(value) in _MAPPINGS:
        return type(value)(
            {plain(k, f"a key of {name}"): plain(v, f"{name}[{k!r}]") for k, v in value.items()}
        )
    if type(value) in (list, tuple):
        return type(value)(plain(item, f"{name}[{index}]") for index, item in enumerate(value))
    if is_set(value) and type(value) is set:
        return {plain(item, f"an item of {name}") for item in value}
    raise SerializationError(
        f"{name} is a {type(value).__name__}, which cannot be stored in a file that is read "
        "without running code. Let its state_dict() return tensors, numbers, strings, None and "
        "containers of these."
    )
