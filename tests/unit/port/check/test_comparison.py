"""What is made of two scripts' numbers, without running any."""

import math

import pytest

from abele.port.check.comparison import (
    Comparison,
    Difference,
    Ends,
    ModelPair,
    StepPair,
    first_difference,
    meaning_of_loss,
    same_losses,
)
from abele.port.check.side_by_side import pairs


def step(number, original, port, **more):
    given = {"same_batch": None, "differing": (), "lines": ("a.py:1", "b.py:2")}
    return StepPair(step=number, original=original, port=port, **{**given, **more})


def facts(**kinds):
    return {name: {"shape": shape, "kind": kind} for name, (shape, kind) in kinds.items()}


def test_names_with_a_prefix_are_the_same_tensor():
    original = facts(weight=([2], "parameter"), bias=([2], "parameter"))
    port = {f"model.{name}": each for name, each in reversed(original.items())}
    assert pairs(original, port, ({}, {})) == {"weight": "model.weight", "bias": "model.bias"}


def test_tensors_with_other_names_are_paired_by_value_and_then_by_order():
    original = facts(a=([2], "parameter"), b=([2], "parameter"), c=([2], "parameter"))
    port = facts(x=([2], "parameter"), y=([2], "parameter"), z=([2], "parameter"))
    here, there = {"a": "1", "b": "2", "c": "2"}, {"x": "2", "y": "2", "z": "1"}
    assert pairs(original, port, (here, there)) == {"a": "z", "b": "x", "c": "y"}


def test_tensors_of_other_shape_or_kind_are_not_paired():
    original = facts(a=([2], "parameter"), b=([3], "parameter"))
    port = facts(a=([2], "buffer"), b=([4], "parameter"))
    assert pairs(original, port, ({}, {})) == {}


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
    assert "dropout" in meaning_of_loss(step(1, (0.7,), (0.75,), same_batch=True))


@pytest.mark.parametrize(
    ("far", "meaning"),
    [(3e-9, "differs in last bits"), (1e-3, "the update is not"), (None, "not:")],
)
def test_a_difference_of_last_bits_names_what_rounds(far, meaning):
    tensors = {"w": {"kind": "parameter", "line": ""}}
    far_apart = {} if far is None else {"w": far}
    model = ModelPair(name="", tensors=tensors, at_start=(), far=far_apart)
    pair = step(1, (0.5,), (0.5,), differing=("w",))
    found = first_difference([model], [pair], Ends(steps=1, original=False, port=False))
    assert found is not None
    assert meaning in found.meaning


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
