"""Behaviours that the original's own tests pin: results, training, weights, wrappers.

Each test runs through the public interface only; how a behaviour is made, and its corner cases, are
tested beside the part that makes it.
"""

import copy

import pytest
import torch
from torch import nn

import poptorch
from helpers.wrapping import options, plain_steps, rows, scorer, sgd, trainer, weights
from poptorch import OutputMode, ReductionType

Mean, Sum = ReductionType.Mean, ReductionType.Sum


def trained(updates=2, **settings):
    """A wrapper after some calls, its model, and the same training by plain PyTorch."""
    model, plain = scorer(), scorer()
    wrapped = trainer(model, **settings)
    for _ in range(updates):
        wrapped(*rows(4))
    plain_steps(plain, sgd(plain), [[rows(4)]] * updates)
    return wrapped, model, plain


def same_weights(model, plain):
    return torch.equal(weights(model), weights(plain))


# --- one call


class Images(nn.Module):
    """A convolution and a dense layer for images of 5 by 6; a sum over rows would show."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(2)
        self.conv, self.fc = nn.Conv2d(1, 3, 3), nn.Linear(36, 4)

    def forward(self, x):
        return self.fc(torch.relu(self.conv(x)).flatten(1))


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
    model, x = Images(), torch.randn(10, 1, 5, 6)
    chosen = {} if mode is None else {"outputMode": mode}
    output = poptorch.inferenceModel(model, options(deviceIterations=10, **chosen))(x)
    expected = of_host(model(x)).detach()
    assert output.shape == expected.shape
    torch.testing.assert_close(output, expected)


def test_ten_iterations_of_training_return_one_loss_by_default():
    plain, (x, target) = scorer(), rows(10)
    micro = list(zip(x.split(1), target.split(1), strict=True))
    losses = plain_steps(plain, sgd(plain), [[each] for each in micro])
    model = scorer()
    loss, _ = trainer(model, deviceIterations=10)(x, target)
    assert loss.shape == ()
    torch.testing.assert_close(loss, losses[-1])
    torch.testing.assert_close(weights(model), weights(plain))


def test_a_thousand_iterations_return_a_thousand_falling_losses():
    model, (x, target) = scorer(), rows(1)
    wrapped = trainer(model, sgd(model, 0.01), deviceIterations=1000, outputMode=OutputMode.All)
    losses, _ = wrapped(x.repeat(1000, 1), target.repeat(1000, 1))
    assert losses.shape == (1000,)
    parts = losses.reshape(4, 250).mean(1)
    assert (parts[1:] < parts[:-1]).all()
    assert (losses[:20].diff() < 0).all()  # the weights move between any two


@pytest.mark.parametrize(
    ("reduction", "lr", "lr_in_two"), [(Mean, 0.02, 0.02), (Sum, 0.02, 0.01)], ids=["Mean", "Sum"]
)
def test_accumulating_two_halves_is_the_whole(reduction, lr, lr_in_two):
    chosen = {"accumulationAndReplicationReductionType": reduction}
    whole, halves = scorer(), scorer()
    first = trainer(whole, sgd(whole, lr), gradientAccumulation=1, **chosen)
    second = trainer(halves, sgd(halves, lr_in_two), gradientAccumulation=2, **chosen)
    for seed in range(3):
        first(*rows(4, seed))
        second(*rows(4, seed))
    assert not same_weights(whole, scorer())
    torch.testing.assert_close(weights(halves), weights(whole))


@pytest.mark.parametrize("reduction", [Mean, Sum], ids=["Mean", "Sum"])
def test_replicas_return_their_rows_in_order_and_move_weights_together(reduction):
    chosen = {"accumulationAndReplicationReductionType": reduction, "replicationFactor": 4}
    model, plain = scorer(), scorer()
    wrapped = trainer(model, **chosen)
    expected = sgd(plain)
    for seed in range(3):
        x, target = rows(12, seed)
        scores = plain(x, target)[1].detach()
        micro = list(zip(x.split(3), target.split(3), strict=True))
        losses = plain_steps(plain, expected, [micro], sum_gradients=reduction is Sum)
        loss, output = wrapped(x, target)
        torch.testing.assert_close(loss, torch.stack(losses))
        torch.testing.assert_close(output, scores)
    torch.testing.assert_close(weights(model), weights(plain))


def test_a_batch_that_all_replicas_share_trains_like_one():
    model, plain = scorer(), scorer()
    x, target = rows(3)
    loss, scores = trainer(model, replicationFactor=4)(x.repeat(4, 1), target.repeat(4, 1))
    (expected,) = plain_steps(plain, sgd(plain), [[(x, target)]])
    torch.testing.assert_close(loss, expected.expand(4))
    assert torch.equal(scores, scores[:3].repeat(4, 1))
    torch.testing.assert_close(weights(model), weights(plain))


@pytest.mark.parametrize("process", [0, 1])
def test_a_process_evaluates_the_rows_that_it_is_given(process):
    opts = options(deviceIterations=2, replicationFactor=2)
    opts.Distributed.configureProcessId(process, 2)
    x, target = rows(8, process)
    loss, scores = poptorch.inferenceModel(scorer(), opts)(x, target)
    assert loss.shape == (4,)
    torch.testing.assert_close(scores, scorer()(x, target)[1].detach())


class Chain(nn.Module):
    """Four blocks on four devices."""

    def __init__(self, annotate=True):
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(4))
        for ipu, layer in enumerate(self.layers if annotate else ()):
            poptorch.BeginBlock(layer, ipu_id=ipu)

    def forward(self, x):
        for layer in self.layers:
            x = torch.tanh(layer(x))
        return poptorch.identity_loss(x.square(), "mean") if self.training else x


def test_a_pipeline_of_four_blocks_needs_seven_accumulations():
    words = r"gradientAccumulation must be greater than or equal to .* pipeline stages \(7\)"
    x = torch.randn(14, 4)
    for shallow in (1, 2, 3, 4, 5, 6):
        with pytest.raises(poptorch.Error, match=words):
            trainer(Chain(), gradientAccumulation=shallow).compile(x[:shallow])
    pipelined, plain = Chain(), Chain(annotate=False)
    for model in (pipelined, plain):
        trainer(model, gradientAccumulation=7)(x)
    assert same_weights(pipelined, plain)  # and no weights are stale


def test_a_pipeline_of_four_blocks_needs_four_iterations_of_inference():
    words = r"deviceIterations must be greater than or equal to .* pipeline stages \(4\)"
    model, x = Chain().eval(), torch.randn(4, 4)
    for shallow in (1, 2, 3):
        with pytest.raises(poptorch.Error, match=words):
            poptorch.inferenceModel(model, options(deviceIterations=shallow))(x[:shallow])
    output = poptorch.inferenceModel(model, options(deviceIterations=4))(x)
    torch.testing.assert_close(output, model(x).detach())


# --- weights, optimizers and the lives of wrappers


def adam(model, lr=0.01):
    return poptorch.optim.Adam(model.parameters(), lr=lr)


def test_another_optimizer_in_the_middle_of_training_keeps_weights():
    model, plain = scorer(), scorer()
    wrapped = trainer(model, sgd(model, 0.1))
    wrapped(*rows(4))
    before = weights(model).clone()
    wrapped.setOptimizer(sgd(model, 0.5))
    assert torch.equal(weights(model), before)
    wrapped(*rows(4))
    plain_steps(plain, sgd(plain, 0.1), [[rows(4)]])
    plain_steps(plain, sgd(plain, 0.5), [[rows(4)]])
    assert same_weights(model, plain)


def test_training_resumes_bit_for_bit_from_an_optimizers_state():
    model = scorer()
    optimizer = adam(model)
    wrapped = trainer(model, optimizer)
    wrapped(*rows(4, 1))
    saved = copy.deepcopy((model.state_dict(), optimizer.state_dict()))
    for seed in (2, 3):
        wrapped(*rows(4, seed))

    def resumed(with_state):
        again = scorer(5)
        again.load_state_dict(saved[0])
        other = adam(again)
        if with_state:
            other.load_state_dict(saved[1])
        follower = trainer(again, other)
        for seed in (2, 3):
            follower(*rows(4, seed))
        return again

    assert same_weights(resumed(with_state=True), model)
    assert not same_weights(resumed(with_state=False), model)


def test_a_new_learning_rate_moves_no_weights_between_host_and_device():
    model, plain = scorer(), scorer()
    optimizer = sgd(model)
    wrapped = trainer(model, optimizer)
    wrapped(*rows(4))
    plain_steps(plain, sgd(plain), [[rows(4)]])
    optimizer.param_groups[0]["lr"] = 0.3
    wrapped.setOptimizer(optimizer)
    assert model.copyWeightsToHostIfNeeded()  # nothing came home by itself
    with torch.no_grad():
        model.fc.weight.zero_()  # on the host alone
    optimizer.param_groups[0]["lr"] = 0.2
    wrapped.setOptimizer(optimizer)
    with pytest.warns(poptorch.HostChangeWarning, match="fc.weight of the host"):
        wrapped(*rows(4))
    plain_steps(plain, sgd(plain, 0.2), [[rows(4)]])
    assert same_weights(model, plain)  # the zeros never reached the device


def test_a_second_state_dict_copies_nothing():
    wrapped, model, plain = trained()
    copies = []
    original = wrapped.copyWeightsToHost
    wrapped.copyWeightsToHost = lambda: (copies.append(1), original())[1]
    first, second = model.state_dict(), model.state_dict()
    assert len(copies) == 1
    assert not wrapped.copyWeightsToHostIfNeeded()
    for result in (first, second, wrapped.state_dict()):
        assert torch.equal(result["fc.weight"], plain.fc.weight)
    wrapped(*rows(4))
    wrapped.state_dict()
    assert len(copies) == 2


READS = {
    "weight": lambda m, value: torch.equal(m.fc.weight.detach().clone(), value),
    "torch.equal": lambda m, value: torch.equal(m.fc.weight, value),
    "torch.equal, other way round": lambda m, value: torch.equal(value, m.fc.weight),
    "printing": lambda m, value: str(nn.Parameter(value)) == str(m.fc.weight),
    "parameters()": lambda m, value: torch.equal(next(iter(m.parameters())), value),
}


@pytest.mark.parametrize("name", READS)
def test_reading_a_weight_after_training_gives_the_trained_value(name):
    _, model, plain = trained()
    assert READS[name](model, plain.fc.weight.detach())
    assert not READS[name](model, scorer().fc.weight.detach())


def test_a_deep_copy_of_a_wrapped_model_trains_by_itself():
    wrapped, model, plain = trained(2)
    twin = copy.deepcopy(model)
    assert same_weights(twin, plain)
    other = trainer(twin)
    other(*rows(4, 7))
    assert same_weights(model, plain)
    wrapped(*rows(4))
    plain_steps(plain, sgd(plain), [[rows(4)]])
    assert same_weights(model, plain)
    alone = trained(2)[2]
    plain_steps(alone, sgd(alone), [[rows(4, 7)]])
    assert same_weights(twin, alone)


def test_inference_wrapped_before_training_sees_trained_weights_at_its_next_call():
    model, plain, x = scorer(), scorer(), rows(4)
    inferring = poptorch.inferenceModel(model, options())
    assert torch.equal(inferring(*x)[1], plain(*x)[1])
    training = trainer(model)
    for _ in range(2):
        training(*x)
        plain_steps(plain, sgd(plain), [[x]])
        assert torch.equal(inferring(*x)[1], plain(*x)[1])


def test_a_destroyed_model_can_be_wrapped_again_and_a_wrapped_one_not():
    wrapped, model, plain = trained(1)
    with pytest.raises(RuntimeError, match=r"already been wrapped.*destroy\(\)"):
        trainer(model)
    wrapped.destroy()
    assert type(model) is type(plain)
    again = trainer(model)
    again(*rows(4))
    plain_steps(plain, sgd(plain), [[rows(4)]])
    assert same_weights(model, plain)
    model.destroy()
    assert not again.isCompiled()
    trainer(model)(*rows(4))


def test_destroying_before_the_first_call_does_nothing():
    model = scorer()
    wrapped = trainer(model)
    wrapped.destroy()
    with pytest.raises(RuntimeError, match="already been wrapped"):
        trainer(model)
