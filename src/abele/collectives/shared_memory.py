"""Sums between processes of one host through memory that they share.

A step of a small model takes a millisecond, and gloo's loopback connection a good part of that.
Here every process copies its values to its slot and adds the slots of all processes; one counter
per process shows its progress. All add in the order of ranks, so all end with the same bits. Two
sets of slots alternate: a process that writes to a set again has seen all others reach the other
set, so there is one synchronisation per sum instead of two.

A tensor larger than a slot is exchanged in pieces. With many processes, each adds one part of all
slots and copies the parts that the others have added.

The memory has no name: it is gone with the last process that uses it, however that ends.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import platform
import select
import stat
import time
from collections.abc import Callable, Sequence

import torch

from abele.collectives.board import Board
from abele.storage import temporary

#: Set to 0 to exchange through gloo also on one host.
SWITCH = "ABELE_SHARED_MEMORY"
_LINE = 8  # a number per cache line of 64 bytes, so that writers do not slow each other down
_ALIGNMENT = 64
#: Pieces of a large tensor stay in the cache until the others have read them.
SLOT_BYTES = 1024 * 1024
#: More processes than this add one part each, unless that is too little to be worth meeting twice.
MOST_WHO_ADD_ALL, _WORTH_SHARING = 4, 64 * 1024
# Yielding for long uses up the share of a loaded core that the step after needs.
_SPIN_S, _YIELD_S, _SHORTEST_S, _LONGEST_S = 0.00005, 0.0003, 0.00005, 0.001
_LOOK_S = 0.05
_NAME = "abele-sums"
_MOST_VIEWS = 64


class SharedSums:
    """Memory that all processes of a run have mapped.

    Args:
        board: of this process.
        pids: of all processes, by rank.

    Raises:
        OSError: a process is not seen from here.
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
        cores = set[int]().union(*(os.sched_getaffinity(pid) for pid in pids))
        self._spin_s = _SPIN_S if len(cores) >= self._size else 0.0
        self._count, self._turn = 0, 0
        self._others = [rank * _LINE for rank in range(self._size) if rank != self._rank]
        self._flags = memoryview(b"").cast("B")
        self._slots = torch.empty(0)
        self._views: dict[tuple[int, torch.dtype], list[list[torch.Tensor]]] = {}

    @classmethod
    def of(cls, board: Board) -> SharedSums | None:
        """Return the memory, if all processes can share it; the same answer in all of them."""
        text = f"{_host()} {os.getpid()}" if _usable() else "no"
        hosts = [host.rpartition(" ") for host in board.gather("hosts", text)]
        if len({host for host, _, _ in hosts}) > 1 or not hosts[0][0]:
            return None
        sums, answer = None, "no"
        # Other containers or users: processes are not seen.
        with contextlib.suppress(OSError, ValueError):
            sums = cls(board, [int(pid) for _, _, pid in hosts])
            answer = "yes" if sums._map() else "no"
        return sums if set(board.gather("memory is shared", answer)) == {"yes"} else None

    def all_reduce(self, values: torch.Tensor, check: Callable[[], None]) -> None:
        """Replace a contiguous tensor on the host by its sum over all processes.

        Args:
            values: of one size everywhere.
            check: raises if a process that is waited for does not come; called now and then.
        """
        flat = values.view(-1)
        most = SLOT_BYTES // flat.element_size()
        for piece in (flat,) if flat.numel() <= most else torch.split(flat, most):
            self._add(piece, check)

    def _add(self, piece: torch.Tensor, check: Callable[[], None]) -> None:
        self._turn = 1 - self._turn
        *slots, result = self._rows(piece)[self._turn]
        slots[self._rank].copy_(piece)
        self._reach(check)
        if self._size <= MOST_WHO_ADD_ALL or piece.nbytes < _WORTH_SHARING:
            _sum(slots, piece)
            return
        part = self._part(piece)
        _sum([slot[part] for slot in slots], result[part])
        self._reach(check)
        piece.copy_(result)

    def _rows(self, piece: torch.Tensor) -> list[list[torch.Tensor]]:
        """Return, for both sets, the needed part of every process's slot and the results'."""
        key = piece.numel(), piece.dtype
        views = self._views.get(key)
        if views is None:
            if len(self._views) >= _MOST_VIEWS:
                self._views.clear()
            rows = self._slots[:, :, : piece.nbytes].view(piece.dtype)
            views = self._views[key] = [list(turn.unbind()) for turn in rows.unbind()]
        return views

    def dead(self) -> int | None:
        """Return a process that has ended, if there is one."""
        ready = self._alive.poll(0)
        return self._ends[ready[0][0]] if ready else None

    def close(self) -> None:
        """Forget the other processes; the memory goes with the last reference."""
        for end in self._ends:
            os.close(end)
        self._ends = {}
        self._alive = select.poll()

    def _part(self, piece: torch.Tensor) -> slice:
        """Return the part that this process adds for all: whole cache lines, each of one writer."""
        step = _ALIGNMENT // piece.element_size()
        share = -(-piece.numel() // (self._size * step)) * step
        return slice(self._rank * share, (self._rank + 1) * share)

    def _reach(self, check: Callable[[], None]) -> None:
        """Announce the next stage and wait until all processes have reached it."""
        self._count += 1
        count, flags = self._count, self._flags
        flags[self._rank * _LINE] = count
        for index in self._others:
            if flags[index] < count:
                self._wait_for(index, count, check)

    def _wait_for(self, index: int, count: int, check: Callable[[], None]) -> None:
        flags = self._flags
        began = looked = now = time.monotonic()
        while now - began < self._spin_s:
            for _ in range(50):
                if flags[index] >= count:
                    return
            now = time.monotonic()
        while flags[index] < count:
            now = time.monotonic()
            if now - began < _YIELD_S:
                os.sched_yield()  # the other process may need this very core
                continue
            time.sleep(min(_LONGEST_S, max(_SHORTEST_S, (now - began) / 10)))
            if now - looked > (_LOOK_S if self.dead() is None else 0):
                looked = now
                check()

    def _map(self) -> bool:
        """Map the memory, as all processes do now; the same answer in all of them."""
        head = -(-self._size * _LINE * 8 // mmap.PAGESIZE) * mmap.PAGESIZE
        total = head + 2 * (self._size + 1) * SLOT_BYTES  # pages that are not used take no memory
        file, answer = -1, "-1"
        try:
            if self._rank == 0:
                with contextlib.suppress(OSError):
                    file = os.memfd_create(_NAME, os.MFD_CLOEXEC)
                    os.ftruncate(file, total)
                    answer = str(file)
            number = self._board.gather("shared memory", answer)[0]
            answer = "no"
            with contextlib.suppress(OSError, ValueError):
                if self._rank:
                    file = _open_of(self._pids[0], int(number), total)
                mapped = mmap.mmap(file, total)
                self._flags = memoryview(mapped)[:head].cast("q")
                data = torch.frombuffer(mapped, dtype=torch.uint8, offset=head)
                self._slots = data.view(2, self._size + 1, SLOT_BYTES)
                answer = "yes"
            return set(self._board.gather("shared memory is mapped", answer)) == {"yes"}
        finally:
            if file >= 0:
                os.close(file)


def _open_of(pid: int, number: int, size: int) -> int:
    """Open the memory that another process has made, and nothing else of that number.

    Raises:
        OSError: it is something else, or of another user.
    """
    path = f"/proc/{pid}/fd/{number}"
    if not os.readlink(path).startswith(f"/memfd:{_NAME} "):
        raise FileNotFoundError(path)
    file = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NONBLOCK)
    status = os.fstat(file)
    if not stat.S_ISREG(status.st_mode) or (status.st_uid, status.st_size) != (os.geteuid(), size):
        os.close(file)
        raise PermissionError(path)
    return file


def _sum(values: Sequence[torch.Tensor], out: torch.Tensor) -> None:
    """Add two or more tensors in order; ``out`` is none of them."""
    torch.add(values[0], values[1], out=out)
    for other in values[2:]:
        out.add_(other)


def _usable() -> bool:
    # Other processors may let one process see the flag before the values it stands for.
    ordered = platform.machine() in ("x86_64", "AMD64")
    return ordered and hasattr(os, "pidfd_open") and os.environ.get(SWITCH, "1") != "0"


def _host() -> str:
    """Return an identifier of the host, or of a container that does not see other processes."""
    boot, namespace = temporary.boot(), temporary.namespace()
    return f"{boot} {namespace}" if boot and namespace else ""
