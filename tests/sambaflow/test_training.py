"""Steps of a loaded program are those of plain PyTorch, bit for bit."""

import contextlib
import copy

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - torch's own convention

from helpers.samba_models import Dense, Net, NetWithLoss, batch, equal_states, named, rows
from sambaflow import samba
from sambaflow.errors import UsageError

STEPS = 3
OPTIMIZERS = {
    "sgd": (samba.optim.SGD, torch.optim.SGD, {"lr": 0.1, "momentum": 0.9, "weight_decay": 1e-3}),
    "plain sgd": (samba.optim.SGD, torch.optim.SGD, {"lr": 0.1}),
    "adam": (samba.optim.Adam, torch.optim.Adam, {"lr": 0.01, "betas": (0.8, 0.9)}),
    "adamw": (samba.optim.AdamW, torch.optim.AdamW, {"lr": 0.01, "weight_decay": 0.1}),
    "torch's adam that climbs": (
        torch.optim.Adam,
        torch.optim.Adam,
        {"lr": 0.01, "weight_decay": 0.1, "maximize": True, "decoupled_weight_decay": True},
    ),
    "torch's rmsprop": (torch.optim.RMSprop, torch.optim.RMSprop, {"lr": 0.01}),
}


def pair(make, kind="sgd", **settings):
    ours, theirs, values = OPTIMIZERS[kind]
    values = {**values, **settings}
    model = make()
    reference = copy.deepcopy(model)
    samba.from_torch_model_(model)
    return (
        (model, ours(model.parameters(), **values)),
        (reference, theirs(reference.parameters(), **values)),
    )


def plain_step(model, optimizer, tensors, loss_of=lambda outputs: outputs[0]):
    optimizer.zero_grad()
    outputs = model(*tensors)
    loss_of(outputs).backward()
    optimizer.step()
    return outputs


@contextlib.contextmanager
def followed(load, make=Dense, kind="sgd", **settings):
    """A loaded model and plain PyTorch's, which are to end with the same state."""
    (model, optimizer), (reference, other) = pair(make, kind)
    traced = load(model, named(rows(0)), optimizer, **settings)
    yield optimizer, reference, other, traced
    samba.session.to_cpu(model)
    equal_states(model, reference)


class PerSample(Dense):
    def forward(self, x, y):
        scores = self.layer(x)
        return F.cross_entropy(scores, y, reduction="none"), scores


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_the_fused_step_is_pytorchs(load, kind):
    with followed(load, kind=kind) as (_, reference, other, _):
        for step in range(STEPS):
            outputs = samba.session.run(named(rows(step)))
            expected = plain_step(reference, other, rows(step))
            assert all(map(torch.equal, outputs, expected))


@pytest.mark.parametrize(
    ("make", "settings", "gradient", "loss_of"),
    [
        (Dense, {}, 4.0, lambda outputs: outputs[0] * 4),
        (Dense, {"loss_indices": [1]}, None, lambda outputs: outputs[1].sum()),
        (PerSample, {}, None, lambda outputs: outputs[0].sum()),
    ],
    ids=["scaled", "by loss_indices", "of each sample"],
)
def test_where_backward_starts(load, make, settings, gradient, loss_of):
    with followed(load, make, **settings) as (_, reference, other, traced):
        if gradient is not None:
            traced[0].sn_grad = torch.tensor(gradient)
        outputs = samba.session.run(named(rows(0)))
        assert all(map(torch.equal, outputs, plain_step(reference, other, rows(0), loss_of)))


def test_a_run_changes_lr_momentum_and_decay_without_compiling(load):
    with followed(load) as (_, reference, other, _):
        for step in range(STEPS):
            values = {"lr": 0.1 / (step + 1), "momentum": 0.5 + 0.1 * step}
            values["weight_decay"] = 0.01 * step
            samba.session.run(named(rows(step)), hyperparam_dict=values)
            other.param_groups[0].update(values)
            plain_step(reference, other, rows(step))


def test_schedulers_of_torch_are_followed(load):
    with followed(load) as (optimizer, reference, other, _):
        schedulers = [torch.optim.lr_scheduler.ExponentialLR(o, 0.5) for o in (optimizer, other)]
        for step in range(STEPS):
            samba.session.run(named(rows(step)))
            optimizer.step()  # torch's scheduler wants it; without gradients it changes nothing
            plain_step(reference, other, rows(step))
            for scheduler in schedulers:
                scheduler.step()


@pytest.mark.parametrize("where", ["fused", "in sections", "on the host"])
def test_gradients_are_clipped_by_their_norm(load, where):
    (model, _), (reference, other) = pair(Dense)
    optimizer = samba.optim.SGD(
        model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-3, max_grad_norm=0.1
    )
    if where != "on the host":
        load(model, named(rows(0)), optimizer)
    sections = ["fwd", "bckwd", "opt"] if where == "in sections" else None
    for step in range(STEPS):
        if where == "on the host":
            plain_step(model, optimizer, rows(step))
        else:
            samba.session.run(named(rows(step)), section_types=sections)
        other.zero_grad()
        reference(*rows(step))[0].backward()
        torch.nn.utils.clip_grad_norm_(reference.parameters(), 0.1)
        other.step()
    if where != "on the host":
        samba.session.to_cpu(model)
    equal_states(model, reference)


