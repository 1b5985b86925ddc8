"""Estimates of programs, beside sums made by hand."""

import sys

import pytest
import torch

from abele import arena, fit, get_target, passes
from abele.arena import places
from abele.fit import Calls, Limit, Verdict
from abele.fit.estimate import Moment, Part, Work
from abele.fit.run import estimate, of_calls
from abele.passes.of_lowerings.early_writes import early_writes
from abele.program import memory
from abele.step.config import OutputMode, StepConfig
from abele.targets.cpu.emitted.lowering import Emitted
from helpers.models import MODELS
from helpers.runs import captured, rule_for


@pytest.fixture(autouse=True)
def every_tensor_by_itself(monkeypatch):
    monkeypatch.setattr(arena, "available", lambda: False)


CALLS = Calls(module=1000, batch=200)


def made(kind="sgd", config=None, name="introduction"):
    model = MODELS[name]
    module, config = model.fresh(), config or StepConfig()
    return module, captured(module, model.batch(), config, rule_for(module, kind)).programs, config


def estimated(programs, config, **calls):
    known = Calls(module=1000, batch=200, **calls)
    return estimate(programs, config, get_target("reference"), known)


def estimated_on(target, programs, config):
    return estimate(programs, config, target, CALLS)


def parts(moment):
    return {part.role: part.size for part in moment.parts}


def moment(estimate_of, name):
    (only,) = [each for each in estimate_of.moments if each.name == name]
    return only


def weights(module):
    return sum(each.nbytes for each in module.parameters())


@pytest.mark.parametrize("kind", ["adam", "adadelta", "adagrad", "asgd"])
def test_what_lives_all_the_time_is_what_the_session_has(kind):
    module, programs, config = made(kind)
    sizes = parts(moment(estimated(programs, config), "step"))
    assert sizes["parameters"].high == sizes["parameters"].low == weights(module)
    state = rule_for(module, kind).initial_state(dict(module.named_parameters()))
    assert sizes["optimizer state"].expected == sum(each.nbytes for each in state.values())
    assert sizes["the module's own weights and buffers"].expected == 1000
    assert sizes["inputs of a call"].expected == 200
    assert "gradient sums" not in sizes


def test_accumulation_adds_sums_and_two_programs():
    module, programs, config = made(config=StepConfig(gradient_accumulation=2))
    whole = estimated(programs, config)
    assert {each.name for each in whole.moments} == {"start", "accumulate", "apply"}
    assert parts(whole.peak)["gradient sums"].expected == weights(module)


def test_the_tensors_at_the_peak_are_those_of_the_graph():
    _, programs, config = made()
    step = moment(estimated(programs, config), "step")
    tensors = sum(step.lines.values())
    use = memory.of_graph(early_writes(passes.run(programs[0])))
    assert tensors == max(use.needed())
    assert tensors == sum(part.size.low for part in step.parts if not part.always)


def test_at_planned_places_memory_is_that_of_one_piece(monkeypatch):
    monkeypatch.setattr(arena, "available", lambda: True)
    _, programs, config = made()
    step = moment(estimated(programs, config), "step")
    use = arena.placed(memory.of_graph(early_writes(passes.run(programs[0]))))
    peak = max(range(len(use.nodes)), key=use.alive().__getitem__)
    planned = use.reserved + sum(p.size for p in use.at(peak) if p.size < places.LEAST)
    assert sum(step.lines.values()) == max(use.alive())
    counted = sum(part.size.low for part in step.parts if not part.always)
    assert counted == pytest.approx(planned, rel=0.01)


def test_programs_that_run_one_after_the_other_share_their_memory(monkeypatch):
    monkeypatch.setattr(arena, "available", lambda: True)
    _, programs, config = made(config=StepConfig(gradient_accumulation=2))
    whole = estimated(programs, config)
    sizes = [arena.placed(memory.of_graph(each)).reserved for each in programs]
    start = parts(moment(whole, "start"))
    assert start["kept by programs"].high == pytest.approx(max(sizes), rel=0.05)


def test_buffers_are_there_once_per_replica():
    _, programs, _ = made(name="batch norm and dropout")
    sizes = [parts(estimated(programs, StepConfig(replicas=n)).peak)["buffers"].low for n in (1, 3)]
    assert sizes[1] == 3 * sizes[0] > 0


def test_results_of_micro_batches_are_there_while_they_are_made_and_joined():
    _, programs, _ = made()
    config = StepConfig(device_iterations=4, output_mode=OutputMode.ALL)
    whole = estimated(programs, config)
    results = of_calls(programs[0], config, on_host=True)
    step, end = (parts(moment(whole, name)) for name in ("step", "the end of a call"))
    assert step["results of earlier micro-batches"] == results.earlier
    assert end["results of micro-batches, and joined"] == results.joining
    assert step["results of the call before"] == end["results of the call before"]
    assert "results of the call before" not in parts(moment(whole, "start"))


