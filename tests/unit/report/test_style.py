"""Colours of pages: contrast by WCAG 2.2."""

import itertools
import re

import pytest

from abele.report.page.markup import STYLE


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
    for name in ("c1", "c2", "c3", "c4", "c5", "c6"):
        assert contrast(known[name], known["card"]) >= 3.0, name
