"""Which sums of channels and loops run together, and which have to wait for each other."""

import pytest
import torch

from abele import StepConfig, passes
from abele.program import Program
from abele.targets.cpu.emitted import lowering
from abele.targets.cpu.emitted.channel_blocking import ChannelBlocks, block_channels
from abele.targets.cpu.emitted.memory import ordered
from abele.targets.translation.groups import grouped
from abele.targets.translation.operations import Call, ChannelCall, Operation, Pointwise
from abele.targets.translation.places import Buffer, Kind, Place, contiguous_stride
from helpers import runs

F32 = torch.float32
SHAPE = (2, 16, 64, 64)


def memory(*shape, kind=Kind.ARENA):
    buffer = Buffer(kind, 0, F32, torch.Size(shape).numel())
    return Place(buffer, shape, contiguous_stride(shape))


def along(values, shape=SHAPE):
    """A number for each channel, broadcast over images."""
    ones = (1,) * (len(shape) - 2)
    return Place(values.buffer, (shape[1], *ones), (1, *ones))


class Step:
    """Statistics of images and the loop that reads them, and whatever else a test adds."""

    def __init__(self, shape=SHAPE):
        self.shape = shape
        self.x, self.y = memory(*shape, kind=Kind.INPUT), memory(*shape)
        self.mean, self.deviation = memory(shape[1]), memory(shape[1])
        self.operations: list[Operation] = []

    def loop(self, result, *operands):
        types = [F32] * len(operands)
        self.operations.append(Pointwise(list(operands), [result], list(operands), types, str))

    def call(self, results, operands):
        self.operations.append(Call(list(operands), list(results), "call()"))

    def statistics(self):
        written = [self.mean, self.deviation]
        self.operations.append(ChannelCall([self.x], written, "all()", self.shape, "part({0})"))

    def sums(self, grad, results):
        reads = [grad, self.x, self.mean, self.deviation]
        call = ChannelCall(reads, results, "all()", self.shape, "part({0}, {apart})", apart=True)
        self.operations.append(call)

    def normalised(self):
        self.loop(
            self.y, self.x, *(along(each, self.shape) for each in (self.mean, self.deviation))
        )

    def units(self, *returned):
        for position, each in enumerate(self.operations):
            each.position = position
        units = ordered(grouped(self.operations))
        return block_channels(units, {place.buffer for place in returned})

    def groups(self, *returned):
        return [each for each in self.units(*returned) if isinstance(each, ChannelBlocks)]


def forward(shape=SHAPE):
    step = Step(shape)
    step.statistics()
    step.normalised()
    return step


def backward(step=None):
    """The gradient through a mask, the sums of it, and the gradient of the images."""
    step = step or Step()
    step.grad, step.masked, step.result = (memory(*SHAPE) for _ in range(3))
    step.two = [memory(SHAPE[1]) for _ in range(2)]
    step.call([step.grad], [])
    step.loop(step.masked, step.grad, step.x)
    step.sums(step.masked, step.two)
    step.loop(step.result, step.masked, step.x, *map(along, step.two))
    step.call([], [step.result])
    return step


def test_statistics_and_the_loop_that_reads_them_are_one_group():
    (group,) = forward().groups()
    assert [each.elementwise for each in group.units] == [False, True]
    assert (group.images, group.elementwise) == (SHAPE, False)


def test_a_gradient_and_its_sums_are_one_group_and_what_is_between_stays_in_a_cache():
    step = backward()
    first, group, last = step.units()
    assert [each.elementwise for each in group.units] == [True, False, True]
    assert group.inside == {step.masked.buffer}
    assert last.before == {group}
    assert group.before == {first}
    assert group.apart(step.masked) == group.block * 64 * 64
    assert group.apart(step.x) == 16 * 64 * 64


def test_what_others_read_lies_where_they_look_for_it():
    step = backward()
    step.call([], [step.masked])
    (group,) = step.groups()
    assert not group.inside
    step = backward()
    (group,) = step.groups(step.masked)
    assert not group.inside


