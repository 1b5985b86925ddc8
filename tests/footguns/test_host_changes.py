"""Weights that the host changes after compiling without sending them: one warning, no false one."""

import copy
import warnings

import pytest
import torch

import poptorch
from helpers.wrapping import options, rows, scorer, sgd, trainer, weights
from poptorch import HostChangeWarning

_HERE = r"test_host_changes\.py:\d+: "


def _other_state():
    return scorer(seed=5).state_dict()


def _load(model):
    model.load_state_dict(_other_state())


def _clip_data(model):
    for param in model.parameters():
        param.data.clamp_(-0.01, 0.01)


def _assign_data(model):
    model.fc.weight.data = model.fc.weight.data * 0.5


def _copy(model):
    with torch.no_grad():
        model.fc.bias.copy_(torch.zeros(3))


def _set_item(model):
    with torch.no_grad():
        model.fc.weight[0, 0] = 7.0


def _initialise(model):
    torch.nn.init.zeros_(model.fc.weight)


def _foreach(model):
    with torch.no_grad():
        torch._foreach_mul_(list(model.parameters()), 0.5)


def _through_numpy(model):
    model.fc.weight.detach().numpy()[:] = 1.0


@pytest.mark.parametrize(
    ("change", "line"),
    [
        (_load, "`model.load_state_dict"),
        (_clip_data, "`param.data.clamp_"),
        (_assign_data, "`model.fc.weight.data ="),
        (_copy, "`model.fc.bias.copy_"),
        (_set_item, r"`model.fc.weight\[0, 0\] ="),
        (_initialise, "`torch.nn.init.zeros_"),
        (_foreach, "`torch._foreach_mul_"),
    ],
)
def test_weights_of_a_training_model_that_are_not_sent(change, line):
    model = scorer()
    wrapped = trainer(model)
    wrapped(*rows(4))
    change(model)
    words = f"fc.* changed after the device got it at .*{_HERE}{line}.*copyWeightsToDevice"
    with pytest.warns(HostChangeWarning, match=words) as caught:
        wrapped(*rows(4))
    assert caught[0].filename == __file__
    change(model)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        wrapped(*rows(4))  # once


def test_writes_that_torch_does_not_see_are_found_by_value():
    model = scorer()
    wrapped = trainer(model)
    wrapped(*rows(4))
    _through_numpy(model)
    with pytest.warns(HostChangeWarning, match=r"fc.weight of the host's module changed"):
        wrapped(*rows(4))


def test_weights_that_are_loaded_between_compiling_and_the_first_call():
    model = scorer()
    wrapped = trainer(model)
    wrapped.compile(*rows(4))
    _load(model)
    with pytest.warns(HostChangeWarning, match="load_state_dict"):
        wrapped(*rows(4))


@pytest.mark.parametrize(
    "freeze",
    [
        lambda model: model.fc.weight.requires_grad_(False),
        lambda model: setattr(model.fc.weight, "requires_grad", False),
        lambda model: model.requires_grad_(False),
    ],
)
def test_parameters_that_are_frozen_after_compiling(freeze):
    model = scorer()
    wrapped = trainer(model)
    wrapped(*rows(4))
    freeze(model)
    words = rf"requires_grad of fc.weight.* changed .* at .*{_HERE}.*destroy\(\)"
    with pytest.warns(HostChangeWarning, match=words):
        wrapped(*rows(4))
    wrapped.destroy()
    wrapped = trainer(model) if any(p.requires_grad for p in model.parameters()) else None
    if wrapped is not None:
        before = model.fc.weight.clone()
        wrapped(*rows(4))
        assert torch.equal(model.fc.weight, before)


def _evaluator(model):
    wrapped = poptorch.inferenceModel(model, options())
    wrapped(*rows(4))
    return wrapped


