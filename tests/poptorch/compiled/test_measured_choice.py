"""Wrapped models as a user has them: the clock of the machine decides which lowering runs.

The other tests do what the rules say, so that no clock decides what they see.
"""

import pytest
import torch

import poptorch
from abele.report import read_run
from abele.targets import candidates
from helpers.wrapping import inference, rows, scorer, trainer

WAYS = {"op_by_op", "emitted", "interpreter"}

pytestmark = pytest.mark.compiler


@pytest.fixture(autouse=True)
def _measured(monkeypatch):
    monkeypatch.setenv("ABELE_TARGET", "cpu")
    monkeypatch.delenv(candidates.ENVIRONMENT)


def chosen(wrapped):
    """The name of the lowering of the only program, and why it is that."""
    (way,) = wrapped.build_record.lowerings.values()
    return way.name, way.reason


def test_a_report_names_what_was_measured(tmp_path):
    wrapped = trainer(scorer(), enableProfiling=str(tmp_path))
    wrapped(*rows(4))
    (program,) = read_run(tmp_path / "training").programs
    assert (program.lowering, program.reason) == chosen(wrapped)
    assert program.lowering in WAYS
    assert program.reason.startswith("measured: ")


REFUSING = {
    "quotient of integers": (lambda x, y: x // y, [torch.tensor([7, -7]), torch.tensor([2, 2])]),
    "remainder of integers": (lambda x, y: x % y, [torch.tensor([7, -7]), torch.tensor([3, 3])]),
    "repeats": (
        lambda x, times: x.repeat_interleave(times, output_size=3) + 1,
        [torch.tensor([0.5, 2.0]), torch.tensor([1, 2])],
    ),
}


@pytest.mark.parametrize("name", REFUSING)
def test_operators_that_refuse_zeros_are_compiled(name):
    function, inputs = REFUSING[name]
    wrapped = inference(function)
    assert wrapped(*inputs).tolist() == function(*inputs).tolist()
    assert chosen(wrapped)[1].startswith("not measured, because made-up inputs do not suit it")


class Convolved(torch.nn.Module):
    """A convolution over any number of dimensions, with a squared error."""

    def __init__(self, layer):
        super().__init__()
        torch.manual_seed(0)
        self.layer = layer(2, 3, 3)

    def forward(self, x):
        result = self.layer(x)
        return torch.nn.functional.mse_loss(result, torch.ones_like(result))


@pytest.mark.parametrize(
    ("layer", "sizes"), [(torch.nn.Conv1d, (20,)), (torch.nn.Conv3d, (4, 5, 6))]
)
def test_convolutions_of_lines_and_volumes_train(layer, sizes):
    x, model, plain = torch.randn(2, 2, *sizes), Convolved(layer), Convolved(layer)
    wrapped = trainer(model)
    optimizer = torch.optim.SGD(plain.parameters(), lr=0.1)
    for _ in range(2):
        optimizer.zero_grad()
        loss = plain(x)
        loss.backward()
        optimizer.step()
        torch.testing.assert_close(wrapped(x), loss.detach())
    assert chosen(wrapped)[1].startswith("measured: ")
    torch.testing.assert_close(model.layer.weight.detach(), plain.layer.weight.detach())


def test_programs_that_take_over_are_reported(tmp_path, monkeypatch):
    monkeypatch.setenv("ABELE_START", "tiered")
    monkeypatch.setenv("ABELE_SWAP_AT", "1")
    wrapped = trainer(scorer(), enableProfiling=str(tmp_path))
    wrapped(*rows(4))
    assert read_run(tmp_path / "training").programs[0].lowering == "interpreter"
    wrapped(*rows(4))
    run = read_run(tmp_path / "training")
    assert run.build.running == "compiled programs run since update 1, interpreted before"
    assert (run.programs[0].lowering, run.programs[0].reason) == chosen(wrapped)


def test_a_cached_executable_keeps_what_was_chosen(tmp_path):
    first, second = (trainer(scorer(), enableExecutableCaching=str(tmp_path)) for _ in range(2))
    results = [torch.stack([wrapped(*rows(4))[0] for _ in range(3)]) for wrapped in (first, second)]
    assert second.build_record.cache == "hit"
    assert chosen(first) == chosen(second)
    assert torch.equal(*results)


def test_an_exported_model_keeps_what_was_chosen(tmp_path):
    wrapped = trainer(scorer())
    wrapped.compileAndExport(str(tmp_path / "model.poptorch"), *rows(4))
    loaded = poptorch.load(str(tmp_path / "model.poptorch"))
    assert torch.equal(wrapped(*rows(4))[0], loaded(*rows(4))[0])
    assert chosen(loaded) == chosen(wrapped)