def test_comparing_needs_copies_however_a_run_starts():
    _, programs, config = made()
    waits = estimate(programs, config, get_target("cpu"), CALLS)
    tiered = estimate(
        programs, config, get_target("cpu"), Calls(module=1000, batch=200, tiered=True)
    )
    compared, interpreted = "step, compared before use", "step, interpreted"
    assert {compared, interpreted} <= {each.name for each in tiered.moments}
    names = {each.name for each in waits.moments}
    assert compared in names
    assert interpreted not in names
    alone = estimate(programs, config, get_target("reference"), CALLS)
    assert compared not in {each.name for each in alone.moments}


def test_the_only_way_of_a_program_is_kept_once(monkeypatch):
    _, programs, config = made()
    target = get_target("cpu")
    monkeypatch.setattr(target, "lowerings", (Emitted(),))
    step = moment(estimated_on(target, programs, config), "step")
    assert "kept by programs" not in parts(step)
    assert step.size.high == pytest.approx(step.size.expected, rel=0.05)


class Dilated(torch.nn.Conv2d):
    """A convolution that emitted code leaves to torch, and its loss."""

    def forward(self, x):
        return torch.nn.functional.mse_loss(super().forward(x), x[:, :1, 2:-2, 2:-2])


def test_only_what_torch_computes_takes_more_than_the_plan_of_emitted_code():
    module = Dilated(3, 1, 3, dilation=2)
    made = captured(module, (torch.randn(2, 3, 9, 9),), StepConfig(), rule_for(module))
    use = Emitted().memory(made.programs[0])
    torchs = {node for step, node in enumerate(use.nodes) if step not in use.bare}
    assert torchs
    assert all(node and "convolution" in str(node.target) for node in torchs)
    assert {piece.node for piece in use.pieces if piece.inner} <= torchs


def exactly(size, name="step"):
    part = Part(role="all", size=size)
    return Moment(name=name, operation="it", parts=(part,))


def of(*moments):
    work = Work(operations=0, bytes=0)
    return fit.Estimate(target="cpu", lowerings={}, moments=moments, work=work)


def test_ways_of_which_one_will_be_widen_the_interval():
    small, large = (exactly(fit.Interval.exact(size)) for size in (100, 300))
    assert of(small, large).size == fit.Interval(100, 300, 300)
    assert of(small, large).peak is large


def test_of_moments_that_all_come_the_largest_counts():
    first = exactly(fit.Interval(100, 200, 250), "start")
    assert of(first, exactly(fit.Interval(50, 220, 230))).size == fit.Interval(100, 220, 250)


@pytest.mark.parametrize(
    ("size", "verdict", "words"),
    [
        (99, Verdict.DOES_NOT_FIT, "does not fit into x"),
        (100, Verdict.UNCERTAIN, "is uncertain whether it fits into x"),
        (149, Verdict.UNCERTAIN, "is uncertain whether it fits into x"),
        (150, Verdict.FITS, "fits into x"),
    ],
)
def test_only_what_is_sure_to_fit_fits(size, verdict, words):
    beside = (Part(role="process", size=fit.Interval.exact(30)),)
    limit = Limit(name="x", size=size)
    answer = fit.decide(of(exactly(fit.Interval(70, 90, 120))), limit, beside)
    assert answer.verdict is verdict
    assert answer.data()["verdict"] == verdict.value
    assert words in answer.sentence()


@pytest.mark.parametrize("name", ["op_by_op", "emitted"])
def test_what_has_planned_places_once_it_is_compiled_is_estimated_so_before(name, monkeypatch):
    torch_computes = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3, groups=1, dilation=2))
    programs = captured(torch_computes, (torch.zeros(2, 3, 9, 9),)).programs
    monkeypatch.setattr("abele.arena.available", lambda: False)
    lowering = get_target("cpu").lowering(name)
    monkeypatch.setenv("CXX", sys.executable)  # a file that is there; nothing is compiled
    assert lowering.memory(programs[0]).shared is not None
    monkeypatch.setenv("CXX", "no-such-compiler")
    assert lowering.memory(programs[0]).shared is None


def test_work_counts_every_micro_step_of_a_call():
    program = captured(torch.nn.Linear(3, 2, bias=False), [torch.ones(4, 3)]).programs
    one = estimate(program, StepConfig(training=False), get_target("reference"), CALLS).work
    assert one == Work(operations=2 * 4 * 3 * 2, bytes=4 * (4 * 3 + 3 * 2 + 4 * 2))
    config = StepConfig(training=False, device_iterations=3)
    three = estimate(program, config, get_target("reference"), CALLS).work
    assert three.ratios(one) == {"FLOPs": 3.0, "bytes moved": 3.0}
    assert three.ratios(Work(operations=0, bytes=0)) == {}
