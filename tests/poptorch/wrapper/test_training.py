"""What one call of a training wrapper does: updates, reductions, and the rows that come out."""

import copy

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - torch's own convention

import poptorch
from helpers.wrapping import (
    Calls,
    Scorer,
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


def test_several_device_iterations_are_several_updates_in_one_call():
    plain, (x, target) = scorer(), rows(4 * MICRO)
    losses = plain_steps(plain, sgd(plain), [[pair] for pair in _pairs(x, target, MICRO)])
    model = scorer()
    loss, _ = trainer(model, deviceIterations=4, outputMode=OutputMode.All)(x, target)
    assert torch.equal(loss, torch.stack(losses))
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


@pytest.mark.parametrize("split", [{"gradientAccumulation": 4}, {"replicationFactor": 2}])
def test_with_mean_the_split_of_a_batch_does_not_matter(split):
    whole, parts = scorer(), scorer()
    trainer(whole)(*rows(8))
    trainer(parts, **split)(*rows(8))
    torch.testing.assert_close(weights(parts), weights(whole), rtol=0, atol=1e-6)


EXAMPLE = {"deviceIterations": 2, "gradientAccumulation": 4, "replicationFactor": 2}


@pytest.mark.parametrize(
    ("mode", "losses", "scores"),
    [
        pytest.param(OutputMode.Final, 2, 6, id="final: last micro-batch of each replica"),
        pytest.param(OutputMode.All, 16, 48, id="all: every micro-batch"),
        pytest.param((OutputMode.EveryN, 2), 8, 24, id="every second iteration, all its steps"),
        pytest.param(OutputMode.Sum, 2, 6, id="sum: over iterations and steps, per replica"),
    ],
)
def test_rows_of_the_worked_example(mode, losses, scores):
    loss, rows_out = trainer(scorer(), outputMode=mode, **EXAMPLE)(*rows(48))
    assert loss.shape == (losses,)
    assert rows_out.shape == (scores, 3)


def _outputs(mode, optimizer_lr=0.0):
    model = scorer()
    wrapped = trainer(model, sgd(model, lr=optimizer_lr), outputMode=mode, **EXAMPLE)
    return [result.clone() for result in wrapped(*rows(48))]


@pytest.mark.parametrize(
    ("mode", "pick"),
    [
        pytest.param(OutputMode.Final, lambda all_: all_[-1], id="final"),
        pytest.param((OutputMode.EveryN, 2), lambda all_: all_[4:], id="every n"),
        pytest.param(OutputMode.Sum, lambda all_: all_.sum(0), id="sum"),
    ],
)
def test_every_mode_is_a_selection_of_all(mode, pick):
    everything = _outputs(OutputMode.All)[1].reshape(8, 2, 3, 3)
    expected = pick(everything).reshape(-1, 3)
    torch.testing.assert_close(_outputs(mode)[1], expected, rtol=1e-6, atol=1e-6)


def test_a_single_loss_stays_without_dimension():
    loss, _ = trainer(scorer(), deviceIterations=2, gradientAccumulation=3)(*rows(6))
    assert loss.shape == ()


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


class Squared(torch.nn.Module):
    def forward(self, x):
        return F.mse_loss(x, torch.ones_like(x))


def test_a_module_in_eval_mode_trains_with_dropout_off():
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Dropout(0.5), Squared())
    model.eval()
    x, target = torch.randn(2, 4), torch.ones(2, 8)
    expected = F.mse_loss(model[0](x), target).detach()
    wrapped = trainer(model, sgd(model, lr=0.0))
    wrapped.compile(x)
    model.train()  # too late: the mode at compilation counts
    assert torch.equal(wrapped(x), expected)


def test_the_default_optimizer_is_sgd_with_a_hundredth():
    plain, model = scorer(), scorer()
    plain_steps(plain, sgd(plain, lr=0.01), [[rows(4)]])
    poptorch.trainingModel(model, options())(*rows(4))
    assert torch.equal(weights(model), weights(plain))


def test_options_may_be_left_out(capfd):
    loss, _ = poptorch.trainingModel(scorer())(*rows(4))
    assert loss.shape == ()
    assert "Graph compilation" in capfd.readouterr().err


@pytest.mark.parametrize("accumulation", [1, 2])
@pytest.mark.parametrize(
    "make",
    [lambda: scorer().requires_grad_(False), lambda: torch.nn.Sequential(Squared())],
    ids=["everything frozen", "no parameters at all"],
)
def test_nothing_needs_to_be_trainable(make, accumulation):
    model = make()
    before = copy.deepcopy(model.state_dict())
    wrapped = poptorch.trainingModel(model, options(gradientAccumulation=accumulation))
    wrapped(*(rows(4) if len(before) else rows(4)[:1]))
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


