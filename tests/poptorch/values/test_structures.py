"""Structures of arguments and results: parsers of users' types, and containers of results."""

import pytest

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
