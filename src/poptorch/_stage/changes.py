"""Changes that make the stages of a model need less of each IPU's memory."""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence

from abele.fit import Interval, Limit, Verdict
from abele.stage import Plan
from abele.stage.chain import Chain
from poptorch._fit import changes
from poptorch._fit.changes import Change, NotOffered, Ways
from poptorch._fit.rungs import Stays
from poptorch._fit.trial import Trial
from poptorch._stage import blocks, reading
from poptorch.options import TensorLocationSettings

#: Powers of two, up to what published programs have for one replica.
_DEVICES = (2, 4, 8, 16)
_AWAY = "poptorch.TensorLocationSettings().useOnChipStorage(False)"


@dataclasses.dataclass(frozen=True, kw_only=True)
class MoreStages(Change):
    """A change that divides a program among more devices.

    Attributes:
        devices: how many there are then.
    """

    devices: int


class Elsewhere(Change):
    """A change of where state lies, which leaves the programs as they are."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Placed:
    """A plan as an outcome of changes.

    Attributes:
        plan: the stages.
    """

    plan: Plan

    @property
    def verdict(self) -> Verdict:
        """That of the worst device."""
        return self.plan.verdict

    @property
    def size(self) -> Interval:
        """Bytes of the fullest device."""
        return self.plan.fullest.size


def planned(trial: Trial, limit: Limit) -> Plan:
    """The stages that the blocks of a program make, or those that suit so many devices best.

    Raises:
        CaptureError: forward cannot be captured.
        StageError: there are not as many parts.
    """
    if limit.ipus:
        return reading.plan_of(trial, limit.ipus, limit)
    return reading.plan_as_placed(trial, limit)


def optimizer_elsewhere(trial: Trial) -> Iterator[Change]:
    """The optimizer's state in the host's memory or beside the IPU.

    Raises:
        NotOffered: there is no optimizer.
    """
    if not trial.config.training:
        raise NotOffered("optimizer state off-chip: inference has none")
    options = trial.options.clone()
    settings = TensorLocationSettings().useOnChipStorage(False)
    options.TensorLocations.setOptimizerLocation(settings)
    yield Elsewhere(
        name="optimizer state off-chip",
        lines=(f"options.TensorLocations.setOptimizerLocation({_AWAY})",),
        trial=dataclasses.replace(trial, options=options),
        timed=False,  # how fast the way there is, nobody knows here
    )


class OfStages:
    """Devices that each hold a part of a program.

    Args:
        limit: of each device.
        before: the plan of the program without changes.
    """

    left_out: Sequence[str] = ()

    def __init__(self, limit: Limit, before: Plan):
        self._limit, self._before = limit, before
        self._chains: tuple[Trial, Chain] | None = None
        self.ways: Sequence[Ways] = (
            changes.smaller_micro_batches,
            changes.recomputed,
            changes.halved,
            optimizer_elsewhere,
            self._more_stages,
        )

    def _divided(self, trial: Trial, devices: int) -> Plan:
        if self._chains is None or self._chains[0] is not trial:
            chain = reading.chain_of(trial, self._limit, accumulates=True)
            self._chains = trial, chain  # capturing takes longer than dividing
        return reading.divide(self._chains[1], devices, self._limit, trial)

    def _more_stages(self, trial: Trial) -> Iterator[Change]:
        """Twice as many devices, four times as many, and so on."""
        # A new one, which is captured without the blocks that it has now, once for all of these.
        again = dataclasses.replace(trial)
        for devices in _DEVICES:
            if devices > len(self._before.loads):
                name = f"stages on {devices} IPUs"
                yield MoreStages(name=name, lines=(), trial=again, devices=devices)

    def stays(self, now: Placed, ways: Sequence[Ways]) -> Stays | None:
        """Nothing: state can be divided among devices."""
        del now, ways

    def needed(self, now: Placed) -> float:
        """All of the fullest device."""
        return now.size.expected

    def may_fit(self, change: Change, now: Placed) -> bool:
        """Whether it may suffice if all that depends on the rows shrank with them."""
        always, rest = change.least
        if (always, rest) == (1.0, 0.0):
            return True  # nothing is known of what remains
        least = (
            sum((always if part.always else rest) * part.size.low for part in load.parts)
            for load in now.plan.loads
        )
        return max(least) <= now.plan.device.size

    def after(self, change: Change, now: Placed) -> Placed:
        """The plan of the changed program."""
        if isinstance(change, Elsewhere):  # nothing has to be captured again
            device = reading.device_of(self._limit, change.trial)
            return Placed(plan=dataclasses.replace(now.plan, device=device))
        if isinstance(change, MoreStages):
            return Placed(plan=self._divided(change.trial, change.devices))
        return Placed(plan=planned(change.trial, self._limit))

    def lines(self, change: Change, after: Placed) -> tuple[str, ...]:
        """Those of the change, or of the stages that are planned now."""
        if not isinstance(change, MoreStages):
            return change.lines
        has_blocks = self._before.stages > 1 and not self._limit.ipus
        instead = ("# in the place of the blocks that it has:",) if has_blocks else ()
        return (*instead, *blocks.lines(after.plan, change.trial.module))

    def ratios(self, change: Change, now: Placed, after: Placed) -> Mapping[str, float]:
        """Return the ratio of the modelled times of an update with as many rows."""
        before = now.plan.update_time
        known = before and change.timed
        return {"modelled time": after.plan.update_time / before} if known else {}
