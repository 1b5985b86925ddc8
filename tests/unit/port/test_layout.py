"""One more argument of a call, or parameter of a function: its lines are as those of the others."""

import libcst as cst
import pytest

from abele.port.context import with_parameter
from abele.port.edits import Edits, keyword
from abele.port.source import Source


def given(text, *names):
    """A program whose first statement is a call that gets more arguments."""
    source = Source("run.py", text)
    edits = Edits(source)
    call = cst.ensure_type(source.module.body[0], cst.SimpleStatementLine).body[0].value
    for name in names:
        edits.give(call, keyword(name, name))
    return edits.text()


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("f()\n", "f(new=new)\n"),
        ("f(a)\n", "f(a, new=new)\n"),
        ("f(a, b,)\n", "f(a, b, new=new,)\n"),
        ("f(\n    a,\n    b,\n)\n", "f(\n    a,\n    b,\n    new=new,\n)\n"),
        ("f(\n    a,\n    b\n)\n", "f(\n    a,\n    b,\n    new=new\n)\n"),
        ("f(a,\n  b)\n", "f(a,\n  b,\n  new=new)\n"),
        ("f(\n    a,\n)\n", "f(\n    a,\n    new=new,\n)\n"),
        ("f(\n    a, b\n)\n", "f(\n    a, b, new=new\n)\n"),
        (
            "f(\n    a,  # one\n    b,  # two\n)\n",
            "f(\n    a,  # one\n    b,  # two\n    new=new,\n)\n",
        ),
        (
            "f(\n    a,  # one\n    b  # two\n)\n",
            "f(\n    a,  # one\n    b,  # two\n    new=new\n)\n",
        ),
    ],
)
def test_an_argument_is_laid_out_as_the_others(before, after):
    assert given(before, "new") == after


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("def f(a, b): ...\n", "def f(a, b, new): ...\n"),
        ("def f(a, b=1): ...\n", "def f(a, b=1, new=None): ...\n"),
        ("def f(a, *, b): ...\n", "def f(a, *, b, new): ...\n"),
        ("def f(\n    a,\n    b,\n): ...\n", "def f(\n    a,\n    b,\n    new,\n): ...\n"),
        ("def f(\n    a,\n): ...\n", "def f(\n    a,\n    new,\n): ...\n"),
        ("def f(\n    a, b\n): ...\n", "def f(\n    a, b, new\n): ...\n"),
    ],
)
def test_a_parameter_is_laid_out_as_the_others(before, after):
    source = Source("run.py", before)
    edits = Edits(source)
    function = cst.ensure_type(source.module.body[0], cst.FunctionDef)
    edits.change(function.params, lambda node: with_parameter(node, "new"))
    assert edits.text() == after
