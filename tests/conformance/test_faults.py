"""Faults in emitted code are caught before a result is used, and other code takes its place."""

import functools

import pytest
import torch

from abele import Session, build
from abele.compilation.verdict import ComparisonWarning
from abele.errors import CompilerError
from abele.step.config import StepConfig
from abele.targets.cpu.emitted.lowering import Emitted
from abele.trace.module_state import ModuleState
from conftest import usable
from helpers.fakes import prefer
from helpers.faults import FAULTS, OF_INFERENCE, SEED, batch, faulty, inject
from helpers.runs import captured, rule_for

pytestmark = pytest.mark.compiler
OFTEN = ("dropped tail", "wrong state", SEED)  # the others resemble these
TRAINING = [
    pytest.param(fault, marks=[] if fault in OFTEN else pytest.mark.thorough)
    for fault in (*FAULTS, SEED)
]


@pytest.fixture(autouse=True)
def _emitted(monkeypatch):
    monkeypatch.setenv("ABELE_LOWERING", "emitted")


@pytest.fixture
def compiled_once(monkeypatch):
    """No second code without vectorizers, which has the same fault."""
    monkeypatch.setattr(Emitted, "compile_conservatively", lambda self, program: None)


@functools.cache
def programs(training, dtype):
    """Programs of a step, with what they were captured from; building leaves them as they are."""
    module = faulty().train(training).to(dtype)
    config, rule = StepConfig(training=training), rule_for(module, "adam") if training else None
    given = tuple(each.to(dtype) if each.is_floating_point() else each for each in batch())
    return captured(module, given, config, rule).programs, config, rule, given


def first_step(training, target=None, dtype=torch.float32):
    """Results and state of the first step, and the record of what ran."""
    of_step, config, rule, given = programs(training, dtype)
    module = faulty().train(training).to(dtype)
    made, record = build(of_step, config, target=target)
    state = ModuleState.of(module)
    initial = ({}, {}) if rule is None else (rule.initial_state(state.params), rule.hyper())
    session = Session(made, config, state.params, state.buffers, *initial)
    torch.manual_seed(3)
    outputs = session.step(list(given))
    values = {**session.params, **session.buffers[0], **session.optimizer_state}
    return [*outputs, *values.values()], record.running


@functools.cache
def expected(training):
    """Results and state of the first step, interpreted."""
    return first_step(training, usable("reference"))[0]


def agree(mine, others):
    for one, other in zip(mine, others, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("fault", TRAINING)
def test_a_fault_in_training_is_caught_before_the_first_result(fault, monkeypatch):
    prefer(monkeypatch, usable("cpu"))
    inject(monkeypatch, fault)
    with pytest.warns(ComparisonWarning, match=r"differs by .* of its norm|not finite") as caught:
        got, running = first_step(True)
    agree(got, expected(True))
    assert len(caught) == 1
    assert running.interpreted or "lowered by 'op_by_op'" in running.check


@pytest.mark.usefixtures("compiled_once")
@pytest.mark.parametrize("fault", OF_INFERENCE)
def test_a_fault_in_inference_is_caught_before_the_first_result(fault, monkeypatch):
    prefer(monkeypatch, usable("cpu"))
    inject(monkeypatch, fault)
    with pytest.warns(ComparisonWarning, match="result 'output"):
        got, _ = first_step(False)
    agree(got, expected(False))


def test_a_fault_is_an_error_where_the_target_was_insisted_on(monkeypatch):
    cpu = usable("cpu")
    monkeypatch.setattr(cpu, "lowerings", (cpu.lowering("emitted"), cpu.lowering("interpreter")))
    inject(monkeypatch, "dropped tail")
    said = r"Target 'cpu' was asked for, but its programs do not compute .*without vectorizers: "
    with pytest.raises(CompilerError, match=said):
        first_step(True, cpu)


def test_code_without_a_fault_runs_as_it_was_chosen():
    got, running = first_step(True, usable("cpu"))
    agree(got, expected(True))
    assert running.check.startswith("one micro-batch through both: 2 results within ")
    assert running.check.endswith(("(tolerance)", "(rounded weights)", "(float64)"))


# Code in 16 bits has no place for the first two, and rounding weights hides the third.
ABSENT = {"missing update", "wrong state", "wrong learning rate"}
# Weights of bfloat16 that are rounded otherwise change as much.
HIDDEN = {torch.float16: ABSENT, torch.bfloat16: ABSENT | {"stale constant", "wrong divisor"}}


@pytest.mark.parametrize(
    ("fault", "dtype"),
    [
        pytest.param(*fault.values, dtype, marks=fault.marks)
        for fault in TRAINING
        for dtype, hidden in HIDDEN.items()
        if fault.values[0] not in hidden
    ],
)
@pytest.mark.usefixtures("compiled_once")
def test_a_fault_in_16_bits_is_caught(fault, dtype, monkeypatch):
    prefer(monkeypatch, usable("cpu"))
    inject(monkeypatch, fault)
    with pytest.warns(ComparisonWarning, match=r"differs by .* of its norm|not finite"):
        running = first_step(True, dtype=dtype)[1]
    assert running.interpreted or "lowered by 'op_by_op'" in running.check


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_16_bits_without_a_fault_run_as_they_were_chosen(dtype):
    running = first_step(True, usable("cpu"), dtype)[1]
    assert running.check.startswith("one micro-batch through both: ")
