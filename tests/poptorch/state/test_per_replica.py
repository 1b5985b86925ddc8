"""Parameters that differ between groups of replicas."""

import copy

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - torch's own convention

import poptorch
from helpers.wrapping import Calls, options, trainer
from poptorch import CommGroupType, VariableRetrievalMode

ONE, ALL = VariableRetrievalMode.OnePerGroup, VariableRetrievalMode.AllReplicas
R = 4
# group type, shards -> the group of each of four replicas
GROUPS = {
    (CommGroupType.Consecutive, 2): [0, 0, 1, 1],
    (CommGroupType.Orthogonal, 2): [0, 1, 0, 1],
    (CommGroupType.NoGrouping, 0): [0, 1, 2, 3],
    (CommGroupType.Consecutive, 4): [0, 0, 0, 0],
}
grouped = pytest.mark.parametrize("asked", GROUPS, ids=lambda asked: f"{asked[0].name}-{asked[1]}")


class Dense(torch.nn.Module):
    """A dense layer by hand; ``weight`` may have a leading dimension outside of forward."""

    def __init__(self, *leading):
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.weight = torch.nn.Parameter(torch.randn(*leading, 3, 4, generator=generator))
        self.bias = torch.nn.Parameter(torch.zeros(3))
        self.inner = torch.nn.Linear(3, 2)
        torch.nn.init.constant_(self.inner.weight, 0.5)
        torch.nn.init.constant_(self.inner.bias, 0.25)

    def forward(self, x, target):
        scores = self.inner(torch.tanh(F.linear(x, self.weight, self.bias)))
        return F.mse_loss(scores, target), scores


def data(count=2 * R, seed=1):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(count, 4, generator=generator), torch.randn(count, 2, generator=generator)


OPTIMIZERS = {
    "sgd": lambda p: poptorch.optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=0.01),
    "adam": lambda p: poptorch.optim.AdamW(p, lr=0.01),
    "lamb": lambda p: poptorch.optim.LAMB(p, lr=0.05, weight_decay=0.01),
    "clipped": lambda p: poptorch.optim.SGD(p, lr=0.5, max_grad_norm=0.05),
    "rmsprop": lambda p: poptorch.optim.RMSprop(p, lr=0.01, momentum=0.5, centered=True),
    "adadelta": lambda p: torch.optim.Adadelta(p, lr=0.5),
    "adagrad": lambda p: torch.optim.Adagrad(p, lr=0.1, initial_accumulator_value=0.5),
    "nadam": lambda p: torch.optim.NAdam(p, lr=0.01),
    "asgd": lambda p: torch.optim.ASGD(p, lr=0.1, lambd=0.1, t0=1.0),
}


def written_out(model, groups, optimizer_of, batches, accumulation):
    """The same training by plain PyTorch: one parameter per group, gradients by hand."""
    own = [torch.nn.Parameter(value.clone()) for value in model.weight.detach()]
    single = copy.deepcopy(model)
    shared = [single.bias, single.inner.weight, single.inner.bias]
    optimizer = optimizer_of([*own, *shared])
    losses = []
    for x, target in batches:
        optimizer.zero_grad()
        size = x.shape[0] // (R * accumulation)
        pieces = zip(x.split(size), target.split(size), strict=True)
        for index, (a, b) in enumerate(pieces):
            weight = own[groups[index % R]]
            state = {"weight": weight, **{n: p for n, p in single.named_parameters() if p.dim()}}
            state["weight"] = weight
            loss = torch.func.functional_call(single, state, (a, b))[0]
            # The divisor is the number of all replicas, whatever the group.
            (loss / (R * accumulation)).backward()
            losses.append(loss.detach())
        if optimizer_of is OPTIMIZERS["clipped"]:
            torch.nn.utils.clip_grad_norm_([*own, *shared], 0.05)
        optimizer.step()
    return torch.stack([p.detach() for p in own]), shared, torch.stack(losses)


