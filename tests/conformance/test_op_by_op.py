"""A step that runs operator by operator, from capture to a second process's cache."""

import copy
import dataclasses
import shutil

import pytest
import torch

from abele.arena import running as memory
from abele.compilation.cache import ExecutableCache
from abele.kernels import self_test
from abele.targets.cpu.op_by_op import choice
from helpers.planes import WITHOUT_GRADIENT, events, planes
from helpers.runs import assert_close_by_norm, assert_same_bits, rule_for, run, run_eagerly, started

pytestmark = [
    pytest.mark.compiler,
    pytest.mark.skipif(
        not (shutil.which("g++") or shutil.which("clang++")), reason="no C++ compiler on PATH"
    ),
]


@pytest.fixture(autouse=True)
def _small_images_are_large(monkeypatch):
    monkeypatch.setattr(choice, "LARGE_IMAGE", 1024)
    monkeypatch.setattr(choice, "LARGE_UPDATE", 1024)
    monkeypatch.setattr(choice, "MANY_TENSORS", 8)


def names(record):
    return {name: chosen.name for name, chosen in record.lowerings.items()}


def adam(model):
    return rule_for(model, "adam", variable=("lr",))


def test_a_step_is_no_less_exact_than_eager():
    model, batches = planes(), events(1, 32)
    session, record = started(model, batches[0], adam(model), target="cpu")
    assert names(record) == {"step": "op_by_op"}
    result = run(session, batches)

    def eager(kind):
        other = copy.deepcopy(model).to(kind)
        data = [[image.to(kind), label] for image, label in batches]
        return run_eagerly(other, torch.optim.Adam(other.parameters(), lr=0.001), data)

    plain, exact = eager(torch.float32).tensors(), eager(torch.float64).tensors()
    for name, value in result.tensors().items():
        if name.removeprefix("parameter ") not in WITHOUT_GRADIENT and value.is_floating_point():
            own, others = ((each - exact[name]).norm() for each in (value, plain[name]))
            assert own <= 4 * others + 1e-6 * exact[name].norm(), name


def test_the_kernels_that_it_calls_are_tested_and_no_others(monkeypatch):
    kinds, problem = [], self_test.problem

    def noted(library, wanted, objects=None):
        kinds.append(wanted)
        return problem(library, wanted, objects)

    monkeypatch.setattr(self_test, "problem", noted)
    model, batches = planes(), events(1, 32)
    session, record = started(model, batches[0], adam(model), target="cpu")
    assert names(record) == {"step": "op_by_op"}
    session.step(list(batches[0]))
    assert kinds == [{"adam", "convolutions", "norms", "pools", "upsampling"}]


def test_a_cached_executable_gives_the_same_bits_without_a_compiler(tmp_path, monkeypatch):
    model, batches, cache = planes(), events(3), ExecutableCache(tmp_path)
    results = []
    for expected in ("miss", "hit"):
        session, record = started(model, batches[0], adam(model), target="cpu", cache=cache)
        assert record.cache == expected
        results.append(run(session, batches))
        monkeypatch.setenv("CXX", "no-such-compiler")
    assert_same_bits(*results)


@pytest.mark.parametrize("momentum", [None, 0.9])
def test_other_optimizers_and_relu_train_too(momentum):
    model, batches = planes(slope=0.0), events(2)
    rule = rule_for(model, "sgd", momentum=momentum or 0.0)
    result = run(started(model, batches[0], rule, target="cpu")[0], batches)
    plain = run(started(model, batches[0], rule)[0], batches)
    assert_close_by_norm(result, plain, 3e-4, without=WITHOUT_GRADIENT)


def test_inference_with_trained_norms():
    model, batches = planes().eval(), events(2)
    session, record = started(model, batches[0], target="cpu")
    assert names(record) == {"forward": "op_by_op"}
    result, plain = run(session, batches), run(started(model, batches[0])[0], batches)
    for own, others in zip(result.outputs, plain.outputs, strict=True):
        for value, wanted in zip(own, others, strict=True):
            torch.testing.assert_close(value, wanted, rtol=1e-5, atol=1e-5)
            assert value.is_contiguous()
    session.write_params({name: value * 0.5 for name, value in session.params.items()})
    assert not torch.equal(session.step(batches[0])[0], result.outputs[0][0])


def test_memory_is_kept_while_a_program_runs_and_not_after(monkeypatch):
    settings = []
    monkeypatch.setattr(memory, "_mallopt", lambda: lambda *setting: settings.append(setting))
    with memory.kept(), memory.kept():
        inside = dict(settings)
    after = dict(settings)
    assert inside[-3] == after[-1] == 2**31 - 1
    assert after[-3] == 32 * 2**20


def test_gradients_may_be_accumulated():
    model, batches = planes(), events(2)
    rule = rule_for(model, "sgd")
    config = dataclasses.replace(
        started(model, batches[0], rule)[0].config, gradient_accumulation=2
    )
    both = [[torch.cat(pair) for pair in zip(*batches, strict=True)]]
    session, record = started(model, batches[0], rule, config, target="cpu")
    assert names(record) == {"accumulate": "op_by_op", "apply": "op_by_op"}
    plain = run(started(model, batches[0], rule, config)[0], both)
    assert_close_by_norm(run(session, both), plain, 3e-4, without=WITHOUT_GRADIENT)


class Forked(torch.nn.Module):
    """Channels for our kernels, joined and cut, with a norm and a way around it."""

    def __init__(self, channels=16):
        super().__init__()
        self.first = torch.nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.norm = torch.nn.BatchNorm2d(channels)
        self.left = torch.nn.Conv2d(channels, channels, 3, padding=1)
        self.last = torch.nn.Conv2d(2 * channels, channels, 3, padding=0)

    def forward(self, x):
        """[B, 16, H, W] -> a loss."""
        x = self.norm(self.first(x)).relu() + x
        y = self.last(torch.cat([x.relu(), self.left(x)], dim=1))
        return torch.nn.functional.mse_loss(y, torch.zeros_like(y))


def test_convolutions_with_many_channels_train_as_in_plain_torch(monkeypatch):
    monkeypatch.setattr(choice, "LEAST_CONVOLUTIONS", 3)
    monkeypatch.setattr(choice, "LARGE_IMAGE", 2**30)
    monkeypatch.setattr(choice, "LEAST_WORK", 1)
    model, batches = Forked(), [[torch.randn(2, 16, 9, 12)] for _ in range(5)]
    session, record = started(model, batches[0], rule_for(model, "sgd"), target="cpu")
    if "our kernels" not in record.lowerings["step"].reason:
        pytest.skip("this processor has no wide registers")
    result = run(session, batches)
    eager = copy.deepcopy(model)
    plain = run_eagerly(eager, torch.optim.SGD(eager.parameters(), lr=0.05, momentum=0.9), batches)
    assert_close_by_norm(result, plain, 1e-5)
