"""Detection of changes of constants between two calls of a program.

Parameters of a wrapped model are the session's own: only tensor operations write them, which count
a tensor's version up. A user's own parameters may also be written through ``.data`` or NumPy, which
leaves no trace, so a checksum of their contents decides.
"""

from __future__ import annotations

import ctypes
import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch

_address = torch.Tensor.data_ptr
_version = operator.attrgetter("_version")

#: The C function ``abele_checksum`` of ``abi.h``.
Checksum = Callable[..., int]


class Changes:
    """A comparison of a program's constants with those of its last call.

    Args:
        slots: positions of the constants among the inputs.
        checksum: of the constants' memory; None where their versions tell of every change.
    """

    def __init__(self, slots: Sequence[int], checksum: Checksum | None = None):
        self._take = operator.itemgetter(*slots, -1, -1)  # a tuple, also of none
        self._checksum = checksum
        self._constants: Sequence[torch.Tensor] = ()
        self._addresses: list[int] = []
        self._state: list[int] | None = None
        self._sum = ctypes.c_int64()
        self._arguments: tuple[Any, ...] = ()

    def found(self, inputs: Sequence[torch.Tensor]) -> bool:
        """Return whether constants have changed since the last call; True in the first."""
        constants = self._take(inputs)[:-2]
        addresses = [*map(_address, constants)]
        same = addresses == self._addresses and all(map(operator.is_, constants, self._constants))
        if not same:
            self._constants, self._addresses = constants, addresses
            count = len(constants)
            memory = (ctypes.c_void_p * count)(*addresses)
            sizes = (ctypes.c_int64 * count)(*map(_span, constants))
            kept = memory, sizes, self._sum
            first, second, third = map(ctypes.c_void_p, map(ctypes.addressof, kept))
            self._arguments = kept, (first, second, ctypes.c_int64(count), third)
        before, self._state = self._state, self._look()
        return not same or before != self._state

    def forget(self) -> None:
        """Report a change in the next call: what depends on the constants was not computed."""
        self._state = None

    def _look(self) -> list[int]:
        if self._checksum is None:
            return [*map(_version, self._constants)]
        self._checksum(*self._arguments[1], torch.get_num_threads())
        return [self._sum.value]


def _span(tensor: torch.Tensor) -> int:
    """Return the bytes from a tensor's first element to the end of its last."""
    places = zip(tensor.shape, tensor.stride(), strict=True)
    last = sum((size - 1) * step for size, step in places)
    return tensor.element_size() * (last + 1) if tensor.numel() else 0
