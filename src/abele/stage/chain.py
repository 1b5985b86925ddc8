"""A model as a chain of units: what a stage of a pipeline may consist of.

A unit is what runs from the call of one module to the next at which a stage could begin. The chain
says what each unit takes: time, state, and which values pass from which units to which.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from abele.fit.estimate import Interval

#: The producer of values that the batch brings.
BATCH = -1


@dataclasses.dataclass(frozen=True, kw_only=True)
class Unit:
    """A part of forward that stages cannot divide.

    Attributes:
        name: path of the module at whose call it begins; empty for the model itself.
        until: last unit that begins at a call of the same module; a stage that begins here cannot
            end before it.
        forward: time of its forward for one micro-batch, in seconds or another unit.
        backward: time of its backward.
        inside: bytes while it runs, in addition to state and to values saved for backward.
    """

    name: str
    until: int = 0
    forward: float
    backward: float
    inside: Interval = dataclasses.field(default_factory=lambda: Interval.exact(0))

    @property
    def depth(self) -> int:
        """Nesting depth of its module."""
        return self.name.count(".") + 1 if self.name else 0


@dataclasses.dataclass(frozen=True, kw_only=True)
class Value:
    """A tensor that an operation of forward makes, or the batch brings.

    Attributes:
        size: bytes.
        producer: the unit that makes it; ``BATCH``.
        forward: units whose forward reads it, ascending.
        backward: units whose backward reads it, ascending.
        marked: the program asks to keep it instead of computing it again.
    """

    size: int
    producer: int
    forward: tuple[int, ...] = ()
    backward: tuple[int, ...] = ()
    marked: bool = False


@dataclasses.dataclass(frozen=True, kw_only=True)
class State:
    """A parameter, buffer or constant with what belongs to it.

    Attributes:
        name: the user's name.
        weight: bytes.
        sums: bytes of the sums of its gradients.
        optimizer: bytes of the optimizer's state.
        uses: units that read or write it, ascending.
        together: whoever uses it has to be on one device.
    """

    name: str
    weight: int
    sums: int = 0
    optimizer: int = 0
    uses: tuple[int, ...] = ()
    together: bool = True


@dataclasses.dataclass(frozen=True, kw_only=True)
class Chain:
    """A model.

    Attributes:
        units: in the order of forward.
        values: what passes between them.
        states: what lives all the time.
        training: there is a backward.
    """

    units: tuple[Unit, ...]
    values: tuple[Value, ...] = ()
    states: tuple[State, ...] = ()
    training: bool = True

    @property
    def ties(self) -> list[tuple[int, ...]]:
        """Units that have to be on one device, for each state that several of them use."""
        uses = {state.uses for state in self.states if state.together and len(state.uses) > 1}
        return sorted(uses)

    def scaled(self, ranges: Sequence[tuple[int, int]], times: Sequence[Times]) -> Chain:
        """Return the chain with other times for ranges of units, in proportion inside of each.

        Args:
            ranges: first and last unit of each range; they cover all units.
            times: time of each range.
        """
        units: list[Unit] = []
        for (begin, end), time in zip(ranges, times, strict=True):
            part = self.units[begin:end]
            forward = _factor(time.forward, sum(unit.forward for unit in part))
            backward = _factor(time.backward, sum(unit.backward for unit in part))
            units += [
                dataclasses.replace(
                    unit, forward=unit.forward * forward, backward=unit.backward * backward
                )
                for unit in part
            ]
        return dataclasses.replace(self, units=tuple(units))


@dataclasses.dataclass(frozen=True)
class Times:
    """Time of a stage for one micro-batch.

    Attributes:
        forward: seconds.
        backward: seconds.
    """

    forward: float
    backward: float


def _factor(measured: float, modelled: float) -> float:
    return measured / modelled if modelled else 0.0