def cases():
    """Each optimizer in one way to group; those with norms of all elements in each way."""
    for index, optimizer in enumerate(OPTIMIZERS):
        some = [*GROUPS] if optimizer in ("sgd", "lamb", "clipped") else [[*GROUPS][index % 3]]
        for asked in some:
            yield pytest.param(asked, optimizer, 1 + index % 2, id=f"{optimizer}-{GROUPS[asked]}")


@pytest.mark.parametrize(("asked", "optimizer", "accumulation"), [*cases()])
def test_gradients_are_reduced_within_a_group(asked, optimizer, accumulation):
    groups = GROUPS[asked]
    model = Dense(max(groups) + 1)
    batches = [data(2 * R * accumulation, seed) for seed in range(3)]
    expected, shared, losses = written_out(
        model, groups, OPTIMIZERS[optimizer], batches, accumulation
    )
    wrapped = poptorch.trainingModel(
        model,
        options(
            replicationFactor=R,
            gradientAccumulation=accumulation,
            outputMode=poptorch.OutputMode.All,
        ),
        OPTIMIZERS[optimizer](model.parameters()),
    )
    wrapped.weight.replicaGrouping(*asked, ONE)
    actual = torch.cat([wrapped(*batch)[0] for batch in batches])
    torch.testing.assert_close(actual, losses)
    torch.testing.assert_close(model.weight.detach(), expected)
    torch.testing.assert_close(model.bias.detach(), shared[0].detach())
    torch.testing.assert_close(model.inner.weight.detach(), shared[1].detach())


@grouped
@pytest.mark.parametrize("mode", [ONE, ALL])
def test_inference_computes_with_the_value_of_each_group(asked, mode):
    groups = GROUPS[asked]
    model = Dense(max(groups) + 1)
    wrapped = poptorch.inferenceModel(model, options(replicationFactor=R))
    wrapped.per_replica_params["weight"] = (*asked, mode)
    x, target = data()
    output = wrapped(x, target)[1]
    for replica, rows in enumerate(x.split(2)):
        hidden = torch.tanh(F.linear(rows, model.weight[groups[replica]], model.bias))
        torch.testing.assert_close(output[2 * replica : 2 * replica + 2], model.inner(hidden))


@grouped
def test_all_replicas_gives_the_host_every_replicas_value(asked):
    groups = GROUPS[asked]
    one, every = Dense(max(groups) + 1), Dense(max(groups) + 1)
    for model, mode in ((one, ONE), (every, ALL)):
        wrapped = trainer(model, replicationFactor=R)
        wrapped.weight.replicaGrouping(*asked, mode)
        wrapped(*data())
    assert one.weight.shape == (max(groups) + 1, 3, 4)
    assert every.weight.shape == (R, 3, 4)
    assert torch.equal(every.weight, one.weight[groups])
    # What has come home can go back: each group takes its first replica's value.
    wrapped.copyWeightsToDevice()
    wrapped.copyWeightsToHost()
    assert torch.equal(every.weight, one.weight[groups])


