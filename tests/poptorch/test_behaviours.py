"""Behaviours that the original's documentation does not spell out.

Types, weights, programs, optimizers and options; everything goes through the public interface.
"""

import collections
import copy

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - torch's own convention

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
from poptorch import MeanReductionStrategy, OutputMode, optim

X = torch.arange(12.0).reshape(4, 3)


def trained(updates=1, **settings):
    """A wrapper that has trained, and its model, which nobody has read since."""
    model = scorer()
    wrapped = trainer(model, **settings)
    for _ in range(updates):
        wrapped(*rows(4))
    return wrapped, model


def expected_weights(updates=1):
    plain = scorer()
    plain_steps(plain, sgd(plain), [[rows(4)]] * updates)
    return weights(plain)


def counted(wrapped):
    """Replaces copyWeightsToHost by one that counts, as programs may."""
    copies, original = [], wrapped.copyWeightsToHost

    def counting():
        copies.append(1)
        return original()

    wrapped.copyWeightsToHost = counting
    return copies


class Counter(torch.nn.Module):
    """Counts micro-batches in a buffer; its loss and second result show the count."""

    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(3))
        self.register_buffer("count", torch.zeros(1))

    def forward(self, x):
        self.count += 1
        return F.mse_loss(x * self.weight, x + 1), self.count + 0 * x[:, :1].sum()


# -- types -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wide", "narrow"), [(torch.int64, torch.int32), (torch.float64, torch.float32)]
)
def test_wide_results_come_back_narrow(wide, narrow):
    x = torch.tensor([1, 2, 3])
    output = inference(lambda x: {"moved": x.to(wide), "computed": [x.to(wide) * 2]})(x)
    assert (output["moved"].dtype, output["computed"][0].dtype) == (narrow, narrow)
    assert output["computed"][0].tolist() == [2, 4, 6]
    assert inference(lambda x: x)(x.to(wide)).dtype is narrow


def test_double_inputs_are_demoted_before_computing():
    seen = []
    wrapped = inference(lambda x: (seen.append(x.dtype), x + 1e-9 - x)[1])
    output = wrapped(torch.ones(2, dtype=torch.float64))
    assert seen == [torch.float32]
    assert output.tolist() == [0.0, 0.0]  # in double it would be 1e-9


@pytest.mark.parametrize("kind", [torch.int8, torch.uint8, torch.int16])
def test_small_integers_pass_with_their_type(kind):
    x = torch.tensor([1, 100, 127], dtype=kind)
    output = inference(lambda x: x)(x)
    assert output.dtype is kind
    assert torch.equal(output, x)


def test_half_with_float_is_float():
    output = inference(lambda a, b: (a + b, b * a, a - b))(X.half(), X)
    assert {value.dtype for value in output} == {torch.float32}
    assert torch.equal(output[1], X * X)


@pytest.mark.parametrize("layer", [torch.nn.Linear(4, 3), torch.nn.Conv1d(2, 3, 3)], ids=type)
@pytest.mark.parametrize("weight", [torch.float16, torch.float32])
@pytest.mark.parametrize("activation", [torch.float16, torch.float32])
def test_layers_follow_the_activation(layer, weight, activation):
    layer = copy.deepcopy(layer).to(weight)
    x = torch.randn(3, 2, 4).to(activation)
    output = poptorch.inferenceModel(layer, options())(x)
    assert output.dtype is activation
    torch.testing.assert_close(output, layer.to(activation)(x))


@pytest.mark.parametrize("make", [torch.nn.BatchNorm1d, torch.nn.InstanceNorm1d])
def test_half_inputs_work_with_float_normalisation(make):
    model = make(2, affine=True, track_running_stats=True)
    x = torch.randn(4, 2, 8)
    wrapped = poptorch.inferenceModel(model, options())
    output = wrapped(x.half())
    assert output.dtype is torch.float16
    torch.testing.assert_close(output.float(), make(2)(x), rtol=0, atol=5e-3)
    wrapped.copyWeightsToHost()
    assert model.running_mean.dtype is torch.float32
    assert model.running_mean.abs().sum() > 0


