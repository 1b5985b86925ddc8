"""One tiny model through the whole engine, on one page: each stage, and what it promises.

    pytest tests/test_tiny.py

Nothing here needs a C++ compiler; the folders named by the headings have the tests of each stage.
"""

import copy

import pytest
import torch
from torch import nn

import abele
import poptorch
from abele import passes
from abele.capture import capture
from helpers.fakes import Keeping


class Tiny(nn.Module):
    """Two layers, and the loss inside forward as PopTorch wants it."""

    def __init__(self):
        super().__init__()
        self.hidden, self.scores = nn.Linear(4, 8), nn.Linear(8, 2)

    def forward(self, x, labels):
        """x: float32 [B, 4]; labels: int64 [B]."""
        return nn.functional.cross_entropy(self.scores(torch.tanh(self.hidden(x))), labels)


BATCH = [torch.linspace(-1, 1, 16).reshape(4, 4), torch.tensor([0, 1, 1, 0])]
CONFIG = abele.StepConfig(training=True)
SGD = {"lr": 0.1, "momentum": 0.0, "dampening": 0.0, "weight_decay": 0.0, "nesterov": False}


@pytest.fixture
def model():
    return Tiny()


@pytest.fixture
def rule(model):
    names = tuple(name for name, _ in model.named_parameters())
    return abele.UpdateRule(kind="sgd", groups=(abele.Group(params=names, values=SGD),))


@pytest.fixture
def captured(model, rule):
    return capture(lambda inputs: [model(*inputs)], model, BATCH, CONFIG, rule)


def plain(model, steps):
    """The losses of ordinary PyTorch, which is what everything below has to equal."""
    optimizer = torch.optim.SGD(model.parameters(), lr=SGD["lr"])
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        losses.append(model(*BATCH))
        losses[-1].backward()
        optimizer.step()
    return torch.stack(losses).detach()


# unit/capture, unit/program: one micro-batch becomes one graph, whose writes come last.


def test_capture_sees_forward_loss_backward_and_update_in_one_program(captured):
    (program,) = captured.programs
    program.verify()
    assert {"hidden.weight", "scores.bias"} <= {slot.name for slot in program.inputs}
    text = program.text()
    assert "tanh" in text
    assert "tanh_backward" in text
    assert text.count("copy_") == 4, "one write for each parameter"


# unit/passes: each keeps every bit.


def test_passes_make_a_program_of_the_same_meaning(captured):
    program = passes.run(captured.programs[0])
    assert [slot.name for slot in program.inputs] == [
        slot.name for slot in captured.programs[0].inputs
    ]
    assert len(program.graph.graph.nodes) <= len(captured.programs[0].graph.graph.nodes)


# unit/compile, unit/runtime, conformance: the reference equals plain PyTorch, bit for bit.


def test_three_steps_are_those_of_plain_pytorch(model, captured, rule):
    executable, record = abele.build(
        captured.programs, CONFIG, target=abele.get_target("reference")
    )
    state = dict(model.named_parameters())
    session = abele.Session(executable, CONFIG, state, {}, hyper=rule.hyper())
    losses = torch.stack([session.step(BATCH)[0] for _ in range(3)])
    assert record.target == "reference"
    assert torch.equal(losses, plain(model, 3))
    assert all(torch.equal(session.params[name], value) for name, value in state.items())


# unit/compile: one file per executable; the second build loads it. Nothing is unpickled.


def test_the_second_build_is_read_from_the_cache(captured, tmp_path):
    cache, target = abele.ExecutableCache(tmp_path), Keeping()
    built = [abele.build(captured.programs, CONFIG, target=target, cache=cache) for _ in range(2)]
    assert [record.cache for _, record in built] == ["miss", "hit"]
    assert built[0][1].executable == built[1][1].executable
    assert target.compilations == 1


# poptorch: the same through the interface that users know, with its report.


def test_users_wrap_the_model_and_read_what_was_done(model, tmp_path, monkeypatch):
    monkeypatch.setenv("ABELE_TARGET", "reference")
    options = poptorch.Options().enableProfiling(str(tmp_path))
    optimizer = poptorch.optim.SGD(model.parameters(), lr=SGD["lr"])
    expected = plain(copy.deepcopy(model), 2)
    wrapped = poptorch.trainingModel(model, options, optimizer)
    losses = torch.stack([wrapped(*BATCH) for _ in range(2)])
    wrapped.destroy()
    assert torch.equal(losses, expected)
    (report,) = tmp_path.rglob("report.html")
    assert "reference" in report.read_text(encoding="utf-8")
