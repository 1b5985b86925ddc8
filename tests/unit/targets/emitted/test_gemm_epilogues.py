"""Which loops run on rows of a product, and which need all of it."""

import torch

from abele.targets.cpu.emitted.calls.products import product
from abele.targets.cpu.emitted.gemm_epilogues import GemmWithEpilogue, fuse_gemm_epilogues
from abele.targets.cpu.emitted.memory import ordered
from abele.targets.translation.groups import grouped
from abele.targets.translation.operations import Call, Operation, Pointwise
from abele.targets.translation.places import Buffer, Kind, Place, contiguous_stride

F32 = torch.float32
ROWS, COLUMNS, INNER = 1024, 512, 64


def memory(*shape, kind=Kind.ARENA):
    buffer = Buffer(kind, 0, F32, torch.Size(shape).numel())
    return Place(buffer, shape, contiguous_stride(shape))


def multiplied(a, b, result):
    return product(a, b, result, 1, (f"0, {a.shape[1]}, 1", f"0, {b.shape[1]}, 1"))


class Gradient:
    """A product, an update that reads it, and whatever else a test adds."""

    def __init__(self, rows=ROWS, columns=COLUMNS, inner=INNER):
        self.a, self.b = memory(rows, inner), memory(inner, columns)
        self.gradient = memory(rows, columns)
        self.weight = memory(rows, columns, kind=Kind.INPUT)
        self.operations: list[Operation] = [multiplied(self.a, self.b, self.gradient)]

    def loop(self, result, *operands):
        types = [F32] * len(operands)
        operation = Pointwise(list(operands), [result], list(operands), types, str)
        self.operations.append(operation)
        return operation

    def call(self, results, operands):
        self.operations.append(Call(list(operands), list(results), "call()"))

    def update(self):
        return self.loop(self.weight, self.weight, self.gradient)

    def units(self):
        for position, each in enumerate(self.operations):
            each.position = position
        return ordered(fuse_gemm_epilogues(grouped(self.operations)))

    def joined(self):
        """How many operations run on rows of the product."""
        return sum(len(u.operations) - 1 for u in self.units() if isinstance(u, GemmWithEpilogue))


def test_a_loop_that_alone_reads_a_product_runs_on_its_rows():
    step = Gradient()
    step.update()
    (unit,) = step.units()
    assert isinstance(unit, GemmWithEpilogue)
    assert unit.operations == step.operations
    assert (unit.product, unit.loop.operations) == (step.operations[0], step.operations[1:])
    assert not unit.elementwise


def test_who_waits_for_one_of_them_waits_for_both():
    step = Gradient()
    step.call([step.a], [])  # overwrites what the product reads, and so comes after it
    step.update()
    step.call([memory(8)], [step.weight])
    assert next(map(type, step.units())) is GemmWithEpilogue
    assert step.joined() == 1


def test_what_the_loop_reads_comes_before_both():
    step = Gradient()
    clipped = memory(1)
    step.call([clipped], [step.weight])
    step.loop(step.weight, step.weight, step.gradient, clipped)
    first, second = step.units()
    assert isinstance(second, GemmWithEpilogue)
    assert first.operations == [step.operations[1]]


def test_a_loop_that_turns_once_for_each_row_may_follow_too():
    step = Gradient()
    bias = memory(COLUMNS)
    step.loop(memory(ROWS, COLUMNS), step.gradient, bias)
    assert step.joined() == 1


def test_nothing_follows_where_something_else_reads_the_product():
    others = {
        "a norm": lambda step: step.call([memory(1)], [step.gradient]),
        "another loop": lambda step: step.loop(memory(COLUMNS, ROWS), turned(step.gradient)),
        "a part of it": lambda step: step.loop(memory(COLUMNS), row(step.gradient)),
    }
    for name, add in others.items():
        step = Gradient()
        step.update()
        add(step)
        assert step.joined() == 0, name


def turned(place):
    return Place(place.buffer, place.shape[::-1], place.stride[::-1])


def row(place):
    return Place(place.buffer, place.shape[1:], place.stride[1:])


def test_nothing_follows_a_product_that_somebody_gets():
    step = Gradient()
    step.gradient.buffer.kind = Kind.OUTPUT
    step.update()
    assert step.joined() == 0


def test_nothing_follows_that_waits_for_all_of_the_product():
    step = Gradient()
    overwritten, norm = memory(8), memory(1)
    step.call([step.a, overwritten], [])  # after the product, which reads it
    step.call([norm], [overwritten])
    step.loop(step.weight, step.weight, step.gradient, norm)
    assert step.joined() == 0


def test_nothing_follows_that_writes_what_the_product_reads():
    step = Gradient(512, 1024, 512)
    step.weight = Place(step.b.buffer, (512, 1024), (1024, 1))
    step.update()
    assert step.joined() == 0


def test_nothing_follows_that_goes_through_the_product_in_another_order():
    step = Gradient()
    step.loop(memory(COLUMNS, ROWS, kind=Kind.INPUT), turned(step.gradient))
    assert step.joined() == 0
    step = Gradient()  # rows of the loop are several of the product
    shape = (ROWS // 4, 4 * COLUMNS)
    bias = memory(4 * COLUMNS)
    of_four = Place(step.gradient.buffer, shape, contiguous_stride(shape))
    step.loop(memory(*shape), of_four, bias)
    assert step.joined() == 0


def test_nothing_follows_where_a_part_of_the_product_is_read():
    step = Gradient()
    half = Place(step.gradient.buffer, (ROWS // 2, COLUMNS), (COLUMNS, 1))
    step.loop(memory(ROWS // 2, COLUMNS, kind=Kind.INPUT), half)
    assert step.joined() == 0
    step = Gradient()
    several = memory(2, ROWS, COLUMNS)
    step.loop(several, step.gradient)
    assert step.joined() == 0


def test_the_sizes_that_gain_are_those_documented():
    def gains(rows, columns, inner):
        return multiplied(
            memory(rows, inner), memory(inner, columns), memory(rows, columns)
        ).is_faster_by_rows

    assert gains(1024, 512, 512)
    assert not gains(1023, 512, 512)  # the result has less than 2 MiB
    assert not gains(1024, 512, 513)  # the right factor has more than 1 MiB
    assert gains(64, 8192, 32)
    assert not gains(64, 8193, 31)  # a row has more than 32 KiB
    assert gains(100, 972, 64)  # of few samples
    assert not gains(100, 972, 65)
    assert not gains(32, 1023, 32)  # the result has less than 128 KiB
    several = product(memory(2, 1024, 64), memory(2, 64, 512), memory(2, 1024, 512), 2, ("", ""))
    assert not several.is_faster_by_rows


def test_two_products_of_one_loop_do_not_both_follow():
    step = Gradient()
    other = memory(ROWS, COLUMNS)
    step.operations.append(multiplied(memory(ROWS, INNER), memory(INNER, COLUMNS), other))
    step.loop(step.weight, step.gradient, other)
    first, second = step.units()
    assert not isinstance(first, GemmWithEpilogue)
    assert isinstance(second, GemmWithEpilogue)
