"""Update rules: the same bits whether a hyper-parameter is a constant or a slot."""

import math

import pytest
import torch

from abele.step import update_rules
from abele.step.update_rules import RULES, Group, UpdateRule, clip_by_global_norm
from helpers.models import MODELS
from helpers.runs import DEFAULTS, assert_same_bits, rule_for, run, started

DENSE = MODELS["dense"]
SWITCHES = {"nesterov", "centered", "tf_variant", "decoupled", "bias_correction"}
VARIANTS = [
    ("sgd", {}),
    ("sgd", {"momentum": 0.0}),
    ("sgd", {"nesterov": True, "weight_decay": 0.1, "dampening": 0.25}),
    ("rmsprop", {}),
    ("rmsprop", {"centered": True, "momentum": 0.9, "weight_decay": 0.1}),
    ("rmsprop", {"tf_variant": True}),
    ("adam", {}),
    ("adam", {"weight_decay": 0.1}),
    ("adam", {"weight_decay": 0.1, "decoupled": True}),
    ("lamb", {}),
    ("lamb", {"bias_correction": False, "max_weight_norm": 0.5}),
    ("adadelta", {"weight_decay": 0.1}),
    ("adagrad", {"weight_decay": 0.1, "lr_decay": 0.1, "initial_accumulator_value": 0.2}),
    ("adamax", {"weight_decay": 0.1}),
    ("nadam", {"weight_decay": 0.1}),
    ("nadam", {"weight_decay": 0.1, "decoupled": True}),
    ("radam", {"weight_decay": 0.1, "beta2": 0.9}),
    ("radam", {"beta2": 0.5}),
    ("asgd", {"weight_decay": 0.1, "lambd": 0.1, "t0": 2.0}),
    ("rprop", {"step_size_max": 0.02}),
]
IDS = [f"{kind} {' '.join(values)}".strip() for kind, values in VARIANTS]


def trained(kind, values, variable=()):
    module = DENSE.fresh()
    rule = rule_for(module, kind, variable=variable, **values)
    session, _ = started(module, DENSE.batch(), rule)
    return run(session, DENSE.batches(5))


def test_every_rule_is_varied():
    assert {kind for kind, _ in VARIANTS} == RULES.keys() == DEFAULTS.keys()


@pytest.mark.parametrize(("kind", "values"), VARIANTS, ids=IDS)
def test_constants_and_slots_give_the_same_bits(kind, values):
    present = DEFAULTS[kind] | values
    # A zero constant leaves its operations out; a zero in a slot may only change a zero's sign.
    variable = [name for name, value in present.items() if name not in SWITCHES and value != 0]
    assert_same_bits(trained(kind, values, variable), trained(kind, values))


@pytest.mark.parametrize("kind", sorted(RULES.keys() - {"lamb", "rprop"}))
def test_a_decay_of_zero_in_a_slot_changes_no_value(kind):
    assert_same_bits(trained(kind, {}, ["weight_decay"]), trained(kind, {}))


@pytest.mark.parametrize("kind", RULES)
def test_slots_are_named_by_group_in_order(kind):
    groups = (
        Group(params=("a",), values={"lr": 1, "eps": 2}, variable=frozenset({"lr", "eps"})),
        Group(params=("b",), values={"lr": 3}),
        Group(params=("c",), values={"lr": 4}, variable=frozenset({"lr"})),
    )
    rule = UpdateRule(kind=kind, groups=groups, loss_scaling=8, loss_scaling_variable=True)
    assert list(rule.hyper().items()) == [
        ("group0.eps", 2.0),
        ("group0.lr", 1.0),
        ("group2.lr", 4.0),
        ("loss_scaling", 8.0),
    ]


@pytest.mark.parametrize(
    ("kind", "values", "names"),
    [
        ("sgd", {}, ["momentum_buffer"]),
        ("sgd", {"momentum": 0.0}, []),
        ("rmsprop", {}, ["step", "square_avg"]),
        (
            "rmsprop",
            {"momentum": 0.9, "centered": True},
            ["step", "square_avg", "momentum_buffer", "grad_avg"],
        ),
        ("adam", {}, ["step", "exp_avg", "exp_avg_sq"]),
        ("lamb", {}, ["step", "exp_avg", "exp_avg_sq"]),
        ("adadelta", {}, ["step", "square_avg", "acc_delta"]),
        ("adagrad", {}, ["step", "sum"]),
        ("adamax", {}, ["step", "exp_avg", "exp_inf"]),
        ("nadam", {}, ["step", "exp_avg", "exp_avg_sq", "mu_product"]),
        ("radam", {}, ["step", "exp_avg", "exp_avg_sq"]),
        ("asgd", {}, ["step", "eta", "mu", "ax"]),
        ("rprop", {}, ["step", "prev", "step_size"]),
    ],
)
def test_the_state_of_a_parameter(kind, values, names):
    rule = UpdateRule(kind=kind, groups=(Group(params=("w",), values=DEFAULTS[kind] | values),))
    state = rule.initial_state({"w": torch.ones(2)})
    assert list(state) == [f"w.{name}" for name in names]


def test_state_may_have_another_type():
    rule = rule_for(DENSE.fresh(), "adam", settings={"state_dtypes": {"exp_avg": torch.float16}})
    state = rule.initial_state(dict(DENSE.fresh().named_parameters()))
    kinds = {name: state[f"fc1.weight.{name}"].dtype for name in ("step", "exp_avg", "exp_avg_sq")}
    assert kinds == {
        "step": torch.float64, "exp_avg": torch.float16, "exp_avg_sq": torch.float32,
    }  # fmt: skip


@pytest.mark.parametrize("norm", [0.5, 5.0, 500.0], ids=["small", "near", "larger than any"])
def test_clipping_is_clip_grad_norm(norm):
    grads = [torch.full((4,), 2.0), torch.full((2, 3), -1.0)]
    parameters = [torch.nn.Parameter(torch.zeros_like(grad)) for grad in grads]
    for parameter, grad in zip(parameters, grads, strict=True):
        parameter.grad = grad.clone()
    torch.nn.utils.clip_grad_norm_(parameters, norm)
    expected = [parameter.grad for parameter in parameters]
    torch.testing.assert_close(clip_by_global_norm(grads, norm), expected, rtol=0, atol=0)


@pytest.mark.parametrize("norm", [0.1, math.inf])
def test_no_gradients_are_no_error(norm):
    rule = UpdateRule(kind="sgd", groups=(), max_grad_norm=norm)
    update_rules.apply(rule, {}, {}, {}, {})
    assert rule.initial_state({}) == {}


def test_the_norm_of_groups_is_added_up_in_the_order_of_the_model():
    torch.manual_seed(7)
    params = {f"p{number}": torch.zeros(5) for number in range(40)}
    grads = {name: torch.randn(5) for name in params}
    clipped = dict(zip(params, clip_by_global_norm([*grads.values()], 0.1), strict=True))
    values = {"lr": 1.0, "momentum": 0.0, "dampening": 0.0, "weight_decay": 0.0}
    groups = tuple(Group(params=(name,), values=values) for name in reversed(params))
    rule = UpdateRule(kind="sgd", groups=groups, max_grad_norm=0.1)
    update_rules.apply(rule, params, grads, {name: {} for name in params}, {})
    assert not torch.equal(clip_by_global_norm([*grads.values()][::-1], 0.1)[-1], clipped["p0"])
    assert all(torch.equal(params[name], -clipped[name]) for name in params)
