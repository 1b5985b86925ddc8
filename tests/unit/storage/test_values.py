"""Values survive being written as JSON, and nothing else can be made by reading."""

import json
import math

import pytest
import torch

from abele.errors import SerializationError
from abele.storage.values import decode, encode

VALUES = [
    None,
    True,
    -3,
    2**70,
    "a 'quoted' name\n",
    0.1,
    -0.0,
    1e-320,
    math.inf,
    -math.inf,
    1 + 2j,
    torch.float8_e4m3fn,
    torch.bfloat16,
    torch.strided,
    torch.channels_last,
    torch.device("cuda", 1),
    slice(1, None, 2),
    [1, [2.0, None]],
    (1, (2,), []),
    {1, 2},
    frozenset({"a"}),
    {"a": 1, 2: (torch.int64,), None: {}},
]


@pytest.mark.parametrize("value", VALUES, ids=repr)
def test_a_value_survives(value):
    data = decode(json.loads(json.dumps(encode(value), allow_nan=False)))
    assert (type(data), repr(data)) == (type(value), repr(value))


def test_nan_survives():
    assert math.isnan(decode(json.loads(json.dumps(encode(math.nan), allow_nan=False))))


def test_one_and_one_point_zero_and_true_stay_different():
    data = decode(json.loads(json.dumps(encode([1, 1.0, True]))))
    assert [type(value) for value in data] == [int, float, bool]


@pytest.mark.parametrize("value", [object(), [torch.nn.Linear], {"a": b"raw"}, torch.ones(1)])
def test_other_kinds_are_refused_by_name(value):
    with pytest.raises(SerializationError, match=r"A value of type .* cannot be stored"):
        encode(value)


@pytest.mark.parametrize(
    "data",
    [
        {"dtype": "load"},
        {"dtype": "__class__"},
        {"layout": "float32"},
        {"memory_format": None},
        {"module": "os"},
        {"dtype": "float32", "layout": "strided"},
        {},
    ],
    ids=str,
)
def test_reading_makes_nothing_else(data):
    with pytest.raises(SerializationError):
        decode(data)
