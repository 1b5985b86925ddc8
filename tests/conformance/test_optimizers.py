"""Update rules inside a program against torch.optim; formulas of others: tests of poptorch."""

import pytest
import torch

from abele.step.optimizers import PAIRS
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


def trained_eagerly(optimizer_of):
    module = DENSE.fresh()
    return run_eagerly(module, optimizer_of(module.parameters()), DENSE.batches(STEPS))


@pytest.mark.parametrize(("kind", "values", "optimizer"), ALIKE.values(), ids=ALIKE)
def test_a_rule_is_torch_optim_bit_by_bit(kind, values, optimizer):
    output = trained(lambda module: rule_for(module, kind, **values))
    settings = for_torch(optimizer, DEFAULTS[kind] | values)
    assert_same_bits(output, trained_eagerly(lambda params: optimizer(params, **settings)))


def test_loss_scaling_reaches_the_gradients():
    module = DENSE.fresh()
    rule = rule_for(module, momentum=0.0, settings={"loss_scaling_variable": True})
    session, _ = started(module, DENSE.batch(), rule)
    session.set_hyper("loss_scaling", float("inf"))
    run(session, DENSE.batches(1))
    assert session.params["fc2.bias"].isnan().all()


def test_lamb_moves_a_zero_parameter_without_a_trust_ratio():
    module = DENSE.fresh()
    torch.nn.init.zeros_(module.fc2.bias)
    session, _ = started(module, DENSE.batch(), rule_for(module, "lamb"))
    run(session, DENSE.batches(1))
    torch.testing.assert_close(session.params["fc2.bias"].abs(), torch.full((3,), 0.01))
