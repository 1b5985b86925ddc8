"""Values survive being written as JSON, and nothing else can be made by reading."""

import copy
import json
import math
import struct

import pytest
import torch

from abele.errors import SerializationError
from abele.storage.values import bits, decode, encode

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


@pytest.mark.parametrize(
    "bits_of_nan", ["7ff8000000000000", "fff8000000000000", "7ff8000000000001"]
)
def test_nan_survives_with_all_bits(bits_of_nan):
    (value,) = struct.unpack(">d", bytes.fromhex(bits_of_nan))
    data = decode(json.loads(json.dumps(encode([value, complex(value, 1)]), allow_nan=False)))
    assert bits(data) == bits([value, complex(value, 1)])


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (0.0, -0.0),
        (1, True),
        (1, 1.0),
        (0j, complex(0.0, -0.0)),
        ((0.0,), (-0.0,)),
        ([1], (1,)),
        ({0.0}, {-0.0}),
        ({1: 2}, {True: 2}),
        ({1: 0.0}, {1: -0.0}),
        (math.nan, -math.nan),
    ],
    ids=repr,
)
def test_bits_tell_values_apart_that_are_equal(one, other):
    assert bits(one) != bits(other)
    assert bits(one) == bits(copy.deepcopy(one))


def test_nan_has_the_bits_of_nan():
    assert math.nan != float("nan")
    assert bits(math.nan) == bits(float("nan"))


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
