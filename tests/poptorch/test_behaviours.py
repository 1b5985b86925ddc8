"""Behaviours that the original's documentation does not spell out.

Types, weights, programs, optimizers and options; everything goes through the public interface.
"""

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - torch's own convention

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
from poptorch import OutputMode, optim

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


@pytest.mark.parametrize("weight", [torch.float16, torch.float32])
@pytest.mark.parametrize("activation", [torch.float16, torch.float32])
def test_convolutions_follow_the_activation(weight, activation):
    layer = torch.nn.Conv1d(2, 3, 3).to(weight)
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


# -- observing -------------------------------------------------------------------------------


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
