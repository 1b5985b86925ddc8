"""Digests of plain state, to check that the values read are those written, bit for bit.

Checksums of a zip concern what its reader finds. A damaged table of contents can make a reader find
something else, or nothing, and hand out memory that nobody has written to.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from typing import Any

import torch

from abele.containers import is_mapping, is_sequence, is_set

_REST = "everything else"


def raw_bytes(tensor: torch.Tensor) -> memoryview:
    """Return the bytes of a dense tensor in row-major order; no copy where it lies so on the host.

    Args:
        tensor: of any shape, dtype and device.
    """
    flat = tensor.detach().cpu().resolve_conj().resolve_neg().contiguous().reshape(-1)
    # As bytes: numpy has no bfloat16. The view keeps the tensor's memory alive and copies nothing.
    return flat.view(torch.uint8).numpy().data


def of_content(content: Any) -> dict[str, str]:
    """Return a SHA-256 of each tensor in plain state, by its place, and one of everything else.

    Args:
        content: tensors, numbers, strings and None in dictionaries, lists, tuples and sets. Values
            of other types count with their type only.
    """
    rest = hashlib.sha256()
    digests = {}
    for place, value in _leaves(content, ""):
        if isinstance(value, torch.Tensor):
            digests[place] = _of_tensor(value)
        else:
            rest.update(f"{place} {value}\n".encode(errors="surrogatepass"))
    return {**digests, _REST: rest.hexdigest()}


def first_difference(stored: Mapping[str, str], content: Any) -> str | None:
    """Return the first place where content differs from its digests, None if it matches.

    Args:
        stored: what ``of_content`` returned.
        content: what was read.
    """
    present = of_content(content)
    for place, digest in present.items():
        if stored.get(place) != digest:
            return place
    return next((place for place in stored if place not in present), None)


def _of_tensor(value: torch.Tensor) -> str:
    digest = hashlib.sha256(f"{value.dtype} {list(value.shape)} {value.layout}\n".encode())
    if value.is_quantized:
        value = value.dequantize()
    digest.update(raw_bytes(value if value.layout is torch.strided else value.to_dense()))
    return digest.hexdigest()


def _leaves(value: Any, place: str) -> Iterator[tuple[str, Any]]:
    """Yield tensors, and the text of everything else, with containers' types and lengths."""
    if isinstance(value, torch.Tensor):
        yield place, value
    elif is_mapping(value):
        yield place, f"{type(value).__name__} {len(value)}"
        for key, item in value.items():
            yield from _leaves(item, f"{place}[{key!r}]")
    elif is_sequence(value) and not isinstance(value, torch.Size):
        yield place, f"{type(value).__name__} {len(value)}"
        for index, item in enumerate(value):
            yield from _leaves(item, f"{place}[{index}]")
    elif is_set(value):
        yield place, f"{type(value).__name__} {sorted(map(repr, value))}"
    elif isinstance(value, _EXACT):
        yield place, f"{type(value).__name__} {value!r}"
    else:
        yield place, type(value).__name__


#: Their representation tells every bit of them.
_EXACT = (type(None), bool, int, float, complex, str, bytes, torch.dtype, torch.device, torch.Size)
