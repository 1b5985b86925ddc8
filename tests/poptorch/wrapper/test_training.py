"""What one call of a wrapper does: updates, reductions, modes, and the rows that come out."""

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - torch's own convention
from torch import nn

import poptorch
from helpers.wrapping import (
    Calls,
    Scorer,
    inference,
    options,
    plain_steps,
    rows,
    scorer,
    sgd,
    trainer,
    weights,
)
from poptorch import OutputMode, ReductionType

MICRO = 3


def _pairs(x, target, size):
    return list(zip(x.split(size), target.split(size), strict=True))


def test_one_step_is_bitwise_a_plain_step():
    plain, x = scorer(), rows(6)
    optimizer = sgd(plain, momentum=0.9)
    model = scorer()
    wrapped = trainer(model, sgd(model, momentum=0.9))
    for _ in range(3):
        (expected,) = plain_steps(plain, optimizer, [[x]])
        loss, _ = wrapped(*x)
        assert torch.equal(loss, expected)
    assert torch.equal(weights(model), weights(plain))


@pytest.mark.parametrize("reduction", [ReductionType.Mean, ReductionType.Sum])
@pytest.mark.parametrize(
    "split",
    [{"gradientAccumulation": 4}, {"replicationFactor": 4}],
    ids=["accumulated", "replicas"],
)
def test_gradients_of_micro_batches_combine_by_the_reduction(reduction, split):
    plain, (x, target) = scorer(), rows(4 * MICRO)
    summed = reduction is ReductionType.Sum
    plain_steps(plain, sgd(plain), [_pairs(x, target, MICRO)], sum_gradients=summed)
    model = scorer()
    chosen = {"accumulationAndReplicationReductionType": reduction}
    trainer(model, **split, **chosen)(x, target)
    torch.testing.assert_close(weights(model), weights(plain), rtol=0, atol=1e-6)


EXAMPLE = {"deviceIterations": 2, "gradientAccumulation": 4, "replicationFactor": 2}


@pytest.mark.parametrize("mode", [OutputMode.Final, OutputMode.All])
def test_results_are_detached_host_tensors_of_device_types(mode):
    model = Calls(lambda self, x: (F.mse_loss(x * self.weight, x), x.argmax(1), x.double()))
    loss, best, double = trainer(model, outputMode=mode)(torch.randn(4, 3))
    assert (loss.dtype, best.dtype, double.dtype) == (torch.float32, torch.int32, torch.float32)
    assert not any(t.requires_grad for t in (loss, best, double))
    assert all(t.is_cpu and type(t) is torch.Tensor for t in (loss, best, double))


def test_results_of_two_calls_are_different_tensors():
    wrapped = trainer(scorer())
    first, _ = wrapped(*rows(2))
    kept = first.clone()
    wrapped(*rows(2))
    assert torch.equal(first, kept)


def test_there_is_one_executable_and_forward_runs_once():
    seen = []
    model = Calls(lambda self, x: (seen.append(x.shape), F.mse_loss(x * self.weight, x))[1])
    wrapped = trainer(model, deviceIterations=2, gradientAccumulation=2)
    for _ in range(3):
        wrapped(torch.randn(8, 3))
    assert seen == [(2, 3)]


def test_compile_prepares_without_training(caplog):
    model, before = scorer(), weights(scorer())
    wrapped = trainer(model)
    wrapped.compile(*rows(4))
    assert wrapped.isCompiled()
    assert torch.equal(weights(model), before)
    executable = wrapped.executable_hash
    wrapped(*rows(4))
    assert wrapped.executable_hash == executable
    wrapped.compile(*rows(4))
    assert "Call to compile() ignored" in caplog.text


def test_the_default_optimizer_is_sgd_with_a_hundredth():
    plain, model = scorer(), scorer()
    plain_steps(plain, sgd(plain, lr=0.01), [[rows(4)]])
    poptorch.trainingModel(model, options())(*rows(4))
    assert torch.equal(weights(model), weights(plain))


def test_a_model_without_operations_returns_its_inputs():
    x = torch.randn(2, 3)
    wrapped = poptorch.inferenceModel(Calls(lambda self, x: x), options())
    result = wrapped(x)
    assert torch.equal(result, x)
    assert result.data_ptr() != x.data_ptr()


def test_the_executor_shows_the_model():
    wrapped = trainer(scorer())
    assert isinstance(wrapped.model, Scorer)
    assert "Linear(in_features=4" in repr(wrapped)
    assert wrapped.fc is wrapped.model.fc
    with pytest.raises(AttributeError, match="nowhere"):
        _ = wrapped.nowhere


@pytest.mark.parametrize(
    ("mode", "of_host"),
    [
        (None, lambda y: y),
        (OutputMode.All, lambda y: y),
        ((OutputMode.EveryN, 5), lambda y: y[[4, 9]]),
        (OutputMode.Sum, lambda y: y.sum(0, keepdim=True)),
        (OutputMode.Final, lambda y: y[9:]),
    ],
    ids=["default", "All", "EveryN", "Sum", "Final"],
)
def test_inference_of_ten_iterations_is_the_host_in_every_output_mode(mode, of_host):
    model, x = scorer().fc, rows(10)[0]
    chosen = {} if mode is None else {"outputMode": mode}
    output = poptorch.inferenceModel(model, options(deviceIterations=10, **chosen))(x)
    expected = of_host(model(x)).detach()
    assert output.shape == expected.shape
    torch.testing.assert_close(output, expected)


