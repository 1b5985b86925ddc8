"""Building: the record tells what happened, and falling back is said once and never silent."""

import importlib
from pathlib import Path

import pytest

from abele import FallbackWarning, StepConfig, build, get_target
from abele.errors import CompilerError, CorruptExecutable, LoweringError, TargetError
from abele.passes.cleanup import dead_code
from abele.targets import ENVIRONMENT, candidates
from abele.targets.cpu.emitted import lowering as emitted
from abele.targets.cpu.emitted.lowering import Emitted
from abele.targets.cpu.op_by_op.lowering import OpByOp
from conftest import usable
from helpers.fakes import Failing, Keeping, KeptCode, Refusing, prefer
from helpers.models import MODELS
from helpers.runs import captured, rule_for
from helpers.warm_python import run_program

AFFINE = MODELS["affine"]
CONFIG = StepConfig(training=False)


@pytest.fixture(scope="module")
def programs():
    return captured(AFFINE.fresh(), AFFINE.batch()).programs


def test_the_record_tells_what_happened(programs):
    made, record = build(programs, CONFIG, target=Keeping())
    assert (record.target, record.forced, record.fallback) == ("keeping", True, None)
    assert (record.cache, record.why, record.log) == ("off", None, None)
    assert record.executable == made.key
    assert record.seconds.keys() == {"passes", "compile"}
    (chosen,) = record.lowerings.values()
    assert (chosen.name, chosen.reason) == ("kept code", "every program can be interpreted")
    assert made.key_parts["lowerings"] == {"forward": "kept code"}


def test_the_first_lowering_with_a_reason_is_chosen_once_and_before_its_passes(programs):
    seen = []

    class Counting(KeptCode):
        def why(self, program):
            seen.append((self.name, program.history[-1].by))
            return "it has an output" if self.name == "second" else None

    target = Keeping()
    target.lowerings = tuple(Counting() for _ in range(3))
    for lowering, name in zip(target.lowerings, ("first", "second", "third"), strict=True):
        lowering.name, lowering.passes = name, (dead_code,)
    made, record = build(programs, CONFIG, target=target)
    assert seen == [("first", "recomputation"), ("second", "recomputation")]
    assert record.lowerings["forward"].name == "second"
    assert made.programs[0].history[-1].by == "dead_code"


def test_progress_goes_up_and_names_the_programs():
    model, told = MODELS["dense"], []
    module, config = model.fresh(), StepConfig(gradient_accumulation=2)
    both = captured(module, model.batch(), config, rule_for(module)).programs
    build(both, config, target=Keeping(), progress=lambda *stage: told.append(stage))
    assert [stage for stage, _ in told] == ["passes", "compile accumulate", "compile apply"]
    fractions = [fraction for _, fraction in told]
    assert fractions == sorted(fractions)
    assert all(0 < fraction < 1 for fraction in fractions)


def test_no_compiler_falls_back_with_one_warning(programs, monkeypatch):
    prefer(monkeypatch, Refusing())
    with pytest.warns(FallbackWarning) as caught:
        made, record = build(programs, CONFIG)
    (warning,) = caught
    assert str(warning.message) == (
        "Running on the slower 'reference' target. Target 'refusing' cannot compile: there is no "
        "compiler here. Install one. Set ABELE_TARGET=refusing to make this an error."
    )
    assert warning.filename == __file__
    assert (record.target, record.forced) == ("reference", False)
    assert record.fallback.startswith("Target 'refusing' cannot compile")
    assert made.target.name == "reference"


def test_a_gpu_without_a_compiler_falls_back_to_the_processor(programs, monkeypatch):
    class Gpu(Refusing):
        name = "cuda"

    known = {"cpu": Keeping(), "reference": get_target("reference")}
    module = importlib.import_module("abele.compilation.build")
    monkeypatch.setattr(module, "get_target", known.__getitem__)
    prefer(monkeypatch, Gpu())
    with pytest.warns(FallbackWarning, match=r"the slower 'keeping' target\. Target 'cuda' cannot"):
        made, record = build(programs, CONFIG)
    assert (made.target.name, record.target) == ("keeping", "keeping")
    known["cpu"] = Refusing()
    with pytest.warns(FallbackWarning) as caught:
        made, record = build(programs, CONFIG)
    assert len(caught) == 2
    assert made.target.name == record.target == "reference"


def test_a_stored_executable_needs_no_compiler(programs, isolated_cache):
    class Stored(Refusing):
        name = "keeping"

    build(programs, CONFIG, target=Keeping(), cache=isolated_cache)
    _, record = build(programs, CONFIG, target=Stored(), cache=isolated_cache)
    assert record.cache == "hit"


