"""A sample of the losses of a session's calls, for charts."""

from __future__ import annotations

import torch

_MOST = 256


class Losses:
    """At most 256 losses, evenly spread over the calls; of several elements, the mean.

    Every call's loss is kept at first. When there is no more room, every second one is dropped, and
    later calls keep losses half as often, so that long runs pay nothing for most of their calls.

    Attributes:
        due: number of the next call whose loss is kept, from 1.
    """

    def __init__(self):
        self.due = 1
        self._every = 1
        self._kept: list[tuple[int, torch.Tensor]] = []

    def keep(self, loss: torch.Tensor) -> None:
        """Keep the loss of the call that is due. A GPU computes the mean later; nothing waits."""
        # A copy: programs add up losses in place.
        self._kept.append((self.due, loss.detach().float().mean()))
        if len(self._kept) == _MOST:
            del self._kept[1::2]
            self._every *= 2
        self.due = self._kept[-1][0] + self._every

    def values(self) -> list[tuple[int, float]]:
        """Return pairs of a call's number and its loss; waits for a GPU."""
        return [(call, float(value)) for call, value in self._kept]
