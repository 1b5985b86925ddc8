"""Changes that make a program need less of one memory, which holds all of it."""

from collections.abc import Callable, Mapping, Sequence

from abele import fit
from abele.fit import Answer, Estimate
from abele.fit.run import STATE
from poptorch._fit import changes
from poptorch._fit.changes import Change, Ways
from poptorch._fit.rungs import Stays
from poptorch._fit.trial import Trial

#: In the order of what they cost: nothing, calls of operators, a second forward, digits.
_WAYS: tuple[Ways, ...] = (
    changes.smaller_micro_batches,
    changes.recomputed,
    changes.halved,
)
#: Shares that ways leave of the model's state, where they leave less than all.
_REMAINS: dict[Ways, float] = {changes.halved: changes.HALF}


class OfMemory:
    """One memory that holds the whole program.

    Args:
        estimated: the memory of a changed model, and its work.
    """

    ways: Sequence[Ways] = _WAYS
    left_out: Sequence[str] = changes.NOT_OFFERED

    def __init__(self, estimated: Callable[[Trial], Estimate]):
        self._estimated = estimated

    def stays(self, now: Answer, ways: Sequence[Ways]) -> Stays | None:
        """The process, and state of the model."""
        share = min(_REMAINS.get(each, 1.0) for each in ways)
        state = [part.size.high for part in now.estimate.peak.parts if part.role in STATE]
        process = sum(part.size.high for part in now.beside)
        stays = Stays(process=process, state=share * sum(state))
        return stays if stays.size > now.limit.size else None

    def needed(self, now: Answer) -> float:
        """What the programs need; the process stays."""
        return now.estimate.size.expected

    def may_fit(self, change: Change, now: Answer) -> bool:
        """Return whether it may suffice if all that depends on the rows shrank with them."""
        always, rest = change.least
        beside = sum(part.size.high for part in now.beside)
        least = max(
            sum((always if part.always else rest) * part.size.high for part in moment.parts)
            for moment in now.estimate.moments
        )
        return beside + least <= now.limit.size

    def after(self, change: Change, now: Answer) -> Answer:
        """The answer for the changed program."""
        estimate = self._estimated(change.trial)
        return fit.decide(estimate, now.limit, now.beside)

    def lines(self, change: Change, after: Answer) -> tuple[str, ...]:
        """Those of the change."""
        del after
        return change.lines

    def ratios(self, change: Change, now: Answer, after: Answer) -> Mapping[str, float]:
        """Return the ratios of FLOPs and of bytes moved."""
        del change
        return after.estimate.work.ratios(now.estimate.work)
