"""Programs of which torch computes many operators train as plain PyTorch, whatever runs them."""

import functools

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - torch's own convention
from torch import nn

from abele import StepConfig, build
from abele.compilation.verdict import TOLERANCE
from abele.targets import candidates, get_target
from conftest import usable
from helpers.runs import assert_close_by_norm, captured, rule_for, run, run_eagerly, session_of

LARGE = nn.Parameter(torch.randn(3, 12, 12, generator=torch.Generator().manual_seed(1)))
BATCHES = [
    (torch.randn(4, 3, 12, 12, generator=torch.Generator().manual_seed(n)),) for n in range(3)
]


class Net(nn.Module):
    """One parameter, a function of it and the batch, and a loss."""

    def __init__(self, function, parameter=LARGE):
        super().__init__()
        self.weight = nn.Parameter(parameter.detach().clone())
        self.function = function

    def forward(self, x):
        y = self.function(x, self.weight)
        return y, F.mse_loss(y, torch.zeros_like(y))


def windows(x, weight):
    """Windows that overlap, as views and as columns, of one tensor."""
    x = x * weight
    views = x.unfold(2, 3, 1).unfold(3, 3, 1).sum((-1, -2))
    return F.pad(views, (1, 1, 1, 1)) + F.fold(F.unfold(x, 3, padding=1), (12, 12), 3, padding=1)


def strided_windows(x, weight):
    """The same memory under other strides, beside what is computed from it."""
    x = (x * weight).contiguous()
    rows = x.as_strided((4, 3, 10, 3, 12), (432, 144, 12, 12, 1))
    return rows.amax(3) + F.fold(F.unfold(x, (3, 1)), (10, 12), (1, 1)).view(4, 3, 3, 10, 12).sum(2)


def spectrum(x, weight):
    """A filter in frequencies, whose parameter is complex."""
    return torch.fft.irfft2(torch.fft.rfft2(x) * weight, s=(12, 12))


def phases(x, weight):
    """Complex numbers by elements: polar forms, conjugates, real parts."""
    z = torch.fft.fft(x) * weight
    return (z.conj() * torch.exp(1j * z.angle())).real + z.imag


def few_operators_of_torch(x, weight):
    """Sorts and sums that torch computes, and little else."""
    for _ in range(6):
        x = torch.cumsum(torch.sort(x * weight, -1).values, -1).flip(-1) * 0.1
    return x


def nearest(size, x, weight):
    """Enlarged pixels, some twice as wide as others."""
    return F.interpolate(x * weight, scale_factor=size, mode="nearest")


def pooled(x, weight):
    """Averages of windows that end outside of an image."""
    x = F.avg_pool2d(x * weight, 3, 2, ceil_mode=True)
    return F.avg_pool2d(x, 2, 2, padding=1, ceil_mode=True, count_include_pad=False)


def pooled_rows(x, weight):
    """The same of rows and of volumes."""
    rows = F.avg_pool1d((x * weight).flatten(1, 2), 5, 3, ceil_mode=True)
    volumes = F.avg_pool3d((x * weight)[:, None], (2, 5, 5), 3, ceil_mode=True, divisor_override=7)
    return rows.sum(-1) + volumes.sum()


def solved(x, weight):
    """Systems of equations, which only torch solves."""
    matrix = weight @ weight.mT + torch.eye(12)
    return torch.linalg.solve(matrix, x) + torch.linalg.inv(matrix).tanh()


def all_of_images(x, weight):
    """All of those above whose parameter is real, one after the other."""
    parts = (windows, strided_windows, few_operators_of_torch, pooled, pooled_rows, solved)
    sizes = (1.7, (0.6, 2.3))
    parts += tuple(functools.partial(nearest, size) for size in sizes)
    return torch.cat([each(x, weight).flatten() for each in parts])


def half_complex(*shape):
    return torch.randn(shape, dtype=torch.complex64, generator=torch.Generator().manual_seed(2))


PROGRAMS = {
    "windows that overlap": lambda: Net(windows),
    "strided windows": lambda: Net(strided_windows),
    "a complex parameter": lambda: Net(spectrum, half_complex(3, 12, 7)),
    "complex numbers": lambda: Net(phases, half_complex(3, 12, 12)),
    "sorts": lambda: Net(few_operators_of_torch),
    "enlarged by 1.7": lambda: Net(lambda x, w: nearest(1.7, x, w)),
    "enlarged by 0.6": lambda: Net(lambda x, w: nearest((0.6, 2.3), x, w)),
    "averages with ceil_mode": lambda: Net(pooled),
    "averages of rows with ceil_mode": lambda: Net(pooled_rows),
    "systems of equations": lambda: Net(solved),
    "all of images": lambda: Net(all_of_images),
}
TRAINED = "a complex parameter", "complex numbers", "all of images"


@functools.cache
def traced(name):
    """The program of a training step, with its rule."""
    model = PROGRAMS[name]()
    rule = rule_for(model)
    return captured(model, BATCHES[0], rule=rule).programs, rule


@pytest.mark.compiler
@pytest.mark.parametrize("lowering", ["emitted", "interpreter"])
@pytest.mark.parametrize("name", TRAINED)
def test_trains_as_plain_pytorch(name, lowering, monkeypatch):
    usable("cpu")
    monkeypatch.setenv(candidates.ENVIRONMENT, lowering)
    plain, model = PROGRAMS[name](), PROGRAMS[name]()
    optimizer = torch.optim.SGD(plain.parameters(), lr=0.05, momentum=0.9)
    (programs, rule), config = traced(name), StepConfig(training=True)
    executable, record = build(programs, config, target=get_target("cpu"))
    session = session_of(executable, model, config, rule)
    assert record.lowerings["step"].name == lowering
    actual, expected = run(session, BATCHES), run_eagerly(plain, optimizer, BATCHES)
    assert_close_by_norm(actual, expected, TOLERANCE)


@pytest.mark.parametrize("name", PROGRAMS)
def test_any_share_of_torchs_operators_becomes_code(name):
    (program,), _ = traced(name)
    lowering, _ = get_target("cpu").choose(program)
    assert lowering.name == "emitted"


@pytest.mark.parametrize(
    ("function", "why"),
    [
        (lambda x: torch.sort(x.T).values, "torch would compute all of it"),
        (
            lambda x: torch.cond(x.sum() > 0, lambda x: x + 1, lambda x: x - 1, (x,)),
            "it has loops or branches",
        ),
    ],
    ids=["torchs operators alone", "branches"],
)
def test_what_cannot_gain_from_code_is_interpreted(function, why):
    class Of(nn.Module):
        def forward(self, x):
            return function(x)

    (program,) = captured(Of(), (torch.ones(4, 4),)).programs
    target = get_target("cpu")
    lowering, reason = target.choose(program)
    assert (lowering.name, reason) == ("interpreter", "every program can be interpreted")
    assert target.why_not_chosen(program, before=lowering)["emitted"] == why