def test_sections_one_by_one_are_pytorchs(load):
    (model, optimizer), (reference, other) = pair(lambda: NetWithLoss(dropout=0.3))
    traced = load(model, named(batch(0)), optimizer)
    for step in range(STEPS):
        torch.manual_seed(step)
        (loss,) = samba.session.run(named(batch(step)), traced[0], section_types=["fwd"])
        samba.session.run(section_types=["bckwd"])
        samba.session.run(section_types=["opt"])
        torch.manual_seed(step)
        assert torch.equal(loss, plain_step(reference, other, batch(step))[0])
    samba.session.to_cpu(model, optimizer)
    equal_states(model, reference)


@pytest.mark.parametrize("way", ["grad_of_outputs", "sn_grad of results", "sn_grad of traced"])
def test_the_loss_may_be_computed_on_the_host(load, way):
    (model, optimizer), (reference, other) = pair(Net, lr=0.0)
    traced = load(model, named(batch(0))[:1], optimizer)
    for step in range(STEPS):
        images, labels = batch(step)
        inputs = named((images,))
        outputs = samba.session.run(inputs, traced, section_types=["fwd"])
        scores = samba.to_torch(outputs[0]).requires_grad_()
        loss = F.cross_entropy(scores, labels)
        loss.backward()
        gradient = samba.from_torch(scores.grad)
        given = [gradient] if way == "grad_of_outputs" else None
        if way == "sn_grad of results":
            outputs[0].sn_grad = gradient
        elif way == "sn_grad of traced":
            traced[0].sn_grad = gradient
        samba.session.run(
            inputs,
            traced,
            grad_of_outputs=given,
            section_types=["bckwd", "opt"],
            hyperparam_dict={"lr": 0.01 * (step + 1)},
        )
        other.param_groups[0]["lr"] = 0.01 * (step + 1)
        other.zero_grad()
        expected = F.cross_entropy(reference(images), labels)
        expected.backward()
        other.step()
        assert torch.equal(loss, expected)
    samba.session.to_cpu(model, optimizer)
    equal_states(model, reference)


def test_several_optimizers_are_groups_with_values_of_their_own(load):
    model = samba.from_torch_model_(Dense())
    reference = copy.deepcopy(model)

    def optimizers(module, kind):
        return [
            kind([module.layer.weight], lr=0.1, weight_decay=0.01),
            kind([module.layer.bias], lr=0.2),
        ]

    ours = optimizers(model, samba.optim.SGD)
    load(model, named(rows(0)), ours)
    for step in range(STEPS):
        values = {"lr": [0.1 + step, 0.2]} if step == 2 else {}
        samba.session.run(named(rows(step)), hyperparam_dict=values)
    theirs = optimizers(reference, torch.optim.SGD)
    for step in range(STEPS):
        theirs[0].param_groups[0]["lr"] = 0.1 + step if step == 2 else 0.1
        reference.zero_grad()
        reference(*rows(step))[0].backward()
        for each in theirs:
            each.step()
    samba.session.to_cpu(model)
    equal_states(model, reference)


@pytest.mark.parametrize("sections", [None, ["fwd", "bckwd", "opt"]])
def test_gradients_of_parameters_can_be_read(load, sections):
    (model, optimizer), (reference, other) = pair(Dense)
    load(model, named(rows(0)), optimizer)
    assert model.layer.weight.sn_grad is None
    samba.session.run(named(rows(0)), section_types=sections)
    plain_step(reference, other, rows(0))
    assert torch.equal(model.layer.weight.sn_grad, reference.layer.weight.grad)
    assert torch.equal(samba.to_torch(model.layer.weight), reference.layer.weight)
    assert torch.equal(model.layer.weight.sn_data, reference.layer.weight)
    assert not torch.equal(model.layer.weight, reference.layer.weight), "to_cpu was not called"


def test_a_model_in_bfloat16(load):
    model = samba.from_torch_model_(Net().bfloat16())
    images, labels = batch(0)
    optimizer = samba.optim.SGD(model.parameters(), lr=0.1)
    traced = load(model, named((images.bfloat16(),)), optimizer)
    reference = copy.deepcopy(model)
    (scores,) = samba.session.run(named((images.bfloat16(),)), traced, section_types=["fwd"])
    host = samba.to_torch(scores).float().requires_grad_()
    F.cross_entropy(host, labels).backward()
    samba.session.run(grad_of_outputs=[host.grad], section_types=["bckwd", "opt"])
    expected = reference(images.bfloat16())
    F.cross_entropy(expected.float(), labels).backward()
    torch.optim.SGD(reference.parameters(), lr=0.1).step()
    assert scores.dtype is torch.bfloat16
    assert torch.equal(scores, expected)
    samba.session.to_cpu(model)
    for actual, wanted in zip(model.parameters(), reference.parameters(), strict=True):
        assert torch.allclose(actual, wanted, rtol=1e-2, atol=1e-3)


