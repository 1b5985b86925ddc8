"""Fusion of channel reductions and loops over NCHW tensors into blocks of channels.

    statistics(images, mean, deviation)              for some channels at a time:
    result = relu((images - mean) / deviation)  ->     statistics, then the loop

Sums of a channel need all of its pixels, so a batch norm reads its input twice, and its backward
three times: from memory, if it exceeds the caches. A block of channels is still in the cache of the
core that has summed it.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Collection, Sequence

import torch

from abele.containers import traverse
from abele.targets.translation import loops
from abele.targets.translation.groups import Unit
from abele.targets.translation.operations import ChannelCall
from abele.targets.translation.places import Buffer, Kind, Place

# Smaller images stay in a core's cache from one loop to the next. Fewer channels or pixels cost
# more than that gains: threads share channels, and loops begin anew for each.
_LEAST_BYTES, _LEAST_CHANNELS, _LEAST_PIXELS = 1 << 18, 8, 32
# Of all images of a block together: a part of the second-level cache.
_BLOCK_BYTES = 1 << 18
# So many threads can share the channels.
_LEAST_PARTS = 8
# Between units of a group, as many others run before or after it instead.
_NEAR = 16

# With which steps a unit goes through memory, and where it begins: of the dimensions of images.
_Steps = tuple[int, tuple[int, ...]]
# What units do with a piece of memory: the steps of all, and whether one writes.
_Uses = dict[Buffer, tuple[set[_Steps], bool]]


@dataclasses.dataclass(eq=False)
class ChannelBlocks(Unit):
    """Loops and reductions that run one after the other on a block of channels at a time.

    Attributes:
        units: calls and loops.
        images: NCHW shape, with any number of spatial dimensions.
        block: channels of a block; no thread has fewer.
        inside: temporary buffers of the group. Only one block of each exists at a time for each
            thread, so that it stays in cache.
    """

    units: list[Unit] = dataclasses.field(kw_only=True)
    images: tuple[int, ...] = dataclasses.field(kw_only=True)
    block: int = dataclasses.field(kw_only=True)
    inside: frozenset[Buffer] = dataclasses.field(kw_only=True)

    @property
    def pixels(self) -> int:
        """Number of pixels of one channel of one sample."""
        return math.prod(self.images[2:])

    @property
    def block_size(self) -> int:
        """Number of elements of a block of channels in one sample."""
        return self.block * self.pixels

    @property
    def shift(self) -> str:
        """Offset, as C++, from a thread's block buffer to its virtual channel 0."""
        return f"first * {self.images[0] * self.pixels} - begin * {self.pixels}"

    def apart(self, place: Place) -> int:
        """Return the batch stride of a tensor in channel-blocked code, in elements."""
        return self.block_size if place.buffer in self.inside else self.images[1] * self.pixels

    @property
    def elementwise(self) -> bool:
        """False: channel blocks are no elementwise loop, though they may begin with one."""
        return False


def block_channels(units: Sequence[Unit], returned: Collection[Buffer]) -> list[Unit]:
    """Fuse reductions over channels with the loops around them.

    Args:
        units: in execution order.
        returned: buffers of the program's results.
    """
    result = list(units)
    index = 0
    while index < len(result):
        group = _Group.around(result, index)
        if group is not None and len(group.units) > 1:
            index = group.put_together(result, returned)
        index += 1
    return result


