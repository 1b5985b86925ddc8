"""Prints, host calls and checkpoints do the same on every target, fresh and from the cache."""

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - torch's own convention

from abele import ExecutableCache
from abele.compilation.verdict import TOLERANCE
from abele.ops.checkpoint import checkpoint
from abele.ops.host_call import HostCalls, host_call
from abele.ops.print_tensor import Layout, print_tensor
from helpers.runs import assert_close_by_norm, assert_same_bits, rule_for, run, started

LAYOUT = Layout(digits=2)
SHAPES = [(8, 3, 9, 9), (8, 5, 7, 7)]
BATCH = [torch.randn(s, generator=torch.Generator().manual_seed(n)) for n, s in enumerate(SHAPES)]
HOST = "float32[8, 5, 7, 7] int64[]"


class Effects(torch.nn.Module):
    """Everything that reaches outside, twice with equal arguments, around checkpoints."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.conv = torch.nn.Conv2d(3, 5, 3)
        self.layers = torch.nn.ModuleList(torch.nn.Linear(7, 7) for _ in range(3))

    def forward(self, x, target):
        x = self.conv(x)
        for index, layer in enumerate(self.layers):
            x = print_tensor(layer(x), f"x{index}", f"x{index}_gradient", LAYOUT)
            x = checkpoint(torch.tanh(F.gelu(x)))
        first, count = host_call([x], "scale", HOST)
        second, _ = host_call([x], "scale", HOST)
        return count, F.mse_loss(x + first - 0.5 * second, target)


def trained(target, cache=None):
    model = Effects()
    calls = HostCalls()
    calls.functions["scale"] = lambda inputs: [2 * inputs[0], torch.tensor(inputs[0].numel())]
    session, record = started(model, BATCH, rule_for(model), target=target, cache=cache)
    with calls.in_use():
        return run(session, [BATCH] * 3), record.cache


@pytest.fixture
def expected(capsys):
    return trained("reference")[0], capsys.readouterr().err


def test_every_target_does_what_the_reference_does(target, expected, capsys, tmp_path):
    output, _ = trained(target, ExecutableCache(tmp_path))
    assert_close_by_norm(output, expected[0], TOLERANCE)
    printed = capsys.readouterr().err
    assert _lines(printed) == _lines(expected[1])
    if target.cacheable:
        loaded, origin = trained(target, ExecutableCache(tmp_path))
        assert origin == "hit"
        assert_same_bits(loaded, output)
        assert capsys.readouterr().err == printed


def _lines(text):
    """Titles in order; the last digit of a value may round the other way."""
    return [line.partition(":")[0] for line in text.splitlines() if ":" in line]


def test_what_is_printed_names_each_gradient(expected):
    titles = _lines(expected[1])
    forward = [f"x{index}" for index in range(3)]
    assert titles == [*forward, *(f"{name}_gradient" for name in reversed(forward))] * 3
