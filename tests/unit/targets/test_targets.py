"""Targets: their names, what each says about itself, and what null and reference do."""

import shutil

import pytest
import torch

from abele import available, get_target
from abele.compilation.build import choose_target, choose_target_of
from abele.errors import CompilerError, ForeignExecutable, TargetError
from abele.step.config import OutputMode, StepConfig
from abele.targets import ENVIRONMENT, NAMES, Target, requested
from helpers.models import MODELS
from helpers.runs import captured, rule_for, started

DENSE = MODELS["dense"]


@pytest.mark.parametrize("name", NAMES)
def test_each_name_is_a_target_that_knows_its_name(name):
    target = get_target(name)
    assert isinstance(target, Target)
    assert target.name == name


def test_an_unknown_target_is_refused_with_the_known_ones():
    with pytest.raises(
        TargetError, match=r"'ipu' does not exist.*reference, null, cpu, cuda.*Set ABELE_TARGET"
    ):
        get_target("ipu")


def test_available_gives_a_reason_for_each_that_is_not():
    result = available()
    assert list(result) == list(NAMES)
    assert result["reference"] is result["null"] is None
    assert result["cuda"] is None or result["cuda"].endswith(".")


@pytest.mark.parametrize("name", ["reference", "null", "cpu"])
def test_a_description_is_stable_and_names_the_target(name):
    target = get_target(name)
    assert target.describe()["target"] == name
    assert target.describe() == target.describe()


def test_the_cpu_describes_what_its_code_depends_on():
    described = get_target("cpu").describe()
    assert described["torch"] == torch.__version__
    assert {"isa", "machine", "system"} <= described.keys()


@pytest.mark.parametrize("value", [None, ""], ids=["unset", "empty"])
def test_the_environment_need_not_say_anything(monkeypatch, value):
    if value is not None:
        monkeypatch.setenv(ENVIRONMENT, value)
    assert requested() is None
    target, forced = choose_target()
    assert target.name in ("cpu", "cuda")
    assert not forced


def test_the_environment_forces_a_target(monkeypatch):
    monkeypatch.setenv(ENVIRONMENT, "reference")
    target, forced = choose_target()
    assert (target.name, forced) == ("reference", True)


def test_a_forced_target_that_is_unavailable_is_refused(monkeypatch):
    monkeypatch.setenv(ENVIRONMENT, "cuda")
    monkeypatch.setattr(get_target("cuda"), "unavailable", lambda: "the GPU is on fire.")
    with pytest.raises(
        TargetError, match=r"ABELE_TARGET=cuda was asked for, but the GPU is on fire\. Unset"
    ):
        choose_target()


def test_a_gpu_is_preferred_when_there_is_one(monkeypatch):
    monkeypatch.setattr(get_target("cuda"), "unavailable", lambda: None)
    monkeypatch.setattr(torch.version, "cuda", "12.6")
    assert choose_target()[0].name == "cuda"


@pytest.mark.parametrize("name", ["cpu", "cuda"])
def test_a_file_without_code_is_foreign(name):
    program = captured(DENSE.fresh(), DENSE.batch()).programs[0]
    for lowering in get_target(name).lowerings:
        if not lowering.compiles:
            continue  # has none
        with pytest.raises(ForeignExecutable, match=f"no compiled code for target '{name}'"):
            lowering.load(program, b"")


def test_cpu_without_a_compiler_says_what_to_install(monkeypatch):
    monkeypatch.setattr(shutil, "which", lambda name, *_, **__: None)
    monkeypatch.delenv("CXX", raising=False)
    reason = get_target("cpu").cannot_compile()
    assert "no C++ compiler was found (looked for g++ or clang++ on PATH)" in reason
    assert "apt-get install g++" in reason
    assert get_target("cpu").unavailable() is None


def test_cpu_looks_for_the_compiler_of_cxx(monkeypatch):
    monkeypatch.setenv("CXX", "/no/such/compiler")
    assert "looked for /no/such/compiler" in get_target("cpu").cannot_compile()


@pytest.mark.parametrize("mode", OutputMode)
def test_null_gives_zeros_in_the_shapes_of_the_reference(mode):
    config = StepConfig(gradient_accumulation=2, replicas=2, output_mode=mode)
    shapes = []
    for target in ("null", "reference"):
        module = DENSE.fresh()
        session, _ = started(module, DENSE.batch(), rule_for(module), config, target=target)
        outputs = session.step(DENSE.batch(16))
        shapes.append([(value.shape, value.dtype) for value in outputs])
        assert (target == "null") == (not any(value.any() for value in outputs))
    assert shapes[0] == shapes[1]


def test_null_leaves_all_state_alone():
    module = DENSE.fresh()
    session, _ = started(module, DENSE.batch(), rule_for(module), target="null")
    session.step(DENSE.batch())
    for name, value in module.named_parameters():
        torch.testing.assert_close(session.params[name], value.detach(), rtol=0, atol=0)


def test_the_reference_builds_no_history():
    module = DENSE.fresh()
    session, _ = started(module, DENSE.batch(), rule_for(module))
    with torch.enable_grad():
        outputs = session.step(DENSE.batch())
    assert not any(value.requires_grad for value in (*outputs, *session.params.values()))


def test_everything_that_is_made_once_per_machine_is_made_together(monkeypatch):
    made = []
    monkeypatch.setattr(
        "abele.targets.cpu.build.compile_objects", lambda *_: made.append("kernels")
    )
    monkeypatch.setattr("abele.targets.cpu.arena.made", lambda _: made.append("memory"))
    get_target("cpu").prepare()
    assert sorted(made) == ["kernels", "memory"]


@pytest.mark.parametrize("place", ["build.compile_objects", "arena.made"])
def test_what_cannot_be_made_is_said(monkeypatch, place):
    def fails(*_):
        raise CompilerError("no compiler")

    for each in ("build.compile_objects", "arena.made"):
        monkeypatch.setattr(f"abele.targets.cpu.{each}", fails if each == place else lambda *_: b"")
    with pytest.raises(CompilerError, match="no compiler"):
        get_target("cpu").prepare()


def test_the_target_of_tensors_on_the_host_is_the_processor(monkeypatch):
    monkeypatch.delenv("ABELE_TARGET", raising=False)
    monkeypatch.setattr(get_target("cuda"), "unavailable", lambda: None)
    target, forced = choose_target_of(torch.device("cpu"))
    assert (target.name, forced) == ("cpu", False)


def test_a_target_of_another_device_than_the_tensors_is_refused(monkeypatch):
    monkeypatch.setenv("ABELE_TARGET", "reference")
    assert choose_target_of(torch.device("cpu"))[1]
    with pytest.raises(TargetError, match=r"ABELE_TARGET=reference .* the tensors are on cuda:0"):
        choose_target_of(torch.device("cuda:0"))
