"""Container files of models: an uncompressed zip of named members with checksums.

``manifest.json`` holds the kind of file, the writer's description, and the size and
SHA-256 of every other member. Tensors are their raw bytes in row-major order, with their strides if
these differ: code is compiled for the strides of constants. Nothing is unpickled, unpacked
to disk or compressed (weights do not shrink, and a small file cannot grow huge).
The checksums find damage, not malice: a file with compiled code is to be trusted like a program.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import sys
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import torch

from abele.errors import CorruptExecutable, SerializationError
from abele.storage import atomic, files, values
from abele.storage.values import decode, encode

FORMAT = 1
_MANIFEST = "manifest.json"


def write(path: Path, kind: str, content: Mapping[str, Any], members: Mapping[str, Any]) -> None:
    """Write a container file atomically.

    Args:
        path: the file; folders are created, an older file is replaced.
        kind: what the file is, checked when it is read.
        content: JSON values for the manifest.
        members: bytes, or tensors, by name.

    Raises:
        OSError: the folder is not writable, or the disk is full; nothing is left behind.
        SerializationError: a tensor that has no plain data (sparse, fake).
    """
    raw = {name: _bytes_of(name, value) for name, value in members.items()}
    manifest = {
        "format": FORMAT,
        "kind": kind,
        "byte_order": sys.byteorder,
        "content": content,
        "members": {
            name: {"sha256": hashlib.sha256(data).hexdigest(), **_tensor_data(members[name])}
            for name, data in raw.items()
        },
    }
    text = json.dumps(manifest, indent=1, allow_nan=False)
    with (
        atomic.replacing(path) as file,
        zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive,
    ):
        archive.writestr(_MANIFEST, text)
        for name, data in raw.items():
            with archive.open(name, "w", force_zip64=True) as member:
                member.write(data)


def _bytes_of(name: str, value: Any) -> Any:
    if not isinstance(value, torch.Tensor):
        return value
    if value.layout is not torch.strided or value.is_quantized or value.device.type == "meta":
        raise SerializationError(
            f"Tensor {name} ({value.layout}, {value.dtype}, {value.device}) has no plain data to "
            "store. Convert it to a dense tensor first."
        )
    return values.raw_bytes(value)


def _tensor_data(value: Any) -> dict[str, Any]:
    if not isinstance(value, torch.Tensor):
        return {}
    shape, strides = list(value.shape), list(value.stride())
    data = {"shape": shape, "dtype": encode(value.dtype)["dtype"]}
    usual = strides == list(torch.empty(shape, device="meta").stride())
    return data if usual or not _fits(shape, strides) else {**data, "strides": strides}


def _fits(shape: Sequence[int], strides: Sequence[int]) -> bool:
    """Return whether a tensor with some strides needs no more memory than its elements."""
    extent = 1 + sum((n - 1) * step for n, step in zip(shape, strides, strict=True))
    return min(strides, default=0) >= 0 and (0 in shape or extent <= math.prod(shape))


def _laid_out(tensor: torch.Tensor, strides: Sequence[int]) -> torch.Tensor:
    """Copy a tensor to other strides; stride 0 repeats one element.

    Raises:
        ValueError: they need more memory than the tensor's elements.
    """
    if not _fits(tensor.shape, strides):
        raise ValueError(f"strides {list(strides)} do not fit shape {list(tensor.shape)}")
    source = tensor
    for dim, step in enumerate(strides):
        source = source.narrow(dim, 0, 1) if step == 0 and source.shape[dim] else source
    made = torch.empty_strided(source.shape, strides, dtype=tensor.dtype).copy_(source)
    return made.expand(tensor.shape)


class Container:
    """An opened container file, a context manager; members are verified when read.

    Args:
        path: the file.
        kind: what it has to be.

    Attributes:
        content: the JSON values of the manifest.

    Raises:
        CorruptExecutable: the file is damaged or is something else.
        OSError: there is no such file, or it may not be read.
    """

    def __init__(self, path: Path, kind: str):
        self.path = path
        # Opened first: a file that is missing or unreadable is no damaged file.
        with contextlib.ExitStack() as opened:
            file = opened.enter_context(files.open_regular(path))
            try:
                self._archive = opened.enter_context(zipfile.ZipFile(file))
                manifest = json.loads(self._read(_MANIFEST))
                _check_kind(manifest, kind)
                self.content: dict[str, Any] = dict(manifest["content"])
                self._members: dict[str, dict[str, Any]] = dict(manifest["members"])
                _check_names(self._archive.namelist(), self._members)
            except Exception as error:  # a damaged zip can fail in many ways
                raise self._corrupt(error) from error
            self._opened = opened.pop_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._opened.close()

    @property
    def names(self) -> tuple[str, ...]:
        """The member names, in the order in which they were written."""
        return tuple(self._members)

    def read(self, name: str) -> bytes:
        """Return the verified bytes of a container member.

        Raises:
            CorruptExecutable: it is missing or altered.
        """
        try:
            data = self._read(name)
            if hashlib.sha256(data).hexdigest() != self._members[name]["sha256"]:
                raise zipfile.BadZipFile(f"checksum of {name} does not match")
        except Exception as error:  # a damaged zip can fail in many ways
            raise self._corrupt(error) from error
        return data

    def text(self, name: str) -> str:
        """Return a container member as text.

        Raises:
            CorruptExecutable: it is missing, altered or no text.
        """
        data = self.read(name)
        try:
            return data.decode()
        except UnicodeDecodeError as error:
            raise self._corrupt(error) from error

    def tensor(self, name: str) -> torch.Tensor:
        """Return a container member as a tensor on the host.

        Raises:
            CorruptExecutable: it is missing, altered or of another size than it says.
        """
        data = bytearray(self.read(name))  # writable, as a tensor's memory has to be
        try:
            shape = tuple(map(int, self._members[name]["shape"]))
            dtype = decode({"dtype": self._members[name]["dtype"]})
            if not data:
                return torch.empty(shape, dtype=dtype)
            tensor = torch.frombuffer(data, dtype=dtype).reshape(shape)
            strides = self._members[name].get("strides")
            return tensor if strides is None else _laid_out(tensor, [*map(int, strides)])
        except (KeyError, TypeError, ValueError, RuntimeError, SerializationError) as error:
            raise self._corrupt(error) from error

    def tensors(self, prefix: str) -> dict[str, torch.Tensor]:
        """Return all tensors whose name starts with ``prefix``, by the rest of their name."""
        return {
            name.removeprefix(prefix): self.tensor(name)
            for name in self._members
            if name.startswith(prefix)
        }

    def _read(self, name: str) -> bytes:
        info = self._archive.getinfo(name)
        if info.compress_type != zipfile.ZIP_STORED:
            raise zipfile.BadZipFile(f"{name} is compressed")
        return self._archive.read(info)

    def _corrupt(self, error: Exception) -> CorruptExecutable:
        return CorruptExecutable(
            f"{self.path} is damaged or is no file of this kind ({type(error).__name__}: {error})."
        )


def _check_kind(manifest: Mapping[str, Any], kind: str) -> None:
    stored_kind, version, order = manifest["kind"], manifest["format"], manifest["byte_order"]
    if (version, stored_kind) != (FORMAT, kind):
        raise ValueError(
            f"it is {stored_kind!r} of format {version!r}, wanted {kind!r} of format {FORMAT}"
        )
    if order != sys.byteorder:
        raise ValueError(f"its tensors are {order}-endian, this machine is {sys.byteorder}-endian")


def _check_names(names: Sequence[str], listed: Mapping[str, Any]) -> None:
    """Check that the zip holds exactly the manifest's members, each once."""
    if sorted(names) != sorted([_MANIFEST, *listed]):
        different = sorted(set(names) ^ {_MANIFEST, *listed}) or "some of them twice"
        raise ValueError(f"its members are not those its manifest lists: {different}")