class _Group:
    """A growing group of units to fuse by blocks of channels; the first is a reduction call."""

    def __init__(self, call: Unit, images: tuple[int, ...]):
        self.units, self.images = [call], images
        self._uses: _Uses = {}

    @classmethod
    def around(cls, units: Sequence[Unit], index: int) -> _Group | None:
        """Return the largest group of units to fuse around a per-channel kernel; None if slower."""
        call = units[index].operations[0]
        if not isinstance(call, ChannelCall) or not _is_worth_it(call.shape):
            return None
        group = cls(units[index], call.shape)
        group._take(units[index])
        group._look(units[index + 1 : index + 1 + _NEAR], forward=True)
        group._look(units[max(0, index - _NEAR) : index][::-1], forward=False)
        return group

    def _look(self, units: Sequence[Unit], *, forward: bool) -> None:
        """Add neighbouring units whose reordering breaks no dependency on skipped units."""
        between: set[Unit] = set()
        for unit in units:
            needed = unit.before & between if forward else any(unit in b.before for b in between)
            if needed or not self._shares(unit) or not self._take(unit):
                between.add(unit)
            elif forward:
                self.units.append(unit)
            else:
                self.units.insert(0, unit)

    def _shares(self, unit: Unit) -> bool:
        """Return whether a unit shares buffers with the group, so that they are in cache."""
        operations = (each for other in self.units for each in other.operations)
        places = [place for each in operations for place in (*each.reads, *each.writes)]
        size = math.prod(self.images)
        buffers = {place.buffer for place in places if place.size == size}
        return not buffers.isdisjoint(unit.memory)

    def _take(self, unit: Unit) -> bool:
        """Record a unit's memory accesses; False if the unit cannot run channel by channel."""
        steps = _steps_of(unit, self.images)
        if steps is None:
            return False
        uses = dict(self._uses)
        for buffer, (all_steps, written) in steps.items():
            known, known_written = uses.get(buffer, (set[_Steps](), False))
            together = known | all_steps
            if (written or known_written) and len(together) > 1:
                return False
            uses[buffer] = together, written or known_written
        self._uses = uses
        return True

    def put_together(self, units: list[Unit], returned: Collection[Buffer]) -> int:
        """Replace the group's units by one fused unit and return its index."""
        first = min(map(units.index, self.units))
        mine = set(self.units)
        operations = [each for unit in self.units for each in unit.operations]
        before = {each for unit in self.units for each in unit.before} - mine
        joined = ChannelBlocks(
            operations,
            None,
            -1,
            before,
            units=self.units,
            images=self.images,
            block=self._block(),
            inside=self._inside(units, returned),
        )
        last = max(map(units.index, self.units))
        behind = [each for each in units[first : last + 1] if each not in mine]
        # What the group needs runs before it; all others behind it.
        ahead = _needed_by(joined, behind)
        rest = [each for each in behind if each not in ahead]
        for each in units:
            if each.before & mine:
                each.before = each.before - mine | {joined}
        units[first : last + 1] = [*ahead, joined, *rest]
        return first + len(ahead)

    def _block(self) -> int:
        """Return the number of channels in a block."""
        samples, channels, *inner = self.images
        images = sum(any(any(s[2:]) for _, s in steps) for steps, _ in self._uses.values())
        bytes_ = 4 * samples * math.prod(inner) * max(1, images)
        return max(1, min(_BLOCK_BYTES // bytes_, channels // _LEAST_PARTS))

    def _inside(self, units: Sequence[Unit], returned: Collection[Buffer]) -> frozenset[Buffer]:
        """Return temporary buffers that only the group accesses, so any layout will do."""
        mine = set(self.units)
        others = {buffer for unit in units if unit not in mine for buffer in unit.memory}
        calls = [op for unit in self.units if isinstance(op := unit.operations[0], ChannelCall)]
        for call in calls:
            others.update(place.buffer for place in call.reads[call.apart :])
            others.update(place.buffer for place in call.writes)
        size = math.prod(self.images)
        return frozenset(
            buffer
            for buffer, (_, written) in self._uses.items()
            if written
            and (buffer.kind, buffer.dtype, buffer.size) == (Kind.ARENA, torch.float32, size)
            and buffer not in others
            and buffer not in returned
        )


def _is_worth_it(images: tuple[int, ...]) -> bool:
    pixels = math.prod(images[2:])
    large = 4 * math.prod(images) >= _LEAST_BYTES
    return large and images[1] >= _LEAST_CHANNELS and pixels >= _LEAST_PIXELS


def _needed_by(unit: Unit, others: Sequence[Unit]) -> list[Unit]:
    """Return those of ``others`` that must run before ``unit``, in order."""
    within = set(others)
    needed = {*traverse(unit.before & within, lambda each: each.before & within)}
    return [each for each in others if each in needed]


def _steps_of(unit: Unit, images: tuple[int, ...]) -> _Uses | None:
    """Return the memory accesses of a unit; None if it cannot run channel by channel."""
    call = unit.operations[0]
    uses: _Uses = {}
    if isinstance(call, ChannelCall):
        if call.shape != images:
            return None
        accesses = [(place, _of_call(place, images)) for place in call.reads]
        written = [(place, _of_call(place, images)) for place in call.writes]
    elif unit.elementwise and loops.goes_through_channels(unit, images):
        steps = loops.LoopWriter(unit, (), images).steps()
        results = {place for each in unit.operations for place in each.writes}
        accesses = [(place, step) for place, step in steps if place not in results]
        written = [(place, step) for place, step in steps if place in results]
    else:
        return None
    for places, writes in ((accesses, False), (written, True)):
        for place, step in places:
            known, before = uses.get(place.buffer, (set[_Steps](), False))
            uses[place.buffer] = known | {(place.offset, step)}, before or writes
    return uses


def _of_call(place: Place, images: tuple[int, ...]) -> tuple[int, ...]:
    """Return a channel call's tensor strides: dense NCHW, or one number per channel."""
    if place.size == images[1] and place.size != math.prod(images):
        return (0, 1, *(0 for _ in images[2:]))
    inner = [math.prod(images[d + 1 :]) for d in range(len(images))]
    return tuple(0 if n == 1 else step for n, step in zip(images, inner, strict=True))
