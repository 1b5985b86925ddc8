"""Collectives by torch.distributed (gloo, NCCL) or by shared memory within a host."""

from __future__ import annotations

import atexit
import contextlib
import dataclasses
import datetime
import mmap
import os
import platform
import select
import stat
import threading
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Any

import torch
from torch import distributed

from abele.collectives import meeting
from abele.collectives.meeting import ENDED, EXCHANGE, PATIENCE_S, STOPPED, Board, Place
from abele.errors import PlaceError, RankLostError
from abele.storage import temporary
from abele.version import __version__

# torch re-exports its public names without __all__.
# pyright: reportPrivateImportUsage=false


_untyped: Any = distributed

_LOOK_S = 1.0  # how often a process that waits checks whether the others live
_LINGER_S = 3.0


@dataclasses.dataclass
class Counts:
    """Counts of a process's collectives: calls, bytes and seconds.

    Attributes:
        calls: all-reduces and broadcasts.
        bytes: of their tensors; transfers per link depend on the algorithm.
        seconds: in them, which includes waiting for slower processes.
    """

    calls: int = 0
    bytes: int = 0
    seconds: float = 0.0


class Collective:
    """The connection of a process to all processes of a run, with their collectives.

    Every method raises RankLostError if a process has ended or does not arrive.

    Args:
        place: rank of this process, and address of the store.

    Attributes:
        rank: index of this process, from 0.
        size: number of processes.

    Raises:
        PlaceError: the port is taken.
        RankLostError: a process does not come in time.
        DisagreementError: processes have different versions, or other numbers of processes.
    """

    def __init__(self, place: Place):
        self.place, self.rank, self.size = place, place.rank, place.size
        self.counts = Counts()
        self._position = "before its first exchange"
        self._broken: str | None = None
        self._began = self._looked = 0.0
        self._mismatch: str | None = None
        self._mismatch_since = 0.0
        self._shared: SharedSums | None = None
        store = meeting.meet(place)
        keeper = "the launcher" if not place.hosts_store and place.rank == 0 else "process 0"
        self.board = Board(
            store, place.rank, place.size, place.timeout_s, lambda: self._position, keeper
        )
        try:
            self.board.agree("versions", _facts(place), arriving=True)
            self._alone_on_gpu = self._has_own_gpus()
            self._join(store)
            self._shared = SharedSums.of(self.board)
        except BaseException:
            self.board.close(f"{STOPPED} before it was connected")
            raise

    def all_reduce(self, values: torch.Tensor, topic: str = "") -> None:
        """Replace a contiguous tensor by its sum over all processes.

        Args:
            values: of one shape everywhere; every process ends with the same bits.
            topic: of the exchange; a process that has left it by ``leave`` never arrives.
        """
        with self._exchange(values) as wire:
            if self._shared is not None and not wire.is_cuda:
                self._shared.all_reduce(wire, lambda: self._look(topic))
            else:
                self._wait(lambda: _untyped.all_reduce(wire, async_op=True), topic, wire.is_cuda)

    def broadcast(self, values: torch.Tensor) -> None:
        """Replace a contiguous tensor by that of rank 0."""
        with self._exchange(values) as wire:
            self._wait(lambda: _untyped.broadcast(wire, 0, async_op=True), "", wire.is_cuda)

    def gather(self, topic: str, text: str) -> list[str]:
        """Return every process's text by rank; for short texts, and not in every step."""
        with self._breaking_on_loss():
            return self.board.gather(topic, text)

    def agree(self, topic: str, facts: Mapping[str, str]) -> None:
        """Check that facts, such as options, are the same in all processes.

        Args:
            topic: what the facts are about, for messages.
            facts: names and values as they are shown.

        Raises:
            DisagreementError: names the first ranks and facts that differ, and their values.
        """
        with self._breaking_on_loss():
            self.board.agree(topic, facts)

    def tell(self, topic: str, text: str) -> None:
        """Write a note for other processes to the shared store."""
        self.board.tell(topic, text)

    def notes(self, topic: str) -> dict[int, str]:
        """Return the notes of all processes on a topic, by rank."""
        return self.board.notes(topic)

    def leave(self, topic: str, why: str) -> None:
        """Announce that this process takes no further part in exchanges of a topic."""
        # Whoever leaves because the others are gone has nobody to tell.
        with contextlib.suppress(RankLostError):
            self.board.tell(f"left/{topic}", why)

    def fail(self, problem: str) -> None:
        """Notify waiting processes that this process ends, and why."""
        if self._broken is None:
            self._broken = problem
            self.board.stop(self._last_words())

    def close(self) -> None:
        """Announce the orderly end of this process and close its connections."""
        self.board.close(self._last_words(), _LINGER_S if self.place.hosts_store else 0.0)
        if self._shared is not None:
            self._shared.close()
        if self._owns_group and distributed.is_initialized():
            with contextlib.suppress(RuntimeError):
                distributed.destroy_process_group()

    # -- one exchange ----------------------------------------------------------------------

    @contextlib.contextmanager
    def _breaking_on_loss(self) -> Generator[None]:
        """End all exchanges if another process is lost during a ``with`` block."""
        self._check_whole()
        try:
            yield
        except RankLostError as problem:
            self._break(problem)
            raise

    @contextlib.contextmanager
    def _exchange(self, values: torch.Tensor) -> Generator[torch.Tensor]:
        """Count a tensor exchange in a ``with`` block; after a failed one, refuse further ones.

        After a failure other processes may still start it, and would meet this one's next exchange.

        Yields:
            The tensor itself, or a copy on the host where several processes share a GPU.
        """
        # One context, not one for each purpose: a small model's update is as long as 20 of them.
        self._check_whole()
        number = self.counts.calls + 1
        self._position = f"in exchange {number}"
        began = self._began = time.monotonic()
        self.board.begin(EXCHANGE)
        staged = values.is_cuda and not self._alone_on_gpu
        wire = values.cpu() if staged else values
        try:
            yield wire
        except BaseException as problem:
            self._break(problem)
            raise
        if staged:
            values.copy_(wire)
        self.counts.seconds += time.monotonic() - began
        self.counts.calls = number
        self.counts.bytes += wire.nbytes
        self._position = f"after exchange {number}"

    def _break(self, problem: BaseException) -> None:
        self._broken = f"{problem}" or type(problem).__name__
        self.board.stop(self._last_words())

    def _wait(self, start: Callable[[], distributed.Work | None], topic: str, cuda: bool) -> None:
        """Wait for a tensor exchange, checking periodically for lost processes."""
        done = _done_on_gpu if cuda else _done
        try:
            work = start()
            assert work is not None
            while not done(work):
                self._look(topic)
        except RuntimeError as problem:
            raise self._lost(self._who_broke(str(problem))) from problem

    def _look(self, topic: str) -> None:
        """Raise RankLostError if a process needed by an exchange is lost."""
        dead = None if self._shared is None else self._shared.dead()
        now = time.monotonic()
        if dead is None and now - self._looked < _LOOK_S:
            return
        self._looked = now
        reason = self.board.lost(self.place.timeout_s / 2, topic) or self._mismatched_wait(now)
        if reason is None and dead is not None:
            reason = f"process {dead} died"
        if reason is None and now - self._began > PATIENCE_S:
            reason = f"others did not come within {PATIENCE_S:.0f} s"
        if reason is not None:
            raise self._lost(reason)

    def _mismatched_wait(self, now: float) -> str | None:
        """Return which process waits at another exchange, unless it may have just left this one."""
        if now - self._began < _LOOK_S:
            return None
        self.board.waits(EXCHANGE)
        mismatch = self.board.mismatched_wait(range(self.size))
        if mismatch is None or mismatch != self._mismatch:
            self._mismatch, self._mismatch_since = mismatch, now
        return mismatch if now - self._mismatch_since > self.place.timeout_s / 4 else None

    def _last_words(self) -> str:
        if self._broken is None:
            return f"{ENDED} after {self.counts.calls} exchanges"
        return f"{STOPPED}: {self._broken.partition('. ')[0]}"

    def _check_whole(self) -> None:
        if self._broken is not None:
            raise RankLostError(self._broken)

    def _lost(self, reason: str) -> RankLostError:
        return RankLostError(
            f"Process {self.rank} of {self.size} waited in exchange {self.counts.calls + 1}, but "
            f"{reason}. Look at the output of that process, and start all processes again."
        )

    def _who_broke(self, problem: str) -> str:
        """Return which process broke a connection, as soon as that is known."""
        limit = min(5.0, self.place.timeout_s / 6)
        until = time.monotonic() + 3 * limit
        while time.monotonic() < until:
            reason = self.board.lost(limit)
            if reason is not None:
                return reason
            time.sleep(0.1)
        return f"a connection to another process broke: {problem.splitlines()[0]}"

    # -- connecting ------------------------------------------------------------------------

    def _has_own_gpus(self) -> bool:
        """Return whether every process has its own GPU, which NCCL requires."""
        gpu = "none"
        if torch.cuda.is_available():
            torch.cuda.set_device(self.place.local_rank % torch.cuda.device_count())
            cuda: Any = torch.cuda
            gpu = str(cuda.get_device_properties(cuda.current_device()).uuid)
        gpus = self.board.gather("devices", gpu)
        return "none" not in gpus and len(set(gpus)) == self.size

    def _join(self, store: distributed.Store) -> None:
        self._owns_group = not distributed.is_initialized()
        if not self._owns_group:
            self._check_group()
            return
        try:
            distributed.init_process_group(
                "cpu:gloo,cuda:nccl" if self._alone_on_gpu else "gloo",
                store=distributed.PrefixStore("group", store),
                rank=self.rank,
                world_size=self.size,
                timeout=datetime.timedelta(seconds=PATIENCE_S),
            )
        except RuntimeError as problem:
            raise RankLostError(
                f"Process {self.rank} of {self.size} could not connect with the others: "
                f"{self._who_broke(str(problem))}."
            ) from problem

    def _check_group(self) -> None:
        joined = (distributed.get_rank(), distributed.get_world_size())
        if joined != (self.rank, self.size):
            raise PlaceError(
                f"torch.distributed was started as process {joined[0]} of {joined[1]}, but this is "
                f"process {self.rank} of {self.size}. Leave starting it to this "
                "connection, which uses these numbers."
            )


