"""Hooks on gradients are part of the program, or are refused with their place."""

import pytest
import torch
from torch.nn.modules.module import register_module_full_backward_hook
from torch.optim.optimizer import register_optimizer_step_pre_hook

import poptorch
from helpers.wrapping import options, plain_steps, rows, running, scorer, sgd, trainer, weights
from poptorch import optim

# Torch warns where the input of a module with such a hook needs no gradient.
pytestmark = pytest.mark.filterwarnings("ignore:Full backward hook is firing")


def clip(gradient):
    return gradient.clamp(-0.05, 0.05)


def double(gradient):
    gradient.mul_(2)


def on_parameter(hook):
    return lambda model: model.fc.weight.register_hook(hook)


CAPTURED = {
    "a function": on_parameter(clip),
    "in place, returning nothing": on_parameter(double),
    "two": lambda model: (model.fc.weight.register_hook(clip), on_parameter(double)(model)),
    "before the backward of a child": lambda model: model.fc.register_full_backward_pre_hook(
        lambda module, grads: (grads[0] * 3,)
    ),
}


def sum_of_gradients(made):
    made.Training.accumulationAndReplicationReductionType(poptorch.ReductionType.Sum)
    return made


@pytest.mark.parametrize("accumulation", [1, 2])
@pytest.mark.parametrize("register", CAPTURED.values(), ids=CAPTURED)
def test_a_hook_is_applied_at_every_backward(register, accumulation):
    model, plain = scorer(), scorer()
    for each in (model, plain):
        register(each)
    made = sum_of_gradients(options(gradientAccumulation=accumulation))
    wrapped = poptorch.trainingModel(model, made, sgd(model))
    calls = []
    for seed in range(2):
        micro = [rows(4, seed=10 * seed + i) for i in range(accumulation)]
        wrapped(*map(torch.cat, zip(*micro, strict=True)))
        calls.append(micro)
    plain_steps(plain, sgd(plain), calls, sum_gradients=True)
    assert torch.equal(weights(model), weights(plain))
    without = scorer()
    plain_steps(without, sgd(without), calls, sum_gradients=True)
    assert not torch.equal(weights(model), weights(without))


@pytest.mark.parametrize("marked", [True, False], ids=["variable", "constant"])
def test_a_hook_sees_the_gradient_without_the_loss_scale(marked):
    def trained(**settings):
        model = scorer()
        model.fc.weight.register_hook(clip)
        optimizer = optim.SGD(model.parameters(), lr=0.1, **settings)
        if not marked:
            optimizer.variable_attrs.markAsConstant("loss_scaling")
        trainer(model, optimizer)(*rows(4))
        return weights(model)

    assert torch.equal(trained(loss_scaling=1024.0), trained())


def test_inference_needs_no_gradient_and_refuses_no_hook():
    model = scorer()
    model.fc.weight.register_post_accumulate_grad_hook(print)
    model.register_full_backward_hook(print)
    poptorch.inferenceModel(model, options())(*rows(4))


def test_a_removed_hook_is_gone():
    model, plain = scorer(), scorer()
    model.fc.weight.register_hook(clip).remove()
    trainer(model)(*rows(4))
    plain_steps(plain, sgd(plain), [[rows(4)]])
    assert torch.equal(weights(model), weights(plain))


def test_a_captured_model_keeps_its_hooks_for_the_host():
    model, plain = scorer(), scorer()
    for each in (model, plain):
        each.fc.register_full_backward_pre_hook(lambda module, grads: (grads[0] * 3,))
        each.fc.weight.register_hook(clip)
    wrapped = trainer(model)
    wrapped(*rows(4, seed=1))
    wrapped.destroy()
    plain_steps(plain, sgd(plain), [[rows(4, seed=1)], [rows(4, seed=2)]])
    plain_steps(model, sgd(model), [[rows(4, seed=2)]])
    assert torch.equal(weights(model), weights(plain))


def look(*_):
    """A hook that returns nothing."""


REFUSED = {
    "a look at a gradient": (on_parameter(look), "on parameter fc.weight returns nothing"),
    "a parameter's accumulated gradient": (
        lambda model: model.fc.bias.register_post_accumulate_grad_hook(look),
        "waits for the gradient of parameter fc.bias to be accumulated",
    ),
    "a look at the backward of a child": (
        lambda model: model.fc.register_full_backward_hook(look),
        "on the backward of module fc returns nothing",
    ),
    "the backward of the model": (
        lambda model: model.register_full_backward_hook(look),
        "waits for the backward of the whole model",
    ),
}


@pytest.mark.parametrize(("register", "words"), REFUSED.values(), ids=REFUSED)
def test_a_hook_that_no_program_can_run_is_refused_with_its_line(register, words):
    model = scorer()
    register(model)
    line = look.__code__.co_firstlineno
    with pytest.raises(
        poptorch.Error, match=rf"Hook look .*test_gradient_hooks\.py:{line}\) {words}"
    ):
        trainer(model)(*rows(4))


def test_hooks_on_every_backward_are_refused():
    handle = register_module_full_backward_hook(look)
    try:
        with pytest.raises(poptorch.Error, match="waits for the backward of every module"):
            trainer(scorer())(*rows(4))
    finally:
        handle.remove()


@pytest.mark.parametrize("name", ["register_step_pre_hook", "register_step_post_hook"])
@pytest.mark.parametrize("package", [torch.optim, optim], ids=["torch", "poptorch"])
@pytest.mark.parametrize("when", ["wrapping", "first call", "setOptimizer"])
def test_hooks_around_steps_are_refused(name, package, when):
    model = scorer()
    optimizer = package.Adam(model.parameters(), lr=0.1)
    wrapped = None if when == "wrapping" else trainer(model, optimizer)
    if when == "setOptimizer":
        wrapped(*rows(4))
    getattr(optimizer, name)(look)
    act = {
        "wrapping": lambda: trainer(model, optimizer),
        "first call": lambda: wrapped(*rows(4)),
        "setOptimizer": lambda: wrapped.setOptimizer(optimizer),
    }[when]
    with pytest.raises(poptorch.Error, match=r"Hook look .*waits for a step of optimizer Adam"):
        act()


def test_hooks_around_all_steps_are_refused():
    handle = register_optimizer_step_pre_hook(look)
    try:
        with pytest.raises(poptorch.Error, match="waits for a step of optimizer SGD"):
            trainer(scorer())
    finally:
        handle.remove()


@pytest.mark.parametrize("name", ["register_hook", "register_post_accumulate_grad_hook"])
def test_a_hook_after_compiling_comes_too_late(name):
    wrapped, model, _ = running(sgd)
    with pytest.raises(poptorch.Error, match=r"Hook look .* comes too late"):
        getattr(model.fc.weight, name)(look)
    wrapped.destroy()
    getattr(model.fc.weight, name)(look)
