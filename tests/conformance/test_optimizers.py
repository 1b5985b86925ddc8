"""Update rules inside a program against torch.optim, or against the formula written out."""

import functools

import pytest
import torch

from abele.step.optimizers import PAIRS
from abele.step.update_rules import Group, UpdateRule
from helpers.models import MODELS
from helpers.runs import DEFAULTS, assert_same_bits, rule_for, run, run_eagerly, started

DENSE = MODELS["dense"]
STEPS = 8  # RAdam rectifies from the sixth
ALIKE = {
    "sgd": ("sgd", {"momentum": 0.0}, torch.optim.SGD),
    "sgd with momentum": ("sgd", {}, torch.optim.SGD),
    "sgd with weight decay": ("sgd", {"weight_decay": 0.1}, torch.optim.SGD),
    "sgd with nesterov": ("sgd", {"nesterov": True}, torch.optim.SGD),
    "rmsprop": ("rmsprop", {}, torch.optim.RMSprop),
    "rmsprop with momentum": ("rmsprop", {"momentum": 0.9}, torch.optim.RMSprop),
    "rmsprop, centered": ("rmsprop", {"centered": True, "eps": 1e-3}, torch.optim.RMSprop),
    "rmsprop with weight decay": ("rmsprop", {"weight_decay": 0.1}, torch.optim.RMSprop),
    "adam": ("adam", {}, torch.optim.Adam),
    "adam with other betas": ("adam", {"beta1": 0.5, "beta2": 0.75}, torch.optim.Adam),
    "adam with weight decay": ("adam", {"weight_decay": 0.1}, torch.optim.Adam),
    "adamw": ("adam", {"weight_decay": 0.1, "decoupled": True}, torch.optim.AdamW),
    "adadelta": ("adadelta", {}, torch.optim.Adadelta),
    "adadelta with all": (
        "adadelta",
        {"lr": 0.5, "rho": 0.7, "eps": 1e-3, "weight_decay": 0.1, "maximize": True},
        torch.optim.Adadelta,
    ),
    "adagrad": ("adagrad", {}, torch.optim.Adagrad),
    "adagrad with all": (
        "adagrad",
        {
            "lr_decay": 0.1,
            "eps": 1e-3,
            "weight_decay": 0.1,
            "initial_accumulator_value": 0.3,
            "maximize": True,
        },
        torch.optim.Adagrad,
    ),
    "adamax": ("adamax", {}, torch.optim.Adamax),
    "adamax with all": (
        "adamax",
        {"beta1": 0.5, "beta2": 0.75, "eps": 1e-3, "weight_decay": 0.1, "maximize": True},
        torch.optim.Adamax,
    ),
    "nadam": ("nadam", {}, torch.optim.NAdam),
    "nadam with all": (
        "nadam",
        {"beta1": 0.5, "beta2": 0.75, "eps": 1e-3, "weight_decay": 0.1, "momentum_decay": 0.2},
        torch.optim.NAdam,
    ),
    "nadam, decoupled": (
        "nadam",
        {"weight_decay": 0.1, "decoupled": True, "maximize": True},
        torch.optim.NAdam,
    ),
    "radam": ("radam", {}, torch.optim.RAdam),
    "radam with all": (
        "radam",
        {"beta1": 0.5, "beta2": 0.9, "eps": 1e-3, "weight_decay": 0.1, "maximize": True},
        torch.optim.RAdam,
    ),
    "radam, decoupled": ("radam", {"weight_decay": 0.1, "decoupled": True}, torch.optim.RAdam),
    "radam that never rectifies": ("radam", {"beta2": 0.5}, torch.optim.RAdam),
    "asgd": ("asgd", {}, torch.optim.ASGD),
    "asgd with all": (
        "asgd",
        {"lambd": 0.1, "alpha": 0.5, "t0": 3.0, "weight_decay": 0.1, "maximize": True},
        torch.optim.ASGD,
    ),
    "rprop": ("rprop", {}, torch.optim.Rprop),
    "rprop with all": (
        "rprop",
        {
            "etaminus": 0.3,
            "etaplus": 1.7,
            "step_size_min": 0.006,
            "step_size_max": 0.02,
            "maximize": True,
        },
        torch.optim.Rprop,
    ),
}