@pytest.mark.parametrize("good", [0, 1], ids=["at once", "at the second program"])
def test_a_failing_compiler_falls_back_and_keeps_its_noise_in_a_file(good, monkeypatch, tmp_path):
    model = MODELS["dense"]
    module, config = model.fresh(), StepConfig(gradient_accumulation=2)
    both = captured(module, model.batch(), config, rule_for(module)).programs
    prefer(monkeypatch, Failing(good))
    with pytest.warns(FallbackWarning, match=r"could not be compiled\. The compiler's") as caught:
        made, record = build(both, config, log_folder=tmp_path)
    assert len(caught) == 1
    assert "stdio.h" not in str(caught[0].message)
    assert record.log in str(caught[0].message)
    (log,) = tmp_path.iterdir()
    assert (str(log), log.read_text()) == (record.log, Failing.noise)
    assert made.compiled.keys() == {"accumulate", "apply"}


def test_a_fallback_stores_nothing(programs, monkeypatch, isolated_cache):
    prefer(monkeypatch, Refusing())
    with pytest.warns(FallbackWarning):
        build(programs, CONFIG, cache=isolated_cache)
    assert not isolated_cache.folder.exists()


def test_the_environment_makes_a_fallback_an_error(programs, monkeypatch):
    monkeypatch.setenv(ENVIRONMENT, "cpu")
    monkeypatch.setattr(get_target("cpu"), "cannot_compile", lambda *_: "there is no compiler.")
    with pytest.raises(TargetError, match="Target 'cpu' cannot compile: there is no compiler"):
        build(programs, CONFIG)


def test_the_environment_chooses_without_a_warning(programs, monkeypatch):
    monkeypatch.setenv(ENVIRONMENT, "null")
    _, record = build(programs, CONFIG)
    assert (record.target, record.forced, record.fallback) == ("null", True, None)


BROKEN = """#!/bin/sh
case "$1" in --version) echo "g++ (Broken) 13.2.0"; exit 0;; esac
echo "error: cosmic rays in the parser"
exit 1
"""
BUILD_TWICE = """
import sys
import torch
from helpers.models import MODELS
from helpers.runs import captured
from abele import StepConfig, build, get_target
from abele.errors import CompilerError

config, affine = StepConfig(training=False), MODELS["affine"]
programs = captured(affine.fresh(), affine.batch()).programs
executable, record = build(programs, config, log_folder=sys.argv[1])
print(record.target, executable.target.name, record.log)
try:
    build(programs, config, target=get_target("cpu"), log_folder=sys.argv[1])
except CompilerError as error:
    print(error)
"""


@pytest.mark.compiler
def test_a_real_compiler_that_fails(tmp_path):
    usable("cpu")
    script = tmp_path / "g++"
    script.write_text(BROKEN)
    script.chmod(0o755)
    done = run_program("-c", BUILD_TWICE, tmp_path, CXX=str(script))
    assert done.returncode == 0, done.stderr
    fallback, refusal = done.stdout.splitlines()
    logs = sorted(map(str, tmp_path.glob("*.log")))
    assert fallback.split()[:2] == ["reference", "reference"]
    assert fallback.split()[2] in logs
    assert done.stderr.count("FallbackWarning") == 1
    assert "could not be compiled: the C++ compiler failed." in refusal
    assert "cosmic rays" not in done.stdout
    assert ["cosmic rays in the parser" in Path(log).read_text() for log in logs] == [True, True]


class Unloadable(Keeping):
    """Compiles, and the linker finds no symbol when the code is loaded; or the disk is full."""

    name = "unloadable"

    class code(KeptCode):  # noqa: N801 - an attribute of the class above
        problem: Exception = CorruptExecutable("program.so: undefined symbol: sgemm_.")

        def compile(self, program):
            raise self.problem


LOADING = {
    "symbol": (CorruptExecutable("program.so: undefined symbol: sgemm_."),
               "does not load: program.so: undefined symbol: sgemm_"),
    "disk": (OSError(28, "No space left on device"), "No space left on device.*TMPDIR"),
}  # fmt: skip


@pytest.mark.parametrize(("problem", "words"), LOADING.values(), ids=LOADING)
def test_code_that_does_not_load_falls_back_unless_the_target_was_forced(
    programs, monkeypatch, problem, words
):
    monkeypatch.setattr(Unloadable.code, "problem", problem)
    with pytest.raises(CompilerError, match=words):
        build(programs, CONFIG, target=Unloadable())
    prefer(monkeypatch, Unloadable())
    with pytest.warns(FallbackWarning, match=words) as caught:
        made, record = build(programs, CONFIG)
    assert len(caught) == 1
    assert (made.target.name, record.target) == ("reference", "reference")


