"""Blocks and normalisations against formulas written out by hand, and as compiled programs."""

import pytest
import torch
from torch.nn import functional

import poptorch
from cosmictagger import models
from cosmictagger.config.network import Network
from cosmictagger.errors import ConfigError
from cosmictagger.measures import Loss

EPSILON = 1e-5
NORMS = ["none", "batch", "layer", "group", "instance"]


def network(**changes):
    values = {"n_initial_filters": 4, "depth": 1, "bottleneck_deepest": 4, "blocks_per_layer": 1}
    return Network(**{**values, "blocks_deepest_layer": 1, "blocks_final": 0, **changes})


def filled(module):
    """In float64, with values in place of zeros and ones."""
    torch.manual_seed(1)
    for value in module.double().parameters():
        torch.nn.init.uniform_(value, -1, 1)
    return module


def normalised(x, kind, norm):
    """By loops over events, groups and channels."""
    if kind == "none":
        return x
    result, channels = torch.empty_like(x), x.shape[1]
    sets = {"batch": channels, "instance": channels, "group": 4, "layer": 1}[kind]
    for event in range(len(x)):
        for members in torch.arange(channels).chunk(sets):
            pixels = x[:, members] if kind == "batch" else x[event : event + 1, members]
            mean = pixels.sum() / pixels.numel()
            variance = ((pixels - mean) ** 2).sum() / pixels.numel()
            result[event, members] = (x[event, members] - mean) / (variance + EPSILON) ** 0.5
    if kind in ("batch", "group"):
        shape = (1, -1, *(1,) * (x.ndim - 2))
        result = result * norm.weight.reshape(shape) + norm.bias.reshape(shape)
    return result


@pytest.mark.parametrize("kind", NORMS)
@pytest.mark.parametrize("dimensions", [models.IMAGES, models.VOLUMES], ids=["2D", "3D"])
def test_a_block_is_convolution_norm_and_activation(kind, dimensions):
    style = {"block_style": "none", "normalization": kind}
    (block,) = models.repeated(network(**style), dimensions, 1, 8)
    shape = (2, 8, 5, 6) if dimensions is models.IMAGES else (2, 8, 3, 5, 6)
    x = torch.randn(shape, dtype=torch.float64)
    filled(block)
    convolution = functional.conv2d if dimensions is models.IMAGES else functional.conv3d
    padding = (1, 1) if dimensions is models.IMAGES else (0, 1, 1)
    wanted = convolution(x, block.conv.weight, block.conv.bias, padding=padding)
    wanted = normalised(wanted, kind, block.norm)
    wanted = torch.where(wanted > 0, wanted, 0.01 * wanted)
    torch.testing.assert_close(block(x), wanted, rtol=1e-9, atol=1e-9)
    trained = {name for name, _ in block.norm.named_parameters()}
    assert trained == ({"weight", "bias"} if kind in ("batch", "group") else set())


def pointwise(x, block):
    return (
        torch.einsum("bchw,oc->bohw", x, block.conv.weight[:, :, 0, 0])
        + block.conv.bias[:, None, None]
    )


@pytest.mark.parametrize("depthwise", [True, False])
def test_a_convnext_block(depthwise):
    style = {"block_style": "convnext", "normalization": "group", "kernel_size": 5}
    (block,) = models.repeated(network(**style, depthwise=depthwise), models.IMAGES, 1, 4)
    filled(block)
    assert block.convolution_1.conv.weight.shape == (4, 1 if depthwise else 4, 5, 5)
    x = torch.randn(2, 4, 6, 7, dtype=torch.float64)
    first, second, third = block.convolution_1, block.convolution_2, block.convolution_3
    padded = functional.pad(x, (2, 2, 2, 2))
    y = torch.zeros_like(x)
    for out in range(4):
        for row in range(5):
            for column in range(5):
                seen = padded[:, :, row : row + 6, column : column + 7]
                seen = seen[:, out : out + 1] if depthwise else seen
                kernel = first.conv.weight[out, :, row, column]
                y[:, out] += torch.einsum("bchw,c->bhw", seen, kernel)
        y[:, out] += first.conv.bias[out]
    y = normalised(y, "group", first.norm)
    y = normalised(pointwise(y, second), "group", second.norm)
    y = torch.where(y > 0, y, 0.01 * y)
    y = normalised(pointwise(y, third), "group", third.norm)
    torch.testing.assert_close(block(x), y + x, rtol=1e-9, atol=1e-9)


