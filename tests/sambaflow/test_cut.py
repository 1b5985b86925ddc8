"""The sections together compute what the whole step computes, whatever crosses the cuts."""

import copy

import pytest
import torch

from sambaflow import samba


class Views(torch.nn.Module):
    """What backward needs are views, permuted memory and slices."""

    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(4, 4))

    def forward(self, x):
        a, b = (x @ self.weight).tanh().chunk(2, dim=1)
        turned = a.unsqueeze(0).expand(3, *a.shape).transpose(0, 2)
        return (turned * b.t().exp().unsqueeze(2)).sigmoid() @ self.weight[:3, 1:3]


class OverwrittenBuffer(torch.nn.Module):
    """Backward needs what a buffer was before forward wrote to it."""

    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(4))
        self.register_buffer("scale", torch.ones(4))

    def forward(self, x):
        result = x * self.weight * self.scale.clone()
        self.scale.mul_(0.5)
        return result


class ChannelsLast(torch.nn.Module):
    """Activations lie in another order than their dimensions."""

    def __init__(self):
        super().__init__()
        self.conv = torch.nn.Conv2d(4, 4, 1)

    def forward(self, x):
        image = x.reshape(1, 4, -1, 1).to(memory_format=torch.channels_last)
        return self.conv(image).relu().exp()


class Recurrent(torch.nn.Module):
    """Several gradients, tied weights, and an output that is an input of backward too."""

    def __init__(self):
        super().__init__()
        self.cell = torch.nn.Linear(4, 4)
        self.tied = self.cell

    def forward(self, x):
        first = self.cell(x).exp()
        return first, self.tied(first).softmax(1)


class Offset(torch.nn.Module):
    """A gradient is a view of what the caller gives, and the update reads it."""

    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(4))

    def forward(self, x):
        return self.weight.view(2, 2) + x[:2, :2]


@pytest.mark.parametrize("kind", [Offset, Views, OverwrittenBuffer, ChannelsLast, Recurrent])
def test_sections_are_bitwise_pytorch(load, kind):
    model = samba.from_torch_model_(kind())
    reference = copy.deepcopy(model)
    optimizer = samba.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    other = torch.optim.SGD(reference.parameters(), lr=0.1, momentum=0.9)
    traced = load(model, torch.randn(6, 4), optimizer)
    for step in range(3):
        x = torch.randn(6, 4)
        outputs = samba.session.run(x, traced, section_types=["fwd"])
        expected = reference(x)
        expected = list(expected) if isinstance(expected, tuple) else [expected]
        gradients = [torch.randn(each.shape) for each in expected]
        for actual, wanted in zip(outputs, expected, strict=True):
            assert torch.equal(actual, wanted), step
            actual.zero_()  # what a caller does with results is no part of backward
        samba.session.run(grad_of_outputs=gradients, section_types=["bckwd", "opt"])
        other.zero_grad()
        torch.autograd.backward(expected, gradients)
        other.step()
        for name, parameter in model.named_parameters():
            wanted = dict(reference.named_parameters())[name]
            assert torch.equal(parameter.sn_grad, wanted.grad)
            assert torch.equal(parameter.sn_data, wanted)
    samba.session.to_cpu(model)
    for actual, wanted in zip(model.buffers(), reference.buffers(), strict=True):
        assert torch.equal(actual, wanted)


def test_gradients_are_handed_over_and_not_copied(load):
    model = samba.from_torch_model_(torch.nn.Linear(4, 4))
    load(model, torch.randn(6, 4), samba.optim.SGD(model.parameters(), lr=0.1))
    programs = {p.name: p for p in samba.session.graph.traced.captured.programs}
    names = {slot.name for slot in programs["update"].inputs}
    assert {"gradient.weight", "gradient.bias"} <= names
    assert [slot.name for slot in programs["backward"].outputs] == [
        "gradient.weight",
        "gradient.bias",
    ]
    # The input itself is all that this layer's backward needs.
    assert [slot.name for slot in programs["forward"].outputs] == ["output0"]


def test_weights_that_forward_widens_are_widened_once_and_updated(load):
    class Half(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = torch.nn.Parameter(torch.randn(4, 4, dtype=torch.bfloat16))

        def forward(self, x):
            return x @ self.weight.float()

    model = samba.from_torch_model_(Half())
    load(model, torch.randn(6, 4), torch.optim.SGD(model.parameters(), lr=0.1))
    before, x = model.weight.detach().clone(), torch.randn(6, 4)
    (result,) = samba.session.run(x, section_types=["fwd"])
    samba.session.run(grad_of_outputs=torch.ones(6, 4), section_types=["bckwd"])
    samba.session.run(section_types=["opt"])
    assert torch.equal(result, x @ before.float())
    gradient = (x.t() @ torch.ones(6, 4)).bfloat16()
    updated = (before.float() - 0.1 * gradient.float()).bfloat16()
    assert torch.equal(model.weight.sn_data, updated)


def test_hooks_that_return_a_gradient_are_part_of_backward(load):
    model = samba.from_torch_model_(torch.nn.Linear(4, 4))
    model.weight.register_hook(lambda gradient: gradient * 3)
    load(model, torch.randn(6, 4), samba.optim.SGD(model.parameters(), lr=0.1))
    x = torch.randn(6, 4)
    samba.session.run(x, section_types=["fwd"])
    samba.session.run(grad_of_outputs=torch.ones(6, 4), section_types=["bckwd"])
    assert torch.equal(model.weight.sn_grad, torch.ones(4, 6) @ x * 3)


def test_forward_leaves_nothing_of_the_capture_in_the_model(load):
    class Keeping(torch.nn.Linear):
        def forward(self, x):
            self.seen = super().forward(x)
            return self.seen

    model = samba.from_torch_model_(Keeping(4, 4))
    load(model, torch.randn(6, 4), samba.optim.SGD(model.parameters(), lr=0.1))
    assert not hasattr(model, "seen")
