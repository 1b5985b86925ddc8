"""Files of plain state: torch's own format, whole or absent, read without unpickling code.

``torch.load(path, weights_only=True)`` reads them without this package. torch's format is a zip
whose members carry checksums, so most damage is found before anything is read. A digest of each
tensor, under a separate key, then shows that the values read are those written: the table of
contents has no checksum, and torch relies on it. Files without digests, of others or of earlier
versions, are read too.
"""

from __future__ import annotations

import io
import pickle
import zipfile
from collections import Counter, OrderedDict
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch

from abele.containers import is_dict, is_set
from abele.errors import SerializationError
from abele.storage import atomic, files, values

_PLAIN = (type(None), bool, int, float, complex, str, bytes, torch.dtype, torch.device, torch.Size)
_MAPPINGS = (dict, OrderedDict, Counter)
#: The key that digests stand under.
DIGESTS = "digests"
# Bits of the attributes and flags in a zip's table of contents.
_DIRECTORY, _SIZES_FOLLOW, _TEXT_IN_UTF8 = 0x10, 0x8, 0x800


class DamagedFileError(ValueError):
    """Bytes of a file are missing, or are not those that were written."""


def write(path: Path, content: Mapping[str, Any]) -> None:
    """Write a file at once or not at all.

    Args:
        path: the file; folders are made, an older file is replaced.
        content: what ``plain`` returned.

    Raises:
        OSError: the folder is not writable, or the disk is full; an older file stays.
    """
    try:
        with atomic.replacing(path) as file:
            torch.save(_sealed(content), file)
    except RuntimeError as error:  # how torch reports a failing write
        raise OSError(str(error).splitlines()[0]) from error


def to_bytes(content: Mapping[str, Any]) -> bytes:
    """Return the bytes of such a file."""
    stream = io.BytesIO()
    torch.save(_sealed(content), stream)
    return stream.getvalue()


def from_bytes(data: bytes) -> Any:
    """Return what ``to_bytes`` or a file's bytes hold, on the host.

    Raises:
        DamagedFileError: bytes are missing or wrong.
        ValueError: the bytes are right, but only running code could read the content.
        MemoryError: the content does not fit into memory.
    """
    problem = damage(data)
    if problem is not None:
        raise DamagedFileError(problem)
    try:
        content = torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        raise ValueError(f"{type(error).__name__}: {_first_line(error)}") from error
    except Exception as error:  # damage can make torch raise any exception
        if isinstance(error, MemoryError) or "allocate memory" in str(error):
            raise MemoryError(_first_line(error)) from error
        raise DamagedFileError(f"{type(error).__name__}: {_first_line(error)}") from error
    return _checked(content)


def read(path: Path) -> Any:
    """Return what a file holds, on the host.

    Raises:
        OSError: it cannot be read.
        Exception: as from ``from_bytes``.
    """
    # Read completely first: zipfile and torch take an error of the disk for damage.
    with files.open_regular(path) as file:
        data = file.read()
    return from_bytes(data)


def _sealed(content: Mapping[str, Any]) -> dict[str, Any]:
    if DIGESTS in content:
        raise SerializationError(f"The key {DIGESTS!r} is taken by the file itself; use another.")
    return {**content, DIGESTS: values.of_content(dict(content))}


def _checked(content: Any) -> Any:
    """Return the content without its digests; unchanged if it has none."""
    if not is_dict(content) or not is_dict(content.get(DIGESTS)):
        return content
    stored = content.pop(DIGESTS)
    place = values.first_difference(stored, content)
    if place is not None:
        raise DamagedFileError(
            f"{place} is not what was written: its digest differs. If you changed the file on "
            f"purpose, delete its key {DIGESTS!r} too"
        )
    return content


def damage(data: bytes) -> str | None:
    """Return what is wrong with a file's bytes, by structure and checksums; None for nothing."""
    file = io.BytesIO(data)
    try:
        if not zipfile.is_zipfile(file):
            return f"it is not complete ({len(data)} bytes are there)"
        with zipfile.ZipFile(file) as archive:
            strange = next(filter(_is_strange, archive.infolist()), None)
            bad = archive.testzip() if strange is None else strange.filename
    except MemoryError:
        raise
    except Exception as error:  # noqa: BLE001  zlib's errors, "encrypted", wrong sizes and dates
        return f"its table of contents is damaged ({_first_line(error)})"
    return None if bad is None else f"its part {bad} is damaged"


def _is_strange(member: zipfile.ZipInfo) -> bool:
    """Return whether torch never writes such an entry; its reader takes folders for empty parts."""
    return bool(
        member.is_dir()
        or member.external_attr & _DIRECTORY
        or member.compress_type != zipfile.ZIP_STORED
        or member.flag_bits & ~(_TEXT_IN_UTF8 | _SIZES_FOLLOW)
    )


def _first_line(error: Exception) -> str:
    return str(error).splitlines()[0] if str(error) else type(error).__name__


def plain(value: Any, name: str = "state") -> Any:
    """Return a value made of what such a file can hold; numpy's numbers become Python's.

    Args:
        value: tensors, numbers, strings, None and torch's dtypes and devices, in dictionaries,
            lists, tuples and sets.
        name: what to call it in a message.

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
