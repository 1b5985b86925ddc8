"""Which matrices have rows that lie a line further apart, and who is told."""

import pytest
import torch

from abele.targets.cpu.emitted.calls.products import product
from abele.targets.cpu.emitted.gemm_epilogues import GemmWithEpilogue, fuse_gemm_epilogues
from abele.targets.cpu.emitted.pad_leading_dimension import pad_leading_dimension
from abele.targets.translation.groups import grouped
from abele.targets.translation.operations import Call, Operation, Pointwise, StridedCall
from abele.targets.translation.places import Buffer, Kind, Place, contiguous_stride

F32 = torch.float32


def memory(*shape, kind=Kind.ARENA, dtype=F32):
    buffer = Buffer(kind, 0, dtype, torch.Size(shape).numel())
    return Place(buffer, shape, contiguous_stride(shape))


def view(place, shape, stride, offset=0):
    return Place(place.buffer, shape, stride, offset)


def multiplied(a, b, result):
    steps = tuple(f"0, {each.stride[0]}, {each.stride[1]}" for each in (a, b))
    return product(a, b, result, 1, steps)


def loop(result, *operands):
    return Pointwise(list(operands), [result], list(operands), [F32] * len(operands), str)


def strided(place, accepts):
    def form(reads, writes):
        return f"call({reads[0].stride})"

    return StridedCall([place], [memory(8)], "", form, frozenset((0,)), accepts)


class Layer:
    """A product of a hidden matrix; what makes and reads it else is up to a test."""

    def __init__(self, rows=96, width=512, kind=Kind.ARENA, count=1):
        self.hidden = memory(rows, width, kind=kind)
        self.weight, self.result = memory(width, 40, kind=Kind.INPUT), memory(rows, 40)
        made = multiplied(self.hidden, self.weight, self.result)
        made.count = count
        self.operations: list[Operation] = [made]

    def step(self, returned=()):
        """Elements from row to row of the hidden matrix after all."""
        for position, each in enumerate(self.operations):
            each.position = position
        self.units = fuse_gemm_epilogues(grouped(self.operations))
        pad_leading_dimension(self.units, set(returned))
        read = self.operations[-1 if self.late else 0].reads[0]
        return read.stride[0]

    late = False

    def made_by(self, operation):
        self.operations.insert(0, operation)
        self.late = True


def test_rows_that_share_sets_lie_a_line_apart():
    layer = Layer()
    assert layer.step() == 528
    (made,) = layer.operations
    assert "AbeleProduct{{1, 96, 40, 512, 0, 528, 1, 0, 40, 1, 3840, 40, 0, 0, 1}}" in made.text
    assert layer.hidden.buffer.size == 96 * 528


@pytest.mark.parametrize(
    "layer",
    [Layer(width=520), Layer(rows=63), Layer(kind=Kind.INPUT), Layer(count=2)],
    ids=["other sets", "few rows", "memory of others", "several products"],
)
def test_other_rows_follow_each_other(layer):
    assert layer.step() == layer.hidden.shape[1]


def test_results_of_the_program_stay():
    layer = Layer()
    assert layer.step(returned=[layer.hidden.buffer]) == 512


def test_a_loop_through_all_memory_becomes_one_through_rows():
    layer = Layer()
    source = memory(8, 12, 512, kind=Kind.INPUT)
    layer.made_by(loop(view(layer.hidden, (8, 12, 512), (6144, 512, 1)), source))
    assert layer.step() == 528
    (unit,) = (unit for unit in layer.units if unit.elementwise)
    assert unit.shape == (96, 512)
    assert unit.operations[0].writes[0].stride == (528, 1)


def test_a_loop_with_a_shape_keeps_it():
    layer = Layer()
    source, bias = memory(8, 12, 512, kind=Kind.INPUT), memory(512, kind=Kind.INPUT)
    layer.made_by(loop(view(layer.hidden, (8, 12, 512), (6144, 512, 1)), source, bias))
    assert layer.step() == 528
    (unit,) = (unit for unit in layer.units if unit.elementwise)
    assert unit.shape == (8, 12, 512)
    assert unit.operations[0].writes[0].stride == (12 * 528, 528, 1)


def test_slices_of_rows_move_with_them():
    layer = Layer()
    half = view(layer.hidden, (95, 256), (512, 1), 512 + 256)
    layer.operations.append(loop(memory(95, 256), half))
    assert layer.step() == 528
    moved = layer.operations[1].reads[0]
    assert (moved.stride, moved.offset) == ((528, 1), 528 + 256)


@pytest.mark.parametrize(
    ("shape", "stride", "offset"),
    [((95, 512), (512, 1), 256), ((192, 200), (256, 1), 0), ((49152,), (1,), 0)],
    ids=["across rows", "other rows", "elements in order"],
)
def test_views_that_no_strides_would_reach_forbid_it(shape, stride, offset):
    layer = Layer()
    seen = view(layer.hidden, shape, stride, offset)
    layer.operations.append(strided(seen, lambda place: True))
    assert layer.step() == 512


def test_calls_that_are_told_strides_may_refuse():
    layer = Layer()
    call = strided(layer.hidden, lambda place: place.stride[0] == 528)
    layer.operations.append(call)
    assert layer.step() == 528
    assert call.text == "call((528, 1))"
    refusing = Layer()
    refusing.operations.append(strided(refusing.hidden, lambda place: False))
    assert refusing.step() == 512


def test_other_calls_forbid_it():
    layer = Layer()
    layer.operations.append(Call([layer.hidden], [], "call({0})"))
    assert layer.step() == 512


def test_rows_that_a_loop_takes_from_a_product_lie_apart():
    layer = Layer(rows=1024)
    gradient = memory(1024, 512)
    layer.operations = [
        multiplied(memory(1024, 64), memory(64, 512), gradient),
        loop(layer.hidden, gradient),
        *layer.operations,
    ]
    layer.late = True
    assert layer.step() == 528
    (unit,) = (unit for unit in layer.units if isinstance(unit, GemmWithEpilogue))
    assert "524288, 528, 0" in unit.product.described()
    assert unit.loop.operations[0].reads[0].stride == (528, 1)
