"""The fit check of one model: an estimate, a limit, and the answer."""

import dataclasses
import functools
from collections.abc import Iterator
from typing import Any

from abele import fit
from abele.compile import build
from abele.compile.start import Start, requested
from abele.fit import Answer, Calls, Estimate, Verdict, process
from abele.fit.answers import Say, silent
from abele.fit.limits import of_machine
from abele.fit.text import table
from abele.targets import Target
from poptorch._fit import text
from poptorch._fit.ladder import Search
from poptorch._fit.memory import OfMemory
from poptorch._fit.rungs import Ladder
from poptorch._fit.trial import Trial
from poptorch._forward.placement import PlacementTable


@dataclasses.dataclass(frozen=True, kw_only=True)
class FitReport:
    """Whether a model fits; ``print`` it.

    Attributes:
        answer: the verdict and what it rests on.
        placement: which block each operator of the model belongs to.
    """

    answer: Answer
    placement: PlacementTable
    _search: Search = dataclasses.field(repr=False, compare=False)

    @property
    def ladder(self) -> Ladder | None:
        """The cheapest changes that make it fit; None if it fits. Found when first asked for."""
        return None if self.verdict is Verdict.FITS else self._search.ladder()

    @property
    def verdict(self) -> Verdict:
        """``fits``, ``does not fit`` or ``uncertain``."""
        return self.answer.verdict

    def data(self) -> dict[str, Any]:
        """Everything as JSON values; bytes."""
        changes = None if self.ladder is None else self.ladder.data()
        return {**self.answer.data(), "changes": changes}

    def pieces(self, say: Say = silent) -> Iterator[str]:
        """The text: the answer, and then the changes, which take longer to find.

        Args:
            say: told in words what takes time now.
        """
        yield table(self.answer)
        if self.verdict is not Verdict.FITS:
            yield "\n".join(text.changes(self._search.ladder(say)))

    def __str__(self) -> str:
        return "\n".join(self.pieces())


def check(trial: Trial, limit: str | None) -> FitReport:
    """Capture a model, estimate what it needs and compare it with a limit.

    Args:
        trial: the model.
        limit: ``cpu``, ``cuda:0`` or a size; by default that of the device.

    Raises:
        LimitError: there is no such limit.
        CaptureError: forward cannot be captured.
    """
    target, _ = build.choose_target()
    known = of_machine(limit or process.default_limit(target))  # before capture, which takes longer
    estimated = estimate(trial, target)
    programs, counted = trial.captured.programs, trial.module_bytes + trial.batch_bytes
    answer = process.compare(estimated, known, programs, target, counted=counted)
    search = Search(trial, answer, OfMemory(functools.partial(estimate, target=target)))
    return FitReport(answer=answer, placement=trial.placement, _search=search)


def estimate(trial: Trial, target: Target) -> Estimate:
    """Estimate the memory of a run of the model, and count its work."""
    start = requested() or Start(trial.options._start_mode)
    calls = Calls(
        module=trial.module_bytes,
        batch=trial.batch_bytes,
        tiered=start is Start.TIERED,
    )
    return fit.estimate(trial.captured.programs, trial.config, target, calls)
