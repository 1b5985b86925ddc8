"""Whatever setters are called with, in whatever order: the documented kinds of errors only."""

import copy
import inspect
import warnings

import pytest
from hypothesis import given
from hypothesis import strategies as st

import poptorch
from helpers.properties import examples
from poptorch import enums

ALLOWED = (AssertionError, ValueError, AttributeError, poptorch.Error)
MEMBERS = [
    member
    for kind in vars(enums).values()
    if inspect.isclass(kind) and issubclass(kind, enums.enum.Enum)
    for member in kind
]
NUMBERS = st.one_of(st.integers(-2, 9), st.sampled_from([0.0, 0.5, 1.0, 1.5, -1.0, float("nan")]))
SIMPLE = st.one_of(st.none(), st.booleans(), NUMBERS, st.text(max_size=3), st.sampled_from(MEMBERS))
WORDS = st.sampled_from(["IPU0", "IPU1", "IPUx", "a", ""])
VALUES = st.one_of(
    SIMPLE,
    st.integers(-(2**70), 2**70),
    st.lists(SIMPLE, max_size=2),
    st.dictionaries(st.one_of(WORDS, NUMBERS), SIMPLE, max_size=2),
    st.just(...),
)
# What reads files, and what is not a setter of options but part of how they are kept.
LEFT_OUT = {"loadFromFile", "set", "createOrSet", "update", "exists", "deleteIfExists", "clone"}


def holders(options):
    """The options object and its namespaces."""
    names = ("Training", "Precision", "Distributed", "Jit", "TensorLocations")
    return [options, *(getattr(options, name) for name in names)]


SETTERS = [
    (index, name)
    for index, holder in enumerate(holders(poptorch.Options()))
    for name in dir(type(holder))
    if not name.startswith("_") and name not in LEFT_OUT
    if inspect.isfunction(getattr(type(holder), name))
]


@pytest.fixture(autouse=True)
def in_a_folder_of_its_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@st.composite
def calls(draw):
    index, name = draw(st.sampled_from(SETTERS))
    function = getattr(type(holders(poptorch.Options())[index]), name)
    known = list(inspect.signature(function).parameters.values())[1:]
    needed = sum(p.default is p.empty and p.kind is p.POSITIONAL_OR_KEYWORD for p in known)
    return index, name, draw(st.lists(VALUES, min_size=needed, max_size=max(len(known), needed)))


@examples(200)
@given(st.lists(calls(), min_size=1, max_size=6))
def test_setters_raise_the_documented_errors_only(sequence):
    options = poptorch.Options()
    for index, name, arguments in sequence:
        _call(options, index, name, arguments)
    repr(options)
    duplicate = copy.deepcopy(options)
    assert repr(duplicate) == repr(options)
    options._freeze()
    index, name, arguments = sequence[0]
    before = repr(options)
    _call(options, index, name, arguments)
    assert repr(options) == before


def _call(options, index, name, arguments):
    before = repr(options)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            getattr(holders(options)[index], name)(*arguments)
        except ALLOWED:
            # What is refused changes nothing.
            assert repr(options) == before
