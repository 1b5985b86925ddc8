"""What an executable keeps of a program for a GPU: what was measured, and the kernels."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence

from abele.errors import CorruptExecutable
from abele.targets.cuda.emitted import blas
from abele.targets.cuda.emitted.choices import Choices

_MARK = b"abele kernels\n"
_OTHERS = "the kernels of a program have no choices that are known here"


def encoded(choices: Choices, codes: Sequence[bytes]) -> bytes:
    """Return one text of bytes, each piece behind its length; a program may need no kernels.

    Args:
        choices: of the program.
        codes: of its kernels.
    """
    pieces = [json.dumps(dataclasses.asdict(choices)).encode(), *codes]
    return _MARK + b"".join(len(piece).to_bytes(8, "little") + piece for piece in pieces)


def decoded(payload: bytes) -> tuple[Choices, list[bytes]]:
    """Return choices and codes again.

    Args:
        payload: what ``encoded`` returned.

    Raises:
        CorruptExecutable: it is incomplete, or something else.
    """
    if not payload.startswith(_MARK):
        raise CorruptExecutable("the kernels of a program begin with something else")
    first, *codes = _pieces(payload[len(_MARK) :])
    try:
        choices = Choices(**json.loads(first))
        usable = {*blas.NAMES} >= {*choices.libraries} and {True, False} >= {*choices.together}
    except (TypeError, ValueError) as problem:
        raise CorruptExecutable(f"{_OTHERS}: {problem}") from problem
    if not usable:
        raise CorruptExecutable(_OTHERS)
    return choices, codes


def _pieces(rest: bytes) -> list[bytes]:
    pieces: list[bytes] = []
    while rest or not pieces:
        size, rest = int.from_bytes(rest[:8], "little"), rest[8:]
        if len(rest) < size or not size:
            raise CorruptExecutable("the kernels of a program are incomplete")
        pieces.append(rest[:size])
        rest = rest[size:]
    return pieces
