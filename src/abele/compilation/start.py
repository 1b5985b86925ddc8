"""Start modes: how a program's first steps run while the program is not compiled.

``tiered``     interpreted, while another process compiles programs that take over
``wait``       compiled first, by this process
``interpret``  interpreted, and nothing is compiled
"""

from __future__ import annotations

import enum
import os

from abele.errors import TargetError

ENVIRONMENT = "ABELE_START"
SWAP_AT = "ABELE_SWAP_AT"


class Start(enum.StrEnum):
    """A mode of a program's first steps: interpreted, compiled first, or both in turn."""

    TIERED = "tiered"
    WAIT = "wait"
    INTERPRET = "interpret"


def requested() -> Start | None:
    """Return the start mode that ``ABELE_START`` names; None if it is unset.

    Raises:
        TargetError: ``ABELE_START`` is none of the three.
    """
    text = os.environ.get(ENVIRONMENT)
    if not text:
        return None
    if text not in list(Start):
        raise TargetError(
            f"{ENVIRONMENT}={text!r} was found. Set it to one of {', '.join(Start)}, or leave it "
            "unset."
        )
    return Start(text)


def check() -> None:
    """Raise TargetError if the environment names an update for a switch that it forbids."""
    wanted = requested()
    if swap_at() is not None and wanted not in (None, Start.TIERED):
        raise TargetError(
            f"{ENVIRONMENT}={wanted} and {SWAP_AT}={swap_at()} were found, but nothing takes over "
            f"unless steps start interpreted and compiled ones follow. Unset one of the two, or "
            f"set {ENVIRONMENT}={Start.TIERED}."
        )


def swap_at() -> int | None:
    """Return the update at which compiled programs must take over, or None.

    Raises:
        TargetError: ``ABELE_SWAP_AT`` is no number of updates.
    """
    text = os.environ.get(SWAP_AT)
    if not text:
        return None
    if not text.isascii() or not text.isdigit():
        raise TargetError(
            f"{SWAP_AT}={text!r} was found. Set it to a number of updates, 0 or more, or leave it "
            "unset."
        )
    return int(text)
