"""Where a wrapped model differs from plain PyTorch in a way that is easily got wrong.

Each test runs through the public interface only.
"""

import copy

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - torch's own convention
from torch import nn

import poptorch
from helpers import datasets as data
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
from poptorch import OutputMode, ReductionType

# The original's worked example; test_replicas.py has it with a loader and its weights.
WORKED = {"deviceIterations": 2, "gradientAccumulation": 4, "replicationFactor": 2}
X = torch.arange(4.0)


def micro_batches(x, target, size):
    return list(zip(x.split(size), target.split(size), strict=True))


# --- one call


def test_the_result_of_training_is_the_last_micro_batch_of_each_replica():
    model, plain = scorer(), scorer()
    x, target = rows(48)
    loss, scores = trainer(model, **WORKED)(x, target)
    assert (loss.shape, scores.shape) == ((2,), (6, 3))
    plain_steps(plain, sgd(plain), [micro_batches(x[:24], target[:24], 3)])
    last = [plain(*pair) for pair in micro_batches(x[42:], target[42:], 3)]
    torch.testing.assert_close(loss, torch.stack([each[0] for each in last]).detach())
    torch.testing.assert_close(scores, torch.cat([each[1] for each in last]).detach())


class Stateful(nn.Module):
    """Counts its micro-batches in a buffer, and drops out."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        self.fc = nn.Linear(4, 3)
        self.register_buffer("seen", torch.zeros(1))

    def forward(self, x, target):
        self.seen.add_(1)
        mask = F.dropout(torch.ones_like(x), 0.5)
        return F.mse_loss(self.fc(x), target), self.seen, mask


def test_iterations_are_updates_and_buffers_and_random_numbers_go_on_between_them():
    model, plain = Stateful(), Stateful()
    x, target = rows(16)
    wrapped = trainer(model, deviceIterations=4, outputMode=OutputMode.All, randomSeed=3)
    losses, seen, masks = wrapped(x, target)
    expected = plain_steps(plain, sgd(plain), [[pair] for pair in micro_batches(x, target, 4)])
    torch.testing.assert_close(losses, torch.stack(expected))
    assert seen.tolist() == [1, 2, 3, 4]
    assert len({tuple(mask.flatten().tolist()) for mask in masks.split(4)}) == 4


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
    wrapped = trainer(Ordered(), outputMode=OutputMode.All, broadcastBuffers=False, **WORKED)
    _, same, seen = wrapped(x)
    assert torch.equal(same, x)
    # Each replica counts its own calls, so rows of one step have the same number.
    expected = torch.arange(1.0, 9.0).reshape(2, 4, 1, 1).expand(2, 4, 2, 3)
    assert torch.equal(seen, expected.reshape(-1))
    last = trainer(Ordered(), broadcastBuffers=False, **WORKED)(x)[1]
    assert torch.equal(last, x[42:])


@pytest.mark.parametrize("reduction", [ReductionType.Mean, ReductionType.Sum])
def test_gradients_are_averaged_over_all_micro_batches_and_losses_left_alone(reduction):
    model, plain = scorer(), scorer()
    x, target = rows(24)
    chosen = {"accumulationAndReplicationReductionType": reduction}
    settings = WORKED | {"deviceIterations": 1}
    output, _ = trainer(model, outputMode=OutputMode.All, **settings, **chosen)(x, target)
    summed = reduction is ReductionType.Sum
    micro = micro_batches(x, target, 3)
    losses = plain_steps(plain, sgd(plain), [micro], sum_gradients=summed)
    torch.testing.assert_close(output, torch.stack(losses))
    torch.testing.assert_close(weights(model), weights(plain))


# --- wrappers


def test_losses_are_found_by_their_operator():
    def shown_only(self, x):
        F.mse_loss(x * self.weight, x)
        return x * 2

    def nested(self, x):
        inner = F.mse_loss(x * self.weight, x, reduction="none")
        return poptorch.identity_loss(inner + F.l1_loss(x * self.weight, x), "mean")

    for forward in (shown_only, nested):
        model = Calls(forward)
        trainer(model)(X + 1)
        assert model.weight.item() < 2  # it was minimised, returned or not
    twice = Calls(lambda self, x: F.mse_loss(x * self.weight, x) + F.mse_loss(x, self.weight * x))
    with pytest.raises(poptorch.Error, match="Multiple independent losses"):
        trainer(twice)(X)


def test_a_schedule_counts_once_the_optimizer_is_set():
    model, plain = scorer(), scorer()
    optimizer, expected = sgd(model), sgd(plain)
    wrapped = trainer(model, optimizer)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
    wrapped(*rows(4))
    schedule.step()
    wrapped(*rows(4))  # at the old rate
    plain_steps(plain, expected, [[rows(4)]] * 2)
    assert torch.equal(weights(model), weights(plain))
    wrapped.setOptimizer(optimizer)
    wrapped(*rows(4))
    expected.param_groups[0]["lr"] = 0.05
    plain_steps(plain, expected, [[rows(4)]])
    assert torch.equal(weights(model), weights(plain))


def test_the_users_module_its_optimizer_and_averages_of_it_see_trained_weights():
    model, plain = scorer(), scorer()
    optimizer, expected = sgd(model), sgd(plain)
    weight = model.fc.weight
    average, other = (torch.optim.swa_utils.AveragedModel(each) for each in (model, plain))
    wrapped = trainer(model, optimizer)
    for _ in range(3):
        wrapped(*rows(4))
        plain_steps(plain, expected, [[rows(4)]])
        assert torch.equal(optimizer.param_groups[0]["params"][0], plain.fc.weight)
        assert torch.equal(weight, plain.fc.weight)
        average.update_parameters(model)
        other.update_parameters(plain)
    assert torch.equal(weights(average.module), weights(other.module))
    assert isinstance(model, type(plain))


def test_results_are_detached_tensors_of_the_host_in_types_of_the_device():
    model = Calls(lambda self, x: (F.mse_loss(x * self.weight, x), x.long(), x.double(), x > 0))
    output = trainer(model)(X)
    kinds = [torch.float32, torch.int32, torch.float32, torch.bool]
    assert [value.dtype for value in output] == kinds
    for value in output:
        assert type(value) is torch.Tensor
        assert value.is_cpu
        assert not value.requires_grad
    with pytest.raises(poptorch.Error, match=r"backward\(\)"):
        output[0].backward()


@pytest.mark.parametrize(
    "other", [(X[:2], 2), (X, 3), (X.int(), 2)], ids=["shape", "value", "type"]
)
def test_a_call_unlike_the_first_raises_and_never_compiles_again(other):
    traced = []
    wrapped = inference(lambda x, factor: (traced.append(1), x * factor)[1])
    wrapped(X, 2)
    for _ in range(2):
        with pytest.raises(poptorch.Error, match=r"(?s)mismatch for .*destroy\(\)"):
            wrapped(*other)
        assert torch.equal(wrapped(X, 2), 2 * X)
    assert len(traced) == 1


# --- what is copied, and what is constant


def test_options_are_copied_and_frozen():
    opts = options(gradientAccumulation=2)
    wrapped = poptorch.trainingModel(scorer(), opts)
    assert wrapped.options is not opts
    for frozen in (opts, wrapped.options):
        with pytest.raises(AttributeError, match="Can't modify frozen Options"):
            frozen.deviceIterations(2)
        with pytest.raises(AttributeError, match="Can't modify frozen Options"):
            frozen.Training.gradientAccumulation(1)
    poptorch.inferenceModel(scorer(), options())(*rows(2))
    again = poptorch.trainingModel(scorer(), opts)  # one object serves any number of wrappers
    assert again.options.Training.gradient_accumulation == 2


class Replacing(nn.Module):
    """Gives its state new tensors, or removes it, in forward."""

    def __init__(self, change):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1))
        self.register_buffer("buffer", torch.ones(1))
        self._change = change

    def forward(self, x):
        self._change(self)
        return x * 2


CHANGES = {
    "Buffer buffer is reassigned": lambda m: setattr(m, "buffer", m.buffer + 1),
    "Parameter weight is reassigned": lambda m: setattr(m, "weight", nn.Parameter(m.weight + 1)),
    "Buffer buffer is removed": lambda m: delattr(m, "buffer"),
    "Parameter weight is removed": lambda m: delattr(m, "weight"),
}


@pytest.mark.parametrize("words", CHANGES)
def test_state_replaced_or_removed_in_forward_is_an_error(words):
    with pytest.raises(poptorch.Error, match=rf"(?i){words}"):
        poptorch.inferenceModel(Replacing(CHANGES[words]), options())(X)


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
        wrapped.compile(X)
    for _ in range(2):
        assert torch.equal(wrapped(X), X + 2)
        model.shift.zero_()  # the program keeps what it was captured with
        model.scale[0].data.zero_()
    assert model.shift is before  # forward ran on the wrapper's copy, once
    assert model.calls == 0


# --- loaders, modes, pipelines, states


def test_loaders_drop_the_last_collate_the_combined_batch_and_divide_by_process():
    opts = options(**WORKED)
    loader = poptorch.DataLoader(opts, data.Range(110), batch_size=3)
    assert [len(batch) for _, batch in loader] == [48, 48]
    parts = []
    for process in (0, 1):
        opts = options(deviceIterations=2)
        opts.Distributed.configureProcessId(process, 2)
        loader = poptorch.DataLoader(opts, data.Range(19), batch_size=2)
        parts.append([int(n) for _, batch in loader for n in batch])
    assert parts == [list(range(8)), list(range(8, 16))]


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


@pytest.mark.parametrize(("training", "deep"), [(True, 3), (False, 2)])
def test_shallow_pipelines_are_refused_although_nothing_here_needs_their_depth(training, deep):
    def made(count):
        model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 3))
        for ipu, layer in enumerate(model):
            poptorch.BeginBlock(layer, ipu_id=ipu)
        scored = Calls(lambda self, x: poptorch.identity_loss(model(x), "mean"))
        scored.model = model
        if training:
            return trainer(scored, gradientAccumulation=count)
        return poptorch.inferenceModel(model, options(deviceIterations=count))

    with pytest.raises(poptorch.Error, match=rf"number of pipeline stages \({deep}\)"):
        made(deep - 1)(torch.ones(deep - 1, 4))
    made(deep)(torch.ones(deep, 4))


def test_states_of_optimizers_have_keys_of_their_own_and_torchs_are_refused():
    model = scorer()
    optimizer = poptorch.optim.Adam(model.parameters(), lr=0.1)
    before = optimizer.state_dict()
    assert (before["ipu_state"], before["ipu_param"]) == (None, None)
    trainer(model, optimizer)(*rows(4))
    state = optimizer.state_dict()
    assert set(state) == {"ipu_state", "ipu_param", "state", "param_groups"}
    assert {"Accl1___fc.weight", "Accl2___fc.bias"} <= set(state["ipu_state"])
    other = poptorch.optim.Adam(scorer().parameters(), lr=0.1)
    with pytest.raises(RuntimeError, match=r"Only IPU optimizer states can be loaded onto the IPU"):
        other.load_state_dict(torch.optim.Adam(scorer().parameters()).state_dict())
    with pytest.raises(RuntimeError, match="because it is empty"):
        other.load_state_dict({})
    other.load_state_dict(state)


# --- devices, blocks, seeds, loaders


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
        wrapped(X)
        assert not poptorch.isRunningOnIpu()
    assert seen == [True] * 4
    seen.clear()
    model(X)
    assert seen == [False] * 4
    with pytest.raises(ZeroDivisionError):
        inference(lambda x: x * (1 // 0))(X)
    assert not poptorch.isRunningOnIpu()


def test_begin_block_returns_the_module_and_shows_and_is_copied_with_it():
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    keys, layer = list(model.state_dict()), model[0]
    assert poptorch.BeginBlock(layer, "first", ipu_id=0) is layer
    poptorch.BeginBlock(model[1], "second", ipu_id=1)
    assert type(layer) is nn.Linear
    assert list(model.state_dict()) == keys
    copied = copy.deepcopy(model)
    for each in (model, copied):
        wrapped = poptorch.inferenceModel(each, options())
        for text in (poptorch.module_repr(each), repr(wrapped)):
            assert "BeginBlock(user_id=first, ipu_id=0)" in text
            assert "BeginBlock(user_id=second, ipu_id=1)" in text
        with pytest.raises(poptorch.Error, match=r"number of pipeline stages \(2\)"):
            wrapped(torch.ones(1, 4))
    poptorch.removeBlocks(copied)
    assert "BeginBlock" not in poptorch.module_repr(copied)
    assert "BeginBlock" in poptorch.module_repr(model)


def test_a_seed_of_options_seeds_torch_on_the_host():
    torch.manual_seed(12)
    expected = torch.rand(3)
    torch.rand(5)
    poptorch.Options().randomSeed(12)
    assert torch.equal(torch.rand(3), expected)


def test_a_deep_copy_of_options_can_be_changed():
    opts = options(gradientAccumulation=4, deviceIterations=2)
    wrapped = poptorch.trainingModel(scorer(), opts)
    for frozen in (opts, wrapped.options):
        for copied in (copy.deepcopy(frozen), frozen.clone()):
            copied.Training.gradientAccumulation(1)
            copied.deviceIterations(3).outputMode(OutputMode.All)
            loss, _ = poptorch.inferenceModel(scorer(), copied)(*rows(3))
            assert loss.shape == (3,)
    assert wrapped.options.Training.gradient_accumulation == 4


def noisy(wrapped_of):
    """Five calls of a model with momentum, dropout and a counter, and what they leave."""
    model = Stateful()
    optimizer = poptorch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    wrapped = trainer(model, optimizer, randomSeed=3, deviceIterations=2)
    masks = [wrapped_of(wrapped)(*rows(4, seed))[2] for seed in range(5)]
    return masks, weights(model), model.seen.clone()


def test_a_call_after_detaching_attaches_with_the_same_state():
    def detached(wrapped):
        if wrapped.isAttachedToDevice():
            wrapped.detachFromDevice()
            assert not wrapped.isAttachedToDevice()
        return wrapped

    (masks, actual, seen), (expected_masks, expected, counted) = noisy(detached), noisy(lambda w: w)
    assert all(map(torch.equal, masks, expected_masks))
    assert torch.equal(actual, expected)
    assert torch.equal(seen, counted)


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_batches_of_an_asynchronous_loader_stay_valid():
    loader = poptorch.DataLoader(
        options(),
        data.Range(24),
        batch_size=2,
        mode=poptorch.DataLoaderMode.Async,
        async_options={"buffer_size": 2, "sharing_strategy": poptorch.SharingStrategy.Fork},
    )
    kept = [batch for _, batch in loader]
    loader.terminate()
    assert [batch.tolist() for batch in kept] == [[n, n + 1] for n in range(0, 24, 2)]