def gather_bytes(collective: Collective, topic: str, part: bytes) -> list[bytes]:
    """Return the bytes of every process by rank, on every process."""
    sizes = [int(size) for size in collective.gather(topic, str(len(part)))]
    joined = torch.zeros(sum(sizes), dtype=torch.uint8)
    if part:
        start = sum(sizes[: collective.rank])
        joined[start : start + len(part)] = torch.frombuffer(bytearray(part), dtype=torch.uint8)
    collective.all_reduce(joined)  # the slices of other processes are zero
    return [each.numpy().tobytes() for each in torch.split(joined, sizes)]


def broadcast_bytes(collective: Collective, topic: str, data: bytes | None) -> bytes:
    """Return the bytes of rank 0 on every process; other processes pass None."""
    size = int(collective.gather(topic, str(len(data or b"")))[0])
    if not size:
        return b""
    wire = torch.frombuffer(
        bytearray(data if collective.rank == 0 and data else size), dtype=torch.uint8
    )
    collective.broadcast(wire)
    return wire.numpy().tobytes()


def _done(work: distributed.Work) -> bool:
    """Wait briefly for an exchange and return whether it is complete."""
    try:
        work.wait(datetime.timedelta(seconds=_LOOK_S))
    except RuntimeError:
        # Raised for a failed exchange and for one that only takes longer.
        if not work.is_completed():
            return False
        work.wait()  # it ended in between: well, or by raising again
    return True


