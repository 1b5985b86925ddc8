"""Writes wrapped models that a class makes when it first needs them.

By then everything that they consist of is there, in whichever order its methods make it, and no
later ``model = model.to(device)`` can put a plain module in their place.
"""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

import libcst as cst

from abele.port.context import Context
from abele.port.edits import Edits
from abele.port.modes.edits import ModeEdits
from abele.port.source import Source

_METHOD = '''@functools.cached_property
def {name}(self):
    """{what}, made when it is first needed."""
    {before}return poptorch.{maker}(
        {arguments},
    )
'''


def makes_lazily(context: Context, name: str) -> bool:
    """Whether a variable is made when it is needed: attributes are, where there are modes."""
    return context.switch is not None and name.startswith("self.")


def define(
    context: Context,
    source: Source,
    cls: cst.ClassDef,
    name: str,
    what: str,
    maker: str,
    arguments: Sequence[str],
    before: str = "",
) -> None:
    """Have a class make a wrapped model.

    Args:
        context: the program.
        source: the file of the class.
        cls: the class.
        name: of its attribute.
        what: the model is, in words.
        maker: ``trainingModel`` or ``inferenceModel``.
        arguments: of the maker.
        before: statements that have to come first, indented as those of a method.
    """
    edits: Edits = context.edits(source)
    assert isinstance(edits, ModeEdits)
    edits.need("import functools")
    edits.need("import poptorch")
    lines = textwrap.indent(",\n".join(arguments), " " * 8).strip()
    text = _METHOD.format(name=name, what=what, maker=maker, arguments=lines, before=before)
    edits.method(cls, text)