@pytest.mark.parametrize("change", [_load, _foreach])
def test_weights_of_an_inference_model_that_are_not_sent(change):
    model = scorer()
    wrapped = _evaluator(model)
    change(model)
    with pytest.warns(HostChangeWarning, match=r"fc.weight, fc.bias .*copyWeightsToDevice\(\)"):
        wrapped(*rows(4))
    change(model)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        wrapped(*rows(4))


def test_one_changed_tensor_of_an_inference_model_is_found_within_as_many_calls():
    model = scorer()
    wrapped = _evaluator(model)
    _copy(model)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(2):
            wrapped(*rows(4))
    (found,) = [each for each in caught if each.category is HostChangeWarning]
    assert "fc.bias of the host" in str(found.message)


# -- what programs do, without a warning -------------------------------------------------------


def _sent(model, wrapped):
    _load(model)
    wrapped.copyWeightsToDevice()


def _loaded_by_the_wrapper(model, wrapped):
    wrapped.load_state_dict(_other_state())


def _read(model, wrapped):
    wrapped.copyWeightsToHost()
    weights(model)
    [param.data.norm() for param in model.parameters()]


def _average(model, wrapped):
    average = copy.deepcopy(model)
    with torch.no_grad():
        for mean, param in zip(average.parameters(), model.parameters(), strict=True):
            mean.mul_(0.9).add_(param, alpha=0.1)
            mean.data.copy_(param.data)


def _written_and_put_back(model, wrapped):
    state = copy.deepcopy(model.state_dict())
    _load(model)
    model.load_state_dict(state)


def _frozen_and_thawed(model, wrapped):
    model.requires_grad_(False)
    model.requires_grad_(True)


def _taken_again(model, wrapped):
    wrapped.detachFromDevice()
    _load(model)


def _zeroed_gradients(model, wrapped):
    sgd(model).zero_grad()
    model.zero_grad(set_to_none=False)


def _new_rate(model, wrapped):
    wrapped.setOptimizer(sgd(model, lr=0.3))


def _evaluated(model, wrapped):
    evaluator = poptorch.inferenceModel(model, options())
    for _ in range(3):
        evaluator(*rows(4))
        wrapped.copyWeightsToHost()
        evaluator(*rows(4))
        wrapped(*rows(4))


def _switched(model, wrapped):
    model.eval()
    model.train()


def _saved(model, wrapped, path):
    torch.save(model.state_dict(), path)
    wrapped.save(path)


@pytest.mark.parametrize(
    "act",
    [
        _sent,
        _loaded_by_the_wrapper,
        _read,
        _average,
        _written_and_put_back,
        _frozen_and_thawed,
        _taken_again,
        _zeroed_gradients,
        _new_rate,
        _evaluated,
        _switched,
    ],
)
def test_ordinary_programs_are_not_warned(act):
    model = scorer()
    wrapped = trainer(model)
    with warnings.catch_warnings():
        warnings.simplefilter("error", HostChangeWarning)
        for _ in range(3):
            wrapped(*rows(4))
            act(model, wrapped)
            wrapped(*rows(4))


def test_saved_and_loaded_models_are_not_warned(tmp_path):
    model = scorer()
    wrapped = trainer(model)
    with warnings.catch_warnings():
        warnings.simplefilter("error", HostChangeWarning)
        wrapped(*rows(4))
        _saved(model, wrapped, tmp_path / "saved")
        wrapped(*rows(4))
        loaded = poptorch.load(tmp_path / "saved")
        for _ in range(2):
            loaded(*rows(4))
            loaded.model.state_dict()


def test_an_inference_model_of_a_trained_module_is_not_warned():
    model = scorer()
    wrapped, evaluator = trainer(model), poptorch.inferenceModel(model, options())
    with warnings.catch_warnings():
        warnings.simplefilter("error", HostChangeWarning)
        for _ in range(3):
            wrapped(*rows(4))
            evaluator(*rows(4))
            _load(model)
            wrapped.copyWeightsToDevice()
            evaluator(*rows(4))
            model.load_state_dict(model.state_dict())
            evaluator(*rows(4))
