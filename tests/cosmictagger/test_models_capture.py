"""The network with its loss as one static program, in other precisions, and under torch.compile."""

import pytest
import torch

import poptorch
from cosmictagger import models
from cosmictagger.config.network import named
from cosmictagger.measures import Loss

SIZE = (8, 16)
TINY = {
    "n_initial_filters": 2,
    "depth": 1,
    "bottleneck_deepest": 4,
    "filter_size_deepest": 3,
    "blocks_per_layer": 0,  # the deepest level has one, and tracing takes seconds
    "blocks_deepest_layer": 1,
}
SCHEMES = ["none", "light", "even", "focal"]


@pytest.fixture(autouse=True)
def _target(monkeypatch):
    monkeypatch.setenv("ABELE_TARGET", "reference")


def tiny(name="a21"):
    torch.manual_seed(0)
    return models.build(named(name, **TINY), SIZE)


def batch(classes=3):
    generator = torch.Generator().manual_seed(1)
    label = torch.randint(0, classes, (2, 3, *SIZE), generator=generator)
    return torch.rand(2, 3, *SIZE, generator=generator) + label, label


class Pointwise(torch.nn.Module):
    """The least network there is: a class from each pixel's own value."""

    def __init__(self):
        super().__init__()
        self.conv = torch.nn.Conv2d(1, 3, 1)

    def forward(self, image):
        return tuple(self.conv(plane) for plane in image.chunk(3, dim=1))


def pointwise():
    torch.manual_seed(0)
    return Pointwise()


CASES = [(pointwise, scheme) for scheme in SCHEMES] + [(tiny, "focal")]
IDS = [f"{make.__name__} {scheme}" for make, scheme in CASES]


@pytest.mark.parametrize("scheme", SCHEMES)
def test_training_as_one_program_equals_plain_training(scheme):
    """Each loss; whole networks train as one program in test_proof_modes."""
    plain, network = pointwise(), pointwise()
    image, label = batch(classes=2)  # a class is absent
    optimizer = torch.optim.Adam(plain.parameters(), lr=1e-2)
    wrapped = poptorch.trainingModel(
        models.LossInForward(network, Loss(scheme), _marked),
        optimizer=poptorch.optim.Adam(network.parameters(), lr=1e-2),
    )
    for _ in range(2):
        optimizer.zero_grad()
        loss = Loss(scheme)(plain(image), label)
        loss.backward()
        optimizer.step()
        *logits, output = wrapped(image, label)
        assert output.item() == pytest.approx(loss.item(), rel=1e-5)
        assert [plane.shape for plane in logits] == [(2, 3, *SIZE)] * 3


def _marked(loss):
    return poptorch.identity_loss(loss, reduction="mean")


# Of the two kinds of network the one that training above leaves out.
@pytest.mark.parametrize("name", ["uresnet3d"])
def test_inference_as_one_program_equals_plain_inference(name):
    image, _ = batch()
    network = tiny(name).eval()
    with torch.no_grad():
        wanted = network(image)
    for result, plane in zip(poptorch.inferenceModel(network)(image), wanted, strict=True):
        torch.testing.assert_close(result, plane)


@pytest.mark.parametrize(("make", "scheme"), CASES, ids=IDS)
def test_torch_compile_needs_no_break(make, scheme):
    module = models.LossInForward(make(), Loss(scheme))
    image, label = batch()
    wanted = module(image, label)
    compiled = torch.compile(module, backend="eager", fullgraph=True)
    for result, value in zip(compiled(image, label), wanted, strict=True):
        torch.testing.assert_close(result, value)


@pytest.mark.parametrize(
    ("name", "dtype"), [("uresnet", torch.float16), ("uresnet3d", torch.bfloat16)]
)
def test_low_precision(name, dtype):
    module = models.LossInForward(tiny(name), Loss("focal"))
    image, label = batch()
    wanted = module(image, label)[-1]
    *logits, loss = module.to(dtype)(image.to(dtype), label)
    loss.backward()
    assert {plane.dtype for plane in logits} == {dtype}
    assert loss.dtype == torch.float32
    assert loss.item() == pytest.approx(wanted.item(), rel=0.03)
    assert all(value.grad.isfinite().all() for value in module.parameters())
