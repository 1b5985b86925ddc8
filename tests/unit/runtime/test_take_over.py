"""Compiled programs take over between two calls, after a comparison, and are never waited for."""

import dataclasses
import time

import pytest
import torch
from torch import nn

from abele.compilation.executable import ChosenLowering, Failure, TakeOverWarning
from abele.errors import CompilerError, TrappedError
from abele.ops.print_tensor import Layout, print_tensor
from abele.runtime import agreement, proving, state
from abele.runtime.observers import Observer
from abele.runtime.proving import TakeOver
from abele.step.config import OutputMode, StepConfig
from abele.targets.base import Compiled
from helpers.models import MODELS
from helpers.runs import captured, rule_for, session_of
from helpers.taking_over import Rounded, Scripted, both

DENSE = MODELS["dense"]
HALF = dataclasses.replace(
    DENSE,
    make=lambda: DENSE.make().half(),
    data=lambda rows, g: tuple(tensor.half() for tensor in DENSE.data(rows, g)),
)
NORMALISED = MODELS["batch norm and dropout"]  # its convolution's bias has no true gradient


def case(model=DENSE, kind="sgd", target=None, **config):
    """A session of interpreted programs, the script of what follows, and those programs."""
    config = StepConfig(**config)
    module = model.fresh()
    rule = rule_for(module, kind) if config.training else None
    programs = captured(module, model.batch(), config, rule)
    interpreted, compiled = both(programs, config, target)
    script = Scripted()
    waiting = dataclasses.replace(interpreted, later=script)
    return session_of(waiting, module, config, rule), script, compiled


def steps(session, batches):
    """The outputs of all calls."""
    return [session.step(list(batch)) for batch in batches]


def bits(session):
    """All state of a session, copied."""
    return {name: value.clone() for name, value in state.tensors_of(session).items()}


def same(left, right):
    """Whether two states are equal to the bit."""
    return left.keys() == right.keys() and all(torch.equal(left[n], right[n]) for n in left)


def test_until_compiled_programs_are_there_interpreted_ones_run():
    session, script, _ = case()
    interpreted = session.executable
    steps(session, DENSE.batches(3))
    assert session.executable is interpreted
    assert script.running.sentence() == "programs are interpreted until compiled ones are ready"


def test_they_take_over_at_the_next_call(monkeypatch):
    returned = []
    monkeypatch.setattr(proving, "return_memory", lambda: returned.append(True))
    session, script, compiled = case(device_iterations=2)
    tensors = session.params
    steps(session, DENSE.batches(3, rows=16))
    assert not returned
    script.outcome = compiled
    steps(session, DENSE.batches(1, rows=16))
    assert returned == [True]
    assert session.executable.compiled is compiled.compiled
    assert session.params is tensors
    assert (script.running.interpreted, script.running.since) == (False, 6)
    assert script.running.sentence() == "compiled programs run since update 6, interpreted before"
    assert script.said == ["compiled programs took over at update 6"]


class Recording(Observer):
    """Keeps what calls took."""

    def __init__(self):
        self.calls = []

    def on_call_end(self, call):
        self.calls.append(call)


def test_what_is_left_to_the_compiler_is_told_apart_from_inputs(monkeypatch):
    session, script, compiled = case()
    recording = Recording()
    session.add_observer(recording)
    look = script.look
    monkeypatch.setattr(script, "look", lambda: (time.sleep(0.01), look())[1])
    steps(session, DENSE.batches(1))
    script.outcome = compiled
    steps(session, DENSE.batches(2))
    waiting, taking_over, after = recording.calls
    for call in (waiting, taking_over):
        assert 10_000_000 <= call.following_ns <= call.marks[0] - call.began_ns
    assert after.following_ns == 0


def test_a_lowering_that_was_measured_is_named():
    session, script, compiled = case()
    measured = ChosenLowering(name="emitted", reason="measured: 1 ms emitted, 2 ms op_by_op")
    script.outcome = dataclasses.replace(compiled, chosen={"step": measured})
    steps(session, DENSE.batches(1))
    assert script.said == ["compiled programs took over at update 0 (emitted, measured)"]


