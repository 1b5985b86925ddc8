"""The program's end of the connection to a worker: messages, and slots that are lent.

An exception may end any call here: an interrupt, a time limit, a notebook's stop button. CPython
raises it between two calls, never between two assignments of one statement. So whatever belongs
together is assigned in one statement, and everything before it can be done again.
"""

import contextlib
import multiprocessing
import os
import pickle
import struct
import weakref
from collections import deque
from multiprocessing.connection import Connection
from typing import Any

from poptorch._data.slots import Slots

_ALIVE_CHECK_S = 1.0
_HEADER = struct.Struct("!Q")


def send(connection: Connection, message: tuple[Any, ...]) -> None:
    """Send a message to an ``Inbox``.

    Raises:
        OSError: the other end is closed.
    """
    payload = pickle.dumps(message, pickle.HIGHEST_PROTOCOL)
    data = memoryview(_HEADER.pack(len(payload)) + payload)
    while data:
        data = data[os.write(connection.fileno(), data) :]


class Inbox:
    """Messages of a worker, in order; none is torn or lost when an exception ends a call.

    Args:
        process: the worker.
        connection: to it; a descriptor may follow a message there.

    Attributes:
        chunks: bytes of the first message; without them the next one is the first.
    """

    def __init__(self, process: multiprocessing.Process, connection: Connection) -> None:
        self._process, self._connection = process, connection
        self.chunks: deque[bytes] = deque()

    def first(self) -> tuple[Any, ...]:
        """Return the first message, waiting for it; it stays the first until it is dropped.

        Raises:
            EOFError: the worker is gone.
            OSError: the connection is broken.
        """
        while True:
            data = b"".join(self.chunks)
            missing = _HEADER.size - len(data)
            if missing <= 0:
                missing += _HEADER.unpack_from(data)[0]
                if not missing:
                    return pickle.loads(data[_HEADER.size :])  # noqa: S301 - the worker's
            if not data:
                self._wait()
            # In one call of C, so that no exception comes between reading bytes and keeping them.
            self.chunks.extend(map(os.read, (self._connection.fileno(),), (missing,)))
            if not self.chunks[-1]:
                raise EOFError

    def drop(self) -> None:
        """Let the next message be the first."""
        self.chunks.clear()

    def _wait(self) -> None:
        # The dead worker's own children may keep the connection open, hence the second question.
        while not self._connection.poll(_ALIVE_CHECK_S):
            if not self._process.is_alive() and not self._connection.poll(0):
                raise EOFError


class _Loan(weakref.ref):
    """A lent slot: a reference to the window that its tensors keep alive.

    Attributes:
        slot: its number.
        serial: number of the element in it, so that giving it back twice does no harm.
    """

    slot: int
    serial: int


class Lender:
    """Hands slots to the program and, when their tensors are gone, back to the worker.

    Args:
        connection: to the worker.
        slots: the memory.
    """

    def __init__(self, connection: Connection, slots: Slots) -> None:
        self._connection = connection
        self._slots = slots
        self._lent: dict[int, _Loan] = {}
        self._process_id = os.getpid()

    def lend(
        self, inbox: Inbox, serial: int, slot: int, rows: int | None, structure: bytes | None
    ) -> Any:
        """Make an element of a slot, of which the first message tells."""
        window = self._slots.window(slot)
        loan = _Loan(window, self._window_gone)
        loan.slot, loan.serial = slot, serial
        tensors = self._slots.tensors(window, rows)
        if len(self._lent) + 1 >= self._slots.number:
            # The program keeps elements; one slot at least must go on circulating.
            tensors = [tensor.clone() for tensor in tensors]
        element = self._slots.layout.assemble(tensors, structure)
        nothing: deque[bytes] = deque()
        # Lent exactly when the message is dropped: see the top of this file.
        self._lent[serial], inbox.chunks = loan, nothing
        return element

    def give_back(self, serial: int, slot: int) -> None:
        """Let the worker fill a slot again."""
        with contextlib.suppress(OSError):  # the worker is gone, nobody needs the slot
            self._connection.send(("free", serial, slot))

    def collect(self) -> None:
        """Give back slots whose tensors are gone, where an exception ended that before."""
        for loan in [*self._lent.values()]:
            if loan() is None:
                self._window_gone(loan)

    def _window_gone(self, loan: _Loan) -> None:
        if os.getpid() != self._process_id:
            return  # a fork's copy of a tensor is gone, the original may be in use
        if self._lent.get(loan.serial) is loan:  # else lending came to an exception
            self.give_back(loan.serial, loan.slot)
            self._lent.pop(loan.serial, None)
