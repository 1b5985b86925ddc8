"""Searches of syntax trees: the nodes that libcst finds, in the order of the text."""

import libcst as cst
import pytest
from libcst import matchers as m

from abele.port.source import findall

PROGRAM = """\
import torch

def f(x, y=1):
    z = [g(each, y) for each in x if each.size]
    return lambda: g(z) + f(x=y)
"""

MATCHERS = {
    "every node of a class": m.Name(),
    "some nodes of a class": m.Call(func=m.Name("g")),
    "every node of two classes": m.Attribute() | m.Lambda(),
    "every node of one and some of another": m.Attribute() | m.Name("y"),
    "one class in two ways": m.Name("x") | m.Name("z"),
    "any or some of one class": m.Name() | m.Name("z"),
    "none": m.Name("nobody"),
    "the whole": m.Module(),
    "a piece without a name": m.Arg(keyword=None),
}


@pytest.mark.parametrize("name", MATCHERS)
def test_what_libcst_finds(name):
    module = cst.parse_module(PROGRAM)
    expected = list(m.findall(module, MATCHERS[name]))
    nodes = findall(module, MATCHERS[name])
    assert [id(each) for each in nodes] == [id(each) for each in expected]
    assert bool(nodes) == (name != "none")
