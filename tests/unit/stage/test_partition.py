"""Partitions of chains, beside all there are."""

import itertools
import random

import pytest

from abele.errors import StageError
from abele.fit import Interval, Verdict
from abele.stage.memory import ENDS, Chain, Device, Memory, Span, State, Unit, Value
from abele.stage.partition import partition


def chain_of(seed, blocks, ties):
    """Times of all sizes, values that skip units, state that several units share."""
    draw = random.Random(seed)
    units = tuple(
        Unit(
            name=f"layers.{i}",
            until=i,
            time=draw.choice((1, 2, 5, 20)) * draw.random(),
            inside=Interval(0, draw.randrange(10), 20),
        )
        for i in range(blocks)
    )
    values = []
    for producer in range(-1, blocks - 1):
        later = sorted(draw.sample(range(producer + 1, blocks), min(2, blocks - producer - 1)))
        kept = tuple(each for each in (producer, *later) if each >= 0 and draw.random() < 0.7)
        values.append(
            Value(
                size=draw.randrange(1, 40),
                producer=producer,
                forward=tuple(later),
                backward=kept,
                marked=draw.random() < 0.3,
            )
        )
    states = [
        State(name=f"w{i}", weight=draw.randrange(30), sums=9, uses=(i,)) for i in range(blocks)
    ]
    for number in range(ties):
        uses = tuple(sorted(draw.sample(range(blocks), 2)))
        if draw.random() < 0.5:
            uses = (0, blocks - 1)
        states.append(State(name=f"tied{number}", weight=25, sums=25, uses=uses))
    return Chain(units=units, values=tuple(values), states=tuple(states))


def bytes_by_hand(chain, device, spans, stages, micro_batches, end):
    """The memory of a device, summed up value by value."""
    inside = [range(span.begin, span.end) for span in spans]
    total = 0
    for state in chain.states:
        if any(use in each for use in state.uses for each in inside):
            total += state.weight + state.sums + state.optimizer
    at_times = []
    for span, units in zip(spans, inside, strict=True):
        left = stages - span.stage
        count = min(left if end == "low" else 2 * left - 1, micro_batches)
        segments = {}
        marks = sorted({value.producer for value in chain.values if value.marked})
        recomputes = (device.recomputes and stages > 1) or marks
        for value in chain.values:
            backward = any(use in units for use in value.backward)
            used = backward or any(use in units for use in value.forward)
            if not recomputes:
                total += count * value.size * backward
            elif value.producer < span.begin:
                total += count * value.size * used
            elif backward and value.marked:
                total += count * value.size
            elif backward:
                segment = sum(mark < value.producer for mark in marks)
                segments[segment] = segments.get(segment, 0) + value.size
        again = max(segments.values(), default=0) * (0.5 if end == "low" else 1)
        needed = max(getattr(chain.units[unit].inside, end) for unit in units)
        at_times.append((again, needed))
    return total + max(a for a, _ in at_times) + max(n for _, n in at_times)


def every_partition(chain, devices):
    """All stages and devices that keep together what is tied."""
    units = len(chain.units)
    for stages in (devices, devices + 1):
        for cuts in itertools.combinations(range(1, units), stages - 1):
            edges = (0, *cuts, units)
            spans = [Span(stage=s, begin=edges[s], end=edges[s + 1]) for s in range(stages)]
            on = [spans[device::devices] for device in range(devices)]
            where = {u: s.stage % devices for s in spans for u in range(s.begin, s.end)}
            # A device has two stages only where something ties them.
            tied = any(uses[0] < edges[1] and uses[-1] >= edges[-2] for uses in chain.ties)
            together = all(len({where[use] for use in uses}) == 1 for uses in chain.ties)
            if together and (stages == devices or tied):
                yield stages, on


def slowest(chain, on):
    times = [unit.time for unit in chain.units]
    return max(sum(sum(times[s.begin : s.end]) for s in spans) for spans in on)


@pytest.mark.parametrize("recomputes", [True, False])
@pytest.mark.parametrize("seed", range(20))
def test_the_tables_are_what_is_summed_up_by_hand(seed, recomputes):
    chain, device = chain_of(seed, 7, 2), Device(size=1, recomputes=recomputes, is_mk2=False)
    memory = Memory(chain, device)
    for stages, on in every_partition(chain, 3):
        for spans, end in itertools.product(on, ENDS):
            size = bytes_by_hand(chain, device, spans, stages, 4, end)
            if len(spans) == 1:
                table = memory.table(end, spans[0].stage, stages, 4)
                assert table[spans[0].begin, spans[0].end] == size
            else:
                assert memory.pair(end, stages, 4)[spans[0].end, spans[1].begin] == size
            parts = memory.parts(spans, stages, 4)
            assert sum(getattr(part.size, end) for part in parts) == size


@pytest.mark.parametrize("blocks", [5, 9, 16])
@pytest.mark.parametrize("ties", [0, 1, 2])
@pytest.mark.parametrize("seed", range(6))
def test_no_partition_is_faster_by_more_than_a_twentieth(seed, ties, blocks):
    chain = chain_of(100 * seed + blocks, blocks, ties)
    devices = 2 + seed % 3 if blocks == 16 else 2 + seed % 4
    sizes = random.Random(seed)
    device = Device(size=sizes.randrange(100, 1500), is_mk2=False)
    limits = dict.fromkeys(ENDS, float("inf"))
    for stages, on in every_partition(chain, devices):
        time = slowest(chain, on)
        for end in ENDS:
            sizes = [bytes_by_hand(chain, device, spans, stages, 8, end) for spans in on]
            if max(sizes) <= device.size:
                limits[end] = min(limits[end], time)
    if not any(True for _ in every_partition(chain, devices)):
        with pytest.raises(StageError, match="of them can get a part"):
            partition(chain, devices, device, 8)
        return
    made = partition(chain, devices, device, 8)
    end = next((end for end in reversed(ENDS) if limits[end] < float("inf")), None)
    verdicts = {"high": Verdict.FITS, None: Verdict.DOES_NOT_FIT}
    assert made.verdict is verdicts.get(end, Verdict.UNCERTAIN)
    on = [[s for s in made.spans if made.homes[s.stage] == d] for d in range(devices)]
    assert slowest(chain, on) == pytest.approx(made.slowest)
    where = {u: made.homes[s.stage] for s in made.spans for u in range(s.begin, s.end)}
    assert all(len({where[use] for use in uses}) == 1 for uses in chain.ties)
    if end is not None:
        stages = len(made.spans)
        full = [bytes_by_hand(chain, device, spans, stages, 8, end) for spans in on]
        assert max(full) <= device.size
        assert made.slowest <= 1.05 * limits[end]