@pytest.mark.parametrize(
    "shape", [(2, 4, 128, 128), (2, 16, 16, 16), (4096, 64, 2, 2), (65536, 16)]
)
def test_few_channels_few_pixels_and_small_images_gain_nothing(shape):
    assert not forward(shape).groups()


def test_a_block_is_a_part_of_a_cache_and_threads_share_blocks():
    (small,) = forward((2, 64, 32, 32)).groups()
    assert small.block == 8  # so that eight threads have as many
    (large,) = forward((8, 64, 128, 128)).groups()
    assert large.block == 1
    (one_sample,) = forward((1, 64, 64, 64)).groups()
    assert one_sample.block == 8


def test_a_unit_between_that_nobody_waits_for_runs_behind():
    step = Step()
    step.statistics()
    step.call([memory(3)], [step.mean])
    step.normalised()
    group, other = step.units()
    assert isinstance(group, ChannelBlocks)
    assert other.before == {group}


def test_a_unit_between_that_the_loop_waits_for_keeps_them_apart():
    step = Step()
    step.statistics()
    scale = memory(16)
    step.call([scale], [step.mean])
    step.loop(step.y, step.x, along(scale))
    assert not step.groups()


def test_a_loop_before_joins_unless_something_between_waits_for_it():
    for reads, count in (False, 3), (True, 2):
        step = Step()
        made = memory(*SHAPE)
        step.loop(made, step.x)
        step.call([memory(3)], [made] * reads)
        step.x = made
        step.statistics()
        step.normalised()
        assert [len(each.units) for each in step.groups()] == [count]


def test_a_loop_that_writes_what_sums_read_elsewhere_waits():
    step = forward()
    turned = Place(step.x.buffer, SHAPE, (16 * 4096, 4096, 1, 64))
    step.loop(turned, step.y)
    (group,) = step.groups()
    assert len(group.units) == 2


def test_a_loop_over_another_shape_waits():
    step = Step()
    step.statistics()
    step.loop(memory(2 * 16, 64 * 64), *(Place(step.x.buffer, (32, 4096), (4096, 1)),) * 2)
    assert len(step.groups()) == 1  # in the order of memory: any shape
    step = Step()
    step.statistics()
    row = Place(step.mean.buffer, (16,), (1,))
    step.loop(memory(2 * 64 * 64, 16), Place(step.x.buffer, (8192, 16), (16, 1)), row)
    assert not step.groups()


class Network(torch.nn.Module):
    def __init__(self, activation):
        super().__init__()
        self.first = torch.nn.Conv2d(3, 16, 3, bias=False)
        self.norm = torch.nn.BatchNorm2d(16)
        self.activation = activation
        self.last = torch.nn.Conv2d(16, 8, 1)

    def forward(self, x, y):
        made = self.last(self.activation(self.norm(self.first(x))))
        return torch.nn.functional.mse_loss(made, y)


def placed(activation) -> tuple[Program, lowering.Plan]:
    module = Network(activation)
    batch = [torch.rand(2, 3, 66, 66), torch.rand(2, 8, 64, 64)]
    config = StepConfig(training=True)
    (program,) = runs.captured(module, batch, config, runs.rule_for(module)).programs
    program = passes.run_only(passes.run(program), lowering.Emitted.passes)
    return program, lowering.planned_code(program)


@pytest.mark.parametrize("activation", [torch.nn.ReLU(), torch.nn.ReLU6(), torch.nn.SiLU()])
def test_backward_computes_again_what_forward_would_have_to_write(activation):
    _, plan = placed(activation)
    groups = [each for each in plan.units if isinstance(each, ChannelBlocks)]
    assert [[each.elementwise for each in group.units] for group in groups] == [
        [False, True],
        [True, False, True],
    ]
    ahead, back = (
        {
            place.buffer
            for each in group.operations
            for place in (*each.reads, *each.writes)
            if place.size == 2 * 16 * 64 * 64 and place.buffer in plan.kept
        }
        for group in groups
    )
    assert len(ahead) == 2  # images and result: not the normalised images
    assert len(ahead & back) == 1  # backward reads the images alone
