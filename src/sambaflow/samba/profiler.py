"""Profiler of user-marked intervals: a context manager, a decorator, or start and end."""

import contextlib
import dataclasses
import json
import os
import statistics
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from abele.storage import atomic


@dataclasses.dataclass
class Event:
    """A profiled interval with a name, in nanoseconds of a monotonic clock."""

    name: str
    start: int
    end: int | None = None


class Profiler:
    """A profiler that records user-marked intervals and summarises them."""

    def __init__(self):
        self.events: list[Event] = []

    def clear(self) -> None:
        """Delete all recorded events of the profiler."""
        self.events = []

    def start_event(self, name: str) -> Event:
        """Start timing an event; pass it to ``end_event``."""
        event = Event(name, time.perf_counter_ns())
        self.events.append(event)
        return event

    def end_event(self, event: Event) -> None:
        """Stop timing an event and record it."""
        event.end = time.perf_counter_ns()

    @contextlib.contextmanager
    def event(self, name: str) -> Iterator[Event]:
        """Record an event for a block, or for each call of a decorated function."""
        event = self.start_event(name)
        try:
            yield event
        finally:
            self.end_event(event)

    def seconds(self, name: str, warmup: int = 0) -> list[float]:
        """Return the durations of a name's complete events, without the first ``warmup``."""
        ended = [e for e in self.events if e.name == name and e.end is not None]
        return [((e.end or 0) - e.start) / 1e9 for e in ended[warmup:]]

    def get_throughputs(self, keys: Sequence[str], n: int, warmup: int = 0) -> dict[str, float]:
        """Return samples per second by name, for events of ``n`` samples each."""
        by_key = {key: self.seconds(key, warmup) for key in keys}
        return {key: n * len(times) / sum(times) for key, times in by_key.items() if sum(times)}

    def print_statistics(
        self,
        keys: Sequence[str] | None = None,
        warmup: int = 0,
        num_samples_per_iter: int | None = None,
        measurements: Sequence[str] | None = None,
    ) -> None:
        """Print count, mean, median and, with samples, throughput of each event name."""
        del measurements
        for key in keys or list(dict.fromkeys(event.name for event in self.events)):
            times = self.seconds(key, warmup)
            if not times:
                print(f"{key}: no events")
                continue
            line = f"{key}: {len(times)} x, mean {statistics.mean(times):.6f} s, median "
            line += f"{statistics.median(times):.6f} s"
            if num_samples_per_iter:
                line += f", {num_samples_per_iter * len(times) / sum(times):.1f} samples/s"
            print(line)

    def save(self, file: str | os.PathLike[str]) -> None:
        """Write the recorded events in Chrome's trace format."""
        events = [
            {"name": e.name, "ph": "X", "pid": 0, "tid": 0, "ts": e.start / 1e3,
             "dur": (e.end - e.start) / 1e3}
            for e in self.events
            if e.end is not None
        ]  # fmt: skip
        text = json.dumps({"traceEvents": events})
        atomic.write_text(Path(file), text)
