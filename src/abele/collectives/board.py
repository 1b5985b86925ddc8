"""Notes that processes leave for each other in a store, and signs of life.

All coordination except the exchange of tensors: arrivals, agreed values, and why a process ended.
It works before the first exchange of tensors and while one hangs. A thread of every process writes
a heartbeat about once a second; processes that wait read them.
"""

# torch re-exports its public names without __all__.
# pyright: reportPrivateImportUsage=false

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from torch import distributed

from abele.collectives.meeting import SignedStore
from abele.errors import DisagreementError, RankLostError
from abele.warn import warn_user

ENDED, STOPPED = "ended", "stopped"
EXCHANGE = "an exchange"
#: How long processes that are alive may let others wait: as long as torch's own process groups.
PATIENCE_S = 1800.0
_SHOWN = 8


class Board:
    """The notes and signs of life of one process in the store.

    Args:
        store: shared by all processes, and by nothing else.
        rank: of this process.
        size: number of processes.
        timeout_s: silence after which a process counts as lost, and how long it may take to come.
        position: tells how far this process is, for messages.
        keeper: who is gone if the store is.
    """

    def __init__(
        self,
        store: distributed.Store | SignedStore,
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
        """Leave a note under this process's number."""
        with self._store_lost():
            self._store.set(f"note/{topic}/{self.rank}", text)

    def notes(self, topic: str) -> dict[int, str]:
        """Return the notes of all processes that have left one."""
        notes: dict[int, str] = {}
        with self._store_lost():
            for other in range(self.size):
                key = f"note/{topic}/{other}"
                if self._store.check([key]):
                    notes[other] = self._store.get(key).decode()
        return notes

    def gather(self, topic: str, text: str, *, arriving: bool = False) -> list[str]:
        """Return every process's text by rank, as soon as the last one has brought it.

        Args:
            topic: may be used again.
            text: of this process.
            arriving: processes that have not come at all are waited for no longer than the
                timeout, instead of as long as they are alive.

        Raises:
            RankLostError: a process does not come, has ended or is not heard of.
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
        """Compare facts by name; see ``Collective.agree``."""
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
        """Replace the heartbeat by last words and stop it."""
        self._closing.set()
        self._thread.join(timeout=5.0)
        with contextlib.suppress(RuntimeError):  # the store may be gone, and nobody left to tell
            self._store.set(self._beats[self.rank], last_words)

    def close(self, last_words: str, linger_s: float = 0.0) -> None:
        """End the heartbeat with last words that say why.

        Args:
            last_words: begins with ``ENDED`` or ``STOPPED``.
            linger_s: wait so long at most until the others have ended too; for the process that
                keeps the store, without which nobody could read the last words.
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

    def _keep_beating(self, store: distributed.Store | SignedStore) -> None:
        pause = min(1.0, self.timeout_s / 20)
        count = 0
        while not self._closing.wait(pause):
            count += 1
            try:
                self._beat(store, str(count))
            except RuntimeError:
                return  # the store is gone; the main thread notices when it needs it

    def _beat(self, store: distributed.Store | SignedStore, count: str) -> None:
        store.set(f"alive/{self.rank}", f"{count} {self._position()}")


def _differences(by_rank: list[dict[str, str]]) -> list[str]:
    lines: list[str] = []
    for rank, facts in enumerate(by_rank[1:], start=1):
        for name in dict.fromkeys([*by_rank[0], *facts]):
            first, other = by_rank[0].get(name, "absent"), facts.get(name, "absent")
            if first != other:
                lines.append(f"{name} is {first} on process 0 and {other} on process {rank}")
    return lines
