"""Weights go from hand to hand unchanged, and a file runs where its code was not made for."""

import pytest
import torch

import poptorch
from abele.compilation.portable_executable import RecompiledWarning
from abele.targets import cpu
from helpers.exported import everything
from helpers.warm_python import run_program
from helpers.wrapping import options, rows, scorer, sgd, trainer

ELSEWHERE = """
import sys, torch, poptorch
from helpers.wrapping import rows
wrapped = poptorch.load(sys.argv[1])
assert wrapped.build_record.cache in ("hit", "off"), wrapped.build_record
torch.save([wrapped(rows(8)[0]), wrapped.model.state_dict()], sys.argv[2])
"""


def elsewhere(file, result, **variables):
    """Loads and runs an exported file in a new process, where a warning is an error."""
    done = run_program("-W", "error::UserWarning", "-c", ELSEWHERE, file, result, **variables)
    assert done.returncode == 0, done.stderr
    return torch.load(result, weights_only=True)


def assert_same(left, right):
    assert list(left) == list(right)
    for name, value in left.items():
        assert torch.equal(value, right[name]), name


def test_weights_are_the_same_bits_from_pytorch_to_a_file_and_back(target, tmp_path, monkeypatch):
    monkeypatch.setenv("ABELE_TARGET", target.name)
    model = everything()
    start = {name: value.clone() for name, value in model.state_dict().items()}
    training = trainer(model)
    training.compile(*rows(8))
    assert_same(start, training.state_dict())  # plain PyTorch -> training wrapper
    training(*rows(8))
    training.detachFromDevice()
    trained = {name: value.clone() for name, value in model.state_dict().items()}
    assert not torch.equal(trained["fc.weight"], start["fc.weight"])
    model.eval()
    evaluating = poptorch.inferenceModel(model, options())
    expected = evaluating(rows(8)[0])
    assert_same(trained, evaluating.state_dict())  # training wrapper -> inference wrapper
    evaluating.save(tmp_path / "x")
    # -> file -> new process; on a compiled target one that has no compiler
    actual, state = elsewhere(tmp_path / "x", tmp_path / "result", CXX="/no/compiler")
    torch.testing.assert_close(actual, expected, rtol=1e-6, atol=1e-6)
    # The file holds what the evaluation counted on its device; that of the new process stays there.
    assert (trained.pop("calls"), state["calls"]) == (1, 2)
    assert_same(trained, {name: value for name, value in state.items() if name != "calls"})
    plain = everything(9).eval()
    plain.load_state_dict(state)  # -> plain PyTorch
    assert_same(state, plain.state_dict())
    torch.testing.assert_close(plain(rows(8)[0]), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.compiler
def test_training_goes_on_where_its_code_was_not_made_for(tmp_path, monkeypatch):
    if cpu.TARGET.cannot_compile():
        pytest.skip(str(cpu.TARGET.cannot_compile()))
    monkeypatch.setenv("ABELE_TARGET", "cpu")
    model = scorer()
    wrapped = trainer(model, sgd(model, momentum=0.9))
    wrapped(*rows(4))
    wrapped.save(tmp_path / "x")
    monkeypatch.setenv("ABELE_TARGET", "reference")
    with pytest.warns(RecompiledWarning, match=r"target\.isa: .* there.* made again") as caught:
        loaded = poptorch.load(tmp_path / "x")
    assert len(caught) == 1
    assert torch.equal(loaded.model.fc.weight, model.fc.weight)
    for batch in (rows(4, 5), rows(4, 6)):
        torch.testing.assert_close(loaded(*batch)[0], wrapped(*batch)[0], rtol=1e-5, atol=1e-5)
