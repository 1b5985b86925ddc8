"""The user's own module is current whenever anybody reads it, at one copy per burst."""

import abc
import copy
import gc
import io
import pickle
import subprocess
import sys

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - torch's own convention

import poptorch
from helpers.warm_python import python
from helpers.wrapping import Scorer, options, plain_steps, rows, scorer, sgd, trainer


def _trained(updates=2, **settings):
    """A wrapper that has trained, its model unread, and the weights it must have."""
    plain = scorer()
    plain_steps(plain, sgd(plain), [[rows(4)]] * updates)
    model = scorer()
    wrapped = trainer(model, **settings)
    for _ in range(updates):
        wrapped(*rows(4))
    return wrapped, model, plain.fc.weight.detach()


READS = {
    "attribute": lambda m: m.fc.weight.detach(),
    "data": lambda m: m.fc.weight.data,
    "state_dict": lambda m: m.state_dict()["fc.weight"],
    "state_dict of a part": lambda m: m.fc.state_dict()["weight"],
    "parameters()": lambda m: next(m.parameters()).clone(),
    "get_parameter": lambda m: m.get_parameter("fc.weight") * 1,
    "numpy": lambda m: torch.from_numpy(m.fc.weight.detach().numpy()),
    "in a list": lambda m: torch.stack([m.fc.weight])[0],
    "as keyword": lambda m: torch.add(input=m.fc.weight, other=0),
    "written to": lambda m: torch.zeros(3, 4).copy_(m.fc.weight),
    "used in forward": lambda m: F.linear(torch.eye(4), m.fc.weight).t(),
    "host forward": lambda m: (m(torch.eye(4), torch.zeros(4, 3))[1] - m.fc.bias).t(),
    "deep copy of the model": lambda m: copy.deepcopy(m).fc.weight.detach(),
    "deep copy of a parameter": lambda m: copy.deepcopy(m.fc.weight).detach(),
    "pickle": lambda m: pickle.loads(pickle.dumps(m)).fc.weight.detach(),  # noqa: S301
}


@pytest.mark.parametrize("read", READS.values(), ids=READS.keys())
def test_every_way_of_reading_sees_trained_weights(read):
    _, model, expected = _trained()
    torch.testing.assert_close(read(model).detach(), expected, rtol=0, atol=1e-6)


def test_comparing_and_printing_read_too():
    _, model, expected = _trained()
    assert torch.equal(model.fc.weight, expected)
    _, model, expected = _trained()
    assert str(model.fc.weight) == str(torch.nn.Parameter(expected))


def test_values_in_text_are_written_as_in_pytorch():
    model = scorer()
    model.register_buffer("scale", torch.tensor(0.25))
    _ = trainer(model)
    assert f"{model.scale:.1f} {model.scale}" == "0.2 0.25"
    assert repr(model.scale) == "tensor(0.2500)"
    assert f"{model.fc.bias}" == f"{scorer().fc.bias}"


def test_copy_if_needed_says_whether_it_did():
    wrapped, model, _ = _trained()
    assert model.copyWeightsToHostIfNeeded()
    assert not model.copyWeightsToHostIfNeeded()
    assert not wrapped.copyWeightsToHostIfNeeded()


def test_a_deep_copy_is_plain_and_trains_by_itself():
    wrapped, model, expected = _trained()
    other = copy.deepcopy(model)
    assert type(other) is Scorer
    assert type(other.fc.weight) is torch.nn.Parameter
    trainer(other)(*rows(4))
    assert torch.equal(model.fc.weight, expected)
    assert not torch.equal(other.fc.weight, expected)
    assert wrapped.isCompiled()


def test_deep_copies_and_files_keep_tied_and_frozen_parameters():
    model = torch.nn.Module()
    model.a, model.b = torch.nn.Linear(2, 2, bias=False), torch.nn.Linear(2, 2, bias=False)
    model.b.weight = model.a.weight.requires_grad_(False)
    trainer(model)
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):  # noqa: S301
        assert other.a.weight is other.b.weight
        assert not other.a.weight.requires_grad


def test_a_saved_state_needs_no_poptorch_to_load(tmp_path):
    _, model, expected = _trained()
    file = tmp_path / "state.pt"
    torch.save(model.state_dict(), file)
    assert not any(name in file.read_bytes() for name in (b"poptorch", b"abele"))
    assert torch.equal(torch.load(file, weights_only=True)["fc.weight"], expected)


@pytest.mark.parametrize("what", ["model", "parameter", "buffer"])
def test_a_file_holds_plain_classes(what):
    model = torch.nn.BatchNorm1d(2)
    wrapped = trainer(model)
    saved = {"model": model, "parameter": model.weight, "buffer": model.running_mean}[what]
    file = io.BytesIO()
    torch.save(saved, file)
    file.seek(0)
    loaded = torch.load(file, weights_only=False)
    plain = {"model": torch.nn.BatchNorm1d, "parameter": torch.nn.Parameter, "buffer": torch.Tensor}
    assert type(loaded) is plain[what]
    assert b"poptorch" not in file.getvalue()
    assert wrapped.model is model


