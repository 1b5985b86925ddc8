"""Plans of wrapped models, to print, to paste and to apply."""

import dataclasses
from collections.abc import Iterator
from typing import Any

import torch

from abele.fit import Verdict
from abele.fit.answers import Say, silent
from abele.stage import Plan, text
from poptorch._fit import text as changes_text
from poptorch._fit.ladder import Search
from poptorch._fit.rungs import Ladder
from poptorch._stage import blocks

_BAND = (
    "Code and exchange are a stated band, not measured; the estimate has not been compared with "
    "an IPU."
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class PlacedReport:
    """Whether each stage of a model fits into the memory of its device; ``print`` it.

    Attributes:
        plan: the stages.
    """

    plan: Plan
    _search: Search | None = dataclasses.field(default=None, repr=False, compare=False)

    @property
    def ladder(self) -> Ladder | None:
        """The cheapest changes that make it fit; found when first asked for.

        None if it fits, and of ``planStages`` and limits that are no IPUs.
        """
        fits = self._search is None or self.verdict is Verdict.FITS
        return None if fits or self._search is None else self._search.ladder()

    @property
    def verdict(self) -> Verdict:
        """``fits``, ``does not fit`` or ``uncertain``: that of the worst device."""
        return self.plan.verdict

    def data(self) -> dict[str, Any]:
        """Everything as JSON values; bytes."""
        if self._search is None:
            return self.plan.data()
        changes = None if self.ladder is None else self.ladder.data()
        return {**self.plan.data(), "changes": changes}

    def pieces(self, say: Say = silent) -> Iterator[str]:
        """The text: the answer, and then the changes, which take longer to find.

        Args:
            say: told in words what takes time now.
        """
        yield self._answer()
        if self._search is not None and self.verdict is not Verdict.FITS:
            yield "\n".join(changes_text.changes(self._search.ladder(say)))

    def __str__(self) -> str:
        return "\n".join(self.pieces())

    def _answer(self) -> str:
        parts = [text.sentence(self.plan), text.table(self.plan), text.memory_table(self.plan)]
        if self.plan.device.is_mk2:
            parts.append(_BAND)
        return "\n\n".join(parts)


@dataclasses.dataclass(frozen=True, kw_only=True)
class StageReport(PlacedReport):
    """A division of a model into stages; ``print`` it.

    Attributes:
        plan: the stages.
        model: what is divided.
    """

    model: torch.nn.Module

    def data(self) -> dict[str, Any]:
        """Everything as JSON values; bytes, shares from 0 to 1, measured times in seconds."""
        return {**super().data(), "lines": self.lines()}

    def lines(self) -> list[str]:
        """What a program needs for these stages, where its model is called ``model``."""
        return blocks.lines(self.plan, self.model)

    def apply(self) -> None:
        """Has the modules of the model begin these stages, instead of the blocks they begin now.

        Before the model is compiled; its options need as many micro-batches as the last of
        ``lines`` says, if it says so.
        """
        blocks.apply(self.plan, self.model)

    def _answer(self) -> str:
        lines = "\n".join(self.lines()) or "One stage needs no blocks."
        return "\n\n".join([super()._answer(), text.bubbles(self.plan), lines])
