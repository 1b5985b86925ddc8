"""The choice of events to draw: half of them the worst by mIoU and half the best."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from cosmictagger.results.events import EventRecord


class Candidates:
    """The events that may still be drawn; their number does not grow with the pass.

    Args:
        most: how many to draw. Of events without labels these are the first ones.

    Attributes:
        most: as given.
        seen: how many events with labels were offered.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self.seen = 0
        self._events: list[EventRecord] = []

    def __len__(self) -> int:
        return len(self._events)

    def wants(self, labelled: bool) -> bool:
        """Return whether the next event may be drawn."""
        return labelled or len(self) < self.most

    def add(self, event: EventRecord) -> None:
        """Take an event, and forget one where there are too many."""
        self.seen += event.has_label
        self._events.append(event)
        if len(self._events) > self.most:
            # Neither among the worst half nor among the best: it cannot become either any more.
            self._events.sort(key=_rank)
            del self._events[self.most // 2]

    def events(self) -> list[EventRecord]:
        """Those to draw: from the worst to the best, or in order where all of them are drawn."""
        chosen = sorted(self._events, key=lambda event: event.entry)
        return sorted(chosen, key=_rank) if self.seen > self.most else chosen


def joined(parts: Sequence[Candidates]) -> Candidates:
    """Return the candidates of one pass over the events of all parts.

    An event that is among the worst or the best of all is so in its part, too.

    Args:
        parts: at least one, all with the same ``most``.
    """
    result = Candidates(parts[0].most)
    events = [event for part in parts for event in part.events()]
    for event in sorted(events, key=lambda event: event.entry):
        if result.wants(event.has_label):
            result.add(event)
    result.seen = sum(part.seen for part in parts)
    return result


def _rank(event: EventRecord) -> float:
    return event.metrics.get("Average/mIoU", np.inf)
