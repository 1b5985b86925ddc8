"""A sample of the losses of a session's calls, for charts."""

from __future__ import annotations

import torch

_MOST = 128


class Losses:
    """At most 128 losses, evenly spread over the calls; of several elements, the mean.

    Every call's loss is kept at first. When there is no more room, every second one is dropped, and
    later calls keep losses half as often, so that long runs pay nothing for most of their calls.
    """

    def __init__(self):
        self._every = 1
        self._kept: list[tuple[int, torch.Tensor]] = []

    def keep(self, call: int, loss: torch.Tensor) -> int:
        """Keep the loss of a call; return the number of the next call whose loss is kept.

        A GPU computes the mean later, and nothing waits for it.
        """
        # A copy: programs add up losses in place. A mean takes three times as long as a clone.
        self._kept.append((call, loss.float().mean() if loss.dim() else loss.clone()))
        if len(self._kept) == _MOST:
            del self._kept[1::2]
            self._every *= 2
        return self._kept[-1][0] + self._every

    def values(self) -> list[tuple[int, float]]:
        """Return pairs of a call's number and its loss; waits for a GPU."""
        return [(call, float(value)) for call, value in self._kept]
