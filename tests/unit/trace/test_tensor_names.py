"""Tensors have stable, unique names, and the wanted ones come out of the programs."""

import pytest
import torch

from abele.capture import capture
from abele.errors import CaptureError
from abele.program import Role
from abele.step.config import StepConfig
from abele.trace.tensor_names import state_name
from helpers.models import MODELS, Dense
from helpers.runs import captured, flat, rule_for

TRAINED = [name for name in MODELS if name != "affine"]


def anchored(module, batch, anchors, config=None, rule=None, **kwargs):
    config = config or StepConfig(training=rule is not None)
    return capture(
        lambda inputs: flat(module(*inputs)), module, batch, config, rule, anchors=anchors, **kwargs
    )


def names_of(name, **config):
    model = MODELS[name].fresh()
    batch = MODELS[name].data(4, torch.Generator().manual_seed(0))
    return captured(model, batch, StepConfig(**config), rule_for(model)).tensor_names


@pytest.mark.parametrize("name", TRAINED)
@pytest.mark.parametrize("accumulation", [1, 2])
def test_names_are_unique_and_the_same_in_every_capture(name, accumulation):
    names = names_of(name, gradient_accumulation=accumulation)
    assert len(names) == len(set(names))
    assert names == names_of(name, gradient_accumulation=accumulation)


def test_the_names_of_a_dense_model():
    names = names_of("dense", gradient_accumulation=2)
    of_weights = ("", "Gradient___", "Accum___", "UpdatedVar___", "Accl1___")
    assert {f"{prefix}fc1.weight" for prefix in of_weights} <= set(names)
    assert {"input0", "output1", "fc1/Gemm:0", "Tanh:0", "fc2/Gemm:0", "MseLoss:0"} <= set(names)
    assert not [name for name in names_of("dense") if name.startswith("Accum")]


def test_frozen_parameters_have_no_gradient():
    names = names_of("frozen parameters")
    assert "fc1.weight" in names
    assert "Gradient___fc1.weight" not in names
    assert "Gradient___fc2.weight" in names


def test_written_buffers_have_an_updated_value():
    assert "UpdatedVar___norm.running_mean" in names_of("batch norm and dropout")


def test_without_module_names_operations_are_counted():
    model, batch = Dense(), [torch.randn(2, 6), torch.randn(2, 3)]
    names = anchored(model, batch, (), rule=rule_for(model), name_modules=False).tensor_names
    assert {"Gemm:0", "Gemm:0/1"} <= set(names)
    assert not [name for name in names if name.startswith("fc1/")]


def test_a_parameter_called_like_an_input_keeps_its_name():
    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.input0 = torch.nn.Parameter(torch.ones(3))

        def forward(self, x):
            return x * self.input0

    names = captured(Model(), [torch.ones(2, 3)]).tensor_names
    assert names == ("input0", "input0/1", "Mul:0", "output0")


@pytest.mark.parametrize(
    ("kind", "settings", "expected"),
    [
        ("sgd", {}, {"Accl1"}),
        ("adam", {}, {"Accl1", "Accl2", "Step"}),
        ("rmsprop", {"momentum": 0.9, "centered": True}, {"Accl1", "Accl2", "Accl3", "Step"}),
        ("adadelta", {}, {"Accl1", "Accl2", "Step"}),
        ("adagrad", {}, {"Accl1", "Step"}),
        ("adamax", {}, {"Accl1", "Accl2", "Step"}),
        ("nadam", {}, {"Accl1", "Accl2", "Step", "mu_product"}),
        ("asgd", {}, {"Accl1", "Step", "eta", "mu"}),
        ("rprop", {}, {"Accl1", "Accl2", "Step"}),
    ],
)
def test_optimizer_state_has_the_names_that_programs_know(kind, settings, expected):
    model, batch = Dense(), [torch.randn(2, 6), torch.randn(2, 3)]
    names = captured(model, batch, rule=rule_for(model, kind, **settings)).tensor_names
    results = {name.partition("___")[0] for name in names if name.endswith("___fc1.bias")}
    assert results == expected | {"Gradient", "UpdatedVar"}


def test_unknown_state_keeps_its_own_word():
    assert state_name("fc.weight.velocity", set()) == "velocity___fc.weight"


def test_anchors_are_returned_behind_the_outputs_and_change_the_fingerprint():
    model, batch = Dense(), [torch.randn(2, 6), torch.randn(2, 3)]
    rule = rule_for(model)
    plain = captured(model, batch, rule=rule).programs[0]
    watched = anchored(model, batch, ["Gradient___fc1.bias", "fc1.weight"], rule=rule).programs[0]
    assert [(slot.name, slot.role) for slot in watched.outputs] == [
        ("output0", Role.OUTPUT),
        ("output1", Role.OUTPUT),
        ("Gradient___fc1.bias", Role.ANCHOR),
        ("fc1.weight", Role.ANCHOR),
    ]
    assert watched.outputs[2].shape == (8,)
    assert all(slot.role is Role.OUTPUT for slot in plain.outputs)
    assert plain.fingerprint() != watched.fingerprint()


def test_a_name_that_does_not_exist_is_refused_with_near_ones():
    model, batch = Dense(), [torch.randn(2, 6), torch.randn(2, 3)]
    with pytest.raises(CaptureError, match=r"named 'Gradient___fc1.weigth'.*Gradient___fc1.weight"):
        anchored(model, batch, ["Gradient___fc1.weigth"], rule=rule_for(model))
    with pytest.raises(CaptureError, match=r"'zzz'. None is like it. All .* names"):
        anchored(model, batch, ["zzz"], rule=rule_for(model))
