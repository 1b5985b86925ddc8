"""Tensors as text: brackets, columns, summaries, formats."""

import math

import pytest
import torch

from abele.ops.print_tensor import Layout, tensor_text


def text(values, **settings):
    return tensor_text(torch.as_tensor(values), Layout(**settings))


@pytest.mark.parametrize(
    ("values", "settings", "expected"),
    [
        (1.5, {}, "1.5000"),
        ([], {}, "()"),
        ([True, False], {}, "( True, False)"),
        ([1, 20], {"digits": 1}, "( 1, 20)"),
        ([1.0, -2.0], {}, "( 1.0000, -2.0000)"),
        ([1.0, 2.0], {"digits": 1, "separator": ";"}, "(1.0;2.0)"),
        ([1.0], {"digits": 0, "open_bracket": "[", "close_bracket": "]"}, "[1]"),
        ([[1, 2], [3, 4]], {}, "((1, 2),\n (3, 4))"),
        ([[[1], [2]], [[3], [4]]], {}, "(((1),\n  (2)),\n\n ((3),\n  (4)))"),
        ([math.nan, math.inf], {}, "(nan, inf)"),
    ],
)
def test_values(values, settings, expected):
    assert text(values, **settings) == expected


@pytest.mark.parametrize(
    ("value", "form", "expected"),
    [
        (123.456, "auto", "(123.4560)"),
        (123.456, "fixed", "(123.4560)"),
        (123.456, "scientific", "(1.2346e+02)"),
        (123.456, "none", "float32[1]"),
        (0.0, "auto", "(0.0000)"),
        (1.0e-5, "auto", "(1.0000e-05)"),
        (1.0e-5, "fixed", "(0.0000)"),
        (2.0e8, "auto", "(2.0000e+08)"),
    ],
)
def test_float_formats(value, form, expected):
    assert text([value], float_format=form) == expected


def test_a_summary_keeps_the_edges_of_each_dimension():
    values = torch.arange(100).reshape(10, 10)
    result = tensor_text(values, Layout(summarise_threshold=99, edge_items=2))
    assert result.splitlines() == [
        "(( 0,  1, ...,  8,  9),",
        " (10, 11, ..., 18, 19),",
        " ...,",
        " (80, 81, ..., 88, 89),",
        " (90, 91, ..., 98, 99))",
    ]
    assert "..." not in tensor_text(values, Layout(summarise_threshold=100, edge_items=2))


def test_long_rows_break():
    result = text(list(range(10, 30)), max_line_width=17)
    assert result.splitlines()[:2] == ["(10, 11, 12, 13,", " 14, 15, 16, 17,"]
    assert max(map(len, result.splitlines())) <= 17
    assert "\n" not in text(list(range(10, 300)), max_line_width=0, summarise_threshold=1000)


def test_half_and_bfloat16():
    assert text(torch.tensor([0.5], dtype=torch.float16)) == "(0.5000)"
    assert text(torch.tensor([0.5], dtype=torch.bfloat16)) == "(0.5000)"