@pytest.mark.parametrize("kind", [KeyError, ValueError, ZeroDivisionError, RuntimeError])
def test_exceptions_of_forward_keep_class_and_text(kind):
    def forward(self, x):
        raise kind("words of the user")

    wrapped = trainer(Calls(forward))
    with pytest.raises(kind, match="words of the user"):
        wrapped(torch.ones(2))
    assert not wrapped.isCompiled()


def test_forward_can_ask_where_it_runs():
    seen = []
    model = Calls(
        lambda self, x: (
            seen.append(poptorch.isRunningOnIpu()),
            poptorch.identity_loss(x * self.weight, "sum"),
        )[1]
    )
    model(torch.ones(2))
    trainer(model)(torch.ones(2))
    assert seen == [False, True]
    assert not poptorch.isRunningOnIpu()


def test_forward_may_be_an_attribute_of_the_instance():
    model = scorer()
    model.forward = lambda x, target: F.l1_loss(model.fc(x), target)
    x, target = rows(4)
    expected = F.l1_loss(scorer().fc(x), target)
    assert torch.equal(trainer(model)(x, target), expected)


@pytest.mark.parametrize(
    ("reduction", "gradient"), [("none", 1.0), ("sum", 1.0), ("mean", 0.25)], ids=str
)
def test_identity_loss_seeds_the_gradient_of_its_reduction(reduction, gradient):
    model = Calls(lambda self, x: poptorch.identity_loss(x * self.weight, reduction))
    trainer(model, sgd(model, lr=1.0))(torch.ones(4))
    assert model.weight.item() == pytest.approx(2.0 - 4 * gradient)


def test_a_loss_inside_another_is_a_plain_reduction():
    def forward(self, x):
        left, right = F.mse_loss(x * self.weight, x), F.l1_loss(x * self.weight, x)
        return left, poptorch.identity_loss(left + right, "none"), right

    model, plain = Calls(forward), Calls(forward)
    x = torch.randn(3, 2)
    left, total, right = trainer(model, sgd(model, lr=0.5))(x)
    plain(x)[1].backward()
    assert torch.equal(total, left + right)
    torch.testing.assert_close(model.weight.detach(), 2.0 - 0.5 * plain.weight.grad)


def test_no_grad_and_detach_cut_gradients():
    def forward(self, x):
        with torch.no_grad():
            frozen = self.weight * x
        return F.mse_loss(frozen + (x * self.weight).detach(), x)

    model = Calls(forward)
    with pytest.warns(UserWarning, match="Training changes nothing"):
        trainer(model)(torch.ones(3))
    assert model.weight.item() == 2.0


class Noisy(Scorer):
    def forward(self, x, target):
        scores = F.dropout(self.fc(x), 0.5)
        return F.mse_loss(scores, target), scores


def _noise(calls, seed):
    torch.manual_seed(0)
    settings = {} if seed is None else {"randomSeed": seed}
    wrapped = trainer(Noisy(), deviceIterations=2, outputMode=OutputMode.All, **settings)
    return torch.stack([wrapped(*rows(8))[1] for _ in range(calls)])


def test_a_seed_makes_two_runs_equal():
    assert torch.equal(_noise(2, seed=3), _noise(2, seed=3))
    assert not torch.equal(_noise(2, seed=3), _noise(2, seed=4))


def test_random_numbers_differ_between_calls_iterations_and_replicas():
    model = Noisy()
    settings = {"deviceIterations": 2, "replicationFactor": 2, "randomSeed": 1}
    wrapped = trainer(model, sgd(model, 0.0), outputMode=OutputMode.All, **settings)
    ones = torch.ones(4 * 16, 4), torch.ones(4 * 16, 3)
    masks = [part == 0 for _ in range(2) for part in wrapped(*ones)[1].split(16)]
    assert len({tuple(mask.flatten().tolist()) for mask in masks}) == 8


def test_inference_evaluates_every_iteration_and_changes_nothing():
    model = scorer()
    x, target = rows(6)
    wrapped = poptorch.inferenceModel(model, options(deviceIterations=3))
    loss, scores = wrapped(x, target)
    assert loss.shape == (3,)
    assert torch.equal(scores, model(x, target)[1])
    assert torch.equal(weights(model), weights(scorer()))


def test_a_model_without_operations_returns_its_inputs():
    x = torch.randn(2, 3)
    wrapped = poptorch.inferenceModel(Calls(lambda self, x: x), options())
    result = wrapped(x)
    assert torch.equal(result, x)
    assert result.data_ptr() != x.data_ptr()


def test_a_wrapper_of_a_wrapper_takes_its_model():
    model = scorer()
    assert poptorch.inferenceModel(trainer(model), options()).model is model


def test_the_executor_shows_the_model():
    wrapped = trainer(scorer())
    assert isinstance(wrapped.model, Scorer)
    assert "Linear(in_features=4" in repr(wrapped)
    assert wrapped.fc is wrapped.model.fc
    with pytest.raises(AttributeError, match="nowhere"):
        _ = wrapped.nowhere
