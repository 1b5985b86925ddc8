"""Colours of pages: contrast by WCAG 2.2, and kinds that stay apart for colour-blind readers."""

import itertools
import re

import pytest

from abele.report.page.markup import STYLE

# Machado, Oliveira and Fernandes (2009), full strength, on linear RGB.
SIGHTS = {
    "usual": ((1, 0, 0), (0, 1, 0), (0, 0, 1)),
    "protanopia": (
        (0.152286, 1.052583, -0.204868),
        (0.114503, 0.786281, 0.099216),
        (-0.003882, -0.048116, 1.051998),
    ),
    "deuteranopia": (
        (0.367322, 0.860646, -0.227968),
        (0.280085, 0.672501, 0.047413),
        (-0.011820, 0.042940, 0.968881),
    ),
    "tritanopia": (
        (1.255528, -0.076749, -0.178779),
        (-0.078411, 0.930809, 0.147602),
        (0.004733, 0.691367, 0.303900),
    ),
}
#: Kinds that stand beside each other: in calls, pipelines, and memory from the bottom.
PICTURES = {
    "calls": ("c4", "wait", "c6", "c1", "c2"),
    "pipeline": ("c1", "c6", "wait"),
    "always there": ("c1", "c3", "c2", "c4", "c6"),
    "not always there": ("m1", "m2", "m3", "m4"),
}
NEAR = 12.0  # CIE76; about 2.3 can just be told apart side by side


def colours(dark):
    light, _, rest = STYLE.partition("@media (prefers-color-scheme: dark)")
    return dict(re.findall(r"--(\w+): (#\w{6})", rest if dark else light))


def linear(colour):
    values = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    return [v / 12.92 if v <= 0.04045 else ((v + 0.055) / 1.055) ** 2.4 for v in values]


def contrast(one, other):
    lights = sorted(
        sum(w * v for w, v in zip((0.2126, 0.7152, 0.0722), linear(each), strict=True))
        for each in (one, other)
    )
    return (lights[1] + 0.05) / (lights[0] + 0.05)


def lab(colour, sight):
    seen = [
        min(1.0, max(0.0, sum(m * v for m, v in zip(row, linear(colour), strict=True))))
        for row in SIGHTS[sight]
    ]
    r, g, b = seen
    x = (0.4124 * r + 0.3576 * g + 0.1805 * b) / 0.95047
    y = 0.2126 * r + 0.7152 * g + 0.0722 * b
    z = (0.0193 * r + 0.1192 * g + 0.9505 * b) / 1.08883
    fx, fy, fz = (t ** (1 / 3) if t > 0.008856 else 7.787 * t + 16 / 116 for t in (x, y, z))
    return 116 * fy - 16, 500 * (fx - fy), 200 * (fy - fz)


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_text_has_enough_contrast(dark):
    known = colours(dark)
    for name, paper in itertools.product(("ink", "soft", "good", "bad"), ("paper", "card")):
        assert contrast(known[name], known[paper]) >= 4.5, (name, paper)
    # Links, and the numbers inside the boxes of a pipeline.
    for name in ("c1", "c6"):
        assert contrast(known[name], known["paper"]) >= 4.5, name


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_shapes_stand_out_from_their_ground(dark):
    known = colours(dark)
    for name in ("c1", "c2", "c3", "c4", "c5", "c6", "move"):
        assert contrast(known[name], known["card"]) >= 3.0, name


@pytest.mark.parametrize("sight", SIGHTS)
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("picture", PICTURES)
def test_kinds_are_told_apart_by_colour_blind_readers_too(picture, dark, sight):
    known = colours(dark)
    for one, other in itertools.combinations(PICTURES[picture], 2):
        pairs = zip(lab(known[one], sight), lab(known[other], sight), strict=True)
        assert sum((a - b) ** 2 for a, b in pairs) ** 0.5 >= NEAR, (one, other)