def test_a_residual_block():
    (block,) = models.repeated(network(normalization="none"), models.IMAGES, 1, 4)
    filled(block)
    x = torch.randn(2, 4, 6, 7, dtype=torch.float64)
    first, second = block.convolution_1.conv, block.convolution_2.conv
    y = functional.conv2d(x, first.weight, first.bias, padding=1)
    y = functional.conv2d(torch.where(y > 0, y, 0.01 * y), second.weight, second.bias, padding=1)
    y = y + x
    torch.testing.assert_close(block(x), torch.where(y > 0, y, 0.01 * y))


def test_kernels_of_each_size():
    def edges(**changes):
        module = models.build(network(normalization="none", **changes), (8, 8))
        deepest = module.net_core.main_module.main_module.blocks.blocks[0]
        blocks = module.net_core.down_blocks.blocks[0], deepest
        return [block.convolution_1.conv.kernel_size[0] for block in blocks]

    assert edges() == [3, 5]
    assert edges(filter_size_deepest=7) == [3, 7]
    assert edges(kernel_size=1) == edges(kernel_size=1, filter_size_deepest=7) == [1, 1]


def test_groups_need_channels():
    with pytest.raises(ConfigError, match=r"makes 4 groups.*a layer has 6\..*multiples of 4"):
        models.build(network(normalization="group", bottleneck_deepest=6), (8, 8))


COMPILED = [
    {"normalization": "instance", "block_style": "convnext"},
    {"normalization": "layer", "conv_mode": "conv_3D"},
]
FURTHER = [
    *({"normalization": kind, "block_style": "none"} for kind in NORMS),
    {"normalization": "instance", "block_style": "residual"},
    {"normalization": "group", "block_style": "convnext", "depthwise": False},
    {"normalization": "group", "conv_mode": "conv_3D"},
    {"normalization": "instance", "conv_mode": "conv_3D", "block_style": "convnext"},
]


@pytest.mark.parametrize(
    "changes",
    [*COMPILED, *(pytest.param(each, marks=pytest.mark.long) for each in FURTHER)],
    ids=lambda each: " ".join(map(str, each.values())),
)
def test_compiled_steps_equal_plain_steps(changes, monkeypatch):
    monkeypatch.delenv("ABELE_TARGET")  # a processor's programs
    monkeypatch.setenv("ABELE_START", "wait")
    plain, device = (models.build(network(**changes), (8, 8)) for _ in range(2))
    device.load_state_dict(plain.state_dict())
    loss, image = Loss("focal"), torch.rand(2, 3, 8, 8)
    label = torch.randint(0, 3, (2, 3, 8, 8))
    step = poptorch.trainingModel(
        models.LossInForward(device, loss, lambda x: poptorch.identity_loss(x, reduction="mean")),
        optimizer=poptorch.optim.SGD(device.parameters(), lr=0.01),
    )
    optimizer = torch.optim.SGD(plain.parameters(), lr=0.01)
    for _ in range(2):
        optimizer.zero_grad()
        wanted = loss(plain(image), label)
        wanted.backward()
        optimizer.step()
        *_, result = step(image, label)
        torch.testing.assert_close(result, wanted.detach(), rtol=1e-4, atol=1e-5)
    assert not step.build_record.running.interpreted
    step.copyWeightsToHost()
    for name, value in plain.named_parameters():
        torch.testing.assert_close(
            device.get_parameter(name), value, rtol=1e-3, atol=1e-4, msg=lambda m, n=name: n + m
        )
    step.destroy()
