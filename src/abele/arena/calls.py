"""What an operator makes inside, in its order."""

from __future__ import annotations

from typing import cast

import torch

from abele.program.memory import AFTER


class Calls:
    """What an operator makes, in its order.

    Attributes:
        temporary: bytes of each tensor that it frees again, and between which moments.
        results: the moment at which it makes each of its results.
        asked: bytes that it asks for where a result needs less.
        elsewhere: the temporary ones that a library takes from the system, not from torch.
    """

    def __init__(self) -> None:
        self.temporary: dict[int, list[int]] = {}  # by the moment: bytes, last moment
        self.results: dict[int, int] = {}
        self.asked: dict[int, int] = {}
        self.elsewhere: set[int] = set()
        self._moment = 0

    def make(self, size: int) -> int:
        """A tensor of so many bytes; the moment names it."""
        self._moment += 1
        self.temporary[self._moment] = [size, AFTER]
        return self._moment

    def result(self, index: int) -> None:
        """The result of this index is made."""
        self._moment += 1
        self.results[index] = self._moment

    def free(self, *made: int) -> None:
        """These are not needed any more."""
        for each in made:
            self.temporary[each][1] = self._moment


def value(node: torch.fx.Node, index: int) -> torch.Tensor:
    """An argument of a node; no data."""
    return cast("torch.fx.Node", node.args[index]).meta["val"]
