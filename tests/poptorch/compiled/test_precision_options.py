"""Options of Precision and Training that change how numbers are rounded, summed and watched."""

import logging

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - torch's own convention

import poptorch
from helpers.wrapping import Calls, options, rows, scorer, trainer, weights
from poptorch import MeanReductionStrategy

INF = float("inf")


def adam(model, **settings):
    return poptorch.optim.Adam(model.parameters(), lr=0.1, **settings)


def sgd(model, **settings):
    return poptorch.optim.SGD(model.parameters(), lr=0.1, **settings)


# -- mean reduction ------------------------------------------------------------------------


@pytest.mark.parametrize("strategy", list(MeanReductionStrategy))
def test_strategies_agree_on_float_gradients(strategy):
    actual, expected = scorer(), scorer()
    setting = {"setMeanAccumulationAndReplicationReductionStrategy": strategy}
    trainer(actual, gradientAccumulation=4, **setting)(*rows(8))
    trainer(expected, gradientAccumulation=4)(*rows(8))
    torch.testing.assert_close(weights(actual), weights(expected))


# -- stochastic rounding -------------------------------------------------------------------


def rounded(seed=1, *, by_key=False, on=True):
    """Half weights after ten updates that rounding to nearest loses."""
    model = scorer().half()
    made = options(randomSeed=seed)
    if by_key:
        made._Popart.set("enableStochasticRounding", on)
    else:
        made.Precision.enableStochasticRounding(on)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
    wrapped = poptorch.trainingModel(model, made, optimizer)
    for _ in range(10):
        wrapped(*(value.half() for value in rows(4)))
    return weights(model)


def test_stochastic_rounding_follows_the_seed():
    start = weights(scorer().half())
    assert torch.equal(rounded(on=False), start)
    assert torch.equal(rounded(), rounded(by_key=True))
    results = [rounded(seed) for seed in range(1, 9)]
    assert any(not torch.equal(each, start) for each in results)
    assert any(not torch.equal(each, results[0]) for each in results)


# -- floating-point exceptions -------------------------------------------------------------


class Divides(torch.nn.Module):
    """A dense layer whose result is divided by the second input."""

    def __init__(self):
        super().__init__()
        self.fc = torch.nn.Linear(4, 3)

    def forward(self, x, divisor):
        scores = self.fc(x) / divisor
        return F.mse_loss(scores, torch.zeros_like(scores)), scores


def dividing(iterations=1, training=True):
    made = options(deviceIterations=iterations)
    made.Precision.enableFloatingPointExceptions(True)
    torch.manual_seed(0)
    model = Divides()
    if not training:
        return poptorch.inferenceModel(model, made), model
    return poptorch.trainingModel(model, made, adam(model)), model


@pytest.mark.parametrize("training", [True, False])
def test_the_run_stops_and_names_the_operation(training):
    wrapped, _ = dividing(training=training)
    x, divisor = rows(2)[0], torch.ones(2, 1)
    wrapped(x, divisor)
    with pytest.raises(poptorch.RecoverableError, match=r"aten\.div\.Tensor \(forward") as caught:
        wrapped(x, divisor * 0)
    error = caught.value
    assert isinstance(error, poptorch.Error)
    assert error.recovery_action == "IPU_RESET"
    assert error.type == "poplar_recoverable_runtime_error"
    assert "test_precision_options.py:" in error.location
    assert torch.isfinite(wrapped(x, divisor)[0])


def test_updates_before_the_stop_reach_the_host():
    wrapped, model = dividing(iterations=2)
    x, divisor = rows(2)[0], torch.tensor([[1.0], [0.0]])
    before = weights(model)
    with pytest.raises(poptorch.RecoverableError):
        wrapped(x, divisor)
    once, reference = dividing()
    once(x[:1], divisor[:1])
    assert not torch.equal(weights(model), before)
    assert torch.equal(weights(model), weights(reference))


def test_a_loop_or_branch_is_watched_as_one_operation():
    def watching(forward):
        made = options()
        made.Precision.enableFloatingPointExceptions(True)
        return poptorch.inferenceModel(Calls(lambda self, x: forward(x)), made)

    x = torch.ones(2)

    def log(v):
        return [v.log()]

    def exp(v):
        return [v.exp()]

    def masked(v):
        return [v.masked_fill(v > 0, -INF)]

    logs = watching(lambda x: poptorch.for_loop(3, log, [x])[0])
    with pytest.raises(poptorch.RecoverableError, match=r"while_loop.*NaN from operands without"):
        logs(x)
    hidden = watching(lambda x: poptorch.for_loop(2, masked, [x])[0])
    assert torch.equal(hidden(x), torch.tensor([-INF, -INF])), "a constant infinity is meant"
    taken = watching(lambda x: poptorch.cond(x.sum() > 0, log, [x * 0], exp, [x])[0])
    with pytest.raises(poptorch.RecoverableError, match="infinity from finite operands"):
        taken(x)
    assert torch.equal(taken(-x), torch.exp(-x))


