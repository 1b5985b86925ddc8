"""What is made of two scripts' numbers, without running any."""

import math

import pytest

from abele.port.check.comparison import (
    Comparison,
    Difference,
    StepPair,
    meaning_of_loss,
    same_losses,
)
from abele.port.check.process import Update
from abele.port.check.side_by_side import pairs


def step(number, original, port, inputs=()):
    """A step with losses, and digests of inputs."""
    mine, other = (
        Update(model=0, losses=losses, inputs=inputs, alone=True, line="a.py:1", digests={})
        for losses in (original, port)
    )
    return StepPair(step=number, original=mine, port=other)


def facts(**tensors):
    """Facts about tensors, each with shape, kind and digest."""
    return {
        name: {"shape": shape, "kind": kind, "digest": "".join(digest)}
        for name, (shape, kind, *digest) in tensors.items()
    }


PARAMETER = [2], "parameter"


@pytest.mark.parametrize(
    ("original", "port", "expected"),
    [
        (  # of a model in a wrapper
            facts(weight=PARAMETER, bias=PARAMETER),
            {
                f"model.{name}": each
                for name, each in facts(bias=PARAMETER, weight=PARAMETER).items()
            },
            {"weight": "model.weight", "bias": "model.bias"},
        ),
        (  # by value, and then by order
            facts(a=(*PARAMETER, "1"), b=(*PARAMETER, "2"), c=(*PARAMETER, "2")),
            facts(x=(*PARAMETER, "2"), y=(*PARAMETER, "2"), z=(*PARAMETER, "1")),
            {"a": "z", "b": "x", "c": "y"},
        ),
        (  # of other shape or kind
            facts(a=PARAMETER, b=([3], "parameter")),
            facts(a=([2], "buffer"), b=([4], "parameter")),
            {},
        ),
    ],
)
def test_tensors_are_paired(original, port, expected):
    assert pairs(original, port) == expected


@pytest.mark.parametrize(
    ("original", "port", "same"),
    [
        ((0.5,), (0.5,), True),
        ((0.5,), (math.nextafter(0.5, 1),), False),
        ((math.nan,), (math.nan,), True),
        ((0.25, 0.125), (0.5, 0.25), True),  # divided by the number of parts
        ((0.25, 0.125), (0.25,), True),  # that of the last part
        ((0.25, 0.125), (0.5,), False),
        ((0.25,), (0.25, 0.25), False),
    ],
)
def test_losses_are_compared_bit_for_bit(original, port, same):
    assert same_losses(original, port) is same


def test_the_ratio_of_losses_tells_a_sum_from_a_mean():
    assert "port's loss is 16 times" in meaning_of_loss(step(1, (0.7,), (0.7 * 16,)))
    assert "original's loss is 4 times" in meaning_of_loss(step(1, (2.0,), (0.5,)))
    assert "drop_last" in meaning_of_loss(step(1, (0.7,), (0.75,)))
    assert "dropout" in meaning_of_loss(step(1, (0.7,), (0.75,), inputs=("x",)))


def test_the_table_shows_the_first_and_the_last_steps():
    steps = tuple(step(n, (0.5,), (0.5,)) for n in range(1, 31))
    lines = str(Comparison(steps=steps, difference=None, compared=3)).splitlines()
    assert [line.split()[0] for line in lines[1:-1]] == [
        *map(str, range(1, 13)), "...", "28", "29", "30"
    ]  # fmt: skip
    assert lines[-1].startswith("The port is equal to its original for 30 steps")


def test_the_verdict_names_place_lines_and_meaning():
    first = Difference(
        step=2, kind="parameter", name="w", far=0.25, lines=("a.py:3", "b.py:4"), meaning="Look."
    )
    said = str(Comparison(steps=(), difference=first, compared=1, notes=("a note",)))
    assert "first in parameter 'w' after step 2, by 2.5e-01 of it" in said
    assert "original: a.py:3" in said
    assert "port:     b.py:4" in said
    assert said.endswith("Look.\nNote: a note.")
