"""Calls of one micro-step take a shorter way: the same bits, marks and errors as any other."""

import pytest
import torch
from torch import nn

from abele.runtime.observers import Observer
from abele.step.config import StepConfig
from helpers.models import MODELS
from helpers.runs import assert_same_bits, rule_for, run, started

DENSE = MODELS["dense"]


def session_of(name="dense", config=None):
    module = MODELS[name].fresh()
    return started(module, MODELS[name].batch(), rule_for(module), config)[0]


@pytest.mark.parametrize("name", ["introduction", "dense", "tied weights", "frozen parameters"])
def test_both_ways_give_the_same_bits(name):
    short, general = session_of(name), session_of(name)
    assert short._alone is not None
    general.add_observer(Observer())
    batches = [MODELS[name].batch(seed=seed) for seed in range(3)]
    assert_same_bits(run(short, batches), run(general, batches))


def test_a_session_may_change_the_way_between_calls():
    changing, general = session_of(), session_of()
    observer = Observer()
    general.add_observer(observer)
    for seed in range(4):
        if seed % 2:
            changing.add_observer(observer)
        batch = DENSE.batch(seed=seed)
        torch.testing.assert_close(changing.step(batch), general.step(batch), rtol=0, atol=0)
        if seed % 2:
            changing.remove_observer(observer)


class Noise(nn.Module):
    """Draws random numbers."""

    def forward(self, x):
        return torch.rand_like(x)


@pytest.mark.parametrize(
    "config",
    [
        StepConfig(gradient_accumulation=2),
        StepConfig(device_iterations=2),
        StepConfig(replicas=2),
        StepConfig(trap_exceptions=True),
    ],
    ids=["accumulation", "device iterations", "replicas", "traps"],
)
def test_what_is_more_than_a_micro_step_takes_the_general_way(config):
    assert session_of(config=config)._alone is None


def test_random_numbers_take_the_general_way():
    session, _ = started(Noise(), (torch.zeros(3),), config=StepConfig(training=False))
    assert session._alone is None


def test_a_call_is_recorded_as_any_other():
    session = session_of()
    assert session.last_call is None
    session.call(DENSE.batch(), 1, list)
    ((begin, end),) = session.last_call.micro_steps()
    assert 1 < begin < end < session.last_call.ended_ns
    assert session.last_call.began_ns == 1
    assert not session.was_stopped


def test_the_present_program_of_the_runner_runs(monkeypatch):
    session = session_of()
    run_program = session.runner._programs[0]
    seen = []
    monkeypatch.setattr(
        session.runner, "_programs", [lambda arguments: (seen.append(1), run_program(arguments))[1]]
    )
    session.step(DENSE.batch())
    assert seen == [1]


def test_a_runner_that_is_replaced_is_used_after_preparing():
    session, other = session_of(), session_of()
    session.runner = other.runner
    session.prepare()
    session.step(DENSE.batch())
    pairs = zip(session.params.values(), other.params.values(), strict=True)
    assert not any(torch.equal(here, there) for here, there in pairs)  # the other one's changed


def test_an_error_stops_the_call_as_any_other(monkeypatch):
    def fail(arguments):
        raise RuntimeError("out of luck")

    session = session_of()
    session.step(DENSE.batch())
    kept = session.last_call
    monkeypatch.setattr(session.runner, "_programs", [fail])
    with pytest.raises(RuntimeError, match="out of luck"):
        session.step(DENSE.batch())
    assert session.was_stopped
    assert session.last_call == kept


def test_an_error_of_delivery_is_the_callers():
    def refuse(outputs):
        raise OSError("no place for them")

    session = session_of()
    with pytest.raises(OSError, match="no place for them"):
        session.call(DENSE.batch(), 0, refuse)
    assert session.was_stopped


def test_another_number_of_inputs_is_an_error():
    with pytest.raises(ValueError, match="zip"):
        session_of().step(DENSE.batch()[:1])