# -- weights ---------------------------------------------------------------------------------


def test_inputs_with_history_are_detached():
    x = torch.ones(4, 4, requires_grad=True)
    with_history = x * 2
    model, plain = scorer(), scorer()
    loss, scores = trainer(model)(with_history, rows(4)[1])
    assert not loss.requires_grad
    assert scores.grad_fn is None
    assert x.grad is None
    assert with_history.requires_grad  # the caller's tensor is as it was
    plain_steps(plain, sgd(plain), [[(with_history.detach(), rows(4)[1])]])
    assert torch.equal(weights(model), weights(plain))


def test_a_host_step_leaves_the_device_alone():
    model = scorer()
    optimizer = sgd(model)
    wrapped = poptorch.trainingModel(model, options(), optimizer)
    wrapped(*rows(4))
    before = weights(model).clone()
    with torch.enable_grad():
        model(*rows(4))[0].backward()
    optimizer.step()
    assert not torch.equal(weights(model), before)  # the host moved
    with pytest.warns(poptorch.HostChangeWarning, match=r"optimizer.step\(\)"):
        wrapped(*rows(4))
    assert torch.equal(weights(model), expected_weights(2))  # the device went on from its own


@pytest.mark.parametrize(
    "read",
    [
        lambda m: m.fc.weight + 0,
        lambda m: [p.sum().item() for p in m.parameters()],
        lambda m: m(*rows(4)),
        lambda m: m.state_dict(),
    ],
    ids=["a tensor", "all tensors", "host forward", "state_dict"],
)
def test_a_read_after_training_is_one_copy(read):
    wrapped, model = trained(updates=0)
    wrapped.compile(*rows(4))
    copies = counted(wrapped)
    read(model)
    assert copies == []  # nothing changed
    for number in (1, 2):
        wrapped(*rows(4))
        wrapped(*rows(4))
        assert len(copies) == number - 1  # nobody looked
        for _ in range(3):
            read(model)
        assert len(copies) == number
        assert torch.equal(weights(model), expected_weights(2 * number))
    assert len(copies) == 2


def test_inference_after_training_is_one_copy():
    wrapped, model = trained()
    copies = counted(wrapped)
    validation = poptorch.inferenceModel(model, options())
    plain = scorer()
    plain_steps(plain, sgd(plain), [[rows(4)]])
    for _ in range(2):
        assert torch.equal(validation(*rows(4))[1], plain(*rows(4))[1].detach())
    assert len(copies) == 1
    wrapped(*rows(4))
    validation(*rows(4))
    assert len(copies) == 2


def test_copying_to_the_device_does_not_sync_first():
    wrapped, model = trained(updates=0)
    wrapped.compile(*rows(4))
    copies = counted(wrapped)
    with torch.no_grad():
        model.fc.weight.fill_(0.5)
        model.fc.bias.zero_()
    wrapped.copyWeightsToDevice()
    assert copies == []
    scores = wrapped(*rows(4))[1]
    torch.testing.assert_close(scores, 0.5 * rows(4)[0].sum(1, keepdim=True).expand(4, 3))
    wrapped.copyWeightsToDevice()  # what the host has, although the device is newer
    assert copies == []
    assert torch.equal(model.fc.weight, torch.full((3, 4), 0.5))


def test_set_optimizer_copies_no_weights():
    model = scorer()
    optimizer = optim.SGD(model.parameters(), lr=0.1)
    wrapped = trainer(model, optimizer)
    other = optim.SGD(model.parameters(), lr=0.0)  # reads parameters, so before the training
    wrapped(*rows(4))
    copies = counted(wrapped)
    optimizer.param_groups[0]["lr"] = 0.5
    for each in (optimizer, other):
        wrapped.setOptimizer(each)
    assert copies == []
    wrapped(*rows(4))
    assert torch.equal(weights(model), expected_weights(1))


