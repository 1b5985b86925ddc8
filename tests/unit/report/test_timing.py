"""Kernels that are timed: their times add up, and timing changes nothing."""

import dataclasses
import itertools

import pytest
import torch

from abele.program import Role
from abele.report import timing
from abele.report.page import page
from abele.report.status import by_operator
from abele.targets import candidates, get_target
from helpers.models import MODELS
from helpers.reported import journal_of, recorded
from helpers.runs import rule_for, started

WAYS = [
    "interpreter",
    pytest.param("op_by_op", marks=pytest.mark.compiler),
    pytest.param("emitted", marks=pytest.mark.compiler),
]


def running(way, monkeypatch, name="introduction"):
    """A session of one of the shared models, lowered in one way, and its record."""
    if way != "interpreter":
        reason = get_target("cpu").cannot_compile()
        if reason is not None:
            pytest.skip(reason)
        monkeypatch.setenv(candidates.ENVIRONMENT, way)
    model = MODELS[name]
    module = model.fresh()
    target = get_target("reference" if way == "interpreter" else "cpu")
    session, record = started(module, model.batch(), rule_for(module), target=target)
    return session, recorded(session, record)


@pytest.mark.parametrize("way", WAYS)
def test_attributed_and_unattributed_time_add_to_the_step(way, monkeypatch):
    session, run = running(way, monkeypatch)
    off = []
    for _ in range(40):  # other processes disturb single measurements; a wrong sum is always wrong
        (program,) = timing.timed(run, session.executable, session, budget_s=0.1).programs
        times = program.timing
        off.append(abs(times.attributed + times.unattributed - times.seconds) / times.seconds)
        if off[-1] < 0.05:
            break
    assert min(off) < 0.05, off
    assert times.attributed > 0.5 * times.clocked
    assert times.clocks < 0.1 * times.clocked


@pytest.mark.parametrize("way", WAYS)
def test_a_program_with_clocks_computes_the_same_bits(way, monkeypatch):
    session, _ = running(way, monkeypatch)
    (program,) = session.executable.programs
    batch = iter(MODELS["introduction"].batch())
    arguments = [
        next(batch) if slot.role is Role.INPUT else given
        for slot, given in zip(program.inputs, session.arguments(program, 0), strict=True)
    ]
    clocked = session.executable.lowering(program.name).clocked(program)
    calls = (session.executable.compiled[program.name].run, clocked.run)
    outcomes = []
    for call in calls:
        copies = [each.clone() for each in arguments]
        results = call(list(copies))
        outcomes.append([*results, *copies])
    assert all(map(torch.equal, *outcomes))
    times = clocked.times()
    assert len(times) == len(clocked.kernels)
    assert all(0 < begin <= end for begin, end in times)
    assert all(a <= b for (_, a), (b, _) in itertools.pairwise(times))


def test_timing_leaves_state_and_random_numbers_as_they_were(monkeypatch):
    session, run = running("interpreter", monkeypatch)
    before = [each.clone() for each in session.written()]
    numbers = torch.get_rng_state()
    timing.timed(run, session.executable, session, budget_s=0)
    assert all(map(torch.equal, before, session.written()))
    assert torch.equal(numbers, torch.get_rng_state())


@pytest.mark.parametrize("way", WAYS)
def test_every_operation_is_counted_once(way, monkeypatch):
    session, run = running(way, monkeypatch)
    (program,) = timing.timed(run, session.executable, session, budget_s=0).programs
    counted = sum(each.operations for each in program.timing.kernels)
    assert counted == pytest.approx(sum(each.operations for each in program.operators), rel=1e-6)
    seconds = sum(entry.seconds for _, entry in by_operator(program.timing))
    assert seconds == pytest.approx(program.timing.attributed, rel=1e-4)


def test_a_program_that_prints_is_not_run_again(monkeypatch):
    session, run = running("interpreter", monkeypatch)
    monkeypatch.setattr(timing, "has_effect", lambda node: True)
    (program,) = timing.timed(run, session.executable, session).programs
    assert program.timing is None
    assert "it prints or calls the host" in program.untimed
    assert f"{program.name} was not timed: it prints" in page(
        dataclasses.replace(run, programs=(program,)), journal_of()
    )


def test_a_lowering_without_clocks_is_named(monkeypatch):
    session, run = running("interpreter", monkeypatch)
    lowering = session.executable.lowering("step")
    monkeypatch.setattr(type(lowering), "clocked", lambda self, program: None)
    (program,) = timing.timed(run, session.executable, session).programs
    assert program.untimed == "its code has no place for clocks"


def test_a_failure_is_no_end_of_the_run(monkeypatch):
    session, run = running("interpreter", monkeypatch)
    lowering = session.executable.lowering("step")

    def fail(self, program):
        raise MemoryError("none left")

    monkeypatch.setattr(type(lowering), "clocked", fail)
    (program,) = timing.timed(run, session.executable, session).programs
    assert program.untimed == "it failed (MemoryError: none left)"


def test_times_of_a_machine_that_did_something_else_are_said_to_say_little(monkeypatch):
    session, run = running("interpreter", monkeypatch)
    run = timing.timed(run, session.executable, session, budget_s=0)
    (program,) = run.programs
    calls = journal_of(("end", "finished"))  # of 23 ms
    for took, says in ((0.02, False), (2.3, True)):
        times = dataclasses.replace(program.timing, seconds=took)
        timed = dataclasses.replace(run, programs=(dataclasses.replace(program, timing=times),))
        assert ("These runs took 100 times as long" in page(timed, calls)) == says


def test_the_page_has_operators_by_time_beside_the_limit(monkeypatch):
    session, run = running("interpreter", monkeypatch)
    run = timing.timed(run, session.executable, session, budget_s=0)
    text = page(run, journal_of(("end", "finished")))
    assert "between them, " in text
    assert "in a product of matrices" in text
    modules = text[text.index('id="modules"') : text.index('id="operators"')]
    assert ">time<" in modules
    assert ">fc1<" in modules
    assert len(text) < 2**20