def test_training_goes_on_from_a_checkpoint(load):
    (model, optimizer), (reference, other) = pair(Dense, "adamw")
    load(model, named(rows(0)), optimizer)
    samba.session.run(named(rows(0)))
    samba.session.to_cpu(model, optimizer)
    saved = copy.deepcopy((model.state_dict(), optimizer.state_dict()))

    resumed = samba.from_torch_model_(Dense())
    fresh = samba.optim.AdamW(resumed.parameters(), lr=0.01, weight_decay=0.1)
    resumed.load_state_dict(saved[0])
    fresh.load_state_dict(saved[1])
    samba.utils.trace_graph(resumed, named(rows(0)), fresh, pef="out/model/model.pef")
    samba.session.run(named(rows(1)))
    samba.session.to_cpu(resumed)
    for step in range(2):
        plain_step(reference, other, rows(step))
    equal_states(resumed, reference)


def test_state_of_the_optimizer_is_torchs(load):
    (model, optimizer), (reference, other) = pair(Dense, "adam")
    load(model, named(rows(0)), optimizer)
    samba.session.run(named(rows(0)))
    plain_step(reference, other, rows(0))
    samba.session.to_cpu(model, optimizer)
    state, wanted = optimizer.state_dict()["state"], other.state_dict()["state"]
    for index, values in wanted.items():
        for name, value in values.items():
            assert torch.equal(state[index][name], value)
            assert state[index][name].dtype is value.dtype


def test_inference_runs_forward_alone(load):
    model = samba.from_torch_model_(Net().eval())
    inputs = named(batch(0))[:1]
    traced = load(model, inputs, inference=True)
    (scores,) = samba.session.run(inputs, traced)
    assert torch.equal(scores, model(batch(0)[0]))
    assert samba.session.report.programs == ("forward",)


def test_two_sessions_hold_a_model_for_training_and_one_for_evaluation(load):
    (model, optimizer), (reference, other) = pair(NetWithLoss)
    load(model, named(batch(0)), optimizer)
    samba.session.run(named(batch(0)))
    samba.session.to_cpu(model)
    plain_step(reference, other, batch(0))
    evaluation = samba.SambaSession()
    load(model.eval(), named(batch(0)), session=evaluation)
    loss, _ = evaluation.run(named(batch(1)))
    assert torch.equal(loss, reference.eval()(*batch(1))[0])
    assert samba.session.report.programs == ("step", "forward", "backward", "update")


def test_outputs_come_in_the_order_asked_for(load):
    (model, optimizer), _ = pair(Dense)
    traced = load(model, named(rows(0)), optimizer)
    result = samba.session.run(named(rows(0)), (traced[1], traced[0]), section_types=["fwd"])
    assert [each.sn_name for each in result] == ["output_1", "output_0"]
    assert model.output_tensors is traced


def test_a_constant_output(load):
    class WithConstant(Dense):
        def forward(self, x, y):
            return torch.ones(2), super().forward(x, y)

    (model, optimizer), _ = pair(WithConstant)
    load(model, named(rows(0)), optimizer)
    first, loss, _ = samba.session.run(named(rows(0)))
    assert torch.equal(first, torch.ones(2))
    assert loss.dim() == 0


def test_frozen_parameters_stay(load):
    (model, _), _ = pair(Dense)
    model.layer.bias.requires_grad_(False)
    before = model.layer.bias.clone()
    optimizer = samba.optim.SGD(model.parameters(), lr=0.1)
    load(model, named(rows(0)), optimizer)
    samba.session.run(named(rows(0)))
    samba.session.to_cpu(model)
    assert torch.equal(model.layer.bias, before)
    assert model.layer.bias.sn_grad is None


def test_each_forward_serves_one_backward(load):
    (model, optimizer), _ = pair(Dense)
    load(model, named(rows(0)), optimizer)
    samba.session.run(named(rows(0)), section_types=["fwd"])
    samba.session.run(section_types=["bckwd"])
    with pytest.raises(UsageError, match="each fwd serves one bckwd"):
        samba.session.run(section_types=["bckwd"])


def test_a_missing_name_has_the_optimizers_value(load):
    (model, optimizer), (reference, other) = pair(Dense)
    load(model, named(rows(0)), optimizer)
    samba.session.run(named(rows(0)), hyperparam_dict={"lr": 0.5})
    other.param_groups[0]["lr"] = 0.5
    plain_step(reference, other, rows(0))
    samba.session.run(named(rows(1)))
    other.param_groups[0]["lr"] = 0.1
    plain_step(reference, other, rows(1))
    samba.session.to_cpu(model)
    equal_states(model, reference)


def test_weights_changed_on_the_host_are_pushed(load):
    (model, optimizer), (reference, other) = pair(Dense)
    load(model, named(rows(0)), optimizer)
    with torch.no_grad():
        for module in (model, reference):
            module.layer.weight.zero_()
    samba.session.to_device()
    samba.session.run(named(rows(0)))
    plain_step(reference, other, rows(0))
    samba.session.to_cpu(model)
    equal_states(model, reference)
