"""Tensors from inside a wrapped model: which values come out, in which shape, and the errors."""

import pytest
import torch

import poptorch
from helpers.wrapping import (
    Calls,
    inference,
    options,
    plain_steps,
    rows,
    scorer,
    sgd,
    trainer,
    weights,
)

WEIGHT, GRADIENT = "fc.weight", "Gradient___fc.weight"


def anchoring(*anchors, optimizer=None, **settings):
    """A training wrapper of a scorer that keeps these tensors, and the model."""
    opts = options(**settings)
    for name, arguments in enumerate(anchors):
        opts.anchorTensor(str(name), *arguments)
    model = scorer()
    made = sgd(model) if optimizer is None else optimizer(model)
    return poptorch.trainingModel(model, opts, made), model


def gradients(count, parts, scale=1.0):
    """The weight's gradient of each micro-batch, at the first weights."""
    results = []
    for x, target in zip(*(tensor.split(count // parts) for tensor in rows(count)), strict=True):
        model = scorer()
        (scale * model(x, target)[0]).backward()
        results.append(model.fc.weight.grad)
    return results


@pytest.mark.parametrize(
    ("mode", "expected"),
    [
        (None, lambda g: torch.cat(g[2:])),
        (poptorch.OutputMode.Final, lambda g: torch.cat(g[2:])),
        (poptorch.OutputMode.Default, lambda g: torch.cat(g[2:])),
        (poptorch.OutputMode.All, torch.cat),
        (poptorch.OutputMode.Sum, lambda g: torch.cat([g[0] + g[2], g[1] + g[3]])),
    ],
)
def test_gradients_are_per_micro_batch_and_replica(mode, expected):
    settings = {"gradientAccumulation": 2, "replicationFactor": 2}
    wrapped, _ = anchoring([GRADIENT, mode], **settings)
    wrapped(*rows(8))
    output = wrapped.getAnchoredTensor("0")
    torch.testing.assert_close(output, expected(gradients(8, 4)), rtol=0, atol=0)


def test_gradients_are_scaled_by_the_loss_scaling():
    def scaled(model):
        return poptorch.optim.SGD(model.parameters(), lr=0.1, loss_scaling=128.0)

    wrapped, _ = anchoring([GRADIENT], optimizer=scaled)
    wrapped(*rows(4))
    torch.testing.assert_close(
        wrapped.getAnchoredTensor("0"), gradients(4, 1, scale=128.0)[0], rtol=0, atol=0
    )


def test_each_anchor_has_a_mode_of_its_own_and_outputs_keep_theirs():
    mode = poptorch.OutputMode
    wrapped, _ = anchoring(
        [GRADIENT, mode.All],
        [GRADIENT, mode.Final],
        ["fc/Gemm:0", mode.EveryN, 2],
        ["MseLoss:0", mode.All],
        deviceIterations=4,
    )
    loss, scores = wrapped(*rows(8))
    assert (loss.shape, scores.shape) == ((), (2, 3))
    shapes = [wrapped.getAnchoredTensor(str(index)).shape for index in range(4)]
    assert shapes == [(12, 4), (3, 4), (4, 3), (4,)]
    torch.testing.assert_close(wrapped.getAnchoredTensor("2")[2:], scores, rtol=0, atol=0)
    torch.testing.assert_close(wrapped.getAnchoredTensor("3")[3], loss, rtol=0, atol=0)


def test_weights_before_and_after_the_update():
    every = poptorch.OutputMode.All
    wrapped, model = anchoring(
        [WEIGHT, every], [f"UpdatedVar___{WEIGHT}", every], deviceIterations=3
    )
    first = model.fc.weight.detach().clone()
    wrapped(*rows(6))
    before = wrapped.getAnchoredTensor("0").split(3)
    after = wrapped.getAnchoredTensor("1").split(3)
    torch.testing.assert_close(before[0], first, rtol=0, atol=0)
    torch.testing.assert_close(torch.cat(before[1:]), torch.cat(after[:2]), rtol=0, atol=0)
    torch.testing.assert_close(after[2], model.fc.weight.detach(), rtol=0, atol=0)


def test_what_exists_once_per_update_comes_once_per_replica():
    wrapped, model = anchoring(
        [f"UpdatedVar___{WEIGHT}"],
        [f"Accum___{WEIGHT}", poptorch.OutputMode.All],
        ["Accl1___fc.bias", poptorch.OutputMode.All],
        optimizer=lambda model: sgd(model, momentum=0.9),
        deviceIterations=2,
        replicationFactor=2,
        gradientAccumulation=2,
    )
    wrapped(*rows(8))
    updated = wrapped.getAnchoredTensor("0")
    torch.testing.assert_close(updated, torch.cat([model.fc.weight.detach()] * 2), rtol=0, atol=0)
    sums = wrapped.getAnchoredTensor("1").split(3)
    assert len(sums) == 8
    torch.testing.assert_close(sums[0], gradients(8, 8)[0], rtol=0, atol=0)
    torch.testing.assert_close(sums[3], sum(gradients(8, 8)[:4]))
    assert wrapped.getAnchoredTensor("2").shape == (2 * 2 * 3,)


def test_anchors_change_neither_results_nor_weights():
    watched, model = anchoring([GRADIENT], ["fc/Gemm:0"], [WEIGHT], deviceIterations=2)
    plain_model = scorer()
    plain = trainer(plain_model, deviceIterations=2)
    for seed in range(3):
        for left, right in zip(watched(*rows(8, seed)), plain(*rows(8, seed)), strict=True):
            torch.testing.assert_close(left, right, rtol=0, atol=0)
    torch.testing.assert_close(weights(model), weights(plain_model), rtol=0, atol=0)
    assert watched.executable_hash != plain.executable_hash
    reference = scorer()
    halves = [zip(*(t.split(4) for t in rows(8, seed)), strict=True) for seed in range(3)]
    plain_steps(reference, sgd(reference), [[part] for call in halves for part in call])
    torch.testing.assert_close(weights(model), weights(reference), rtol=0, atol=0)


def test_inference_gives_activations_of_every_batch():
    opts = options(deviceIterations=3)
    opts.anchorTensor("hidden", "Sin:0")
    wrapped = poptorch.inferenceModel(Calls(lambda self, x: torch.sin(x) * self.weight), opts)
    x = torch.randn(6, 2)
    wrapped(x)
    torch.testing.assert_close(wrapped.getAnchoredTensor("hidden"), torch.sin(x), rtol=0, atol=0)


def test_values_are_those_of_the_last_call():
    wrapped, model = anchoring([WEIGHT])
    wrapped(*rows(4))
    second = model.fc.weight.detach().clone()
    wrapped(*rows(4))
    torch.testing.assert_close(wrapped.getAnchoredTensor("0"), second, rtol=0, atol=0)


def test_before_a_run_and_under_other_names_there_is_nothing():
    wrapped, _ = anchoring([GRADIENT])
    with pytest.raises(AssertionError, match="No tensor with name 0 found"):
        wrapped.getAnchoredTensor("0")
    wrapped.compile(*rows(4))
    with pytest.raises(AssertionError, match="No tensor with name 0 found"):
        wrapped.getAnchoredTensor("0")
    wrapped(*rows(4))
    with pytest.raises(AssertionError, match=r"No tensor with name g found.* Anchored.*: 0;"):
        wrapped.getAnchoredTensor("g")
    wrapped.destroy()
    with pytest.raises(AssertionError, match="No tensor with name 0 found"):
        wrapped.getAnchoredTensor("0")


def test_a_tensor_that_does_not_exist_is_refused_when_compiling():
    wrapped, _ = anchoring(["Gradient___fc.weights"])
    with pytest.raises(poptorch.Error, match=r"'Gradient___fc.weights'. Near .*Gradient___fc.weig"):
        wrapped(*rows(4))


def test_a_period_that_does_not_divide_is_refused():
    wrapped, _ = anchoring([GRADIENT, poptorch.OutputMode.EveryN, 3], deviceIterations=4)
    with pytest.raises(AssertionError, match="period 3"):
        wrapped(*rows(4))


def test_names_exist_once_compiled():
    wrapped, _ = anchoring()
    with pytest.raises(AssertionError, match="must be compiled"):
        wrapped.getTensorNames()
    wrapped.compile(*rows(4))
    names = wrapped.getTensorNames()
    assert {WEIGHT, GRADIENT, "fc/Gemm:0", f"UpdatedVar___{WEIGHT}"} <= set(names)
    assert len(names) == len(set(names))


def test_constants_are_returned_beside_anchors():
    opts = options()
    opts.anchorTensor("product", "Mul:0")
    three = torch.tensor([3.0])
    wrapped = poptorch.inferenceModel(Calls(lambda self, x: (three, x * 2, x + 1)), opts)
    with pytest.warns(UserWarning, match="returned as a constant"):
        constant, double, more = wrapped(torch.ones(2))
    assert (constant.item(), double.tolist(), more.tolist()) == (3.0, [2, 2], [2, 2])
    assert wrapped.getAnchoredTensor("product").tolist() == [2, 2]


def test_integers_come_back_as_the_device_has_them():
    wrapped = inference(lambda x: x.argmax(1) + 0)
    wrapped(torch.randn(2, 3))
    opts = options()
    opts.anchorTensor("i", "Argmax:0")
    wrapped = poptorch.inferenceModel(Calls(lambda self, x: x.argmax(1) + 0), opts)
    wrapped(torch.randn(2, 3))
    assert wrapped.getAnchoredTensor("i").dtype is torch.int32


def test_call_that_failed_has_no_values():
    failing = []

    def on_host(x):
        if failing and failing.pop():
            raise ValueError("no more")
        return x

    stage = poptorch.CPU(on_host, "stage")
    made = options(deviceIterations=2)
    made.anchorTensor("sum", "Add:0")
    wrapped = poptorch.inferenceModel(Calls(lambda self, x: stage(x + 1)), made)
    wrapped(torch.zeros(2))
    assert torch.equal(wrapped.getAnchoredTensor("sum"), torch.ones(2))
    counters = wrapped.getPerfCounters()
    failing[:] = [True, False]
    with pytest.raises(ValueError, match="no more"):
        wrapped(torch.zeros(2))
    with pytest.raises(AssertionError, match="No tensor with name sum found"):
        wrapped.getAnchoredTensor("sum")
    assert wrapped.getPerfCounters() == counters, "times are those of the last complete call"
    wrapped(torch.zeros(2))
    assert torch.equal(wrapped.getAnchoredTensor("sum"), torch.ones(2))