def test_implicit_copies_include_buffers():
    model = Counter()
    wrapped = trainer(model)
    wrapped(X)
    assert model.weight.sum() != 3  # the read of a parameter
    assert torch.Tensor.item(model.count) == 1


@pytest.mark.parametrize("training", [True, False])
def test_buffers_update_at_every_micro_batch(training):
    model = Counter()
    settings = {"deviceIterations": 2, "outputMode": OutputMode.All}
    if training:
        wrapped = trainer(model, gradientAccumulation=2, **settings)
        micro_batches = 4
    else:
        wrapped, micro_batches = poptorch.inferenceModel(model, options(**settings)), 2
    for call in range(2):
        counts = wrapped(X)[1].flatten().tolist()
        assert counts == [call * micro_batches + k + 1 for k in range(micro_batches)]
    if not training:
        wrapped.copyWeightsToHost()
    assert model.count.item() == 2 * micro_batches


def test_each_replica_keeps_its_own_buffer():
    class Mean(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = torch.nn.Parameter(torch.ones(1))
            self.register_buffer("total", torch.zeros(1))

        def forward(self, x):
            self.total += x.sum()
            return poptorch.identity_loss(x * self.weight, "mean"), self.total + 0

    model = Mean()
    wrapped = trainer(model, replicationFactor=2, broadcastBuffers=False)
    x = torch.tensor([1.0, 10.0])
    assert wrapped(x)[1].tolist() == [1.0, 10.0]
    assert wrapped(x)[1].tolist() == [2.0, 20.0]
    assert model.total.tolist() == [2.0]  # the host reads that of replica 0
    assert wrapped(x)[1].tolist() == [3.0, 30.0]  # and reading has mixed nothing


def test_only_the_listed_buffers_are_sent():
    class Shifted(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("first", torch.zeros(3))
            self.register_buffer("second", torch.zeros(3))
            self.weight = torch.nn.Parameter(torch.zeros(3))

        def forward(self, x):
            return x + self.first + self.second + self.weight

    def changed(**settings):
        model = Shifted()
        wrapped = poptorch.inferenceModel(model, options(**settings))
        wrapped(X)
        with torch.no_grad():
            model.first += 1
            model.second += 10
            model.weight += 100
        return wrapped

    wrapped = changed(updatableNamedBuffers=["first"])
    wrapped.copyNamedBuffersToDevice()
    with pytest.warns(poptorch.HostChangeWarning, match="weight, second of the host"):
        assert torch.equal(wrapped(X), X + 1)
    for settings in ({}, {"updatableNamedBuffers": []}):
        with pytest.raises(poptorch.Error, match="No named buffers marked"):
            changed(**settings).copyNamedBuffersToDevice()


def test_changed_inputs_reach_the_caller():
    def forward(x, nested):
        x.add_(1)
        nested[0][1].mul_(x)
        return x.sum() + nested[0][0].sum()

    x, kept, changed = X.clone(), X.clone(), X.clone()
    wrapped = inference(forward)
    for times in (1, 2):
        wrapped(x, [[kept, changed]])
        assert torch.equal(x, X + times)
    assert torch.equal(kept, X)
    assert torch.equal(changed, X * (X + 1) * (X + 2))


# -- programs --------------------------------------------------------------------------------


def test_for_loop_passes_by_value():
    def body(x):
        x += 1
        return [x]

    x = X.clone()
    wrapped = inference(lambda x: (poptorch.for_loop(3, body, [x])[0], x + 0))
    looped, after = wrapped(x)
    assert torch.equal(looped, X + 3)
    assert torch.equal(after, X)
    assert torch.equal(x, X)


@pytest.mark.parametrize("start", [-7, 100])
def test_starts_out_of_range_compile(start):
    wrapped = inference(lambda x, start: poptorch.dynamic_slice(x, 0, start, 2, 1))
    wrapped.compile(X, torch.tensor([start]))
    assert wrapped.isCompiled()
    assert torch.equal(wrapped(X, torch.tensor([1])), X[1:3])


@pytest.mark.parametrize("kind", [ValueError, KeyError, type("Mine", (Exception,), {})])
def test_exceptions_of_forward_keep_type_and_text(kind):
    def forward(x):
        raise kind("the text, as it is")

    with pytest.raises(kind) as caught:
        inference(forward)(X)
    assert type(caught.value) is kind
    assert caught.value.args == ("the text, as it is",)


@pytest.mark.parametrize("training", [True, False])
def test_forward_may_be_an_attribute_of_the_instance(training):
    model = scorer()
    model.forward = lambda a, b=2.0: poptorch.identity_loss(model.fc(a) * b, "mean")
    x = rows(4)[0]
    wrapped = trainer(model) if training else poptorch.inferenceModel(model, options())
    assert wrapped(x) == pytest.approx(2 * scorer().fc(x).mean().item())
    assert torch.equal(weights(model), weights(scorer())) is not training
    with pytest.raises(AssertionError, match="Too many arguments"):
        wrapped(x, 2.0, 3)


class Ordered(collections.OrderedDict):
    pass


@pytest.mark.parametrize("kind", [list, tuple, dict, collections.OrderedDict, Ordered])
def test_order_and_classes_of_results_survive(kind):
    def forward(x):
        pairs = [("z", x), ("a", x + 1), ("m", x + 2)]
        inner = kind(pairs) if issubclass(kind, dict) else kind(value for _, value in pairs)
        return [inner, (inner, x)]

    outer = inference(forward)(X)
    assert (type(outer), type(outer[1])) == (list, tuple)
    for results in (outer[0], outer[1][0]):
        assert type(results) is kind
        if issubclass(kind, dict):
            assert list(results) == ["z", "a", "m"]
            results = list(results.values())
        assert [value[0, 0].item() for value in results] == [0.0, 1.0, 2.0]


def test_custom_types_are_split_and_rebuilt():
    poptorch.registerCustomArgParser(data.Pair, data.PairParser())
    try:
        seen = []

        def forward(pair):
            seen.append((type(pair), tuple(pair.x.shape), pair.note))
            return data.Pair(pair.x.sum(0, keepdim=True), pair.y * 2, pair.note)

        given = data.Pair(X, torch.arange(4), "as it was")
        output = inference(forward, deviceIterations=2)(given)
    finally:
        poptorch.registerCustomArgParser(data.Pair, None)
    assert seen == [(data.Pair, (2, 3), "as it was")]
    assert type(output) is data.Pair
    assert torch.equal(output.x, X.reshape(2, 2, 3).sum(1))
    assert output.y.tolist() == [0, 2, 4, 6]
    assert output.note == "as it was"


@pytest.mark.parametrize(
    ("mode", "shape"), [(OutputMode.Final, ()), (OutputMode.Sum, ()), (OutputMode.All, (6,))]
)
def test_losses_stay_without_dimension_unless_all_are_asked_for(mode, shape):
    model = scorer()
    wrapped = trainer(
        model, sgd(model, 0.0), deviceIterations=3, gradientAccumulation=2, outputMode=mode
    )
    x, target = rows(12)
    losses = [F.mse_loss(scorer().fc(x[i : i + 2]), target[i : i + 2]) for i in range(0, 12, 2)]
    expected = torch.stack(losses).detach()
    expected = {OutputMode.Final: expected[-1], OutputMode.Sum: expected.sum()}.get(mode, expected)
    loss = wrapped(x, target)[0]
    assert loss.shape == shape
    torch.testing.assert_close(loss, expected)


def test_every_n_returns_the_nth_iterations():
    every_second = (OutputMode.EveryN, 2)
    wrapped = inference(lambda x: x * 10, deviceIterations=6, outputMode=every_second)
    assert wrapped(torch.arange(1.0, 7.0)).tolist() == [20.0, 40.0, 60.0]
    model = Calls(lambda self, x: (poptorch.identity_loss(x * self.weight, "mean"), x))
    wrapped = trainer(
        model, sgd(model, 0.0), deviceIterations=4, gradientAccumulation=2, outputMode=every_second
    )
    loss, x = wrapped(torch.arange(1.0, 9.0))
    assert x.tolist() == [3.0, 4.0, 7.0, 8.0]  # with all accumulation steps
    assert loss.tolist() == [6.0, 8.0, 14.0, 16.0]


@pytest.mark.parametrize("make", ["no parameters", "frozen", "unreachable"])
def test_training_runs_with_nothing_trainable(make):
    model = Calls(lambda self, x: F.mse_loss(x, x + 2))
    if make == "no parameters":
        del model.weight
    if make == "frozen":
        model = Calls(lambda self, x: F.mse_loss(x * self.weight, x * 2 + 2))
        model.weight.requires_grad_(False)
    wrapped = poptorch.trainingModel(model, options())
    for _ in range(2):
        assert wrapped(X).item() == 4.0
    assert make == "no parameters" or model.weight.item() == 2.0


# -- optimizers ------------------------------------------------------------------------------

KINDS = [optim.SGD, optim.Adam, optim.AdamW, optim.RMSprop, optim.LAMB]


@pytest.mark.parametrize("kind", KINDS)
def test_optimizers_step_on_the_host(kind):
    def make(model):
        return kind(model.parameters(), lr=0.1, weight_decay=0.1)

    host, model = scorer(), scorer()
    plain_steps(host, make(host), [[rows(4, seed)] for seed in range(3)])
    wrapped = trainer(model, make(model))
    for seed in range(3):
        wrapped(*rows(4, seed))
    assert not torch.equal(weights(host), weights(scorer()))
    torch.testing.assert_close(weights(host), weights(model), rtol=0, atol=1e-6)


@pytest.mark.parametrize("kind", [optim.SGD, optim.Adam, optim.AdamW])
@pytest.mark.parametrize("limit", [0.05, 1e6])
def test_max_grad_norm_clips_the_global_norm(kind, limit):
    model, plain = scorer(), scorer()
    # Two groups: the norm is over the parameters of both.
    groups = [{"params": [p]} for p in model.parameters()]
    wrapped = trainer(model, kind(groups, lr=0.1, max_grad_norm=limit))
    stepper = getattr(torch.optim, kind.__name__)(plain.parameters(), lr=0.1)
    for seed in range(2):
        wrapped(*rows(4, seed))
        stepper.zero_grad()
        plain(*rows(4, seed))[0].backward()
        torch.nn.utils.clip_grad_norm_(plain.parameters(), limit)
        stepper.step()
    torch.testing.assert_close(weights(model), weights(plain), rtol=0, atol=1e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_copies_keep_optimizer_attributes(kind):
    model = scorer()
    original = kind(model.parameters(), lr=0.1, loss_scaling=4.0, accum_type=torch.float16)
    original.variable_attrs.markAsConstant("lr")
    original.extra = "a user's own"
    result = copy.copy(original)
    assert type(result) is kind
    assert (result.loss_scaling, result.accum_type, result.extra) == (
        4.0,
        torch.float16,
        "a user's own",
    )
    assert result.variable_attrs.isConstant("lr")
    assert not result.variable_attrs.isConstant("loss_scaling")
    wrapped = trainer(model, result)
    wrapped(*rows(4))
    assert not torch.equal(weights(model), weights(scorer()))


@pytest.mark.parametrize(
    ("settings", "strategy"),
    [
        ({"accum_type": torch.float16}, MeanReductionStrategy.Running),
        ({"accum_type": torch.float16, "use_combined_accum": True}, MeanReductionStrategy.Post),
        ({"accum_type": torch.float32}, MeanReductionStrategy.Post),
    ],
)
def test_half_accumulators_take_a_running_mean(settings, strategy):
    model, chosen = scorer(), options(gradientAccumulation=2)
    optimizer = optim.SGD(model.parameters(), lr=0.1, momentum=0.9, **settings)
    wrapped = poptorch.trainingModel(model, chosen, optimizer)
    name = "meanAccumulationAndReplicationReductionStrategy"
    assert getattr(wrapped.options.Training, name) == strategy
    assert getattr(chosen.Training, name) == MeanReductionStrategy.Post
    wrapped(*rows(4))
    plain = scorer()
    plain_steps(plain, sgd(plain), [[rows(4)]])
    torch.testing.assert_close(weights(model), weights(plain), rtol=0, atol=1e-3)


# -- options ---------------------------------------------------------------------------------


@pytest.mark.parametrize("training", [True, False])
def test_the_executor_copies_the_options(training):
    chosen = options()
    wrap = poptorch.trainingModel if training else poptorch.inferenceModel
    wrapped = wrap(scorer(), chosen)
    assert wrapped.options is not chosen
    assert wrapped.options.output_mode == (OutputMode.Final if training else OutputMode.All)
    assert chosen.defaultOutputMode()
    assert chosen.output_mode == OutputMode.Default
    for frozen in (chosen, wrapped.options):
        with pytest.raises(AttributeError, match="Can't modify frozen Options"):
            frozen.deviceIterations(2)


# -- data ------------------------------------------------------------------------------------


# -- observing -------------------------------------------------------------------------------


def test_perf_counters_hold_one_entry_per_step():
    settings = {"deviceIterations": 3, "gradientAccumulation": 2, "outputMode": OutputMode.All}
    names = ("input", "input_complete", "output", "output_complete")
    latencies = ("getHostIpuLatency", "getComputeLatency", "getIpuHostLatency", "getLatency")
    wrapped = trainer(scorer(), **settings)
    for _ in range(2):
        wrapped(*rows(6))
        counters = wrapped.getPerfCounters()
        assert all([len(moments) for moments in counters[name]] == [6, 6] for name in names)
        for tensor in range(2):
            times = zip(*(counters[name][tensor] for name in names), strict=True)
            assert all(list(step) == sorted(step) for step in times)
        assert all(min(getattr(wrapped, name)()) >= 0 for name in latencies)
        assert wrapped.getLatency()[2] > 0


def test_compile_hooks_run_in_order_and_can_be_removed():
    seen = []
    registers = {"pre": poptorch.registerPreCompileHook, "post": poptorch.registerPostCompileHook}
    handles = {
        (kind, number): register(lambda kind=kind, number=number: seen.append((kind, number)))
        for number in (1, 2, 3)
        for kind, register in registers.items()
    }
    pre, post = ([(kind, number) for number in (1, 2, 3)] for kind in ("pre", "post"))
    try:
        wrapped = inference(lambda x: (seen.append("forward"), x + 1)[1])
        wrapped(X)
        wrapped(X)
        assert seen == [*pre, "forward", *post]
        seen.clear()
        with pytest.raises(ZeroDivisionError):
            inference(lambda x: x / (1 // 0))(X)
        assert seen == [*pre, *post]
        seen.clear()
        handles.pop(("pre", 2)).remove()
        handles.pop(("post", 1)).remove()
        trainer(scorer())(*rows(4))  # every compilation of any wrapper
        assert seen == [("pre", 1), ("pre", 3), ("post", 2), ("post", 3)]
    finally:
        for handle in handles.values():
            handle.remove()
    inference(lambda x: x + 1)(X)
    assert len(seen) == 4
    for register in registers.values():
        with pytest.raises(RuntimeError, match="must be callable"):
            register("no function")


def test_random_numbers_follow_the_seed_and_differ_between_replicas():
    x = torch.ones(4, 64)

    def drawn(seed):
        settings = {"randomSeed": seed, "replicationFactor": 2, "deviceIterations": 2}
        wrapped = inference(lambda x: F.dropout(x, 0.5), **settings)
        return [wrapped(x) for _ in range(2)]

    first = drawn(3)
    assert all(map(torch.equal, first, drawn(3)))
    assert not torch.equal(first[0], drawn(4)[0])
    masks = {tuple(row.tolist()) for result in first for row in result}
    assert len(masks) == 8  # every row of every call is of another replica or iteration
