"""What an executable keeps of a program for a GPU: who multiplies matrices, and the kernels."""

from __future__ import annotations

import json
from collections.abc import Sequence

from abele.errors import CorruptExecutable
from abele.targets.cuda.emitted import blas

_MARK = b"abele kernels\n"


def encoded(libraries: Sequence[str], codes: Sequence[bytes]) -> bytes:
    """Return one text of bytes, each piece behind its length; a program may need no kernels.

    Args:
        libraries: for each product of the program.
        codes: of kernels.
    """
    pieces = [json.dumps(list(libraries)).encode(), *codes]
    return _MARK + b"".join(len(piece).to_bytes(8, "little") + piece for piece in pieces)


def decoded(payload: bytes, products: int) -> tuple[list[str], list[bytes]]:
    """Return libraries and codes again.

    Args:
        payload: what ``encoded`` returned.
        products: how many the program has.

    Raises:
        CorruptExecutable: lengths or names do not fit.
    """
    if not payload.startswith(_MARK):
        raise CorruptExecutable("the kernels of a program begin with something else")
    first, *codes = _pieces(payload[len(_MARK) :])
    try:
        libraries = json.loads(first)
    except ValueError as problem:
        raise CorruptExecutable("the kernels of a program have no list of libraries") from problem
    known = isinstance(libraries, list) and all(each in blas.NAMES for each in libraries)
    if not known or len(libraries) != products:
        raise CorruptExecutable(
            "the kernels of a program name other libraries than it has products"
        )
    return libraries, codes


def _pieces(rest: bytes) -> list[bytes]:
    pieces: list[bytes] = []
    while rest or not pieces:
        size, rest = int.from_bytes(rest[:8], "little"), rest[8:]
        if len(rest) < size or not size:
            raise CorruptExecutable("the kernels of a program are incomplete")
        pieces.append(rest[:size])
        rest = rest[size:]
    return pieces
