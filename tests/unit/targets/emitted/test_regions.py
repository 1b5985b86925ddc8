"""Which units threads run on rows of their own, and where the values in between lie."""

import itertools

import torch
from hypothesis import given
from hypothesis import strategies as st

from abele.targets.cpu.emitted.calls.products import packed_once, product
from abele.targets.cpu.emitted.memory import ordered
from abele.targets.cpu.emitted.regions import Region, with_regions
from abele.targets.translation.groups import grouped
from abele.targets.translation.operations import Call, Operation, Pointwise
from abele.targets.translation.places import Buffer, Kind, Place, Rows, contiguous_stride
from helpers.properties import examples

F32 = torch.float32
ROWS, COLUMNS = 32, 64


def memory(*shape, kind=Kind.ARENA):
    buffer = Buffer(kind, 0, F32, torch.Size(shape).numel())
    return Place(buffer, shape, contiguous_stride(shape))


def loop(result, *operands):
    return Pointwise(list(operands), [result], list(operands), [F32] * len(operands), str)


class Steps:
    """Time steps of a recurrent layer: ``states = f(states weight + inputs[step])``."""

    def __init__(self, steps=4, rows=ROWS, columns=COLUMNS):
        self.weight = memory(columns, columns, kind=Kind.INPUT)
        self.inputs = memory(rows, steps, columns, kind=Kind.INPUT)
        self.states = [memory(rows, columns, kind=Kind.INPUT)]
        self.products: list[Place] = []
        self.operations: list[Operation] = []
        for step in range(steps):
            self.products.append(memory(rows, columns))
            strides = f"0, {columns}, 1"
            factors = self.states[-1], self.weight
            self.operations.append(product(*factors, self.products[-1], 1, (strides, strides)))
            self.states.append(memory(rows, columns))
            now = Place(self.inputs.buffer, (rows, columns), (steps * columns, 1), step * columns)
            self.operations.append(loop(self.states[-1], self.products[-1], now))

    def units(self):
        operations = packed_once(self.operations, lambda shape, _: memory(*shape))
        units = ordered(grouped(operations))
        kept = {p.buffer for each in operations for p in (*each.reads, *each.writes)}
        return with_regions(units, kept)

    def regions(self):
        """How many units each region has."""
        return [len(unit.units) for unit in self.units() if isinstance(unit, Region)]


def test_the_time_steps_of_a_recurrent_layer_are_one_region():
    pack, region = Steps().units()
    assert isinstance(pack.operations[0], Call)
    assert isinstance(region, Region)
    assert (len(region.units), region.rows, region.adds) == (8, ROWS, 4 * ROWS * COLUMNS**2)
    assert not region.elementwise


def test_few_products_and_few_rows_stay_apart():
    assert Steps(steps=2).regions() == []
    assert Steps(rows=8).regions() == [8]
    assert Steps(rows=7, columns=128).regions() == []


def test_large_products_stay_apart():
    assert Steps(rows=256, columns=256).regions() == [8]
    assert Steps(rows=257, columns=256).regions() == []  # more than 2 ** 24 multiply-adds
    assert Steps(rows=32, columns=513).regions() == []  # a factor of more than 1 MiB


def test_a_region_ends_before_something_that_needs_other_rows():
    between = {
        "a norm": lambda step: Call([step.states[1]], [memory(1)], "call()"),
        "a loop of other size": lambda step: loop(memory(1), row(row(step.states[1], 0), 0)),
        "a sum": lambda step: loop(step.products[3], row(step.states[1], 0)),
        "another row": lambda step: loop(step.products[3], turned(step.states[1])),
    }
    for name, make in between.items():
        step = Steps(steps=6, rows=COLUMNS)
        other, before = make(step), step.operations[1]
        after = loop(step.states[2], step.states[2], other.writes[0])
        step.operations[4:4] = [other, after]
        for region in step.units():
            later = {other, after} & set(region.operations)
            assert before not in region.operations or not later, name


def turned(place):
    return Place(place.buffer, place.shape[::-1], place.stride[::-1])


def row(place, index):
    return Place(place.buffer, place.shape[1:], place.stride[1:], index * place.stride[0])


def test_values_that_only_a_region_needs_lie_where_earlier_ones_did():
    step = Steps(steps=6)
    last = step.states[-1].buffer
    step.operations.append(Call([step.states[-1]], [memory(1)], "call()"))
    (region,) = (unit for unit in step.units() if isinstance(unit, Region))
    written = {place.buffer for each in region.operations for place in each.writes}
    # A product, the state that it reads and the one that is made of it.
    assert len(written) <= 4
    assert last in written
    for earlier, later in itertools.pairwise(region.units):
        (made,) = earlier.operations[0].writes
        assert made.buffer in {place.buffer for place in later.operations[0].reads}
        assert made.buffer is not later.operations[0].writes[0].buffer


def test_values_that_others_need_too_keep_their_memory():
    step = Steps(steps=6)
    step.operations += [Call([each], [memory(1)], "call()") for each in step.states[1:]]
    region = step.units()[1]
    written = {place.buffer for each in region.operations for place in each.writes}
    assert {each.buffer for each in step.states[1:]} <= written


@examples(300)
@given(
    offsets=st.tuples(st.integers(0, 30), st.integers(0, 30)),
    step=st.integers(1, 9),
    extents=st.tuples(st.integers(1, 12), st.integers(1, 12)),
    count=st.integers(2, 5),
)
def test_rows_collide_if_two_of_them_share_an_element(offsets, step, extents, count):
    buffer = Buffer(Kind.ARENA, 0, F32, 100)
    a, b = (
        Rows(buffer, offset, step, extent, written=True)
        for offset, extent in zip(offsets, extents, strict=True)
    )

    def elements(rows, number):
        first = rows.offset + number * rows.step
        return set(range(first, first + rows.extent))

    pairs = itertools.permutations(range(count), 2)
    assert a.collide(b, count) == any(elements(a, i) & elements(b, j) for i, j in pairs)


def test_what_is_only_read_never_collides():
    buffer = Buffer(Kind.ARENA, 0, F32, 100)
    a, b = (Rows(buffer, 0, step, 8, written=False) for step in (0, 3))
    assert not a.collide(b, 4)
    assert not a.collide(Rows(Buffer(Kind.ARENA, 1, F32, 100), 0, 0, 8, written=True), 4)
    assert a.collide(Rows(buffer, 90, 0, 1, written=True), 4)