class Clock:
    """Compiled programs, which run first, take what a test wants, interpreted ones a second."""

    def __init__(self, slow):
        self._times, self._now, self._reads = (slow, 1.0), 0.0, 0

    def __call__(self):
        self._now += self._times[self._reads // 2 % 2] if self._reads % 2 else 0.0
        self._reads += 1
        return self._now


def test_slower_programs_do_not_take_over_and_it_is_said(monkeypatch):
    monkeypatch.setattr(TakeOver, "clock", Clock(slow=1.5))
    session, script, compiled = case()
    interpreted, script.outcome = session.executable, compiled
    before = torch.get_rng_state()
    steps(session, DENSE.batches(2))
    assert session.executable is interpreted
    assert torch.equal(torch.get_rng_state(), before)
    assert script.closed
    (said,) = script.said
    assert said == (
        "programs stay interpreted: compiled ones are slower here (a micro-batch takes them "
        "1.5e+03 ms, interpreted 1e+03 ms)"
    )


def test_compiled_and_interpreted_programs_are_timed_without_each_others_memory(monkeypatch):
    monkeypatch.setattr(TakeOver, "clock", Clock(slow=1.5))
    session, script, compiled = case()
    order = []

    class Noting(Compiled):
        def release(self):
            order.append("compiled")

    runs = {name: Noting(each.run) for name, each in compiled.compiled.items()}
    script.outcome = dataclasses.replace(compiled, compiled=runs)
    monkeypatch.setattr(agreement.arena, "release", lambda: order.append("interpreted"))
    steps(session, DENSE.batches(1))
    assert order[:2] == order[2:4] == ["interpreted", "compiled"], "the comparison, then the clock"


def test_slower_by_what_a_clock_cannot_tell_is_no_slower(monkeypatch):
    monkeypatch.setattr(TakeOver, "clock", Clock(slow=1.04))
    session, script, compiled = case()
    script.outcome = compiled
    steps(session, DENSE.batches(1))
    assert session.executable.compiled is compiled.compiled


def test_the_clock_does_not_decide_where_the_update_is_named(monkeypatch):
    monkeypatch.setattr(TakeOver, "clock", Clock(slow=9.0))
    session, script, compiled = case()
    script.outcome, script.at = compiled, 1
    steps(session, DENSE.batches(2))
    assert session.executable.compiled is compiled.compiled


@pytest.mark.parametrize(
    "moment", ["abele.runtime.agreement.problems_of", "abele.runtime.session.sequential"]
)
def test_a_call_that_is_interrupted_as_they_take_over_is_no_update(moment, monkeypatch):
    session, script, compiled = case()
    steps(session, DENSE.batches(3))
    script.outcome = compiled

    def interrupted(*_, **__):
        raise KeyboardInterrupt

    with monkeypatch.context() as during:
        during.setattr(moment, interrupted)
        with pytest.raises(KeyboardInterrupt):
            steps(session, DENSE.batches(1))
    steps(session, DENSE.batches(1))
    assert session.executable.compiled is compiled.compiled
    assert script.running.since == 3


@pytest.mark.filterwarnings("error::abele.compilation.executable.TakeOverWarning")
def test_a_warning_that_is_an_error_ends_one_call():
    session, script, _ = case()
    script.outcome = Failure("no space left")
    with pytest.raises(TakeOverWarning, match="do not take over: no space left"):
        steps(session, DENSE.batches(1))
    steps(session, DENSE.batches(2))
    assert script.running.sentence() == "programs are interpreted: no space left"


def test_inference_counts_batches():
    session, script, compiled = case(training=False)
    steps(session, DENSE.batches(2))
    script.outcome = compiled
    steps(session, DENSE.batches(1))
    assert script.said == ["compiled programs took over at batch 2"]


CONFIGS = {
    "one micro-batch": {},
    "accumulated in replicas": {"gradient_accumulation": 2, "replicas": 2},
    "several updates in a call, a stream of its own": {"device_iterations": 2, "seed": 5},
}
ROWS = {"one micro-batch": 8, "accumulated in replicas": 32}


@pytest.mark.parametrize("name", CONFIGS)
def test_a_take_over_at_a_named_update_repeats_a_run_bit_by_bit(name):
    config = StepConfig(output_mode=OutputMode.ALL, **CONFIGS[name])
    model, rows = NORMALISED, ROWS.get(name, 16)
    module = model.fresh()
    rule = rule_for(module, "adam")
    executables = both(captured(module, model.batch(8), config, rule), config)
    batches, first = model.batches(6, rows=rows), 3

    def run_in_two_sessions():
        before, after = (session_of(each, module, config, rule) for each in executables)
        outputs = steps(before, batches[:first])
        state.put(after, state.tensors_of(before))
        if before.random_state is not None:
            after.random_state = before.random_state
        return outputs + steps(after, batches[first:]), bits(after)

    def run_in_one():
        script = Scripted(executables[1], at=first * config.device_iterations)
        waiting = dataclasses.replace(executables[0], later=script)
        session = session_of(waiting, module, config, rule)
        outputs = steps(session, batches)
        assert script.running.since == first * config.device_iterations
        return outputs, bits(session)

    runs = []
    for run in (run_in_two_sessions, run_in_one, run_in_one):
        torch.manual_seed(3)
        runs.append(run())
    for outputs, state_then in runs[1:]:
        torch.testing.assert_close(outputs, runs[0][0], rtol=0, atol=0)
        assert same(state_then, runs[0][1])


def test_compiled_programs_leave_other_bits_than_interpreted_ones():
    """Else the test above would prove nothing."""
    session, script, compiled = case()
    other, _, _ = case()
    script.outcome = compiled
    batches = DENSE.batches(2)
    steps(session, batches), steps(other, batches)
    assert not same(bits(session), bits(other))


def test_comparing_changes_neither_state_nor_random_numbers():
    session, script, compiled = case(NORMALISED, "adam", Rounded(1.0))
    other, _, _ = case(NORMALISED, "adam")
    script.outcome = compiled
    results = []
    for each in (session, other):
        torch.manual_seed(7)
        results.append((steps(each, NORMALISED.batches(3)), torch.rand(2)))
    assert session.executable.compiled is compiled.compiled
    torch.testing.assert_close(results[0], results[1], rtol=0, atol=0)
    assert same(bits(session), bits(other))


@pytest.mark.parametrize("kind", ["sgd", "adam"])
def test_a_parameter_without_a_true_gradient_does_not_prevent_a_take_over(kind):
    session, script, compiled = case(NORMALISED, kind)
    steps(session, NORMALISED.batches(2))
    script.outcome = compiled
    steps(session, NORMALISED.batches(1))
    assert session.executable.compiled is compiled.compiled


def test_a_number_of_nothing_but_rounding_may_move_as_far_as_it_ever_did():
    expected, computed = {"loss": torch.tensor(1e-4)}, {"loss": torch.tensor(1.001e-4)}
    stayed, went = {"loss": torch.tensor(1.00001e-4)}, {"loss": torch.tensor(1.0005e-4)}
    problems = agreement.problems_of(expected, [stayed], computed)
    assert problems == {"loss": "loss differs by 1.0e-03 of its norm, 1e-05 are allowed"}
    assert not agreement.problems_of(expected, [stayed, went], computed)


FADED = 4 * 2.0**-149  # times 0.9 rounds to itself: where momentum of a zero gradient ends


def compared(expected, computed, dtype=torch.float32):
    """What is said of one tensor of equal numbers that no rounding of weights moves."""
    wanted, got = (torch.full((10,), each, dtype=dtype) for each in (expected, computed))
    same = {"momentum": wanted}
    return agreement.problems_of(same, [same], {"momentum": got}).get("momentum")


def test_momentum_that_has_faded_away_may_be_zero():
    assert compared(FADED, 0.0) is None
    assert compared(1e-38, 0.0) is None
    assert compared(5e-324, 0.0, torch.float64) is None


@pytest.mark.parametrize(
    ("small", "dtype"), [(1e-36, torch.float32), (6e-8, torch.float16), (1e-38, torch.float64)]
)
def test_numbers_that_no_compiled_code_flushes_must_not_be_zero(small, dtype):
    said = compared(small, 0.0, dtype)
    assert said is not None
    assert said.startswith("momentum differs by 1.0e+00 of its norm")


def test_numbers_that_are_no_zero_are_said_as_they_are():
    assert compared(0.0, 1e-8) == "momentum differs by 3.2e-08 from zero"


def test_programs_whose_momentum_has_faded_away_take_over():
    session, script, compiled = case(kind="adam", target=Rounded(0.0, only="fc1.weight.exp_avg"))
    steps(session, DENSE.batches(1))
    for name, value in state.tensors_of(session).items():
        if "fc1" in name and "exp_avg" in name:
            value.fill_(FADED)
    script.outcome = compiled
    ((images, labels),) = DENSE.batches(1)
    images = torch.zeros_like(images)  # no gradient of the first weight
    images[0, 0] = 1e-45  # elements that are all equal are varied where programs are compared
    steps(session, [(images, labels)])
    assert session.executable.compiled is compiled.compiled


def test_programs_that_compute_something_else_do_not_take_over():
    session, script, compiled = case(target=Rounded(1.001, only="fc1.weight"))
    interpreted, script.outcome = session.executable, compiled
    said = r"parameter 'fc1.weight' differs by [0-9.]+e-0[34] of its norm, 1e-05 are allowed"
    with pytest.warns(TakeOverWarning, match=said):
        steps(session, DENSE.batches(1))
    assert session.executable is interpreted
    assert script.closed
    steps(session, DENSE.batches(1))  # and no second warning


def test_traps_and_their_magnitudes_follow():
    session, script, compiled = case(trap_exceptions=True)
    steps(session, DENSE.batches(1))
    script.outcome = compiled
    steps(session, DENSE.batches(1))
    assert session.executable.compiled is compiled.compiled
    (batch,) = DENSE.batches(1)
    with pytest.raises(TrappedError, match="overflow"):
        session.step([batch[0], batch[1] * 1e30])


def test_half_weights_may_differ_by_more():
    session, script, compiled = case(HALF, target=Rounded(1.001))
    script.outcome = compiled
    steps(session, HALF.batches(1))
    assert session.executable.compiled is compiled.compiled


def test_a_failed_compilation_costs_one_warning():
    session, script, _ = case()
    script.outcome = Failure("the C++ compiler failed", "line 1\nno space left")
    with pytest.warns(TakeOverWarning, match=r"the C\+\+ compiler failed(.|\n)*no space left"):
        steps(session, DENSE.batches(1))
    steps(session, DENSE.batches(2))
    assert script.running.sentence() == "programs are interpreted: the C++ compiler failed"


def test_a_failure_is_an_error_where_the_target_was_insisted_on():
    session, script, _ = case()
    script.running.required = "cpu"
    script.outcome = Failure("the C++ compiler failed", "no space left")
    before = bits(session)
    for _ in range(2):
        with pytest.raises(
            CompilerError, match=r"Target 'cpu' was asked for.*compiler failed"
        ) as at:
            steps(session, DENSE.batches(1))
        assert at.value.log == "no space left"
    with pytest.raises(CompilerError, match="ABELE_START=wait"):
        session.lasting_executable()
    assert same(bits(session), before)


def test_compiled_programs_that_raise_do_not_take_over():
    session, script, compiled = case()
    script.outcome = compiled

    def fail(inputs):
        raise RuntimeError("illegal instruction")

    compiled.compiled["step"].run = fail
    with pytest.warns(TakeOverWarning, match="fail where interpreted ones do not .illegal instr"):
        steps(session, DENSE.batches(1))


def test_a_batch_that_no_program_can_compute_is_an_error_of_its_call():
    session, script, compiled = case(gradient_accumulation=2)
    script.outcome = compiled
    with pytest.raises(Exception, match="15"):
        session.step([tensor[:15] for tensor in DENSE.batches(1, rows=16)[0]])
    steps(session, DENSE.batches(1, rows=16))
    assert session.executable.compiled is compiled.compiled


class Printing(nn.Module):
    """Prints while it computes."""

    def forward(self, x):
        return print_tensor(x, "x", "", Layout(digits=2)) * 2


def test_programs_with_effects_are_compared_without_them(capsys):
    module, config = Printing(), StepConfig(training=False)
    interpreted, compiled = both(captured(module, [torch.ones(2)], config), config)
    script = Scripted(compiled)
    session = session_of(dataclasses.replace(interpreted, later=script), module, config, None)
    session.step([torch.ones(2)])
    assert session.executable.compiled is compiled.compiled
    assert (
        script.running.check == "one micro-batch through both: 1 result within 0.0e+00 (tolerance)"
    )
    assert capsys.readouterr().err.count("x") == 1


def test_a_closed_session_stays_as_it_is():
    session, script, compiled = case()
    session.close()
    script.outcome = compiled
    interpreted = session.executable
    steps(session, DENSE.batches(1))
    assert script.closed
    assert session.executable is interpreted