def test_nested_and_tied_parameters_go_by_any_of_their_names():
    class Tied(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = torch.nn.Module(), torch.nn.Module()
            self.a.w = self.b.w = torch.nn.Parameter(torch.arange(4.0).reshape(2, 2))

        def forward(self, x):
            return x + self.a.w + self.b.w

    model = Tied()
    wrapped = poptorch.inferenceModel(model, options(replicationFactor=2))
    wrapped.per_replica_params["b.w"] = (CommGroupType.NoGrouping, 1, ONE)
    assert wrapped(torch.zeros(2, 2)).tolist() == [[0.0, 2.0], [4.0, 6.0]]


def test_one_group_of_all_has_no_effect():
    model, plain = Dense(), Dense()
    wrapped = trainer(model, replicationFactor=R)
    wrapped.weight.replicaGrouping(CommGroupType.All, 0, ONE)
    wrapped(*data())
    trainer(plain, replicationFactor=R)(*data())
    assert torch.equal(model.weight, plain.weight)


def test_one_replica_is_one_group():
    model, plain = Dense(1), Dense()
    plain.weight.data = model.weight.data[0].clone()
    for wrapped in (trainer(model), trainer(plain)):
        if wrapped.model is model:
            wrapped.weight.replicaGrouping(CommGroupType.NoGrouping, 1, ONE)
        wrapped(*data())
    assert torch.equal(model.weight[0], plain.weight)


def test_detaching_keeps_momentum_of_every_group():
    results = []
    for detach in (True, False):
        model = Dense(2)
        wrapped = poptorch.trainingModel(
            model, options(replicationFactor=R), OPTIMIZERS["adam"](model.parameters())
        )
        wrapped.weight.replicaGrouping(CommGroupType.Orthogonal, 2, ALL)
        for seed in range(4):
            wrapped(*data(seed=seed))
            _ = wrapped.detachFromDevice() if detach else None
        results.append(model.weight.detach().clone())
    assert torch.equal(*results)


@pytest.mark.parametrize(
    ("name", "entry", "message"),
    [
        ("scalar", (CommGroupType.NoGrouping, 1, ONE), "Scalars cannot be passed as per-replica"),
        ("weight", (CommGroupType.NoGrouping, 1, ONE), r"leading dimension .* groups: 4 \(4 rep"),
        ("weight", (CommGroupType.Consecutive, 2, ALL), r"shape \[3\].*number of groups: 2"),
        ("weight", (CommGroupType.Consecutive, 3, ONE), "groups of 3 replicas .* factor is 4"),
        ("weight", (CommGroupType.Consecutive, 0, ONE), "groups of 0 replicas"),
        ("weight", (CommGroupType.Consecutive, 2), "must be .CommGroupType, shards"),
        ("weight", (7, 2, ONE), "must be .CommGroupType, shards"),
        ("weight", (CommGroupType.Consecutive, 2, 1), "must be .CommGroupType, shards"),
        ("wait", (CommGroupType.Consecutive, 2, ONE), r"names 'wait', .* \['scalar', 'weight'\]"),
    ],
)
def test_what_cannot_be_grouped_is_refused(name, entry, message):
    model = Calls(lambda self, x: F.mse_loss(x * self.weight, x))
    model.scalar, model.weight = model.weight, torch.nn.Parameter(torch.ones(3))
    wrapped = trainer(model, replicationFactor=R)
    wrapped.per_replica_params[name] = entry
    with pytest.raises(poptorch.Error, match=message):
        wrapped(torch.ones(R, 3))


def test_grouping_after_the_first_run_is_too_late():
    wrapped = trainer(Dense(), replicationFactor=R)
    wrapped(*data())
    with pytest.raises(poptorch.Error, match="weight comes too late"):
        wrapped.weight.replicaGrouping(CommGroupType.Consecutive, 2, ONE)


def test_optimizer_state_has_one_entry_per_parameter_with_a_dimension_for_groups():
    model = Dense(R)
    optimizer = poptorch.optim.AdamW(model.parameters(), lr=0.01)
    wrapped = poptorch.trainingModel(
        model, options(replicationFactor=R, gradientAccumulation=2), optimizer
    )
    wrapped.weight.replicaGrouping(CommGroupType.NoGrouping, 0, ONE)
    batches = [data(4 * R, seed) for seed in range(3)]
    wrapped(*batches[0])
    saved = copy.deepcopy(optimizer.state_dict())
    before = copy.deepcopy(model.state_dict())
    shapes = {name: tuple(value.shape) for name, value in saved["ipu_state"].items()}
    assert not any("[" in name for name in shapes)
    assert shapes["Accl1___weight"] == shapes["Accum___weight"] == (R, 3, 4)
    assert shapes["Step___weight"] == (R,)
    assert shapes["Accl1___bias"] == (3,)
    assert len({value.sum().item() for value in saved["ipu_state"]["Accl1___weight"]}) == R

    wrapped(*batches[1])
    expected = copy.deepcopy(model.state_dict()), optimizer.state_dict()["ipu_state"]
    wrapped(*batches[2])
    wrapped.load_state_dict(before)
    optimizer.load_state_dict(saved)
    wrapped(*batches[1])
    state = model.state_dict(), optimizer.state_dict()["ipu_state"]
    for left, right in zip(expected, state, strict=True):
        assert left.keys() == right.keys()
        assert all(torch.equal(left[name], right[name]) for name in left)
