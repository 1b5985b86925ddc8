"""Arguments and results of any structure go round; later calls that differ are named errors."""

import re

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import poptorch
from helpers.properties import examples
from helpers.wrapping import inference

DTYPES = [
    torch.float32,
    torch.float16,
    torch.float64,
    torch.int32,
    torch.int64,
    torch.bool,
    torch.uint8,
]
RETURNED_AS = {torch.float64: torch.float32, torch.int64: torch.int32}
# Words of the error table for a call that is not like the first one.
DIFFERS = re.compile(r"(Type|Length|Keys|Data type|Shape|Value) mismatch for |Number of positional")


@st.composite
def tensors(draw):
    shape = draw(st.lists(st.integers(1, 3), max_size=3))
    dtype = draw(st.sampled_from(DTYPES))
    numbers = torch.arange(1, 1 + torch.Size(shape).numel()) % draw(st.integers(1, 5))
    value = numbers.to(dtype).reshape(shape)
    return value.t() if len(shape) == 2 and draw(st.booleans()) else value


CONSTANTS = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=3), st.binary(max_size=2)
)
KEYS = st.one_of(st.text(max_size=2), st.integers(0, 3), st.booleans())


def containers(parts):
    return st.one_of(
        st.lists(parts, max_size=3),
        st.lists(parts, max_size=3).map(tuple),
        st.dictionaries(KEYS, parts, max_size=3),
    )


STRUCTURES = st.recursive(st.one_of(tensors(), tensors(), CONSTANTS), containers, max_leaves=6)


def same(actual, expected):
    """Whether a result is what went in, up to the types of the device."""
    if isinstance(expected, torch.Tensor):
        dtype = RETURNED_AS.get(expected.dtype, expected.dtype)
        right_dtype = actual.dtype in (dtype, expected.dtype)
        return right_dtype and torch.equal(actual.to(dtype), expected.to(dtype))
    if type(actual) is not type(expected):
        return False
    if isinstance(expected, dict):
        return set(actual) == set(expected) and all(same(actual[k], expected[k]) for k in expected)
    if isinstance(expected, list | tuple):
        return len(actual) == len(expected) and all(map(same, actual, expected))
    return actual is expected or actual == expected


def alike(first, later):
    """Whether a later call may follow the first: by structure, types, shapes and constants."""
    if isinstance(first, torch.Tensor):
        if not isinstance(later, torch.Tensor):
            return False
        return (first.shape, first.dtype) == (later.shape, later.dtype)
    if type(first) is not type(later):
        return False
    if isinstance(first, dict):
        return set(first) == set(later) and all(alike(first[key], later[key]) for key in first)
    if isinstance(first, list | tuple):
        return len(first) == len(later) and all(map(alike, first, later))
    return first is later or first == later


@st.composite
def mutated(draw, value):
    """The same structure with one part replaced, added or removed somewhere."""
    inside = isinstance(value, list | tuple | dict) and len(value) > 0
    change = draw(st.sampled_from(["replace", "add", "remove", "inside", "inside", "inside"]))
    if not inside or change == "replace":
        return draw(STRUCTURES)
    keys = list(value) if isinstance(value, dict) else list(range(len(value)))
    key = draw(st.sampled_from(keys))
    items = dict(zip(keys, value.values() if isinstance(value, dict) else value, strict=True))
    if change == "add":
        items[draw(KEYS) if isinstance(value, dict) else len(items)] = draw(STRUCTURES)
    elif change == "remove":
        del items[key]
    else:
        items[key] = draw(mutated(items[key]))
    return items if isinstance(value, dict) else type(value)(items.values())


pytestmark = pytest.mark.filterwarnings("ignore:Output expected to be on the IPU")


@examples(60)
@given(st.data())
def test_structures_go_round_and_differences_are_named(data):
    first = data.draw(STRUCTURES)
    wrapped = inference(lambda value: value)
    assert same(wrapped(first), first)
    later = data.draw(mutated(first))
    if alike(first, later):
        assert same(wrapped(later), later)
    else:
        with pytest.raises(poptorch.Error, match=DIFFERS):
            wrapped(later)
    # A refused call leaves the wrapper as it was.
    assert same(wrapped(first), first)


@examples(30)
@given(st.data())
def test_arguments_may_be_any_number_by_position_and_by_name(data):
    positional = data.draw(st.lists(STRUCTURES, max_size=3))
    names = st.sampled_from(["a", "b", "c"])
    keywords = data.draw(st.dictionaries(names, STRUCTURES, max_size=2))
    wrapped = inference(lambda *args, **kwargs: (list(args), kwargs))
    assert same(wrapped(*positional, **keywords), (positional, keywords))
    later = data.draw(st.lists(STRUCTURES, max_size=3))
    named = data.draw(st.dictionaries(names, STRUCTURES, max_size=2))
    if alike(positional, later) and alike(keywords, named):
        wrapped(*later, **named)
    else:
        with pytest.raises(poptorch.Error, match=DIFFERS):
            wrapped(*later, **named)


@examples(30)
@given(st.lists(STRUCTURES, max_size=4), st.dictionaries(st.sampled_from("xyzw"), STRUCTURES))
def test_what_a_signature_does_not_take_is_a_named_error(positional, keywords):
    wrapped = inference(lambda *args, **kwargs: None)
    wrapped._wrapped.binder = type(wrapped._wrapped.binder)(lambda x, y=2, *, z: None)
    try:
        (lambda x, y=2, *, z: None)(*positional, **keywords)
    except TypeError:
        words = "Too many arguments|not a valid parameter|passed more than once|Mandatory parameter"
        with pytest.raises((poptorch.Error, AssertionError), match=words):
            wrapped(*positional, **keywords)
