"""Compiled programs run only after they agreed with interpreted ones; others take their place."""

import dataclasses
import weakref

import pytest
import torch
from torch import nn

from abele import build, get_target
from abele.compilation.cache import ExecutableCache
from abele.compilation.executable import TakeOverWarning
from abele.compilation.verdict import ComparisonWarning, from_data, to_data
from abele.errors import CompilerError
from abele.ops.host_call import HostCalls, host_call
from abele.program import Role
from abele.runtime import agreement, proving, state
from abele.runtime.agreement import Trial, varied
from abele.runtime.session import SectionSession
from abele.step.config import StepConfig
from abele.targets.base import Compiled
from abele.targets.reference import Reference
from helpers.fakes import prefer
from helpers.models import MODELS, Model
from helpers.runs import captured, rule_for, session_of
from helpers.taking_over import Machine, Right, Rounded, Scripted, both, micro_batch

DENSE = MODELS["dense"]


def first_calls(target, kind="adam", calls=1, **settings):
    """A session after some calls, the record of its programs, and results."""
    config = StepConfig()
    module = DENSE.fresh()
    rule = rule_for(module, kind)
    programs = captured(module, DENSE.batch(), config, rule).programs
    made, record = build(programs, config, target=target, **settings)
    session = session_of(made, module, config, rule)
    results = [session.step(list(batch)) for batch in DENSE.batches(calls)]
    return session, record, results


def same(one, other):
    for mine, theirs in zip(one, other, strict=True):
        for a, b in zip(mine, theirs, strict=True):
            assert torch.equal(a, b)


@pytest.mark.parametrize("forgets", ["exp_avg", "exp_avg_sq", "fc2.bias"])
def test_state_that_begins_with_zeros_is_compared_too(forgets, monkeypatch):
    expected = first_calls(get_target("reference"), calls=3)
    prefer(monkeypatch, Machine(forgets, Right()))
    with pytest.warns(ComparisonWarning, match=r"so it was lowered by 'right' instead: .* differs"):
        session, record, results = first_calls(None, calls=3)
    same(results, expected[2])
    assert session.executable.lowering("step").name == "right"
    assert record.running.check.endswith(", lowered by 'right' instead")
    assert record.lowerings["step"].name == "right"


def test_memory_of_a_comparison_is_returned_once_it_is_over(monkeypatch):
    alive, run = [], agreement.Trial.compare

    def compare(trial, *programs):
        alive.append(weakref.ref(trial))
        return run(trial, *programs)

    returned = []
    monkeypatch.setattr(agreement.Trial, "compare", compare)
    monkeypatch.setattr(proving, "return_memory", lambda: returned.append(alive[-1]()))
    first_calls(Machine(""), calls=3)
    assert returned == [None]


def test_a_session_that_was_closed_still_compares(monkeypatch):
    prefer(monkeypatch, Machine("exp_avg", Right()))
    config, module = StepConfig(), DENSE.fresh()
    rule = rule_for(module, "adam")
    made, record = build(captured(module, DENSE.batch(), config, rule).programs, config)
    session = session_of(made, module, config, rule)
    session.close()
    with pytest.warns(ComparisonWarning, match="lowered by 'right' instead"):
        session.step(list(DENSE.batch()))
    assert record.running.check.startswith("one micro-batch through both: ")


def test_where_nothing_agrees_programs_are_interpreted(monkeypatch):
    expected = first_calls(get_target("reference"), calls=2)
    prefer(monkeypatch, Machine("exp_avg", Right(why_not="it is too large")))
    said = r"do not agree .* differs by .*; lowered by 'right' instead: 'right' cannot run program"
    with pytest.warns(ComparisonWarning, match=said):
        _, record, results = first_calls(None, calls=2)
    same(results, expected[2])
    assert record.running.interpreted
    assert record.running.sentence().startswith("programs are interpreted: ")
    assert "parameter 'fc1.weight' differs by" in record.running.problem


def test_each_call_fails_where_the_target_was_insisted_on():
    config, module = StepConfig(), DENSE.fresh()
    rule = rule_for(module, "adam")
    programs = captured(module, DENSE.batch(), config, rule).programs
    made, _ = build(programs, config, target=Machine("exp_avg"))
    session = session_of(made, module, config, rule)
    before = {name: value.clone() for name, value in session.params.items()}
    for _ in range(2):
        with pytest.raises(CompilerError, match=r"Target 'machine' was asked for, .*fc1.weight"):
            session.step(list(DENSE.batch()))
    assert all(torch.equal(value, before[name]) for name, value in session.params.items())


def test_a_proven_executable_is_not_compared_again(tmp_path, monkeypatch):
    cache = ExecutableCache(tmp_path)
    _, first, _ = first_calls(Machine(""), cache=cache)
    assert first.cache == "miss"
    monkeypatch.setattr("abele.runtime.session.FirstUse", None)
    session, second, _ = first_calls(Machine(""), cache=cache)
    assert second.cache == "hit"
    assert second.running.check == first.running.check
    assert session.executable.verdict.compared == {
        "result": 2,
        "parameter": 4,
        "optimizer state": 12,
    }


