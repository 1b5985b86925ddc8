"""Every argument of every optimizer's constructor does what it says, or is refused.

The tables here and in ``abele.step.optimizers`` are checked against the constructors, so
an argument that torch gains fails until somebody decides what becomes of it.
"""

import inspect

import pytest
import torch

import poptorch
from abele.step.optimizers import KINDS, REFUSED_ARGUMENTS
from helpers.wrapping import Calls, rows, scorer, trainer, weights
from poptorch import optim
from poptorch._optim.reading import host_step, to_update_rule

# Optimizer arguments that are part of the computation.
COMPUTED_WITH = frozenset(
    (
        *("params", "lr", "momentum", "dampening", "weight_decay", "nesterov", "maximize", "betas"),
        *("eps", "alpha", "centered", "decoupled_weight_decay", "rho", "lr_decay"),
        *("momentum_decay", "initial_accumulator_value", "lambd", "t0", "etas", "step_sizes"),
    )
)
# Optimizer arguments that choose torch's kernels; a program's kernels are the target's choice.
NEUTRAL = frozenset(("foreach", "fused", "capturable"))
ARGUMENTS = COMPUTED_WITH | NEUTRAL | set(REFUSED_ARGUMENTS)
NAMES = ("SGD", "Adam", "AdamW", "RMSprop")
TORCHS = tuple(kind.base.__name__ for kind in KINDS)  # more than poptorch.optim has
# Arguments of poptorch.optim that torch does not have, and where they are tested.
EXTRAS = {
    "loss_scaling": "test_optimizer.py",
    "velocity_scaling": "test_optimizer_checks.py",
    "use_combined_accum": "test_optimizer_checks.py",
    "accum_type": "test_precision_options.py",
    "velocity_accum_type": "test_precision_options.py",
    "first_order_momentum_accum_type": "test_precision_options.py",
    "second_order_momentum_accum_type": "test_precision_options.py",
    "max_grad_norm": "test_optimizer.py",
    "max_weight_norm": "test_idioms.py",
    "bias_correction": "test_optimizer_arguments.py",
    "use_tf_variant": "test_optimizer.py",
}
# A value that makes a difference, and what else it takes to make one.
OTHER = {
    "lr": (0.3, {}),
    "momentum": (0.5, {}),
    "weight_decay": (0.2, {}),
    "nesterov": (True, {"momentum": 0.9}),
    "maximize": (True, {"weight_decay": 0.1}),
    "betas": ((0.5, 0.75), {}),
    "eps": (0.1, {}),
    "alpha": (0.5, {}),
    "centered": (True, {"eps": 0.1}),
    "decoupled_weight_decay": (True, {"weight_decay": 0.3}),
    "rho": (0.5, {}),
    "lr_decay": (0.3, {}),
    "initial_accumulator_value": (0.5, {}),
    "momentum_decay": (0.3, {}),
    "lambd": (0.3, {}),
    "t0": (1.0, {}),
    "etas": ((0.3, 1.5), {}),
    "step_sizes": ((0.06, 0.2), {}),
    "foreach": (True, {}),
    "fused": (True, {}),
    "capturable": (True, {}),
    "amsgrad": (True, {}),
    "differentiable": (True, {}),
}
# What it takes instead with one class.
INSTEAD = {("ASGD", "alpha"): {"lambd": 0.3}, ("Rprop", "maximize"): {}}


def arguments(cls):
    return [name for name in inspect.signature(cls.__init__).parameters if name != "self"]


def cases(treated):
    """Package, class, argument, value and other settings of arguments."""
    return [
        pytest.param(
            package,
            name,
            {argument: OTHER[argument][0]},
            INSTEAD.get((name, argument), OTHER[argument][1]),
            id=f"{package.__name__}.{name}-{argument}",
        )
        for package, names in ((torch.optim, TORCHS), (optim, NAMES))
        for name in names
        for argument in arguments(getattr(package, name))
        if argument in OTHER and argument in treated
    ]


def trained(make, step):
    """Weights of a scorer after steps on the host; RAdam reads eps from the sixth."""
    model = scorer()
    optimizer = make(list(model.parameters()))
    for seed in range(7):
        optimizer.zero_grad()
        model(*rows(4, seed=seed))[0].backward()
        step(optimizer)
    return weights(model)


