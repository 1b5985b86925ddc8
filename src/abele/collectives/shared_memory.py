"""Sums between processes of one host through memory that they share.

A step of a small model takes a millisecond, and gloo's loopback connection a good part of that.
Every process copies its values to a slot of its own, adds one part of all slots, and copies the
parts that the others have added; who is how far stands in one number per process. Each part is
added by one process in the order of ranks, so that all end with the same bits.

The memory has no name: it is gone with the last process that uses it, however that ends.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import platform
import select
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import torch

from abele.collectives.board import Board

#: Set to 0 to exchange through gloo also on one host.
SWITCH = "ABELE_SHARED_MEMORY"
_LINE = 8  # a number per cache line of 64 bytes, so that writers do not slow each other down
_ALIGNMENT = 64
# Yielding for long uses up the share of a loaded core that the step after needs.
_SPINS, _YIELD_S, _SHORTEST_S, _LONGEST_S = 300, 0.0003, 0.00005, 0.001
_LOOK_S = 0.05


class SharedSums:
    """Memory that all processes of a run have mapped.

    Args:
        board: of this process.
        pids: of all processes, by rank.
    """

    def __init__(self, board: Board, pids: list[int]):
        self._board, self._rank, self._size = board, board.rank, board.size
        self._pids = pids
        self._alive = select.poll()
        self._ends: dict[int, int] = {}
        for rank, pid in enumerate(pids):
            if rank != self._rank:
                self._ends[os.pidfd_open(pid)] = rank
        for end in self._ends:
            self._alive.register(end, select.POLLIN)  # readable once the process has ended
        self._capacity, self._count = 0, 0
        self._flags = memoryview(b"").cast("B")
        self._slots = torch.empty(0)

    @classmethod
    def of(cls, board: Board) -> SharedSums | None:
        """The memory, if all processes can share it; the same answer in all of them."""
        text = f"{_host()} {os.getpid()}" if _usable() else "no"
        told = [one.rpartition(" ") for one in board.gather("hosts", text)]
        if len({host for host, _, _ in told}) > 1 or not told[0][0]:
            return None
        found, answer = None, "no"
        with contextlib.suppress(OSError):  # other containers or users: processes are not seen
            found = cls(board, [int(pid) for _, _, pid in told])
            answer = "yes" if found._grow(4096) else "no"
        return found if set(board.gather("memory is shared", answer)) == {"yes"} else None

    def all_reduce(self, values: torch.Tensor, check: Callable[[], None]) -> None:
        """Replaces a contiguous tensor on the host by its sum over all processes.

        Args:
            values: of one size everywhere.
            check: raises if a process that is waited for does not come; called now and then.
        """
        flat = values.view(-1)
        size = flat.numel() * flat.element_size()
        if size > self._capacity and not self._grow(size):
            raise RuntimeError(f"{size} bytes of memory could not be shared between processes.")
        rows = self._slots[:, :size].view(flat.dtype)
        rows[self._rank].copy_(flat)
        self._reach(check)
        for rank, part in enumerate(self._parts(flat)):
            if rank == self._rank:
                torch.add(rows[0, part], rows[1, part], out=rows[-1, part])
                for other in range(2, self._size):
                    rows[-1, part].add_(rows[other, part])
        self._reach(check)
        flat.copy_(rows[-1])

    def dead(self) -> int | None:
        """A process that has ended, if there is one."""
        ready = self._alive.poll(0)
        return self._ends[ready[0][0]] if ready else None

    def close(self) -> None:
        """Forgets the other processes; the memory goes with the last reference."""
        for end in self._ends:
            os.close(end)
        self._ends = {}
        self._alive = select.poll()

    def _parts(self, flat: torch.Tensor) -> Iterator[slice]:
        step = _ALIGNMENT // flat.element_size()
        share = -(-flat.numel() // (self._size * step)) * step
        for rank in range(self._size):
            yield slice(rank * share, min((rank + 1) * share, flat.numel()))

    def _reach(self, check: Callable[[], None]) -> None:
        """Says that this process is one stage further, and waits until all are."""
        self._count += 1
        count, flags = self._count, self._flags
        flags[self._rank * _LINE] = count
        for rank in range(self._size):
            if flags[rank * _LINE] < count:
                self._wait_for(rank * _LINE, count, check)

    def _wait_for(self, index: int, count: int, check: Callable[[], None]) -> None:
        flags = self._flags
        for _ in range(_SPINS):
            if flags[index] >= count:
                return
        began = looked = time.monotonic()
        while flags[index] < count:
            now = time.monotonic()
            if now - began < _YIELD_S:
                os.sched_yield()  # the other process may need this very core
                continue
            time.sleep(min(_LONGEST_S, max(_SHORTEST_S, (now - began) / 10)))
            if now - looked > (_LOOK_S if self.dead() is None else 0):
                looked = now
                check()

    def _grow(self, size: int) -> bool:
        """Maps more memory in all processes; they come here in the same exchange."""
        self._capacity = -(-size // mmap.PAGESIZE) * mmap.PAGESIZE
        head = -(-self._size * _LINE * 8 // mmap.PAGESIZE) * mmap.PAGESIZE
        total = head + (self._size + 1) * self._capacity
        file, answer = -1, "no"
        try:
            if self._rank == 0:
                with contextlib.suppress(OSError):
                    file = os.memfd_create("abele-sums", os.MFD_CLOEXEC)
                    os.ftruncate(file, total)
                    answer = f"/proc/{os.getpid()}/fd/{file}"
            path = self._board.gather("shared memory", answer)[0]
            with contextlib.suppress(OSError):
                if self._rank:
                    file = os.open(path, os.O_RDWR | os.O_CLOEXEC)
                mapped = mmap.mmap(file, total)
                self._flags = memoryview(mapped)[:head].cast("q")
                data = torch.frombuffer(mapped, dtype=torch.uint8, offset=head)
                self._slots = data.view(self._size + 1, self._capacity)
                self._count, answer = 0, "yes"
            return set(self._board.gather("shared memory is mapped", answer)) == {"yes"}
        finally:
            if file >= 0:
                os.close(file)


def _usable() -> bool:
    # Other processors may let one process see the flag before the values it stands for.
    ordered = platform.machine() in ("x86_64", "AMD64")
    return ordered and hasattr(os, "pidfd_open") and os.environ.get(SWITCH, "1") != "0"


def _host() -> str:
    """Tells hosts apart, and containers that do not see each other's processes."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return ""