class Buggy(Keeping):
    """Its first lowering fails by a bug; ``second`` is taken instead, if there is one."""

    name = "buggy"

    def __init__(self, *others):
        super().__init__()
        self.lowerings[0].passes = (self.unknown,)
        self.lowerings += others

    def unknown(self, program):
        return {}["an operator"]


BUG = (
    r"Program 'forward' could not be compiled: lowering 'kept code' failed with KeyError: "
    r"'an operator'\. This is a bug of abele: please report it, with the output of `abele doctor "
    r"--json`\. The traceback is in \S+\.log\. "
)


def test_a_bug_of_a_lowering_falls_back_with_one_warning(programs, monkeypatch, tmp_path):
    prefer(monkeypatch, Buggy())
    with pytest.warns(FallbackWarning, match=rf"'reference' target\. {BUG}Set ABELE_") as caught:
        made, record = build(programs, CONFIG, log_folder=tmp_path)
    assert len(caught) == 1
    assert (made.target.name, record.target) == ("reference", "reference")
    assert "in unknown" in Path(record.log).read_text()


def test_the_next_lowering_runs_what_a_bug_keeps_from_the_first(
    programs, monkeypatch, tmp_path, isolated_cache
):
    second = KeptCode()
    second.name, second.trusted = "second", False
    target = Buggy(second)
    prefer(monkeypatch, target)
    for _ in range(2):  # nothing is stored, so that the next process says so too
        with pytest.warns(FallbackWarning, match=rf"'buggy' target\. {BUG}Set ABELE_") as caught:
            _, record = build(programs, CONFIG, cache=isolated_cache, log_folder=tmp_path)
        assert len(caught) == 1
        assert (record.target, record.lowerings["forward"].name) == ("buggy", "second")
    assert len(target.lowerings) == 2
    monkeypatch.setenv(candidates.ENVIRONMENT, "kept code")
    with pytest.warns(FallbackWarning, match="'reference' target"):
        build(programs, CONFIG, log_folder=tmp_path)


def test_a_bug_of_a_lowering_is_an_error_where_the_target_was_forced(programs, tmp_path):
    with pytest.raises(LoweringError, match=BUG.rstrip()) as caught:
        build(programs, CONFIG, target=Buggy(KeptCode()), log_folder=tmp_path)
    assert "in unknown" in caught.value.log


@pytest.mark.parametrize("problem", [MemoryError("64 GiB"), UserWarning("an error, as asked")])
def test_what_is_no_bug_of_a_lowering_reaches_the_user(programs, monkeypatch, problem):
    monkeypatch.setattr(Unloadable.code, "problem", problem)
    prefer(monkeypatch, Unloadable())
    with pytest.raises(type(problem), match=str(problem)):
        build(programs, CONFIG)


def test_generated_code_that_cannot_be_written_is_replaced(programs, monkeypatch, tmp_path):
    usable("cpu")
    monkeypatch.setattr(emitted, "planned_code", lambda program: {}["an operator"])
    monkeypatch.setattr(Emitted, "why", lambda self, program: "it is tried")
    monkeypatch.setattr(OpByOp, "why", lambda self, program: None)
    prefer(monkeypatch, get_target("cpu"))
    said = "'cpu' target.*'emitted' failed with KeyError: 'an operator'"
    with pytest.warns(FallbackWarning, match=said):
        _, record = build(programs, CONFIG, log_folder=tmp_path)
    assert (record.target, record.lowerings["forward"].name) == ("cpu", "interpreter")


def test_a_log_that_cannot_be_written_hides_no_failure(programs, monkeypatch, tmp_path):
    prefer(monkeypatch, Failing())
    with pytest.warns(FallbackWarning, match="could not be compiled"):
        _, record = build(programs, CONFIG, log_folder=tmp_path / "missing")
    assert record.log is None


def test_no_compiler_for_a_forced_target_is_an_error(programs):
    with pytest.raises(TargetError, match="Target 'refusing' cannot compile: there is no compiler"):
        build(programs, CONFIG, target=Refusing())


def test_a_failing_compiler_of_a_forced_target_is_an_error(programs, tmp_path):
    with pytest.raises(CompilerError, match=r"could not be compiled\. The compiler's") as caught:
        build(programs, CONFIG, target=Failing(), log_folder=tmp_path)
    (log,) = tmp_path.iterdir()
    assert str(log) in str(caught.value)
    assert "stdio.h" not in str(caught.value)
    assert caught.value.log == log.read_text() == Failing.noise
