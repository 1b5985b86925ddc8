"""Structures of arguments and results: parsers of users' types, and containers of results."""

import collections

import pytest
import torch

import poptorch
from poptorch._forward import structure


class Box:
    def __init__(self, tensor):
        self.tensor = tensor


class SpecialBox(Box):
    pass


class Parser(poptorch.ICustomArgParser):
    def yieldTensors(self, struct):
        yield struct.tensor

    def reconstruct(self, original_structure, tensor_iterator):
        return type(original_structure)(next(tensor_iterator))


@pytest.fixture(autouse=True)
def empty_registry(monkeypatch):
    monkeypatch.setattr(structure, "_parsers", {})


def test_the_exact_type_goes_before_an_earlier_base():
    base, exact = Parser(), Parser()
    poptorch.registerCustomArgParser(Box, base)
    poptorch.registerCustomArgParser(SpecialBox, exact)
    assert structure.parser_for(SpecialBox(1)) is exact
    assert structure.parser_for(Box(1)) is base


def test_subclasses_take_the_parser_registered_first():
    first, second = Parser(), Parser()
    poptorch.registerCustomArgParser(object, first)
    poptorch.registerCustomArgParser(Box, second)
    assert structure.parser_for(SpecialBox(1)) is first


def test_none_removes_a_parser_and_is_harmless_without_one():
    poptorch.registerCustomArgParser(Box, Parser())
    poptorch.registerCustomArgParser(arg_data_type=Box, arg_parser=None)
    poptorch.registerCustomArgParser(Box, None)
    assert structure.parser_for(Box(1)) is None


@pytest.mark.parametrize(
    ("kind", "parser", "words"),
    [(Box, object(), "must inherit from ICustomArgParser"), ("Box", Parser(), "takes a type")],
)
def test_mistakes(kind, parser, words):
    with pytest.raises(poptorch.Error, match=words):
        poptorch.registerCustomArgParser(kind, parser)


def test_a_parser_needs_both_methods():
    with pytest.raises(TypeError, match="abstract"):
        poptorch.ICustomArgParser()


# -- results in the containers of forward: shortcuts give what the walk gives ---------------------

Pair = collections.namedtuple("Pair", "first second")


def leaf():
    return torch.ones(2)


@pytest.mark.parametrize(
    "result",
    [
        leaf(),
        (leaf(), leaf()),
        (leaf(),),
        [leaf(), leaf()],
        Pair(leaf(), leaf()),
        {"a": leaf(), "b": (leaf(), 3)},
        (leaf(), "a constant"),
        ([leaf()], (leaf(), leaf())),
    ],
    ids=lambda result: type(result).__name__,
)
def test_results_come_back_as_forward_returned_them(result):
    like, tensors = structure.taken_apart(result)
    values = [torch.full((2,), float(index)) for index in range(len(tensors))]
    expected = structure.rebuild(like, map(structure.to_host, (v.clone() for v in values)))
    delivered = structure.delivery(like)(values)
    assert type(delivered) is type(expected)
    assert repr(delivered) == repr(expected)


@pytest.mark.parametrize("result", [leaf(), (leaf(),), [leaf()]], ids=["one", "tuple", "list"])
def test_results_refuse_backward(result):
    like, tensors = structure.taken_apart(result)
    delivered = structure.delivery(like)(tensors)
    first = delivered if isinstance(delivered, torch.Tensor) else delivered[0]
    with pytest.raises(poptorch.Error, match="Results carry no gradient history"):
        first.backward()