def by_rule(make):
    """Trained by the update rule that a program would contain."""
    return trained(make, torch.no_grad()(host_step))


def plainly(make):
    return trained(make, lambda optimizer: optimizer.step())


def rule(make):
    model = scorer()
    names = {id(value): name for name, value in model.named_parameters()}
    return to_update_rule(make(list(model.parameters())), names)


@pytest.mark.parametrize("name", TORCHS)
def test_every_argument_of_torch_has_a_row(name):
    names = set(arguments(getattr(torch.optim, name)))
    assert names <= ARGUMENTS, "decide what becomes of it in abele.step.optimizers"
    assert name not in NAMES or names <= set(arguments(getattr(optim, name)))


@pytest.mark.parametrize("name", [*NAMES, "LAMB"])
def test_every_argument_of_ours_has_a_row(name):
    assert set(arguments(getattr(optim, name))) <= ARGUMENTS | set(EXTRAS)


def test_every_row_is_an_argument_and_is_tried():
    names = {each for name in TORCHS for each in arguments(getattr(torch.optim, name))}
    assert names == ARGUMENTS
    assert ARGUMENTS - set(OTHER) == {"params", "dampening"}  # dampening: test_optimizer.py


def wrapped_with(make):
    model = scorer()
    return trainer(model, make(model.parameters()))


def maker(package, name, *, grouped, **settings):
    """Makes an optimizer with settings for all parameters, or for the first alone."""

    def make(parameters):
        first, second = parameters
        own, common = (settings, {}) if grouped else ({}, settings)
        groups = [{"params": [first], **own}, {"params": [second]}]
        return getattr(package, name)(groups, **{"lr": 0.1} | common)

    return make


@pytest.mark.parametrize("grouped", [False, True], ids=["for all", "per group"])
@pytest.mark.parametrize(("package", "name", "values", "others"), cases(COMPUTED_WITH))
def test_an_argument_is_honoured(package, name, values, others, grouped):
    if grouped and "centered" in values:
        pytest.skip("all groups have to have the same one")
    if grouped and "initial_accumulator_value" in values:
        pytest.skip("torch reads the optimizer's alone")
    if "t0" in values:
        pytest.skip("it is of the mean alone, which test_host_optimizer_state.py compares")
    actual = by_rule(maker(package, name, grouped=grouped, **others | values))
    expected = plainly(maker(torch.optim, name, grouped=grouped, **others | values))
    assert torch.equal(actual, expected)
    assert not torch.equal(actual, by_rule(maker(package, name, grouped=grouped, **others)))


@pytest.mark.parametrize(("package", "name", "values", "others"), cases(NEUTRAL))
def test_an_argument_changes_speed_alone(package, name, values, others):
    wanted = maker(package, name, grouped=False, **others | values)
    assert rule(wanted) == rule(maker(package, name, grouped=False, **others))


@pytest.mark.parametrize(("package", "name", "values", "others"), cases(REFUSED_ARGUMENTS))
def test_an_argument_is_refused(package, name, values, others):
    kind = ValueError if "amsgrad" in values else poptorch.Error
    words = "non-amsgrad" if "amsgrad" in values else "Group 0 of the optimizer has differentiable"
    with pytest.raises(kind, match=words):
        wrapped_with(maker(package, name, grouped=False, **others | values))


@pytest.mark.parametrize("name", NAMES)
def test_on_the_host_switches_are_torchs(name):
    switches = {"grouped": False, "maximize": True, "foreach": True}
    assert torch.equal(
        plainly(maker(optim, name, **switches)), plainly(maker(torch.optim, name, **switches))
    )


def test_moments_stay_as_they_are_without_bias_correction():
    def moved(correction):
        model = Calls(lambda self, x: poptorch.identity_loss(x * self.weight, "sum"))
        settings = {"lr": 0.1, "weight_decay": 0.0, "bias_correction": correction}
        trainer(model, optim.AdamW(model.parameters(), **settings))(torch.ones(2))
        return 2.0 - model.weight.item()

    # The gradient is 2: lr * m / sqrt(v) with m = 0.1 * 2 and v = 0.001 * 2 * 2.
    assert moved(correction=True) == pytest.approx(0.1)
    assert moved(correction=False) == pytest.approx(0.1 * 0.2 / 0.004**0.5, rel=1e-5)