def for_torch(optimizer, values):
    """Hyper-parameters under the names torch.optim has for them."""
    renamed = dict(values)
    decoupled = renamed.pop("decoupled", False)
    renamed.pop("tf_variant", None)
    for name, parts in PAIRS.items():
        if parts[0] in renamed:
            renamed[name] = tuple(renamed.pop(part) for part in parts)
    if decoupled and optimizer is not torch.optim.AdamW:
        renamed["decoupled_weight_decay"] = True
    return renamed


def trained(rule_of):
    module = DENSE.fresh()
    session, _ = started(module, DENSE.batch(), rule_of(module))
    return run(session, DENSE.batches(STEPS))


def trained_eagerly(optimizer_of, **parameters):
    module = DENSE.fresh()
    optimizer = optimizer_of(parameters.get("groups", lambda m: m.parameters())(module))
    return run_eagerly(module, optimizer, DENSE.batches(STEPS))


@pytest.mark.parametrize(("kind", "values", "optimizer"), ALIKE.values(), ids=ALIKE)
def test_a_rule_is_torch_optim_bit_by_bit(kind, values, optimizer):
    output = trained(lambda module: rule_for(module, kind, **values))
    settings = for_torch(optimizer, DEFAULTS[kind] | values)
    assert_same_bits(output, trained_eagerly(lambda params: optimizer(params, **settings)))


def test_groups_have_values_of_their_own():
    def rule_of(module):
        names = [name for name, _ in module.named_parameters()]
        slow = DEFAULTS["sgd"] | {"lr": 0.001, "momentum": 0.0}
        groups = (
            Group(params=tuple(names[:2]), values=DEFAULTS["sgd"]),
            Group(params=tuple(names[2:]), values=slow),
        )
        return UpdateRule(kind="sgd", groups=groups)

    def groups(module):
        first, second = list(module.fc1.parameters()), list(module.fc2.parameters())
        return [{"params": first}, {"params": second, "lr": 0.001, "momentum": 0.0}]

    make = functools.partial(torch.optim.SGD, lr=0.05, momentum=0.9)
    assert_same_bits(trained(rule_of), trained_eagerly(make, groups=groups))


def test_a_parameter_of_no_group_stays():
    module = DENSE.fresh()
    group = Group(params=("fc2.weight",), values=DEFAULTS["sgd"])
    session, _ = started(module, DENSE.batch(), UpdateRule(kind="sgd", groups=(group,)))
    run(session, DENSE.batches(2))
    before = dict(module.named_parameters())
    moved = {name for name, v in session.params.items() if not torch.equal(v, before[name])}
    assert moved == {"fc2.weight"}


class ClippingSGD(torch.optim.SGD):
    """SGD after ``clip_grad_norm_``."""

    def step(self):
        torch.nn.utils.clip_grad_norm_(self.param_groups[0]["params"], 0.1)
        super().step()


def test_clipping_is_clip_grad_norm():
    output = trained(lambda module: rule_for(module, settings={"max_grad_norm": 0.1}))
    plain = trained(rule_for)
    assert_same_bits(output, trained_eagerly(lambda p: ClippingSGD(p, lr=0.05, momentum=0.9)))
    assert not torch.equal(output.params["fc1.weight"], plain.params["fc1.weight"])


@pytest.mark.parametrize("variable", [False, True], ids=["constant", "variable"])
def test_loss_scaling_by_a_power_of_two_changes_no_bit(variable):
    settings = {"loss_scaling": 1024.0, "loss_scaling_variable": variable}
    assert_same_bits(trained(lambda m: rule_for(m, settings=settings)), trained(rule_for))


