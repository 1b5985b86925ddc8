"""The memory of programs that run operator by operator, beside what torch's allocator counts."""

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - the name everybody uses
from torch import nn
from torch.profiler import ProfilerActivity, profile

from abele import arena
from abele.arena import running
from abele.compilation.build import lowered_for
from abele.kernels import binding, build
from abele.program import Role, memory
from abele.step.config import StepConfig
from abele.targets.cpu import Cpu
from abele.targets.cpu.compiler import compiler, instruction_set
from abele.targets.cpu.op_by_op.lowering import OpByOp, with_kernels
from helpers.models import plain_loss
from helpers.runs import captured, rule_for

pytestmark = pytest.mark.compiler


class Forced(OpByOp):
    def why(self, program):
        return "the test asks for it"


class OnlyOpByOp(Cpu):
    lowerings = (Forced(),)


class Images(nn.Module):
    """Convolutions with batch norm and both kinds of activation, a skip, a fused update."""

    def __init__(self):
        super().__init__()
        self.first, self.second = (nn.Conv2d(c, 8, 3, padding=1, bias=False) for c in (1, 8))
        self.norms = nn.ModuleList(nn.BatchNorm2d(8) for _ in range(2))

    def forward(self, images):
        x = F.leaky_relu(self.norms[0](self.first(images)), 0.1)
        x = x + torch.relu(self.norms[1](self.second(x)))
        return plain_loss(x, "mean")


def lowered():
    module = Images()
    step = captured(module, (torch.randn(2, 1, 64, 64),), rule=rule_for(module, "adam"))
    ((program, _),) = lowered_for(OnlyOpByOp(), step.programs, StepConfig())["step"]
    return program


def counted_peak(program):
    """The most bytes that torch's allocator had given out at once, as its profiler says."""
    code = build.shared_library(compiler() or "g++", instruction_set())
    run = with_kernels(program, binding.load(code))
    # Weights of norms near zero would make the kernel keep more than its result.
    arguments = [torch.ones(slot.shape).to(slot.dtype) for slot in program.inputs]
    rows = next(i for i, slot in enumerate(program.inputs) if slot.role is Role.INPUT)
    arguments[rows] = torch.randn(program.inputs[rows].shape)
    run(list(arguments))
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as watched:
        run(list(arguments))
    alive = peak = 0
    for event in watched.profiler.kineto_results.events():
        if event.name() == "[memory]":
            alive += event.nbytes()
            peak = max(peak, alive)
    return peak


def test_the_plan_is_what_torch_allocates():
    program = lowered()
    planned = max(OpByOp().memory(program).needed())
    assert planned == pytest.approx(counted_peak(program), rel=0.02)


class OneNorm(nn.Module):
    """A norm whose activation has a slope, between two convolutions."""

    def __init__(self, slope):
        super().__init__()
        self.slope, self.norm = slope, nn.BatchNorm2d(8)
        self.first, self.second = (nn.Conv2d(c, 8, 3, padding=1, bias=False) for c in (1, 8))

    def forward(self, images):
        x = F.leaky_relu(self.norm(self.first(images)), self.slope)
        return plain_loss(self.second(x), "mean")


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
@pytest.mark.parametrize("slope", [0.1, -0.1])
def test_what_a_norm_saves_is_counted_where_its_result_is_not_enough(slope, dtype):
    """With a negative slope the argument is kept, and rounded to 16 bits that is one more copy."""
    module = OneNorm(slope).to(dtype)
    step = captured(module, (torch.randn(2, 1, 64, 64, dtype=dtype),), rule=rule_for(module))
    ((program, _),) = lowered_for(OnlyOpByOp(), step.programs, StepConfig())["step"]
    planned = max(OpByOp().memory(program).needed())
    assert planned == pytest.approx(counted_peak(program), rel=0.02)


def test_results_over_arguments_take_no_memory():
    program = lowered()
    assert max(OpByOp().memory(program).needed()) < max(memory.of_graph(program).needed())


class Joined(nn.Module):
    """A pool, an upsampled image, and images that are joined, so that gradients are slices."""

    def __init__(self, joins):
        super().__init__()
        self.joins = joins
        self.first, self.second = (nn.Conv2d(c, 16, 3, padding=1) for c in (3, 32 if joins else 16))
        self.norm = nn.BatchNorm2d(16)

    def forward(self, images):
        x = F.leaky_relu(self.norm(self.first(images)), 0.1)
        up = F.interpolate(F.max_pool2d(x, 2), scale_factor=2.0, mode="bilinear")
        return plain_loss(self.second(torch.cat([up, x], 1) if self.joins else up + x), "mean")


@pytest.mark.parametrize(
    ("dtype", "joins"), [(torch.float32, True), (torch.float16, False)], ids=["joined", "half"]
)
def test_every_tensor_finds_its_place_after_the_first_runs(dtype, joins):
    assert arena.made(compiler() or "g++")
    module = Joined(joins).to(dtype)
    step = captured(module, (torch.randn(2, 3, 64, 64, dtype=dtype),), rule=rule_for(module))
    ((program, _),) = lowered_for(OnlyOpByOp(), step.programs, StepConfig())["step"]
    run = Forced().compile(program).run
    for _ in range(4):
        before = running.counts()
        run([torch.ones(slot.shape, dtype=slot.dtype) for slot in program.inputs])
    counts = [b - a for a, b in zip(before, running.counts(), strict=True)]
    assert counts[0]
    assert counts[1:] == [0, 0]