def test_a_verdict_of_another_machine_proves_nothing(tmp_path, monkeypatch):
    cache = ExecutableCache(tmp_path)
    with monkeypatch.context() as elsewhere:
        elsewhere.setattr("abele.processor.name", lambda: "another")
        first_calls(Machine(""), cache=cache)
    (path,) = tmp_path.glob("*.abele")
    before = path.read_bytes()
    first_calls(Machine(""), cache=cache)
    assert path.read_bytes() != before


def test_a_batch_that_nothing_can_compute_is_an_error_of_its_call_only():
    model, config = MODELS["embedding and layer norm"], StepConfig()
    module = model.fresh()
    rule = rule_for(module, "adam")
    programs = captured(module, model.batch(), config, rule).programs
    made, record = build(programs, config, target=Machine(""))
    session = session_of(made, module, config, rule)
    tokens, following = model.batch()
    with pytest.raises(IndexError, match="takes the indices 0 to 29"):
        session.step([tokens + 1000, following])
    assert record.running.check is None
    session.step([tokens, following])
    assert record.running.check.startswith("one micro-batch through both: ")


def test_functions_of_the_host_are_called_by_steps_only():
    class Asking(torch.nn.Module):
        def forward(self, x):
            (y,) = host_call([x], "ask", "float32[2]")
            return x + y

    config, module, asked = StepConfig(training=False), Asking(), []
    calls = HostCalls()
    calls.functions["ask"] = lambda inputs: (asked.append(1), [inputs[0] * 2])[1]
    programs = captured(module, [torch.ones(2)], config).programs
    made, record = build(programs, config, target=Machine(""))
    session = session_of(made, module, config, None)
    with calls.in_use():
        (result,) = session.step([torch.ones(2)])
    assert result.tolist() == [3.0, 3.0]
    assert asked == [1]
    assert record.running.check.startswith("one micro-batch through both: 1 result within ")


def test_programs_that_run_one_by_one_are_compared_one_by_one(monkeypatch):
    config, module = StepConfig(training=False), DENSE.fresh()
    module.eval()
    program = captured(module, DENSE.batch(), config).programs
    prefer(monkeypatch, Machine("fc2.bias", Right()))
    made, _ = build(program, config)
    params = dict(module.named_parameters())
    session = SectionSession(made, config, params, {}, {}, {})
    names = [s.name for s in program[0].inputs if s.role is Role.INPUT]
    inputs = dict(zip(names, DENSE.batch(), strict=True))
    with pytest.warns(ComparisonWarning, match="lowered by 'right' instead"):
        results = session.run("forward", inputs)
    expected = module(*DENSE.batch())
    for value, wanted in zip(results.values(), expected, strict=True):
        torch.testing.assert_close(value, wanted)
    session.run("forward", inputs)  # without another warning


def test_programs_that_run_one_by_one_are_compared_once_per_machine(monkeypatch, tmp_path):
    monkeypatch.setattr("abele.compilation.verdict.cache_folder", lambda: tmp_path)
    config, module = StepConfig(training=False), DENSE.fresh()
    programs = captured(module.eval(), DENSE.batch(), config).programs
    names = [s.name for s in programs[0].inputs if s.role is Role.INPUT]
    inputs = dict(zip(names, DENSE.batch(), strict=True))

    def run():
        made, _ = build(programs, config, target=Machine(""))
        session = SectionSession(made, config, dict(module.named_parameters()), {}, {}, {})
        return session.run("forward", inputs)

    expected = run()
    monkeypatch.setattr("abele.runtime.proving.agreeing", None)  # whoever compares again fails
    assert all(map(torch.equal, run().values(), expected.values()))
    monkeypatch.setattr("abele.processor.name", lambda: "another")
    with pytest.raises(TypeError, match="not callable"):
        run()


def test_elements_that_are_all_equal_are_varied():
    zeros = varied(torch.zeros(3, 4), Role.OPTIMIZER_STATE, 0)
    ones = varied(torch.ones(3, 4), Role.PARAMETER, 0)
    assert zeros.unique().numel() == ones.unique().numel() == 12
    assert bool((zeros > 0).all())
    assert bool((ones <= 1).all())
    assert torch.equal(zeros, varied(torch.zeros(3, 4), Role.OPTIMIZER_STATE, 0))


@pytest.mark.parametrize(
    ("tensor", "role"),
    [
        (torch.tensor([0.0, 0.0, 1.0, 0.0]), Role.PARAMETER),
        (torch.zeros(()), Role.OPTIMIZER_STATE),  # a step count
        (torch.zeros(4, dtype=torch.int64), Role.INPUT),
        (torch.zeros(2, dtype=torch.float64), Role.HYPER),
        (torch.full((4,), float("inf")), Role.BUFFER),
        (torch.zeros(0), Role.INPUT),
    ],
)
def test_other_tensors_stay_as_they_are(tensor, role):
    assert varied(tensor, role, 0) is tensor


