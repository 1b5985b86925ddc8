"""Behaviours that the original's own tests pin: optimizers, names, errors, own types.

Each runs through the public interface only.
"""

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - torch's own convention
from torch import nn

import poptorch
from helpers.wrapping import (
    Calls,
    inference,
    options,
    rows,
    scorer,
    sgd,
    trainer,
    trains_like_eager,
    weights,
)
from poptorch import optim

# --- optimizers


def trained(model, optimizer, seeds=range(4)):
    wrapped = trainer(model, optimizer)
    for seed in seeds:
        wrapped(*rows(4, seed))
    return weights(model)


def trained_on_the_host(model, optimizer, max_norm=None, seeds=range(4)):
    for seed in seeds:
        optimizer.zero_grad()
        model(*rows(4, seed))[0].backward()
        if max_norm is not None:
            nn.utils.clip_grad_norm_(model.parameters(), max_norm)
        optimizer.step()
    return weights(model)


class ByFormula(torch.optim.Optimizer):
    """Moves each parameter by a function of its value, gradient, state and the step."""

    def __init__(self, params, update):
        super().__init__(params, {})
        self.update = update

    @torch.no_grad()
    def step(self, closure=None):
        for parameter in self.param_groups[0]["params"]:
            state = self.state[parameter]
            state["step"] = state.get("step", 0) + 1
            parameter -= self.update(parameter, parameter.grad, state)


def tensorflows_rmsprop(centered):
    def update(weight, gradient, state):
        state["square"] = 0.9 * state.get("square", torch.ones_like(weight)) + 0.1 * gradient**2
        state["mean"] = 0.9 * state.get("mean", 0) + 0.1 * gradient
        variance = state["square"] - (state["mean"] ** 2 if centered else 0)
        return 0.01 * gradient / (variance + 1e-3).sqrt()

    return update


@pytest.mark.parametrize("centered", [False, True])
def test_rmsprop_of_tensorflow_has_eps_inside_the_root_and_starts_at_one(centered):
    settings = {"lr": 0.01, "alpha": 0.9, "eps": 1e-3, "centered": centered}
    model, plain, other = scorer(), scorer(), scorer()
    optimizer = optim.RMSprop(model.parameters(), use_tf_variant=True, **settings)
    formula = ByFormula(plain.parameters(), tensorflows_rmsprop(centered))
    output = trained(model, optimizer)
    torch.testing.assert_close(output, trained_on_the_host(plain, formula))
    default = optim.RMSprop(other.parameters(), **settings)
    assert not torch.allclose(output, trained(other, default), atol=1e-4)


def lamb(bias_correction, max_norm=65500.0):
    def update(weight, gradient, state):
        state["m"] = 0.9 * state.get("m", 0) + 0.1 * gradient
        state["v"] = 0.999 * state.get("v", 0) + 0.001 * gradient**2
        m, v = state["m"], state["v"]
        if bias_correction:
            m, v = m / (1 - 0.9 ** state["step"]), v / (1 - 0.999 ** state["step"])
        moved = m / (v.sqrt() + 1e-8) + 0.1 * weight
        return 0.01 * moved * weight.norm().clamp(max=max_norm) / moved.norm()

    return update


@pytest.mark.parametrize("max_norm", [65500.0, 0.5])
@pytest.mark.parametrize("bias_correction", [True, False])
def test_lamb_is_its_formula_on_the_device_and_on_the_host(bias_correction, max_norm):
    settings = {"lr": 0.01, "weight_decay": 0.1, "bias_correction": bias_correction}
    models = [scorer() for _ in range(3)]
    made = [
        optim.LAMB(model.parameters(), max_weight_norm=max_norm, **settings) for model in models[:2]
    ]
    formula = ByFormula(models[2].parameters(), lamb(bias_correction, max_norm))
    expected = trained_on_the_host(models[2], formula)
    torch.testing.assert_close(trained(models[0], made[0]), expected)
    torch.testing.assert_close(trained_on_the_host(models[1], made[1]), expected)


def test_lamb_s_largest_weight_norm_can_be_set_as_an_attribute():
    model, limited = scorer(), scorer()
    optimizer = optim.LAMB(model.parameters(), lr=0.01, max_weight_norm=0.0)
    wrapped = trainer(model, optimizer)
    wrapped(*rows(4))
    assert optimizer.max_weight_norm == 0.0
    assert torch.equal(weights(model), weights(limited))
    optimizer.max_weight_norm = 0.5
    wrapped.setOptimizer(optimizer)
    wrapped(*rows(4))
    # The moments of the first call count.
    beside = optim.LAMB(limited.parameters(), lr=0.0, max_weight_norm=0.5)
    wrapped_beside = trainer(limited, beside)
    wrapped_beside(*rows(4))
    beside.param_groups[0]["lr"] = 0.01
    wrapped_beside.setOptimizer(beside)
    wrapped_beside(*rows(4))
    assert not torch.equal(weights(model), weights(scorer()))
    torch.testing.assert_close(weights(model), weights(limited))


