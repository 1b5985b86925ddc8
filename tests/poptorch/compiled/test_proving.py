"""Compiled programs are compared with interpreted ones in every way in which a model starts."""

import contextlib
import json

import pytest
import torch

import poptorch
from abele import processor
from abele.compilation import build
from abele.compilation.executable import TakeOverWarning
from abele.compilation.verdict import ComparisonWarning
from abele.targets import get_target, requested
from conftest import usable
from helpers.faults import batch, faulty, inject
from helpers.wrapping import options, sgd

pytestmark = pytest.mark.compiler
FAULT = "dropped tail"


@pytest.fixture(autouse=True)
def _cpu_by_choice(monkeypatch):
    """Target cpu is chosen, not insisted on; programs are emitted."""
    usable("cpu")
    monkeypatch.delenv("ABELE_TARGET", raising=False)
    monkeypatch.delenv("ABELE_START", raising=False)
    monkeypatch.setenv("ABELE_LOWERING", "emitted")
    # However long compiling takes on a busy machine, the first call waits for it.
    monkeypatch.setattr("abele.compilation.tiers.WORTH_WAITING_S", 1e9)
    chosen = build.choose_target
    monkeypatch.setattr(
        build, "choose_target", lambda: chosen() if requested() else (get_target("cpu"), False)
    )


def trainer(**settings):
    model = faulty()
    model.dropout.p = 0.0
    return poptorch.trainingModel(model, options(**settings), sgd(model))


def inference(**settings):
    return poptorch.inferenceModel(faulty().eval(), options(**settings))


@pytest.fixture
def expected(monkeypatch):
    with monkeypatch.context() as plain:
        plain.setenv("ABELE_TARGET", "reference")
        return trainer()(*batch())


def agree(got, expected):
    torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-6)


def same_weights(wrapped, monkeypatch):
    """Whether the weights are those after one step of interpreted programs."""
    with monkeypatch.context() as plain:
        plain.setenv("ABELE_TARGET", "reference")
        other = trainer()
        other(*batch())
    for mine, theirs in zip(wrapped.model.parameters(), other.model.parameters(), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-6)


WORDS = "differs by|is not finite"
STARTS = {
    "a first call that waits": {"ABELE_START": "wait"},
    "compile()": {},
    "programs that take over": {"ABELE_START": "tiered", "ABELE_SWAP_AT": "0"},
}


@pytest.mark.parametrize("name", STARTS)
def test_every_way_to_start_compares(name, expected, monkeypatch):
    for variable, value in STARTS[name].items():
        monkeypatch.setenv(variable, value)
    inject(monkeypatch, FAULT)
    wrapped = trainer()
    with pytest.warns((ComparisonWarning, TakeOverWarning), match=WORDS):
        got = wrapped.compile(*batch()) if name == "compile()" else wrapped(*batch())
    agree(wrapped(*batch()) if got is None else got, expected)
    same_weights(wrapped, monkeypatch)


@contextlib.contextmanager
def elsewhere(monkeypatch):
    """Another machine, whose faulty code is not compared."""
    with monkeypatch.context() as other:
        other.setattr(processor, "name", lambda: "another processor")
        inject(other, FAULT)
        other.setattr("abele.runtime.proving.agreeing", lambda trial, oracle, made, *others: made)
        other.setattr("abele.runtime.proving.kept", lambda chosen, proving: chosen)
        yield


def test_compile_says_at_once_that_a_forced_target_cannot_be_had(monkeypatch):
    cpu = get_target("cpu")
    monkeypatch.setattr(cpu, "lowerings", (cpu.lowering("emitted"), cpu.lowering("interpreter")))
    monkeypatch.setenv("ABELE_TARGET", "cpu")
    inject(monkeypatch, FAULT)
    with pytest.raises(poptorch.Error, match="Target 'cpu' was asked for, but its programs do not"):
        trainer().compile(*batch())


def test_code_in_a_cache_is_compared_on_another_machine_only(expected, monkeypatch, tmp_path):
    with elsewhere(monkeypatch):
        trainer(enableExecutableCaching=str(tmp_path)).compile(*batch())
    wrapped = trainer(enableExecutableCaching=str(tmp_path))
    with pytest.warns(ComparisonWarning, match=WORDS):
        agree(wrapped(*batch()), expected)
    assert wrapped.build_record.cache == "hit"
    again = trainer(enableExecutableCaching=str(tmp_path))
    monkeypatch.setattr("abele.runtime.proving.agreeing", None)  # whoever compares again fails
    agree(again(*batch()), expected)
    assert again.build_record.cache == "hit"
    assert again.build_record.running.check == wrapped.build_record.running.check
    assert ", compiled again without vectorizers" in again.build_record.running.check


def test_code_in_a_file_is_compared_once_on_another_machine(expected, monkeypatch, tmp_path):
    monkeypatch.setattr("abele.compilation.verdict.cache_folder", lambda: tmp_path)
    with monkeypatch.context() as other:
        other.setattr(processor, "name", lambda: "another processor")
        trainer().compileAndExport(tmp_path / "x.poptorch", *batch())

    def loaded():
        wrapped = trainer()
        wrapped.loadExecutable(tmp_path / "x.poptorch")
        agree(wrapped(*batch()), expected)
        return wrapped.build_record.running.check

    first = loaded()
    (record,) = (tmp_path / "verdicts").iterdir()
    with monkeypatch.context() as again:
        again.setattr("abele.runtime.proving.agreeing", None)  # whoever compares again fails
        assert loaded() == first
    record.write_text("damaged")
    assert loaded() == first
    assert record.read_text() != "damaged"


def test_inference(monkeypatch):
    with monkeypatch.context() as plain:
        plain.setenv("ABELE_TARGET", "reference")
        expected = inference()(*batch())
    inject(monkeypatch, FAULT)
    with pytest.warns(ComparisonWarning, match=WORDS):
        agree(inference()(*batch()), expected)


@pytest.mark.thorough  # like a first call that waits, for each stage
def test_stages_of_a_pipeline(expected, monkeypatch):
    def staged():
        model = faulty()
        model.dropout.p = 0.0
        poptorch.BeginBlock(model.last, ipu_id=1)
        made = options(gradientAccumulation=3)
        return poptorch.trainingModel(model, made, sgd(model))

    with monkeypatch.context() as plain:
        plain.setenv("ABELE_TARGET", "reference")
        theirs = staged()(*batch(27))
    wrapped = staged()
    agree(wrapped(*batch(27)), theirs)
    assert wrapped.build_record.running.check.startswith("one micro-batch through both: ")
    inject(monkeypatch, FAULT)
    with pytest.warns(ComparisonWarning, match=WORDS):
        agree(staged()(*batch(27)), theirs)


def test_the_verdict_stands_in_the_executable_and_in_reports(tmp_path):
    folder = tmp_path / "profile"
    wrapped = trainer(enableExecutableCaching=str(tmp_path / "cache"), enableProfiling=str(folder))
    wrapped(*batch())
    verdict = wrapped.build_record.running.check
    wrapped.destroy()
    assert "parameter" in verdict
    records = [json.loads(path.read_text()) for path in folder.rglob("run.json")]
    assert any(verdict in json.dumps(each) for each in records)
