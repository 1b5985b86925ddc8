"""Batch norms of target cuda: its own sums of channels, run by the host as blocks of threads."""

import pytest
import torch
import torch.nn.functional as F  # noqa: N812

from abele.compilation.verdict import TOLERANCE
from abele.targets.cuda.emitted import lowering
from abele.targets.cuda.emitted.blocks import Blocks
from abele.targets.cuda.emitted.source import Launch
from abele.targets.reference import Interpreter
from abele.targets.translation.operations import Foreign
from helpers import kernels_on_host
from helpers.emitted_operators import program_of
from helpers.runs import assert_close_by_norm, captured, rule_for, run, started

COMPILED = pytest.mark.compiler
# One part with a tail, several parts with a tail and samples across their borders, exactly one.
SHAPES = [
    (2, 3, 5, 7),
    (3, 2, 50, 61),
    (1, 2, 17),
    *(
        pytest.param(shape, marks=pytest.mark.thorough)
        for shape in [(4, 5, 32, 32), (2, 4, 16), (2, 2, 8, 9, 3)]
    ),
]


class OfHalf(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = torch.nn.BatchNorm1d(4)

    def forward(self, x):
        return F.mse_loss(self.norm(x).float(), x.float().sin())


def normalised(x, weight, bias, mean, var):
    mean, var = mean.detach() + 0, var.detach() + 0
    result = F.batch_norm(x, mean, var, weight, bias, training=True, momentum=0.3, eps=1e-3)
    return result, mean, var


def inputs_of(shape, *, shift=0.0):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(shape, generator=generator) + shift
    numbers = [torch.rand(shape[1], generator=generator) + 0.5 for _ in range(4)]
    return [x, *numbers]


def results(program, inputs, folder):
    low = kernels_on_host.OnHost(folder)
    actual = low.compile(program).run([each.clone() for each in inputs])
    return actual, Interpreter().compile(program).run([each.clone() for each in inputs])


def sums_of(program):
    """Names of what blocks compute, and whether torch computes a batch norm."""
    plan = lowering.planned(program)
    units = [unit for step in plan.steps if isinstance(step, Launch) for unit in step.units]
    blocks = [unit.operations[0] for unit in units]
    torchs = [str(step.target) for step in plan.steps if isinstance(step, Foreign)]
    named = [each.what for each in blocks if isinstance(each, Blocks)]
    return named, any("batch_norm" in each for each in torchs)


@COMPILED
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_running_statistics_of_half_norms_are_kept_in_half(dtype, tmp_path):
    """A captured program says float32 of them; torch computes them, in half."""
    target, _ = kernels_on_host.target(tmp_path)
    batches, trained = [(torch.randn(6, 4, 5).to(dtype),) for _ in range(3)], []
    for each in (target, "reference"):
        module = OfHalf().to(dtype)
        session, _ = started(module, batches[0], rule_for(module, "sgd"), target=each)
        trained.append(run(session, batches))
    assert_close_by_norm(*trained, 1e-2)


@COMPILED
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_training_and_gradients_are_those_of_the_interpreter(shape, tmp_path):
    inputs = inputs_of(shape)
    program = program_of(normalised, inputs, gradients=True)
    actual, expected = results(program, inputs, tmp_path)
    torch.testing.assert_close(actual, expected, rtol=2e-5, atol=2e-5)
    names, torchs = sums_of(program)
    assert not torchs
    assert sorted({*names} - {"column_sums"}) == [
        "channel_moments",
        "channel_products",
        "channel_statistics",
        "channel_totals",
    ]


@COMPILED
@pytest.mark.parametrize("form", ["no statistics", "evaluation", "no weights"])
def test_other_forms(form, tmp_path):
    def function(x, weight, bias, mean, var):
        if form == "no statistics":
            return F.batch_norm(x, None, None, weight, bias, training=True)
        if form == "evaluation":
            return F.batch_norm(x, mean.detach(), var.detach(), weight, bias)
        return F.batch_norm(x, mean.detach() + 0, var.detach() + 0, training=True)

    inputs = inputs_of((2, 3, 6, 5))
    program = program_of(function, inputs, gradients=True)
    actual, expected = results(program, inputs, tmp_path)
    torch.testing.assert_close(actual, expected, rtol=2e-5, atol=2e-5)
    assert not sums_of(program)[1]


@COMPILED
def test_numbers_far_from_zero_lose_what_rounds_their_mean(tmp_path):
    """The variance is that of distances from the mean, not a difference of large sums."""
    shift = 1000.0
    inputs = inputs_of((3, 2, 50, 61), shift=shift)
    program = program_of(normalised, inputs, gradients=False)
    actual, _ = results(program, inputs, tmp_path)
    exact = normalised(*(each.double() for each in inputs))
    rounding = torch.finfo(torch.float32).eps * shift / 2
    weight = inputs[1].max()  # a channel's standard deviation is about 1
    assert (actual[0] - exact[0]).abs().max() < 1.1 * weight * rounding
    assert (actual[1] - exact[1]).abs().max() < 2 * rounding
    torch.testing.assert_close(actual[2].double(), exact[2], rtol=1e-5, atol=0)


@COMPILED
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_what_is_no_number_stays_in_its_channel(value, tmp_path):
    inputs = inputs_of((2, 3, 5, 7))
    inputs[0][1, 1, 2, 3] = value
    actual, expected = results(program_of(normalised, inputs, gradients=False), inputs, tmp_path)
    torch.testing.assert_close(actual, expected, rtol=2e-5, atol=2e-5, equal_nan=True)
    assert actual[0][:, 1].isnan().all()
    assert actual[0][:, [0, 2]].isfinite().all()


@pytest.mark.parametrize(
    ("shape", "dtype"), [((8, 3), torch.float32), ((2, 3, 5, 7), torch.float64)], ids=str
)
def test_images_of_few_pixels_and_other_types_stay_torchs(shape, dtype):
    inputs = [each.to(dtype) for each in inputs_of(shape)]
    names, torchs = sums_of(program_of(normalised, inputs, gradients=True))
    assert torchs
    assert not any(name.startswith("channel") for name in names)


class Network(torch.nn.Module):
    """Equal layers, whose sums are equal kernels, and one of another size."""

    def __init__(self):
        super().__init__()
        sizes = [(3, 4, 1), (4, 4, 1), (4, 4, 1), (4, 8, 2)]
        self.layers = torch.nn.Sequential(
            *(
                torch.nn.Sequential(
                    torch.nn.Conv2d(a, b, 3, stride=stride, padding=1),
                    torch.nn.BatchNorm2d(b),
                    torch.nn.LeakyReLU(),
                )
                for a, b, stride in sizes
            )
        )
        self.last = torch.nn.Linear(8, 5)

    def forward(self, x, y):
        return F.cross_entropy(self.last(self.layers(x).mean((2, 3))), y)


def batch_of(seed):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(4, 3, 40, 30, generator=generator)
    return x, torch.randint(0, 5, (4,), generator=generator)


@COMPILED
def test_a_network_trains_as_it_is_interpreted(tmp_path):
    target, _ = kernels_on_host.target(tmp_path)
    trained = []
    for each in (target, "reference"):
        torch.manual_seed(0)
        module = Network()
        session, _ = started(module, batch_of(0), rule_for(module, "sgd"), target=each)
        trained.append(run(session, [batch_of(seed) for seed in range(4)]))
    # What a norm subtracts again has no gradient.
    zero = {f"layers.{i}.0.bias" for i in range(4)}
    assert_close_by_norm(*trained, TOLERANCE, zero)


def test_equal_layers_share_kernels():
    module = Network()
    (program,) = captured(module, batch_of(0), rule=rule_for(module)).programs
    steps = lowering.planned(program).steps
    launches = [
        step
        for step in steps
        if isinstance(step, Launch)
        for unit in step.units
        if isinstance(unit.operations[0], Blocks) and unit.operations[0].what == "channel_moments"
    ]
    assert len(launches) == 4
    assert len({each.name for each in launches}) == 1


@COMPILED
def test_sums_of_columns_are_those_of_threads_that_share_memory(tmp_path):
    x = torch.randn(100, 13)
    program = program_of(lambda x: x.sum(0), [x], gradients=False)
    actual, expected = results(program, [x], tmp_path)
    torch.testing.assert_close(actual, expected)
    assert sums_of(program)[0] == ["column_sums"]
