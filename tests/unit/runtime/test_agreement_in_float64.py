"""Tensors that are rounding of numbers in between: float64 says how far they may be apart."""

import dataclasses

import pytest
import torch
from torch import nn

from abele.compile.executable import TakeOverWarning
from abele.runtime import agreement, state
from abele.runtime.agreement import Trial
from abele.step.config import StepConfig
from abele.targets.base import Compiled
from helpers.models import MODELS, Model
from helpers.runs import captured, rule_for, session_of
from helpers.taking_over import Rounded, Scripted, both, micro_batch

NORMALISED = MODELS["batch norm and dropout"]
COARSE = 1e4  # numbers near it are 1e-3 apart


class Cancelling(nn.Module):
    """Its loss, and so its gradient, is what is left of numbers that were rounded coarsely."""

    def __init__(self):
        super().__init__()
        self.factor = nn.Parameter(torch.tensor(1.0))

    def forward(self, values):
        left = (self.factor * values + COARSE) - COARSE
        return left, nn.functional.mse_loss(left, torch.zeros_like(left))


CANCELLING = Model(Cancelling, lambda rows, g: (torch.rand(rows, generator=g),))


def session(model, kind, target=None, **config):
    """A session of interpreted programs, and others that would take over."""
    config = StepConfig(**config)
    module = model.fresh()
    rule = rule_for(module, kind)
    interpreted, compiled = both(captured(module, model.batch(), config, rule), config, target)
    script = Scripted()
    waiting = dataclasses.replace(interpreted, later=script)
    return session_of(waiting, module, config, rule), script, compiled


def momentum_off_by(factor, model=CANCELLING):
    """A session after a call in which compiled programs with such momentum arrived."""
    made, script, compiled = session(model, "adam", Rounded(factor, only="factor.exp_avg"))
    script.outcome = compiled
    made.step(list(model.batch()))
    return made, compiled


def test_programs_that_round_numbers_in_between_otherwise_take_over():
    made, compiled = momentum_off_by(1.0005)
    assert made.executable.compiled is compiled.compiled


def test_what_rounding_does_not_explain_is_refused():
    with pytest.warns(TakeOverWarning, match="'factor.exp_avg' differs by 1.0e-01 of its norm"):
        made, compiled = momentum_off_by(1.1)
    assert made.executable.compiled is not compiled.compiled


def test_what_is_not_rounded_so_may_not_differ_so(monkeypatch):
    monkeypatch.setattr(f"{__name__}.COARSE", 1.0)
    with pytest.warns(TakeOverWarning, match="'factor.exp_avg' differs by 5.0e-04 of its norm"):
        momentum_off_by(1.0005)


@pytest.mark.parametrize("kind", ["sgd", "adam"])
def test_float64_computes_the_same_and_changes_nothing(kind):
    made, _, _ = session(NORMALISED, kind, gradient_accumulation=2)
    before = {name: value.clone() for name, value in state.tensors_of(made).items()}
    torch.manual_seed(7)
    random_state = torch.get_rng_state()
    trial = Trial(made, micro_batch(made, NORMALISED))
    expected, exact = trial.run(made.executable), trial.exact(made.executable)
    assert exact is not None
    assert expected.keys() == exact.keys()
    for name, value in expected.items():
        if "conv.bias" not in name:  # it has no true gradient
            torch.testing.assert_close(exact[name].to(value.dtype), value, rtol=1e-3, atol=1e-5)
        assert exact[name].dtype is (torch.float64 if value.is_floating_point() else value.dtype)
    after = state.tensors_of(made)
    assert all(torch.equal(value, after[name]) for name, value in before.items())
    assert torch.equal(torch.get_rng_state(), random_state)


def test_half_precision_has_no_yardstick():
    half = dataclasses.replace(
        CANCELLING,
        make=lambda: CANCELLING.make().half(),
        data=lambda rows, g: tuple(each.half() for each in CANCELLING.data(rows, g)),
    )
    made, _, _ = session(half, "sgd")
    assert not any(agreement.is_yardstick(each) for each in made.executable.programs)
    assert Trial(made, micro_batch(made, half)).exact(made.executable) is None


def test_a_tensor_may_differ_by_ten_times_the_error_that_it_has():
    one = {"loss": torch.tensor(1e-4)}
    off = {"loss": torch.tensor(1.001e-4)}
    near, far = (
        {"loss": torch.tensor(each, dtype=torch.float64)} for each in (1.00001e-4, 1.0005e-4)
    )
    said = "loss differs by 1.0e-03 of its norm, 1e-05 are allowed"
    assert agreement.first_problem(one, [one], off, near) == said
    assert agreement.first_problem(one, [one], off, far) is None


def test_what_overflows_in_float32_and_integers_are_no_rounding():
    infinite = {"loss": torch.tensor(float("inf"), dtype=torch.float64)}
    one, off = {"loss": torch.tensor(1.0)}, {"loss": torch.tensor(1.1)}
    assert agreement.first_problem(one, [one], off, infinite) is not None
    one, off, other = ({"index": torch.tensor(each)} for each in (1, 2, 3))
    assert agreement.first_problem(one, [one], off, other) is not None


def precisions_seen():
    """What cuDNN may use for convolutions and recurrent layers while programs are compared."""
    made, _, _ = session(NORMALISED, "sgd")
    cudnn, seen = torch.backends.cudnn, []

    def looking(run):
        def looked(inputs):
            seen.append((cudnn.conv.fp32_precision, cudnn.rnn.fp32_precision))
            return run(inputs)

        return Compiled(looked)

    compiled = {name: looking(each.run) for name, each in made.executable.compiled.items()}
    trial = Trial(made, micro_batch(made, NORMALISED))
    trial.run(dataclasses.replace(made.executable, compiled=compiled))
    return seen


def test_comparisons_compute_in_float32_where_torch_lets_cudnn_use_less():
    cudnn = torch.backends.cudnn
    assert (cudnn.conv.fp32_precision, cudnn.rnn.fp32_precision) == ("tf32", "tf32")
    assert precisions_seen() == [("none", "none")]
    assert (cudnn.conv.fp32_precision, cudnn.rnn.fp32_precision) == ("tf32", "tf32")


def test_comparisons_leave_a_precision_of_the_user_alone(monkeypatch):
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    assert precisions_seen() == [("none", "none")]
    assert not torch.backends.cudnn.allow_tf32