def test_a_verdict_comes_back_from_a_file_and_damage_proves_nothing():
    _, record, _ = first_calls(Machine(""))
    session, *_ = first_calls(Machine(""))
    verdict = session.executable.verdict
    assert from_data(to_data(verdict)) == verdict
    assert verdict.sentence() == record.running.check
    for field in dataclasses.fields(verdict):
        data = to_data(verdict)
        del data[field.name]
        assert from_data(data) is None
    assert from_data(None) is None
    assert from_data({**to_data(verdict), "errors": 3}) is None


# -- tensors that are rounding of numbers in between: float64 says how far they may be apart -------


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


def test_programs_that_round_numbers_in_between_otherwise_take_over(monkeypatch):
    compared, problems_of = [], agreement.problems_of

    def noted(expected, moved, computed, *others, **options):
        compared.append([*map(len, (expected, computed, *moved))])
        return problems_of(expected, moved, computed, *others, **options)

    monkeypatch.setattr(agreement, "problems_of", noted)
    made, compiled = momentum_off_by(1.0005)
    assert made.executable.compiled is compiled.compiled
    # State that agrees is not kept: it is compared alone, and freed.
    (program,) = made.executable.programs
    state = sum(slot.mutated for slot in program.inputs)
    assert [count for count, *_ in compared[:state]] == [1] * state
    first = next(counts for counts in compared if len(counts) > 2)
    assert first[0] == first[1] == first[2] < state + len(program.outputs)


def noted_before_runs(monkeypatch, note):
    """Call a function with the inputs of each interpreted program before it runs."""
    interpreted = Reference.interpreted

    def noted(self, program, take=None):
        lowered, run = interpreted(self, program, take)
        return lowered, lambda inputs: (note(inputs), run(inputs))[1]

    monkeypatch.setattr(Reference, "interpreted", noted)


def test_each_run_of_a_comparison_begins_without_the_activations_of_another(monkeypatch):
    order = []
    noted_before_runs(monkeypatch, lambda _: order.append("run"))
    monkeypatch.setattr(agreement.arena, "release", lambda: order.append("release"))
    momentum_off_by(1.0005)
    assert order[:4] == ["release", "run", "release", "run"]


def test_elements_are_compared_a_few_at_a_time(monkeypatch):
    monkeypatch.setattr(agreement, "_PIECE", 3)
    value, errors = {"a": torch.arange(1.0, 11).view(2, 5)}, {}
    near, off = ({"a": value["a"] * factor} for factor in (1.000001, 1.1))
    assert not agreement.problems_of(value, [], near, errors=errors)
    assert errors["a"] == pytest.approx(1e-6, rel=0.2)
    said = "a differs by 1.0e-01 of its norm, 1e-05 are allowed"
    assert agreement.problems_of(value, [], off) == {"a": said}
    assert not agreement.problems_of(value, [off], off)
    off["a"][1, 4] = torch.nan
    said = "a is not finite in the same places"
    assert agreement.problems_of(value, [], off) == {"a": said}


def test_interpreted_programs_read_the_state_itself_and_compiled_ones_the_only_copy(monkeypatch):
    read = list[set[int]]()
    noted_before_runs(
        monkeypatch, lambda inputs: read.append({*map(torch.Tensor.data_ptr, inputs)})
    )
    made, script, script_outcome = session(DENSE, "adam", gradient_accumulation=2)
    made.step(list(DENSE.batch()))
    own = {tensor.data_ptr() for tensor in (*made.params.values(), *made.optimizer_state.values())}
    script.outcome = script_outcome
    made.step(list(DENSE.batch()))
    assert made.executable.compiled is script_outcome.compiled
    assert len(read) == 2
    assert own <= set.union(*read)


def test_results_stay_in_memory_until_another_attempt(monkeypatch):
    trials, compare = [], Trial.compare

    def noted(self, *executables):
        trials.append(self)
        return compare(self, *executables)

    monkeypatch.setattr(Trial, "compare", noted)
    with pytest.warns(TakeOverWarning):
        made, _ = momentum_off_by(1.1)
    expected, *moved = trials[0]._nearly_right
    results = {name for name in expected if name.startswith("result ")}
    assert len(results) == len(made.executable.programs[0].outputs)
    assert moved
    assert all(results <= each.keys() for each in moved)


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
    assert agreement.problems_of(one, [one], off, near) == {"loss": said}
    assert not agreement.problems_of(one, [one], off, far)


def test_what_overflows_in_float32_and_integers_are_no_rounding():
    infinite = {"loss": torch.tensor(float("inf"), dtype=torch.float64)}
    one, off = {"loss": torch.tensor(1.0)}, {"loss": torch.tensor(1.1)}
    assert agreement.problems_of(one, [one], off, infinite)
    one, off, other = ({"index": torch.tensor(each)} for each in (1, 2, 3))
    assert agreement.problems_of(one, [one], off, other)


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


def test_comparisons_leave_a_precision_of_the_user_alone():
    with torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
        assert precisions_seen() == [("none", "none")]
        assert not torch.backends.cudnn.allow_tf32