@pytest.mark.parametrize("process", [0, 1])
def test_a_process_evaluates_the_rows_that_it_is_given(process):
    opts = options(deviceIterations=2, replicationFactor=2)
    opts.Distributed.configureProcessId(process, 2)
    x, target = rows(8, process)
    loss, scores = poptorch.inferenceModel(scorer(), opts)(x, target)
    assert loss.shape == (4,)
    torch.testing.assert_close(scores, scorer()(x, target)[1].detach())


def test_a_loss_that_is_not_returned_is_minimised():
    def forward(self, x):
        F.mse_loss(x * self.weight, x)
        return x * 2

    model = Calls(forward)
    trainer(model)(torch.ones(4))
    assert model.weight.item() < 2


class Ordered(nn.Module):
    """Returns its rows, and adds up the first of each micro-batch with a weight per call."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1))
        self.register_buffer("seen", torch.zeros(1))

    def forward(self, x):
        self.seen.add_(1)
        loss = poptorch.identity_loss(self.weight * x, "mean")
        return loss, x * 1, self.seen * torch.ones_like(x)


def test_rows_are_in_the_order_iteration_accumulation_replica():
    x = torch.arange(48.0)
    wrapped = trainer(Ordered(), outputMode=OutputMode.All, broadcastBuffers=False, **EXAMPLE)
    _, same, seen = wrapped(x)
    assert torch.equal(same, x)
    # Each replica counts its own calls, so rows of one step have the same number.
    expected = torch.arange(1.0, 9.0).reshape(2, 4, 1, 1).expand(2, 4, 2, 3)
    assert torch.equal(seen, expected.reshape(-1))
    last = trainer(Ordered(), broadcastBuffers=False, **EXAMPLE)(x)[1]
    assert torch.equal(last, x[42:])


def test_tensors_that_are_no_buffers_are_constants():
    class Holding(nn.Module):
        def __init__(self):
            super().__init__()
            self.shift, self.scale, self.calls = torch.ones(4), [nn.Parameter(torch.ones(4))], 0

        def forward(self, x):
            self.calls += 1
            self.shift = self.shift + 1
            return x * self.scale[0] + self.shift

    model = Holding()
    wrapped = poptorch.inferenceModel(model, options())
    before = model.shift
    with pytest.warns(UserWarning, match="computes a new value of Holding.shift from the old one"):
        wrapped.compile(torch.ones(4))
    for _ in range(2):
        assert torch.equal(wrapped(torch.ones(4)), torch.full((4,), 3.0))
        model.shift.zero_()  # the program keeps what it was captured with
        model.scale[0].data.zero_()
    assert model.shift is before  # forward ran on the wrapper's copy, once
    assert model.calls == 0


class Dropping(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(256))
        self.inner = nn.Dropout(0.5)

    def forward(self, x):
        y = x * self.weight
        outer = F.dropout(y, 0.5, self.training)
        return poptorch.identity_loss(y, "mean"), outer, self.inner(y)


def dropped(results):
    """Whether the flag of the model, and that of its part, made zeros."""
    return tuple(bool((value == 0).any()) for value in results[1:])


def test_the_mode_of_the_module_counts_and_is_compiled_in():
    x = torch.ones(1, 256)
    for training in (True, False):
        model = Dropping().train(training)
        wrapped = trainer(model)
        assert dropped(wrapped(x)) == (training, training)
        model.train(not training)
        wrapped.train(not training)
        assert dropped(wrapped(x)) == (training, training)
    late = Dropping()
    wrapped = trainer(late)
    late.eval()  # parts are shared with the wrapper, the flag of the whole was copied
    with pytest.warns(UserWarning, match="was changed after it was wrapped.*training"):
        assert dropped(wrapped(x)) == (True, False)


def test_forward_runs_on_ipu_from_its_first_line_to_its_last():
    seen = []

    class Asking(nn.Module):
        def forward(self, x):
            seen.append(poptorch.isRunningOnIpu())
            y = self.part(x)
            seen.append(poptorch.isRunningOnIpu())
            return y

    model = Asking()
    model.part = nn.Linear(4, 4)
    model.part.register_forward_pre_hook(lambda *_: seen.append(poptorch.isRunningOnIpu()))
    model.part.register_forward_hook(lambda *_: seen.append(poptorch.isRunningOnIpu()))
    wrapped = poptorch.inferenceModel(model, options())
    for _ in range(2):
        wrapped(torch.ones(4))
        assert not poptorch.isRunningOnIpu()
    assert seen == [True] * 4
    seen.clear()
    model(torch.ones(4))
    assert seen == [False] * 4
    with pytest.raises(ZeroDivisionError):
        inference(lambda x: x * (1 // 0))(torch.ones(4))
    assert not poptorch.isRunningOnIpu()