class Tied(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = torch.nn.Linear(4, 4, bias=False), torch.nn.Linear(4, 4, bias=False)
        self.frozen = torch.nn.Linear(4, 3).requires_grad_(False)
        self.b.weight = self.a.weight

    def forward(self, x, target):
        scores = self.frozen(self.b(torch.tanh(self.a(x))))
        return F.mse_loss(scores, target), scores


def test_tied_parameters_stay_tied_and_frozen_ones_stay():
    torch.manual_seed(0)
    model = Tied()
    plain = copy.deepcopy(model)
    plain_steps(plain, sgd(plain), [[rows(4)]] * 2)
    wrapped = trainer(model)
    for _ in range(2):
        wrapped(*rows(4))
    assert model.a.weight is model.b.weight
    assert torch.equal(model.b.weight, plain.b.weight)
    assert torch.equal(model.frozen.weight, plain.frozen.weight)


@pytest.mark.parametrize("end", ["destroy", "delete"])
def test_inference_outlives_the_trainers_of_its_model(end):
    model = scorer()
    evaluate = poptorch.inferenceModel(model, options())
    for _ in range(2):
        evaluate(*rows(4))
        wrapped = trainer(model)
        wrapped(*rows(4))
        _ = wrapped.destroy() if end == "destroy" else None
        del wrapped
        model.destroy() if end == "delete" else None
        assert torch.equal(evaluate(*rows(4))[1], model(*rows(4))[1])


def test_load_state_dict_of_the_wrapper_reaches_the_device():
    wrapped, model, _ = _trained()
    result = wrapped.load_state_dict(scorer(5).state_dict())
    assert result.missing_keys == []
    x, target = rows(4)
    assert torch.equal(wrapped(x, target)[1], scorer(5)(x, target)[1])
    assert type(model.fc.weight).__name__ == "PoptorchParameter"


@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.Adam, poptorch.optim.LAMB])
def test_detaching_does_not_change_the_trajectory(kind):
    momentum = {"momentum": 0.9} if kind is torch.optim.SGD else {}
    straight, interrupted = scorer(), scorer()
    first = trainer(straight, kind(straight.parameters(), lr=0.1, **momentum))
    second = trainer(interrupted, kind(interrupted.parameters(), lr=0.1, **momentum))
    for _ in range(4):
        first(*rows(4))
        second(*rows(4))
        second.detachFromDevice()
        assert not second.isAttachedToDevice()
    assert torch.equal(straight.fc.weight, interrupted.fc.weight)


def test_destroy_gives_the_plain_module_back_and_allows_wrapping_again():
    wrapped, model, expected = _trained()
    wrapped.destroy()
    assert type(model) is Scorer
    assert type(model.fc.weight) is torch.nn.Parameter
    assert torch.equal(model.fc.weight, expected)
    assert not wrapped.isCompiled()
    trainer(model)(*rows(8))


def test_a_destroyed_wrapper_can_be_called_again():
    wrapped, model, expected = _trained(updates=1)
    wrapped.destroy()
    wrapped(*rows(8))
    assert not torch.equal(model.fc.weight, expected)


def test_destroying_before_compiling_does_nothing():
    model = scorer()
    trainer(model).destroy()
    with pytest.raises(RuntimeError, match="already been wrapped"):
        trainer(model)


def test_a_deleted_wrapper_loses_nothing():
    wrapped, model, expected = _trained()
    del wrapped
    gc.collect()
    assert torch.equal(model.fc.weight, expected)


def test_a_process_may_end_with_unread_weights():
    code = (
        "import torch\n"
        "from helpers import wrapping\n"
        "model = wrapping.scorer()\n"
        "wrapped = wrapping.trainer(model)\n"
        "wrapped(*wrapping.rows(4))\n"
    )
    run = [python(), "-W", "ignore", "-c", code]
    path = ":".join(sys.path)
    subprocess.run(run, check=True, env={"PYTHONPATH": path, "ABELE_TARGET": "null"})


def test_the_optimizer_keeps_its_parameter_objects():
    model = scorer()
    optimizer = sgd(model)
    identities = [id(p) for p in optimizer.param_groups[0]["params"]]
    wrapped = trainer(model, optimizer)
    wrapped(*rows(4))
    assert [id(p) for p in model.parameters()] == identities
    wrapped.destroy()
    assert [id(p) for p in model.parameters()] == identities
    assert isinstance(model.fc.weight, torch.nn.Parameter)


def test_the_wrapped_class_keeps_its_ancestry():
    model = scorer()
    trainer(model)
    assert type(model).__name__ == "PoptorchScorer"
    assert isinstance(model, Scorer)
    assert isinstance(model.fc.weight, torch.nn.Parameter)


def test_a_class_with_a_metaclass_can_be_wrapped():
    class Abstract(Scorer, abc.ABC):
        pass

    model = Abstract()
    wrapped = trainer(model)
    wrapped(*rows(4))
    wrapped.destroy()
    assert type(model) is Abstract