MAKERS = {
    "torch SGD": torch.optim.SGD,
    "SGD": optim.SGD,
    "AdamW": optim.AdamW,
    "RMSprop": optim.RMSprop,
    "LAMB": optim.LAMB,
}


@pytest.mark.parametrize("name", MAKERS)
def test_a_group_with_a_rate_of_zero_is_frozen(name):
    model = scorer()
    groups = [{"params": [model.fc.weight], "lr": 0.0}, {"params": [model.fc.bias], "lr": 0.1}]
    optimizer = MAKERS[name](groups, lr=0.5)
    wrapped = trainer(model, optimizer)
    before = scorer().fc
    wrapped(*rows(4))
    assert torch.equal(model.fc.weight, before.weight)
    bias = model.fc.bias.detach().clone()
    assert not torch.equal(bias, before.bias)
    optimizer.param_groups[0]["lr"], optimizer.param_groups[1]["lr"] = 0.1, 0.0
    wrapped.setOptimizer(optimizer)
    wrapped(*rows(4))
    assert torch.equal(model.fc.bias, bias)
    assert not torch.equal(model.fc.weight, before.weight)


# --- names, errors, own types


@pytest.mark.parametrize("enabled", [True, False])
def test_names_of_modules_are_in_names_of_tensors_unless_disabled(enabled):
    inner = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
    model = nn.Sequential(inner, nn.Linear(2, 2))
    opts = options() if enabled else options().disableModuleNamescope()
    wrapped = poptorch.inferenceModel(model, opts)
    wrapped.compile(torch.ones(1, 2))
    names = wrapped.getTensorNames()
    scopes = {name.split("/Gemm")[0] for name in names if "/Gemm" in name}
    assert scopes == ({"0/0", "1"} if enabled else set())
    assert any(name.startswith("0/1/Relu") for name in names) is enabled
    assert {"0.0.weight", "1.bias"} <= set(names)  # of parameters: always those of state_dict()


class Graph:
    """A batch of whatever attributes it is given, as graph libraries have it."""

    def __init__(self, **attributes):
        self.__dict__.update(attributes)


class GraphParser(poptorch.ICustomArgParser):
    def yieldTensors(self, struct):
        for name in sorted(vars(struct)):
            if isinstance(getattr(struct, name), torch.Tensor):
                yield getattr(struct, name)

    def reconstruct(self, original_structure, tensor_iterator):
        made = Graph(**vars(original_structure))
        for name in sorted(vars(made)):
            if isinstance(getattr(made, name), torch.Tensor):
                setattr(made, name, next(tensor_iterator))
        return made


@pytest.fixture
def graphs():
    poptorch.registerCustomArgParser(Graph, GraphParser())
    yield
    poptorch.registerCustomArgParser(Graph, None)


@pytest.mark.usefixtures("graphs")
def test_own_types_with_dynamic_attributes_go_in_and_come_out():
    def forward(graph, factor):
        changed = Graph(**{name: value * factor for name, value in vars(graph).items()})
        changed.more = graph.x + graph.edges
        return changed, [graph]

    wrapped = inference(forward, deviceIterations=2)
    for shift in (0.0, 5.0):
        x, edges = torch.arange(4.0) + shift, torch.ones(4)
        changed, (same,) = wrapped(Graph(x=x, edges=edges), 2)
        assert type(changed) is type(same) is Graph
        assert set(vars(changed)) == {"x", "edges", "more"}
        assert torch.equal(changed.x, 2 * x)
        assert torch.equal(changed.more, x + edges)
        assert torch.equal(same.x, x)
    with pytest.raises(poptorch.Error, match="mismatch"):
        wrapped(Graph(x=torch.ones(6), edges=torch.ones(6)), 2)


@pytest.mark.usefixtures("graphs")
def test_own_types_train():
    model = Calls(lambda self, graph: F.mse_loss(graph.x * self.weight, graph.y))
    wrapped = trainer(model, sgd(model, 0.25))
    wrapped(Graph(x=torch.ones(2), y=torch.zeros(2), name="two"))
    assert model.weight.item() == 1.0  # 2 - 0.25 * 2 * 2


class PartlyFrozen(nn.Module):
    def __init__(self, as_decorator):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.last = nn.Linear(4, 4), nn.Linear(4, 3)
        self.front = torch.no_grad()(self.first) if as_decorator else self._in_context

    def _in_context(self, x):
        with torch.no_grad():
            return self.first(x)

    def forward(self, x, target):
        return F.mse_loss(self.last(self.front(x)), target)


@pytest.mark.parametrize("as_decorator", [False, True])
def test_no_grad_stops_gradients_to_its_parameters(as_decorator):
    model = PartlyFrozen(as_decorator)
    trains_like_eager(model, [rows(4, seed) for seed in range(3)])
    assert torch.equal(model.first.weight, PartlyFrozen(as_decorator).first.weight)
    assert not torch.equal(model.last.weight, PartlyFrozen(as_decorator).last.weight)
