"""First calls of a wrapped model: interpreted while another process compiles, and it says so."""

import logging
import re
import warnings

import pytest
import torch

import poptorch
from abele import get_target
from abele.compilation import build
from abele.compilation.compiling import compile_programs
from abele.compilation.start import Start
from abele.targets import Compiled, requested
from abele.targets.reference import Interpreter
from helpers.taking_over import ROUNDING, Scripted
from helpers.wrapping import options, rows, scorer, sgd
from poptorch import resuming
from poptorch._wrapper import compiled


@pytest.fixture(autouse=True)
def _start_by_default(monkeypatch):
    monkeypatch.delenv("ABELE_START")


@pytest.fixture
def scripts(monkeypatch):
    """Target cpu without a compiler: "compiled" programs round otherwise, and come when told.

    A list of what was handed to another process. ``arrive()`` of each says that it is done.
    """
    # Not by the environment: programs of a target that is insisted on are waited for.
    monkeypatch.delenv("ABELE_TARGET")
    chosen = build.choose_target
    monkeypatch.setattr(
        build, "choose_target", lambda: chosen() if requested() else (get_target("cpu"), False)
    )
    cpu = get_target("cpu")

    def rounded(program, payload=b"code"):
        run = Interpreter().compile(program).run
        slots = enumerate(program.inputs)
        written = [i for i, s in slots if s.mutated and s.dtype.is_floating_point]

        def call(inputs):
            tensors = [inputs[index] for index in written]
            outputs = run(inputs)
            for tensor in tensors:
                tensor.mul_(1 + ROUNDING)
            return outputs

        return Compiled(call, payload)

    for lowering in (each for each in cpu.lowerings if each.compiles):
        monkeypatch.setattr(lowering, "compile", rounded)
        monkeypatch.setattr(lowering, "load", rounded)
    monkeypatch.setattr(cpu, "cannot_compile", lambda lowerings=None: None)
    monkeypatch.setattr("abele.compilation.estimates.expected_s", lambda *_: None)
    handed = []

    class InTurn(Scripted):
        def __init__(self, job, running, at, announce):
            super().__init__(at=at)
            self.running, self.announce, self._job = running, announce, job
            handed.append(self)

        def arrive(self):
            job = self._job
            self.outcome = compile_programs(job.target, job.programs, job.parts)

        def wait(self):
            self.arrive()
            return super().wait()

    monkeypatch.setattr("abele.compilation.tiers.FromCompiler", InTurn)
    return handed


def trainer(**settings):
    model = scorer()
    return poptorch.trainingModel(model, options(**settings), sgd(model))


def test_a_call_interprets_until_the_compiled_programs_are_there(scripts, caplog):
    wrapped = trainer()
    with caplog.at_level(logging.INFO, "poptorch::python"):
        wrapped(*rows(4)), wrapped(*rows(4))
        assert wrapped.build_record.running.interpreted
        assert resuming.state_of(wrapped)["programs"] == scripts[0].running.sentence()
        scripts[0].arrive()
        wrapped(*rows(4))
    assert [record.message for record in caplog.records] == [
        "abele: target cpu, programs are interpreted until compiled ones are ready",
        "abele: compiled programs took over at update 2",
    ]
    assert wrapped.build_record.running.since == 2
    assert wrapped.target == "cpu"


def test_the_line_says_about_how_long_that_takes(scripts, monkeypatch, caplog):
    monkeypatch.setattr("abele.compilation.estimates.expected_s", lambda *_: 4.0)
    with caplog.at_level(logging.INFO, "poptorch::python"):
        wrapped = trainer()
        wrapped(*rows(4))
    said = caplog.records[0].message
    assert re.search(r"interpreted until compiled ones are ready, in about \d+ (s|min)$", said)
    wrapped.build_record.running.began -= 1000
    assert wrapped.build_record.running.sentence().endswith("ready, later than was expected")


TIERED, WAIT = {"ABELE_START": "tiered"}, {"ABELE_START": "wait"}
# Expected seconds of compiling, the environment, options, and whether the first call interprets.
STARTS = {
    "compiled soon": (1.0, {}, {}, False),
    "compiled soon, interpreted steps asked for": (1.0, TIERED, {}, True),
    "forced target": (None, {"ABELE_TARGET": "cpu"}, {}, False),
    "option wait": (None, {}, {"startMode": "wait"}, False),
    "option interpret": (None, {}, {"startMode": "interpret"}, True),
    "the environment wins": (None, WAIT, {"startMode": "tiered"}, False),
    "nothing to compile": (None, {"ABELE_TARGET": "reference"}, {}, True),
}
SAID = {
    "compiled soon": "compiling takes about 1 s, which is sooner",
    "forced target": "one micro-batch through both: ",
    "nothing to compile": "programs are interpreted; nothing is compiled for them",
}


@pytest.mark.parametrize("name", STARTS)
def test_how_the_first_call_starts(name, scripts, monkeypatch):
    seconds, environment, chosen, interpreted = STARTS[name]
    monkeypatch.setattr("abele.compilation.estimates.expected_s", lambda *_: seconds)
    for variable, value in environment.items():
        monkeypatch.setenv(variable, value)
    wrapped = trainer(**chosen)
    wrapped(*rows(4))
    running = wrapped.build_record.running
    if name != "nothing to compile":
        assert running.interpreted == interpreted
        assert bool(scripts) == (environment is TIERED)
    said = (running.why, running.check or "", running.sentence())
    assert any(each.startswith(SAID.get(name, "")) for each in said)


def test_compile_waits(scripts):
    wrapped = trainer()
    wrapped.compile(*rows(4))
    assert not scripts
    assert not wrapped.build_record.running.interpreted


def test_other_modes_are_refused(monkeypatch):
    said = "startMode takes one of tiered, wait, interpret, not 'soon'"
    with pytest.raises(AssertionError, match=said):
        options(startMode="soon")
    monkeypatch.setenv("ABELE_START", "soon")
    with pytest.raises(poptorch.Error, match="ABELE_START='soon' was found"):
        trainer()(*rows(4))


def test_a_saved_model_has_compiled_code(scripts, tmp_path):
    wrapped = trainer()
    wrapped(*rows(4))
    wrapped.save(tmp_path / "model.poptorch")  # waits for it
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # a RecompiledWarning
        loaded = poptorch.load(str(tmp_path / "model.poptorch"))
    assert not loaded.build_record.running.interpreted
    for mine, other in zip(wrapped(*rows(4)), loaded(*rows(4)), strict=True):
        torch.testing.assert_close(mine, other, rtol=0, atol=0)


def test_destroying_a_model_ends_the_process(scripts):
    wrapped = trainer()
    wrapped(*rows(4))
    wrapped.destroy()
    assert scripts[0].closed


def test_stages_start_compiled(monkeypatch):
    asked = []

    def build(*_, start, **__):
        asked.append(start)
        raise RuntimeError("nothing is built here")

    monkeypatch.setattr(compiled, "build", build)
    monkeypatch.setenv("ABELE_PIPELINE", "workers")
    for ipu in (1, 0):
        model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 2))
        poptorch.BeginBlock(model[1], ipu_id=ipu)
        wrapped = poptorch.inferenceModel(model, options(deviceIterations=2))
        with pytest.raises(RuntimeError, match="nothing is built"):
            wrapped(torch.ones(2, 2))
    assert asked == [Start.WAIT, Start.TIERED]
