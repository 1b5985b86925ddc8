"""The warnings that users of the original look for in its log.

Where a warning is about something that does not exist here, its test asserts what happens instead.
"""

import logging
import re

import pytest
import torch

import poptorch
from abele.targets.base import COMPILED
from helpers.fakes import Keeping, prefer
from helpers.wrapping import Calls, inference, options, rows, scorer, trainer
from poptorch import optim

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning")
X = torch.arange(12.0).reshape(4, 3)


@pytest.fixture
def warned(caplog):
    """A function: how many warnings hold these words; and no further warnings are there."""
    caplog.set_level(logging.WARNING, "poptorch::python")

    def count(words):
        messages = [r.getMessage() for r in caplog.records if r.name == "poptorch::python"]
        assert all(re.search(words, message) for message in messages), messages
        assert all(record.levelno == logging.WARNING for record in caplog.records)
        return len(messages)

    return count


def test_compile_on_a_compiled_executor(warned):
    wrapped = inference(lambda x: x + 1)
    wrapped.compile(X)
    executable = wrapped.executable_hash
    assert warned("") == 0
    wrapped.compile(X[:2])
    assert warned(r"Call to compile\(\) ignored") == 1
    assert wrapped.executable_hash == executable
    assert torch.equal(wrapped(X), X + 1)  # it is for the first arguments still


def test_an_input_requires_grad(warned):
    wrapped = inference(lambda x: x + 1)
    wrapped.compile(X.clone().requires_grad_())
    assert warned("requires_grad=True; it is detached") == 1
    assert not wrapped(X).requires_grad


def test_an_input_is_not_contiguous(warned):
    wrapped = inference(lambda x: x * 2)
    for _ in range(3):
        assert torch.equal(wrapped(X.T), X.T * 2)
    assert warned("non-contiguous input") == 1


def test_an_input_is_a_dict(warned):
    wrapped = inference(lambda x: x["b"] - x["a"])
    for _ in range(2):
        assert torch.equal(wrapped({"a": X, "b": 2 * X}), X)
    assert warned("[Dd]ict.* partially supported") == 1


@pytest.mark.parametrize("relaxed", [False, True])
def test_unexpected_optimizer_attributes(warned, relaxed):
    model = scorer()
    optimizer = optim.SGD(model.parameters(), lr=0.1)
    wrapped = trainer(model, optimizer, relaxOptimizerAttributesChecks=relaxed)
    optimizer.step_size = 3
    optimizer.param_groups[0]["initial_lr"] = 0.1
    for _ in range(2):
        wrapped.setOptimizer(optimizer)
    words = "Ignoring unexpected optimizer (attribute step_size|group 0 attribute initial_lr)"
    assert warned(words) == (0 if relaxed else 2)


@pytest.mark.parametrize("combined", [False, True])
def test_velocity_scaling_with_separate_accumulators(warned, combined):
    model = scorer()
    given = {"momentum": 0.9, "velocity_scaling": 2.0, "use_combined_accum": combined}
    wrapped = trainer(model, optim.SGD(model.parameters(), lr=0.1, **given))
    wrapped(*rows(4))
    assert warned("velocity_scaling is ignored") == (0 if combined else 1)


def test_a_subclass_of_an_optimizer(warned):
    class Mine(torch.optim.SGD):
        def step(self, closure=None):
            raise AssertionError("never called")

    model = scorer()
    trainer(model, Mine(model.parameters(), lr=0.1))(*rows(4))
    assert warned("Mine is a subclass of SGD: its Python code does not run") == 1


@pytest.mark.parametrize(
    ("processes", "cached", "compiles"),
    [(1, False, True), (2, False, True), (2, True, True), (2, False, False)],
)
def test_several_processes_without_a_cache(
    warned, tmp_path, monkeypatch, processes, cached, compiles
):
    monkeypatch.setattr("poptorch._wrapper.compiled._warned_of_own_builds", False)
    prefer(monkeypatch, Keeping())
    if compiles:
        monkeypatch.setattr(Keeping.code, "manner", COMPILED)
    chosen = options()
    chosen.Distributed.configureProcessId(0, processes)
    if cached:
        chosen.enableExecutableCaching(str(tmp_path))
    for _ in range(2):  # said once, not by each wrapper
        wrapped = poptorch.inferenceModel(Calls(lambda self, x: x + 1), chosen)
        for _ in range(2):
            wrapped(X)
    expected = processes > 1 and not cached and compiles
    assert warned("2 processes compile .* options.enableExecutableCaching") == int(expected)
