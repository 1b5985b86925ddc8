"""Replicas of wrapped models: inputs that are shared, the worked example, state that stays."""

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - torch's own convention

import poptorch
from helpers.wrapping import Calls, inference, options, rows, scorer, sgd, trainer
from poptorch import CommGroupType, OutputMode

CONSECUTIVE, ORTHOGONAL = CommGroupType.Consecutive, CommGroupType.Orthogonal


# --- the worked example


class Classifier(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = torch.nn.Linear(4, 10)

    def forward(self, x, labels):
        logits = self.fc(x)
        return F.cross_entropy(logits, labels), logits


@pytest.mark.parametrize(
    ("mode", "losses", "logits"),
    [
        ((OutputMode.Final,), 2, 6),
        ((OutputMode.All,), 16, 48),
        ((OutputMode.EveryN, 2), 8, 24),
        ((OutputMode.Sum,), 2, 6),
    ],
    ids=["Final", "All", "EveryN", "Sum"],
)
def test_the_worked_example_of_two_iterations_four_accumulations_two_replicas(mode, losses, logits):
    torch.manual_seed(0)
    data = torch.utils.data.TensorDataset(torch.randn(96, 4), torch.randint(0, 10, (96,)))
    opts = options(deviceIterations=2, replicationFactor=2, gradientAccumulation=4, outputMode=mode)
    loader = poptorch.DataLoader(opts, data, batch_size=3)
    assert (loader.combinedBatchSize, len(loader)) == (48, 2)
    model, plain = Classifier(), Classifier()
    plain.load_state_dict(model.state_dict())
    wrapped = poptorch.trainingModel(model, opts, sgd(model))
    batch = next(iter(loader))
    assert batch[0].shape == (48, 4)
    loss, scores = wrapped(*batch)
    assert (loss.shape, scores.shape) == ((losses,), (logits, 10))
    optimizer = sgd(plain)
    for x, labels in zip(batch[0].split(24), batch[1].split(24), strict=True):  # two updates
        optimizer.zero_grad()
        plain(x, labels)[0].backward()
        optimizer.step()
    torch.testing.assert_close(model.fc.weight.detach(), plain.fc.weight.detach())


# --- inputs that groups of replicas share


@pytest.mark.parametrize(
    ("kind", "seen"), [(CONSECUTIVE, [0, 0, 1, 1]), (ORTHOGONAL, [0, 1, 0, 1])]
)
def test_groups_receive_the_same_rows(kind, seen):
    wrapped = inference(
        lambda x: x * 10, replicationFactor=4, inputReplicaGrouping=(2, kind), deviceIterations=2
    )
    output = wrapped(torch.arange(4.0))
    assert output.tolist() == [10 * (2 * iteration + g) for iteration in (0, 1) for g in seen]


def test_a_shared_batch_is_as_large_as_the_loader_makes_it():
    opts = options(
        replicationFactor=4, inputReplicaGrouping=(2, ORTHOGONAL), gradientAccumulation=3
    )
    loader = poptorch.DataLoader(opts, torch.utils.data.TensorDataset(torch.ones(24, 3)), 2)
    assert loader.combinedBatchSize == 12
    model = Calls(lambda self, x: F.mse_loss(x * self.weight, x))
    wrapped = poptorch.trainingModel(model, opts, sgd(model, lr=0.25))
    assert wrapped(next(iter(loader))[0]).shape == (4,)
    assert model.weight.item() == 1.5


def test_the_message_names_the_groups():
    wrapped = inference(
        lambda x: x, replicationFactor=4, inputReplicaGrouping=(2, CONSECUTIVE), deviceIterations=3
    )
    with pytest.raises(
        AssertionError, match=r"Invalid batch dimension: .* 6 .*input groups 2 of 2 replicas each"
    ):
        wrapped(torch.ones(8))


def test_one_group_takes_a_scalar():
    wrapped = inference(lambda x: x + 1, replicationFactor=4, inputReplicaGrouping=(4, CONSECUTIVE))
    assert wrapped(torch.tensor(1.0)).tolist() == [2.0] * 4


def test_a_replica_does_not_see_what_another_wrote_into_their_input():
    wrapped = inference(
        lambda x: x.add_(1) * 1, replicationFactor=4, inputReplicaGrouping=(2, CONSECUTIVE)
    )
    x = torch.zeros(2)
    assert wrapped(x).tolist() == [1.0] * 4
    assert x.tolist() == [1.0, 1.0]  # as if one replica had written


# --- state of each replica


class Remembering(torch.nn.Module):
    """A buffer that depends on what a replica has seen, and random numbers."""

    def __init__(self):
        super().__init__()
        self.fc = torch.nn.Linear(4, 3)
        self.register_buffer("mean", torch.zeros(4))

    def forward(self, x, target):
        self.mean.mul_(0.5).add_(x.mean(0))
        return F.mse_loss(self.fc(F.dropout(x - self.mean, 0.3)), target)


def _trajectory(between, seed=4):
    torch.manual_seed(0)
    model = Remembering()
    wrapped = poptorch.trainingModel(
        model,
        options(replicationFactor=2, broadcastBuffers=False, randomSeed=seed),
        poptorch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9),
    )
    losses = []
    for step in range(4):
        losses.append(wrapped(*rows(8, seed=step)))
        between(wrapped)
    return torch.stack(losses), model.mean.clone()


