"""Rendezvous of processes, and the shared store for their notes and heartbeats.

Notes are all coordination except the exchange of tensors: arrivals, agreed values, and why a
process ended. They work before the first exchange of tensors and while one hangs. A thread of every
process writes a heartbeat about once a second; processes that wait read them.
"""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import errno
import hashlib
import ipaddress
import json
import os
import socket
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Self

from torch import distributed

from abele.errors import (
    DisagreementError,
    MeetingPointError,
    PlaceError,
    RankLostError,
)
from abele.warn import warn_user

#: Seconds until a process without arrival or heartbeat counts as lost.
TIMEOUT = "ABELE_RANK_TIMEOUT"
#: The shared secret of a run's processes, created by a launcher.
SECRET = "ABELE_RUN_SECRET"
_DEFAULT_TIMEOUT_S = 60.0
_LOCAL_RANKS = ("LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Place:
    """The rank of a process among all processes, and the address of their store.

    Attributes:
        rank: index of the process, from 0.
        size: number of processes.
        address: host on which rank 0, or a launcher, runs the store.
        port: its TCP port.
        local_rank: index of the process on this host.
        hosts_store: this process runs the store; otherwise it connects to it.
        attempt: number of restarts by a launcher.
        timeout_s: see ``TIMEOUT``.
        secret: see ``SECRET``; empty if there is none.
    """

    rank: int
    size: int
    address: str
    port: int
    local_rank: int
    hosts_store: bool
    attempt: str
    timeout_s: float
    secret: str = dataclasses.field(default="", repr=False)

    @classmethod
    def of_environment(cls, rank: int, size: int, local_ranks: Sequence[str] = ()) -> Self:
        """Read the place of a process of known rank from the environment.

        Args:
            rank: as passed to the front-end.
            size: number of processes, as passed to the front-end.
            local_ranks: further variables in which a launcher passes the process's index on the
                host.

        Raises:
            PlaceError: no meeting point, a malformed variable, or another rank or size.
        """
        for name, value in (("RANK", rank), ("WORLD_SIZE", size)):
            number = _variable(name)
            if number is not None and number != value:
                raise PlaceError(
                    f"{name}={number}, but the options say {value} (process {rank} of {size}). "
                    "Start the program with one launcher alone, or unset what an earlier run left "
                    "in the environment."
                )
        address, port = os.environ.get("MASTER_ADDR"), _variable("MASTER_PORT")
        if not address or port is None:
            raise MeetingPointError(
                f"Process {rank} of {size} does not know where to meet the others: MASTER_ADDR "
                "and MASTER_PORT are not set. Start the program with a launcher, which sets them, "
                "or set them to a host and a free port of rank 0.",
                size,
            )
        names = (*_LOCAL_RANKS, *local_ranks)
        local = next((n for name in names if (n := _variable(name)) is not None), rank)
        by_launcher = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
        return cls(
            rank=rank,
            size=size,
            address=address,
            port=port,
            local_rank=local,
            hosts_store=rank == 0 and not by_launcher,
            attempt=os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"),
            timeout_s=timeout_s(),
            secret=os.environ.get(SECRET, ""),
        )


def timeout_s() -> float:
    """Return the timeout after which a process counts as lost, in seconds.

    Raises:
        PlaceError: the variable holds no positive number.
    """
    text = os.environ.get(TIMEOUT)
    if text is None:
        return _DEFAULT_TIMEOUT_S
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < 1e6:
        raise PlaceError(f"{TIMEOUT}={text!r} should be a number of seconds, more than 0")
    return seconds


def _variable(name: str) -> int | None:
    text = os.environ.get(name)
    if text is None:
        return None
    if not text.strip().isdecimal():
        raise PlaceError(f"{name}={text!r} should be an integer, 0 or more")
    return int(text)


# torch re-exports its public names without __all__.
# pyright: reportPrivateImportUsage=false


_BACKLOG = 2048  # connections that wait to be taken, as torch's own store


def keep_store(
    address: str, port: int, timeout: datetime.timedelta = datetime.timedelta(minutes=5)
) -> distributed.TCPStore:
    """Open a key-value store in this process, reachable at one address only.

    torch itself listens on every interface. The store has no authentication, so for processes
    of one host it listens on the loopback.

    Args:
        address: where other processes connect. An address of another machine, or a host name
            that resolves to the loopback here, means every interface.
        port: 0 for a free one.
        timeout: of the store's client in this process.

    Raises:
        OSError: the port is taken.
        RuntimeError: the port is taken, as torch reports it.
    """
    listener = _listen(_number(address), port)
    host, port_number = listener.getsockname()[:2]
    return distributed.TCPStore(
        "127.0.0.1" if host == "0.0.0.0" else host,
        port_number,
        is_master=True,
        timeout=timeout,
        wait_for_workers=False,
        master_listen_fd=listener.detach(),
    )


def meet(place: Place) -> distributed.Store:
    """Open the key-value store of a run, or connect to it.

    Raises:
        PlaceError: another program has the port.
        RankLostError: the process that runs the store does not start in time.
    """
    endpoint = f"{place.address}:{place.port}"
    timeout = datetime.timedelta(seconds=place.timeout_s)
    if not place.hosts_store:
        _wait_for_port(place, endpoint)
    try:
        if place.hosts_store:
            store = keep_store(place.address, place.port, timeout)
        else:
            store = _connected_store(place, endpoint)
    except (OSError, RuntimeError) as problem:
        reason = str(problem).splitlines()[0]
        raise PlaceError(
            f"Process {place.rank} cannot open {endpoint}, where all meet: {reason}. Set "
            "MASTER_PORT to a port of process 0's host that is free, and MASTER_ADDR to that host."
        ) from problem
    prefix = f"abele/{place.attempt}"
    if place.secret:
        # Nobody else writes there by accident, and the secret itself is in no store.
        prefix += f"/{hashlib.sha256(place.secret.encode()).hexdigest()}"
    return distributed.PrefixStore(prefix, store)


def _connected_store(place: Place, endpoint: str) -> distributed.Store:
    """Connect to the key-value store, if the listening program is one.

    torch's client waits for the first answer without a limit, so it runs in a thread; one that
    never returns ends with the process.

    Raises:
        PlaceError: another program has the port.
    """
    opened: list[distributed.Store | Exception] = []
    timeout = datetime.timedelta(seconds=place.timeout_s)

    def connect() -> None:
        try:
            address = _number(place.address)
            store = distributed.TCPStore(
                address, place.port, timeout=timeout, wait_for_workers=False
            )
        except Exception as problem:  # noqa: BLE001  raised where it is waited for
            opened.append(problem)
        else:
            opened.append(store)

    thread = threading.Thread(target=connect, daemon=True)
    thread.start()
    thread.join(2 * place.timeout_s)
    if not opened:
        raise PlaceError(
            f"Process {place.rank} of {place.size} reaches {endpoint}, where all should meet, but "
            "what listens there does not answer: another program has that port. Set MASTER_PORT "
            "to a free one."
        )
    if isinstance(opened[0], Exception):
        raise opened[0]
    return opened[0]


def _listen(address: str, port: int) -> socket.socket:
    """Return a listening socket on one address of this machine, else on all addresses."""
    family, target = socket.AF_INET, ("", port)
    with contextlib.suppress(socket.gaierror):
        addresses = socket.getaddrinfo(address, port, type=socket.SOCK_STREAM)
        family, *_, target = min(addresses, key=lambda info: info[0] != socket.AF_INET)
    # Debian gives a machine's own name 127.0.1.1: other hosts know another address.
    if _is_loopback(str(target[0])) and not _is_loopback(address):
        return _bound(socket.AF_INET, ("", port))
    try:
        return _bound(family, target)
    except OSError as error:
        if error.errno != errno.EADDRNOTAVAIL:
            raise
    return _bound(socket.AF_INET, ("", port))


def _bound(family: int, target: tuple[Any, ...]) -> socket.socket:
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(target)
        listener.listen(_BACKLOG)
    except BaseException:
        listener.close()
        raise
    return listener


def _number(address: str) -> str:
    """Return the loopback's IP address, as its name may stand for two addresses."""
    return "127.0.0.1" if address == "localhost" else address


def _is_loopback(address: str) -> bool:
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return False  # a name


def _wait_for_port(place: Place, endpoint: str) -> None:
    """Wait until a program listens on the store's port."""
    until = time.monotonic() + place.timeout_s
    while True:
        try:
            address = (_number(place.address), place.port)
            socket.create_connection(address, timeout=5.0).close()
            return
        except OSError as problem:
            if time.monotonic() > until:
                if isinstance(problem, socket.gaierror):
                    raise PlaceError(
                        f"MASTER_ADDR={place.address} is no host that process {place.rank} of "
                        f"{place.size} knows: {problem.strerror}. Set it to a name or address of "
                        "process 0's host."
                    ) from problem
                raise RankLostError(
                    f"Process {place.rank} of {place.size} waited {place.timeout_s:.0f} s for "
                    f"process 0, which does not answer at {endpoint} ({problem.strerror}). Start "
                    "it, or correct MASTER_ADDR and MASTER_PORT; if it only needs longer to come, "
                    "set ABELE_RANK_TIMEOUT to more seconds."
                ) from problem
        time.sleep(0.1)


ENDED, STOPPED = "ended", "stopped"
EXCHANGE = "an exchange"
#: Seconds to wait for live processes, as in torch's process groups.
PATIENCE_S = 1800.0
_SHOWN = 8


class Board:
    """The notes and heartbeats of one process in the shared store.

    Args:
        store: shared by all processes, and by nothing else.
        rank: of this process.
        size: number of processes.
        timeout_s: limit of arrival and of silence, after which a process counts as lost.
        position: returns the progress of this process, for messages.
        keeper: the process that is lost if the store is unreachable.
    """

    def __init__(
        self,
        store: distributed.Store,
        rank: int,
        size: int,
        timeout_s: float,
        position: Callable[[], str],
        keeper: str,
    ):
        self.rank, self.size, self.timeout_s = rank, size, timeout_s
        self._store, self._position, self._keeper = store, position, keeper
        self._beats = [f"alive/{other}" for other in range(size)]
        self._last_beats: dict[int, tuple[str, float]] = {}
        self._rounds: dict[str, int] = {}
        self._noted_place = ""
        self._closing = threading.Event()
        self._beat(store, "0")
        # A separate client: a call that waits for an answer blocks its client.
        untyped: Any = store  # the stub lacks clone
        self._thread = threading.Thread(
            target=self._keep_beating,
            args=(untyped.clone(),),
            name="abele-alive",
            daemon=True,
        )
        self._thread.start()

    # -- notes -----------------------------------------------------------------------------

    def tell(self, topic: str, text: str) -> None:
        """Write a note to the shared store under this process's rank."""
        with self._store_lost():
            self._store.set(f"note/{topic}/{self.rank}", text)

    def notes(self, topic: str) -> dict[int, str]:
        """Return the notes of all processes on a topic, by rank."""
        notes: dict[int, str] = {}
        with self._store_lost():
            for other in range(self.size):
                key = f"note/{topic}/{other}"
                if self._store.check([key]):
                    notes[other] = self._store.get(key).decode()
        return notes

    def gather(self, topic: str, text: str, *, arriving: bool = False) -> list[str]:
        """Return every process's text by rank, once all processes have sent theirs.

        Args:
            topic: may be used again.
            text: of this process.
            arriving: processes that have not come at all are waited for no longer than the
                timeout, instead of as long as they are alive.

        Raises:
            RankLostError: a process does not arrive, has ended or has no heartbeat.
        """
        number = self.begin(topic)
        keys = [f"gather/{topic}/{number}/{other}" for other in range(self.size)]
        with self._store_lost():
            self._store.set(keys[self.rank], text)
        started, pause, warned = time.monotonic(), 0.002, False
        while not self._all_there(keys):
            waited = time.monotonic() - started
            if waited > 1.0:
                self.waits(topic)
                self._check_missing(topic, keys, waited, arriving)
            if waited > self.timeout_s and not warned:
                warned = True
                missing = ", ".join(map(str, self._missing(keys)))
                warn_user(
                    f"Process {self.rank} has waited {waited:.0f} s for process {missing} to "
                    f"reach {topic!r}. It is alive, so the wait goes on.",
                    UserWarning,
                )
            time.sleep(pause)
            pause = min(pause * 1.5, 0.2)
        with self._store_lost():
            return [value.decode() for value in self._store.multi_get(keys)]

    def agree(self, topic: str, facts: Mapping[str, str], *, arriving: bool = False) -> None:
        """Check that facts agree in all processes; see ``Collective.agree``."""
        texts = self.gather(topic, json.dumps(dict(facts)), arriving=arriving)
        lines = _differences([json.loads(text) for text in texts])
        if lines:
            more = f"; and {len(lines) - _SHOWN} more" if len(lines) > _SHOWN else ""
            raise DisagreementError(
                f"Processes that train together disagree about {topic}: "
                f"{'; '.join(lines[:_SHOWN])}{more}. Give all processes the same."
            )

    # -- waiting at different places ----------------------------------------------------------

    def begin(self, topic: str) -> int:
        """Count this process's arrival at a barrier of all processes, such as ``EXCHANGE``."""
        self._rounds[topic] = self._rounds.get(topic, 0) + 1
        return self._rounds[topic]

    def waits(self, topic: str) -> None:
        """Publish the barrier at which this process has been waiting for a while."""
        note = json.dumps([topic, self._rounds[topic]])
        if note != self._noted_place:
            self._noted_place = note
            with self._store_lost():
                self._store.set(f"at/{self.rank}", note)

    def mismatched_wait(self, ranks: Iterable[int]) -> str | None:
        """Return which process waits at a barrier that this process has not reached.

        A barrier that both have passed is no mismatch, so old notes may stay.
        """
        for rank in ranks:
            key = f"at/{rank}"
            with self._store_lost():
                note = self._store.get(key).decode() if self._store.check([key]) else '["", 0]'
            topic, number = json.loads(note)
            if rank != self.rank and self._rounds.get(topic, 0) < number:
                return (
                    f"process {rank} waits at {topic!r} instead; all processes have to do the "
                    "same in the same order"
                )
        return None

    # -- who is there ----------------------------------------------------------------------

    def lost(self, silence_s: float, topic: str = "", ranks: Iterable[int] = ()) -> str | None:
        """Return which process will not arrive, and why; None if all may still arrive.

        Args:
            silence_s: seconds without a heartbeat after which a process counts as lost.
            topic: processes that have left this topic will not arrive.
            ranks: the processes to check; all others if it is empty.
        """
        with self._store_lost():
            keys = self._beats if self._store.check(self._beats) else []
            beats = [value.decode() for value in self._store.multi_get(keys)] if keys else []
        now, waited = time.monotonic(), set(ranks) or set(range(self.size))
        reasons: dict[int, str] = {}
        for other, beat in enumerate(beats):
            if other == self.rank or other not in waited:
                continue
            if self._last_beats.get(other, ("", 0.0))[0] != beat:
                self._last_beats[other] = (beat, now)
            silent = now - self._last_beats[other][1]
            kind, _, rest = beat.partition(" ")
            kind = kind.rstrip(":")
            if kind in (ENDED, STOPPED):
                reasons[other] = f"process {other} has {beat}"
            elif silent > silence_s:
                at = f"; it was last seen {rest}" if rest else ""
                reasons[other] = f"process {other} died or hangs: no sign of it for {silent:.0f} s"
                reasons[other] += at
        if not reasons and topic:
            notes = self.notes(f"left/{topic}")
            reasons = {other: f"process {other} {text}" for other, text in notes.items()}
            reasons.pop(self.rank, None)
        # The first cause is a process that is gone; those that stopped did so because of it.
        order = sorted(reasons, key=lambda other: f" has {STOPPED}" in reasons[other])
        return reasons[order[0]] if order else None

    def stop(self, last_words: str) -> None:
        """Replace this process's heartbeat by last words and stop it."""
        self._closing.set()
        self._thread.join(timeout=5.0)
        with contextlib.suppress(RuntimeError):  # the store may be gone, and nobody left to tell
            self._store.set(self._beats[self.rank], last_words)

    def close(self, last_words: str, linger_s: float = 0.0) -> None:
        """End this process's heartbeat with last words that give the reason.

        Args:
            last_words: begins with ``ENDED`` or ``STOPPED``.
            linger_s: maximum wait for the end of the other processes; for the process that runs
                the store, which they need to read the last words.
        """
        self.stop(last_words)
        with contextlib.suppress(RuntimeError):
            until = time.monotonic() + linger_s
            while time.monotonic() < until:
                beats = [value.decode() for value in self._store.multi_get(self._beats)]
                if all(beat.partition(" ")[0].rstrip(":") in (ENDED, STOPPED) for beat in beats):
                    break
                time.sleep(0.05)

    def _all_there(self, keys: list[str]) -> bool:
        with self._store_lost():
            return self._store.check(keys)

    def _missing(self, keys: list[str]) -> list[int]:
        with self._store_lost():
            return [i for i, key in enumerate(keys) if not self._store.check([key])]

    def _check_missing(self, topic: str, keys: list[str], waited: float, arriving: bool) -> None:
        missing = self._missing(keys)
        if not missing:
            return
        reason = self.lost(self.timeout_s / 2, ranks=missing)
        if reason is None:
            mismatch = self.mismatched_wait(missing)
            reason = mismatch if self._missing(keys) == missing else None
        late = waited > (self.timeout_s if arriving else PATIENCE_S)
        if reason is None and late:
            names = ", ".join(map(str, missing[:_SHOWN]))
            reason = f"process {names} did not come within {waited:.0f} s"
        if reason is not None:
            longer = "; if it only needs longer to come, set ABELE_RANK_TIMEOUT to more seconds"
            raise RankLostError(
                f"Process {self.rank} of {self.size} waited at {topic!r}, but {reason}. Look at "
                f"the output of that process{longer if late else ''}."
            )

    @contextlib.contextmanager
    def _store_lost(self):
        try:
            yield
        except distributed.DistError as problem:
            raise RankLostError(
                f"Process {self.rank} of {self.size} lost the connection to {self._keeper}, which "
                f"has ended or died ({str(problem).splitlines()[0]}). Look at its output."
            ) from problem

    def _keep_beating(self, store: distributed.Store) -> None:
        pause = min(1.0, self.timeout_s / 20)
        count = 0
        while not self._closing.wait(pause):
            count += 1
            try:
                self._beat(store, str(count))
            except RuntimeError:
                return  # the store is gone; the main thread notices when it needs it

    def _beat(self, store: distributed.Store, count: str) -> None:
        store.set(f"alive/{self.rank}", f"{count} {self._position()}")


def _differences(by_rank: list[dict[str, str]]) -> list[str]:
    lines: list[str] = []
    for rank, facts in enumerate(by_rank[1:], start=1):
        for name in dict.fromkeys([*by_rank[0], *facts]):
            first, other = by_rank[0].get(name, "absent"), facts.get(name, "absent")
            if first != other:
                lines.append(f"{name} is {first} on process 0 and {other} on process {rank}")
    return lines
