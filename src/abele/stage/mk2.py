"""Memory of a second-generation IPU, and what programs use in addition to tensors.

A tile runs its part of a program from the memory in which its part of the tensors is, so code and
exchange take from the same bytes. How much, only the vendor's compiler knows; here it is a band, an
assumption that no measurement of this project stands behind.
"""

from __future__ import annotations

from abele.fit import limits
from abele.fit.estimate import Interval

BYTES = limits.of_ipus(1).size
#: Bytes of the widest number: numbers of 64 bits are kept in 32.
WIDEST = 4

#: Shares of the memory for code, and for buffers and code of exchange.
_CODE = Interval(0.04, 0.15, 0.30)
#: Tensors do not divide evenly, and the first full tile ends a compile.
UNEVEN = Interval(1.0, 1.05, 1.15)


def code() -> Interval:
    """Bytes of code and exchange on one IPU."""
    return _CODE.scaled(BYTES)


def of_tensors(size: Interval) -> Interval:
    """Bytes that tensors take if the fullest tile counts for all.

    Args:
        size: bytes of the tensors themselves.
    """
    return Interval(size.low * UNEVEN.low, size.expected * UNEVEN.expected, size.high * UNEVEN.high)