def _done_on_gpu(work: distributed.Work) -> bool:
    """Wait briefly for an NCCL exchange; return whether it is complete."""
    until = time.monotonic() + _LOOK_S
    while not work.is_completed():
        if time.monotonic() > until:
            return False
        time.sleep(2e-5)
    work.wait()
    return True


def _facts(place: Place) -> dict[str, str]:
    return {
        "number of processes": str(place.size),
        "torch": torch.__version__,
        "abele": __version__,
        "Python": ".".join(platform.python_version_tuple()[:2]),
    }


_lock = threading.Lock()
_connection: Collective | None = None


def connect(rank: int, size: int, local_ranks: Sequence[str] = ()) -> Collective:
    """Connect to the other processes of a run, once; later calls return the same.

    Args:
        rank: number of this process.
        size: how many there are.
        local_ranks: see ``Place.of_environment``.

    Raises:
        PlaceError: the environment lacks the store's address, or contradicts the arguments.
        RankLostError: a process does not come in time.
        DisagreementError: processes of other versions.
    """
    global _connection
    with _lock:
        if _connection is None:
            _connection = Collective(Place.of_environment(rank, size, local_ranks))
            atexit.register(disconnect)
        elif (_connection.rank, _connection.size) != (rank, size):
            raise PlaceError(
                f"This process is connected as {_connection.rank} of {_connection.size}, and now "
                f"asked to be {rank} of {size}. All wrappers of a program share one place."
            )
        return _connection