def test_loss_scaling_reaches_the_gradients():
    module = DENSE.fresh()
    rule = rule_for(module, momentum=0.0, settings={"loss_scaling_variable": True})
    session, _ = started(module, DENSE.batch(), rule)
    session.set_hyper("loss_scaling", float("inf"))
    run(session, DENSE.batches(1))
    assert session.params["fc2.bias"].isnan().all()


def gradients(module, batch):
    module.zero_grad()
    module(*batch)[1].backward()
    return {name: p.grad for name, p in module.named_parameters()}


def by_formula(update):
    """Trains by ``update(parameter, gradient, state, step)``, which returns the new value."""
    module = DENSE.fresh()
    states = {name: {} for name, _ in module.named_parameters()}
    for step, batch in enumerate(DENSE.batches(STEPS), start=1):
        grads = gradients(module, batch)
        with torch.no_grad():
            for name, parameter in module.named_parameters():
                parameter.copy_(update(parameter, grads[name], states[name], step))
    return {name: parameter.detach() for name, parameter in module.named_parameters()}


def dampened(parameter, gradient, state, step):
    del step
    state["v"] = 0.9 * state.get("v", 0) + (1 - 0.5) * gradient
    return parameter - 0.05 * state["v"]


def tensorflow_rmsprop(parameter, gradient, state, step):
    del step
    state["s"] = 0.9 * state.get("s", 1) + 0.1 * gradient**2
    return parameter - 0.01 * gradient / torch.sqrt(state["s"] + 1e-8)


def lamb(parameter, gradient, state, step, bias_correction, max_norm):
    state["m"] = 0.9 * state.get("m", 0) + 0.1 * gradient
    state["v"] = 0.999 * state.get("v", 0) + 0.001 * gradient**2
    m, v = state["m"], state["v"]
    if bias_correction:
        m, v = m / (1 - 0.9**step), v / (1 - 0.999**step)
    update = m / (v.sqrt() + 1e-6) + 0.01 * parameter
    return parameter - 0.01 * parameter.norm().clamp(max=max_norm) / update.norm() * update


WRITTEN_OUT = {
    "dampening acts on the first step too": ("sgd", {"dampening": 0.5}, dampened),
    "eps inside the root": ("rmsprop", {"tf_variant": True}, tensorflow_rmsprop),
    "lamb": ("lamb", {}, functools.partial(lamb, bias_correction=True, max_norm=10.0)),
    "lamb without bias correction": (
        "lamb",
        {"bias_correction": False},
        functools.partial(lamb, bias_correction=False, max_norm=10.0),
    ),
    "lamb with a small weight norm": (
        "lamb",
        {"max_weight_norm": 0.5},
        functools.partial(lamb, bias_correction=True, max_norm=0.5),
    ),
}


@pytest.mark.parametrize(("kind", "values", "update"), WRITTEN_OUT.values(), ids=WRITTEN_OUT)
def test_a_rule_is_its_formula(kind, values, update):
    output = trained(lambda module: rule_for(module, kind, **values))
    expected = by_formula(update)
    for name, value in output.params.items():
        torch.testing.assert_close(value, expected[name], rtol=1e-5, atol=1e-7)


def test_lamb_moves_a_zero_parameter_without_a_trust_ratio():
    module = DENSE.fresh()
    torch.nn.init.zeros_(module.fc2.bias)
    session, _ = started(module, DENSE.batch(), rule_for(module, "lamb"))
    run(session, DENSE.batches(1))
    torch.testing.assert_close(session.params["fc2.bias"].abs(), torch.full((3,), 0.01))


def test_lamb_with_a_weight_norm_of_zero_moves_nothing():
    module = DENSE.fresh()
    rule = rule_for(module, "lamb", max_weight_norm=0.0)
    session, _ = started(module, DENSE.batch(), rule)
    before = {name: value.clone() for name, value in session.params.items()}
    run(session, DENSE.batches(2))
    for name, value in session.params.items():
        torch.testing.assert_close(value, before[name], rtol=0, atol=0)
