"""The networks against numbers of the original application: sizes, names, and what they compute."""

import numpy as np
import pytest
import torch

from cosmictagger import models
from cosmictagger.config.network import named
from helpers import cosmic_reference as reference

FULL_SIZE = (1280, 2048)
SIZES = {
    "uresnet": (18_382_131, 14_329, 358),
    "a21": (8_510_547, 5_580, 178),
    "a21_graphcore": (8_525_699, 6_007, 222),
    "polaris": (1_926_403, 7_089, 198),
    "scc21": (18_367_891, 0, 180),
    "uresnet3d": (18_381_459, 13_881, 358),
}


@pytest.mark.parametrize("name", SIZES)
def test_the_number_of_parameters_and_buffers(name):
    assert _sizes(named(name)) == SIZES[name]


def test_the_number_of_parameters_of_the_deeper_volume():
    assert _sizes(named("uresnet3d", depth=7))[:2] == (19_366_755, 16_420)


def _sizes(network):
    with torch.device("meta"):
        module = models.build(network, FULL_SIZE)
    parameters = list(module.parameters())
    buffers = sum(value.numel() for value in module.buffers())
    return sum(value.numel() for value in parameters), buffers, len(parameters)


def _count(module):
    return sum(value.numel() for value in module.parameters())


# Mean and standard deviation of the logits of three planes, and a pixel of the last plane.
SMALL = {"n_initial_filters": 4, "bottleneck_deepest": 32}
CONVOLUTIONS = {
    "downsampling": "convolutional",
    "upsampling": "convolutional",
    "growth_rate": "multiplicative",
    "depth": 3,
    "connections": "none",
}
VECTORS = {
    "a21": (
        ("a21", {}, 8_510_547),
        ((0.219405, 0.814949), (0.22944, 0.813103), (0.181687, 0.817554)),
        (0.248538, 0.0903883, -0.110321),
        ((772.119, 8040.78), (519.997, 5623.47), (295.96, 2512.26)),
        (1.45508, -5.45794, -9.92305),
    ),
    "uresnet": (
        ("uresnet", SMALL, 378_543),
        ((0.882558, 7.79802), (0.822033, 7.80576), (0.772394, 7.80344)),
        (2.18058, -1.46304, 0.892736),
        ((2.40337e7, 2.91913e8), (2.62691e7, 3.29646e8), (2.72506e7, 3.24381e8)),
        (-139491, 119269, -85264.2),
    ),
    "convolutions": (
        ("uresnet", SMALL | CONVOLUTIONS, 295_667),
        ((1.24782, 7.67165), (1.23466, 7.70915), (1.23225, 7.67208)),
        (0.0605998, 0.118246, 0.0328743),
        ((1810.35, 15722.4), (2077.65, 18089), (2193.62, 19161.5)),
        (-143.994, 110.437, -63.8025),
    ),
    "uresnet3d": (
        ("uresnet3d", SMALL, 378_375),
        ((0.516065, 4.2387), (0.447672, 3.33258), (0.299433, 1.95402)),
        (0.480197, -0.125324, 0.0722708),
        ((1.77485e15, 1.57977e16), (1.68886e15, 1.45224e16), (1.83705e15, 1.61281e16)),
        (-3.48717e14, 2.68555e14, -1.57361e14),
    ),
}
CASES = [
    pytest.param(name, marks=pytest.mark.long if name == "uresnet3d" else []) for name in VECTORS
]


@reference.needs_sample
@pytest.mark.parametrize("case", CASES)
def test_the_logits_of_a_real_event(case):
    """In training mode, then in evaluation mode by the statistics of that one step.

    These have moved by 27 % only, so values are large and the tolerance is that of float32 there.
    """
    (name, changes, parameters), training, pixel, evaluation, later_pixel = VECTORS[case]
    module = reference.fill(models.build(named(name, **changes), (320, 512)))
    assert _count(module) == parameters
    image = torch.from_numpy(np.log1p(reference.event(0, 2)[0])).float()[None]
    with torch.no_grad():
        _compare(module.train()(image), training, pixel, 2e-5, 1e-3)
        _compare(module.eval()(image), evaluation, later_pixel, 1e-3, 1e-2)


def _compare(logits, wanted, pixel, relative, pixel_relative):
    for plane, (mean, deviation) in zip(logits, wanted, strict=True):
        assert plane.mean().item() == pytest.approx(mean, rel=relative)
        assert plane.std().item() == pytest.approx(deviation, rel=relative)
    scale = max(map(abs, pixel))
    result = logits[2][0, :, 100, 200].tolist()
    assert result == pytest.approx(pixel, abs=pixel_relative * scale + 2e-5)