def connected() -> Collective | None:
    """Return the connection to the other processes of a run, or None."""
    return _connection


def disconnect() -> None:
    """Close the connection to the other processes; done at exit by default."""
    global _connection
    with _lock:
        connection, _connection = _connection, None
    if connection is not None:
        atexit.unregister(disconnect)
        connection.close()


#: Set to 0 to exchange through gloo also on one host.
SWITCH = "ABELE_SHARED_MEMORY"
_LINE = 8  # a number per cache line of 64 bytes, so that writers do not slow each other down
_ALIGNMENT = 64
#: Bytes of a chunk, small enough to stay in the cache until other processes have read it.
SLOT_BYTES = 1024 * 1024
#: With more processes, each sums one slice, unless slices are too small for a second barrier.
MOST_WHO_ADD_ALL, _WORTH_SHARING = 4, 64 * 1024
# Seconds: yielding for longer uses up the time slice that the next step needs on a loaded core.
_SPIN_S, _YIELD_S, _SHORTEST_S, _LONGEST_S = 0.00005, 0.0003, 0.00005, 0.001
_GLANCE_S = 0.05
_NAME = "abele-sums"
_MOST_VIEWS = 64


class SharedSums:
    """An all-reduce in memory that all processes of a host have mapped.

    Args:
        board: of this process.
        pids: of all processes, by rank.

    Raises:
        OSError: a process is in another PID namespace or of another user.
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
        """Map shared memory for all-reduce if all processes can; return the same answer in all."""
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
        """Replace a contiguous host tensor by its sum over all processes.

        Args:
            values: of one size everywhere.
            check: raises if an awaited process is lost; called periodically.
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
        """Return views of a chunk in all processes' slots and results, for both sets."""
        key = piece.numel(), piece.dtype
        views = self._views.get(key)
        if views is None:
            if len(self._views) >= _MOST_VIEWS:
                self._views.clear()
            rows = self._slots[:, :, : piece.nbytes].view(piece.dtype)
            views = self._views[key] = [list(turn.unbind()) for turn in rows.unbind()]
        return views

    def dead(self) -> int | None:
        """Return the rank of an ended process, or None."""
        ready = self._alive.poll(0)
        return self._ends[ready[0][0]] if ready else None

    def close(self) -> None:
        """Close references to the other processes; memory is freed with its last reference."""
        for end in self._ends:
            os.close(end)
        self._ends = {}
        self._alive = select.poll()

    def _part(self, piece: torch.Tensor) -> slice:
        """Return the slice that this process sums for all processes, in whole cache lines."""
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
            if now - looked > (_GLANCE_S if self.dead() is None else 0):
                looked = now
                check()

    def _map(self) -> bool:
        """Map the shared memory in all processes; return the same success in all of them."""
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
    """Open another process's shared memory; raise OSError for other files, or another user's."""
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
    """Sum two or more tensors in order into ``out``, which is not among them."""
    torch.add(values[0], values[1], out=out)
    for other in values[2:]:
        out.add_(other)


def _usable() -> bool:
    # Other processors may let one process see the flag before the values it stands for.
    ordered = platform.machine() in ("x86_64", "AMD64")
    return ordered and hasattr(os, "pidfd_open") and os.environ.get(SWITCH, "1") != "0"


def _host() -> str:
    """Return an identifier of the host, or of a container with its own PID namespace."""
    boot, namespace = temporary.boot(), temporary.namespace()
    return f"{boot} {namespace}" if boot and namespace else ""