# -- automatic loss scaling ----------------------------------------------------------------


def scaling(optimizer_of, kind=torch.float16, **keys):
    model = scorer().to(kind)
    made = options()
    made.Training.setAutomaticLossScaling(True)
    for key, value in keys.items():
        made._Popart.set(f"automaticLossScalingSettings.{key}", value)
    optimizer = optimizer_of(model)
    return poptorch.trainingModel(model, made, optimizer), model, optimizer


def scale(wrapped):
    return wrapped._executable.session.hyper["loss_scaling"].item()


def test_the_scale_moves_and_a_constant_one_becomes_variable():
    wrapped, _, optimizer = scaling(sgd)
    assert not optimizer.variable_attrs.isConstant("loss_scaling")
    batch = [value.half() for value in rows(4)]
    wrapped(*batch)
    assert scale(wrapped) == 2.0
    wrapped(*batch)
    assert scale(wrapped) == 4.0
    optimizer.param_groups[0]["lr"] = 0.01
    wrapped.setOptimizer(optimizer)
    assert scale(wrapped) == 4.0, "a new learning rate leaves it alone"
    optimizer.loss_scaling = 64.0
    wrapped.setOptimizer(optimizer)
    wrapped(*batch)
    assert scale(wrapped) == 128.0


@pytest.mark.parametrize("accumulation", [1, 2])
def test_the_scale_of_a_step_can_be_anchored(accumulation):
    model, made = scorer().half(), options(gradientAccumulation=accumulation)
    made.Training.setAutomaticLossScaling(True)
    made.anchorTensor("scale", "finalLossScale")
    wrapped = poptorch.trainingModel(model, made, sgd(model))
    batch = [value.half() for value in rows(4)]
    for expected in (1.0, 2.0, 4.0):
        wrapped(*batch)
        assert wrapped.getAnchoredTensor("scale").flatten()[-1] == expected
        assert scale(wrapped) == 2 * expected


def test_a_saved_optimizer_holds_the_scale_of_the_device():
    wrapped, _, optimizer = scaling(lambda m: sgd(m, loss_scaling=8.0))
    batch = [value.half() for value in rows(4)]
    wrapped(*batch)
    saved = optimizer.state_dict()
    assert saved["ipu_param"]["lossScaling_FLOAT"] == scale(wrapped) == 16.0
    for _ in range(2):  # the second time the optimizer's own number is 16 already
        wrapped(*batch)
        optimizer.load_state_dict(saved)
        wrapped(*batch)
        assert scale(wrapped) == 32.0
    again, _, other = scaling(lambda m: sgd(m, loss_scaling=8.0))
    other.load_state_dict(saved)
    again(*batch)
    assert scale(again) == 32.0


def test_the_settings_are_keys():
    wrapped, *_ = scaling(sgd, updatePeriod=2, binEdgeLocation=0.5)
    batch = [value.half() for value in rows(4)]
    output = []
    for _ in range(4):
        wrapped(*batch)
        output.append(scale(wrapped))
    assert output == [1.0, 2.0, 2.0, 4.0]
    with pytest.raises(ValueError, match="Automatic loss scaling needs"):
        scaling(sgd, binEdgeLocation=2.0)


def test_without_half_parameters_it_says_so(caplog):
    wrapped, *_ = scaling(sgd, torch.float32)
    with caplog.at_level(logging.WARNING):
        wrapped(*rows(4))
    assert "no trained parameter is half" in caplog.text
    assert scale(wrapped) == 1.0


# -- mixed types ---------------------------------------------------------------------------


def test_a_product_of_activations_promotes():
    half, full = torch.randn(3, 3).half(), torch.randn(3, 3)
    products = {
        "matmul": lambda m, x, y: x @ y,
        "einsum": lambda m, x, y: torch.einsum("ij,jk->ik", x, y),
        "addmm": lambda m, x, y: torch.addmm(x, y, x),
    }
    for forward in products.values():
        output = poptorch.inferenceModel(Calls(forward), options())(half, full)
        assert output.dtype is torch.float32
        torch.testing.assert_close(output, forward(None, half.float(), full))
