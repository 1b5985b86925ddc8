"""Executables in a container: used where they fit, made again from their programs elsewhere."""

import warnings

import pytest
import torch

from abele import ExecutableCache, StepConfig, build, get_target
from abele.compilation.portable_executable import (
    ContainerFirst,
    RecompiledWarning,
    captured_in,
    pack,
    restore,
    rule_data,
    rule_from,
)
from abele.errors import CompilerError, CorruptExecutable, SerializationError
from abele.runtime import state
from abele.step.update_rules import RULES
from abele.storage.container import Container, write
from helpers.fakes import Failing, Keeping
from helpers.models import MODELS
from helpers.runs import captured, rule_for, started

AFFINE = MODELS["affine"]
CONFIG = StepConfig(training=False)


def stored(path, target, model=AFFINE):
    program = captured(model.fresh(), model.batch())
    made, _ = build(program.programs, CONFIG, target=target)
    content, members = pack(program, made)
    write(path, "test", content, members)
    return made


def restored(path, target, cache=None):
    with Container(path, "test") as file:
        program = captured_in(file, file.content)
        return restore(file, file.content, program.programs, CONFIG, target=target, cache=cache)


def result(made):
    module, batch = AFFINE.fresh(), AFFINE.batch()
    return made.compiled["forward"].run([module.scale.detach(), module.shift, *batch])


def test_code_that_fits_is_used(tmp_path):
    there, here = Keeping(isa="avx2"), Keeping(isa="avx2")
    made = stored(tmp_path / "x", there)
    outcome, record = restored(tmp_path / "x", here)
    assert (outcome.key, here.compilations, record.cache) == (made.key, 0, "hit")
    assert torch.equal(result(outcome)[0], result(made)[0])


@pytest.mark.parametrize(
    "here", [Keeping(isa="avx512"), get_target("reference")], ids=["processor", "target"]
)
def test_code_that_does_not_fit_is_made_again_with_one_warning(tmp_path, here):
    made = stored(tmp_path / "x", Keeping(isa="avx2"))
    named = r"does not fit here \(target\.isa: avx2 there, .*\). It was made again from the prog"
    with pytest.warns(RecompiledWarning, match=named) as caught:
        outcome, record = restored(tmp_path / "x", here)
    assert (len(caught), record.target) == (1, here.name)
    assert torch.equal(result(outcome)[0], result(made)[0])


def test_what_was_made_again_is_kept_in_the_users_cache(tmp_path, isolated_cache):
    stored(tmp_path / "x", Keeping(isa="avx2"))
    here = Keeping(isa="avx512")
    with pytest.warns(RecompiledWarning, match="made again"):
        restored(tmp_path / "x", here, isolated_cache)
    with pytest.warns(RecompiledWarning, match="taken from the cache"):
        restored(tmp_path / "x", here, isolated_cache)
    assert here.compilations == 1
    assert isinstance(isolated_cache, ExecutableCache)
    assert len(list(isolated_cache.folder.iterdir())) == 1


def test_code_that_cannot_be_loaded_is_made_again(tmp_path, monkeypatch):
    stored(tmp_path / "x", Keeping())
    here, tried = Keeping(), []

    def fail(program, payload):
        tried.append(program.name)
        raise RuntimeError("undefined symbol: f")

    monkeypatch.setattr(here.lowerings[0], "load", fail)
    with pytest.warns(RecompiledWarning, match="undefined symbol: f"):
        restored(tmp_path / "x", here)
    assert (here.compilations, tried) == (1, ["forward"])


def test_a_file_without_a_cache_behind_it_waits_for_nobody(tmp_path):
    made = stored(tmp_path / "x", Keeping())
    with Container(tmp_path / "x", "test") as file:
        source = ContainerFirst(file, file.content, None)
        with source.only_one(made.key, pytest.fail) as may_be_there:
            assert not may_be_there
        assert not source.store(made)
        parts = {**made.key_parts, "torch": "1.0"}
        assert source.load(made.programs, parts, Keeping()) is None
        assert "holds other code: torch" in source.why_missing(parts)


def test_a_compiler_that_fails_is_an_error(tmp_path):
    stored(tmp_path / "x", Keeping())
    with pytest.raises(CompilerError, match="could not be compiled"):
        restored(tmp_path / "x", Failing())


@pytest.mark.parametrize("kind", RULES)
def test_a_rule_survives(kind):
    settings = {"loss_scaling": 8.0, "state_dtypes": {"exp_avg": torch.float16}}
    rule = rule_for(MODELS["dense"].fresh(), kind, variable=("lr",), settings=settings)
    assert rule_from(rule_data(rule)) == rule


def test_a_rule_that_does_not_exist_is_refused():
    data = rule_data(rule_for(MODELS["dense"].fresh())) | {"kind": "magic"}
    with pytest.raises(SerializationError, match="There is no update rule 'magic'"):
        rule_from(data)


def trained(steps):
    model = MODELS["batch norm and dropout"]
    module = model.fresh()
    rule = rule_for(module, "adam", variable=("lr",))
    config = StepConfig(seed=4, replicas=2, broadcast_buffers=False)
    session, _ = started(module, model.batch(), rule, config)
    for batch in model.batches(steps, rows=8):
        session.step(batch)
    return session, model


def test_the_state_of_a_session_is_everything_it_needs_to_go_on():
    first, model = trained(3)
    first.set_hyper("group0.lr", 0.25)
    second, _ = trained(0)
    with warnings.catch_warnings(action="error"):
        state.put(second, {name: value.clone() for name, value in state.tensors_of(first).items()})
    streams = first.random_state
    assert streams is not None
    second.random_state = streams
    for batch in model.batches(3, rows=8, seed=5):
        for left, right in zip(first.step(batch), second.step(batch), strict=True):
            assert torch.equal(left, right)
    kept = state.tensors_of(second)
    assert all(torch.equal(kept[name], value) for name, value in state.tensors_of(first).items())
    assert {name.partition("/")[0] for name in kept} == {"params", "buffers", "optimizer", "hyper"}


def test_the_state_of_another_model_is_refused_by_name():
    session, _ = trained(0)
    values = state.tensors_of(session)
    del values["params/conv.weight"]
    values["params/fc.bias"] = torch.ones(3)
    with pytest.raises(SerializationError, match=r"params/conv\.weight, params/fc\.bias are"):
        state.put(session, values)


def test_a_program_that_was_exchanged_is_corrupt(tmp_path):
    path = tmp_path / "x"
    program = captured(AFFINE.fresh(), AFFINE.batch())
    made, _ = build(program.programs, CONFIG, target=Keeping())
    content, members = pack(program, made)
    text = members["programs/forward.json"].replace(b"aten::mul.Tensor", b"aten::div.Tensor")
    write(path, "test", content, {**members, "programs/forward.json": text})
    with pytest.raises(CorruptExecutable, match="program forward is not the one that was stored"):
        restored(path, Keeping())