def _detach(wrapped):
    wrapped.detachFromDevice()
    assert not wrapped.isAttachedToDevice()


def test_giving_up_the_device_changes_nothing():
    losses, mean = _trajectory(lambda wrapped: None)
    for result, found_mean in (_trajectory(_detach), _trajectory(lambda w: w.copyWeightsToHost())):
        assert torch.equal(result, losses)
        assert torch.equal(found_mean, mean)


def test_the_host_sees_the_first_replica_and_sends_its_own_to_all():
    model = Remembering()
    wrapped = trainer(model, replicationFactor=2, broadcastBuffers=False)
    x = torch.cat([torch.full((2, 4), 1.0), torch.full((2, 4), 3.0)])
    wrapped(x, torch.zeros(4, 3))
    assert torch.equal(model.mean, torch.ones(4))
    buffers = wrapped._executable.session.buffers
    assert [own["mean"][0].item() for own in buffers] == [1.0, 3.0]
    _detach(wrapped)
    wrapped.attachToDevice()
    assert [own["mean"][0].item() for own in buffers] == [1.0, 3.0]
    wrapped.copyWeightsToDevice()
    assert [own["mean"][0].item() for own in buffers] == [1.0, 1.0]
    _detach(wrapped)
    model.mean.fill_(7.0)  # changed on the host while detached: all replicas get it
    wrapped.attachToDevice()
    assert [own["mean"][0].item() for own in buffers] == [7.0, 7.0]


def test_random_numbers_are_the_seeds_and_every_replicas_own():
    def drawn(**settings):
        wrapped = inference(
            lambda x: F.dropout(x, 0.5), replicationFactor=2, deviceIterations=2, **settings
        )
        return wrapped(torch.ones(4, 64))

    first = drawn(randomSeed=3)
    assert torch.equal(first, drawn(randomSeed=3))
    assert not torch.equal(first, drawn(randomSeed=4))
    assert len({tuple(row.tolist()) for row in first}) == 4  # replicas and iterations differ
    assert not torch.equal(drawn(), drawn())


def test_a_state_brings_its_seed():
    wrapped, other = (inference(lambda x: F.dropout(x), randomSeed=seed) for seed in (3, 4))
    x = torch.ones(2, 32)
    for each in (wrapped, other):
        each(x)
    other.rng_state = wrapped.rng_state
    assert other.rng_state == wrapped.rng_state
    assert other.rng_state[0] == 3
    assert torch.equal(other(x), wrapped(x))
    with pytest.raises(ValueError, match="list of 64-bit integers"):
        other.rng_state = ["3", "4"]


# --- copies


def _counted(wrapped):
    copies, original = [], wrapped.copyWeightsToHost
    wrapped.copyWeightsToHost = lambda: (copies.append(1), original())[1]
    return copies


@pytest.mark.parametrize("relation", ["part", "whole", "same"])
def test_inference_of_parts_and_wholes_follows_the_training(relation):
    model = scorer()
    whole = torch.nn.Sequential(model.fc, torch.nn.Tanh())
    evaluated = {"part": model.fc, "whole": whole, "same": model}[relation]
    evaluate = poptorch.inferenceModel(evaluated, options())
    batch = rows(2) if relation == "same" else rows(2)[:1]
    before = evaluate(*batch)
    wrapped = trainer(model)
    for _ in range(2):
        wrapped(*rows(4))
        output = evaluate(*batch)
        for value, expected in zip(_list(output), _list(evaluated(*batch)), strict=True):
            assert torch.equal(value, expected)
        assert not torch.equal(_list(output)[0], _list(before)[0])
    copies = _counted(wrapped)
    evaluate(*batch)
    assert copies == []


def _list(value):
    return list(value) if isinstance(value, tuple) else [value]
