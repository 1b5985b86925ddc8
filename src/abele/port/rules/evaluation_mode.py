"""Models whose forward asks for the mode: an inference model has a copy of their top level.

``model.eval()`` reaches the layers of that copy, which are the same objects, but not the copy.
Inside of another module the model itself is a layer.
"""

from __future__ import annotations

import libcst as cst
from libcst import matchers as m

from abele.port.analysis.kinds import Thing
from abele.port.analysis.search import findall
from abele.port.context import Context
from abele.port.finding import Verdict
from abele.port.source import Source

_MODE = m.Attribute(value=m.Name("self"), attr=m.Name("training"))


def wrapped(context: Context, thing: Thing, source: Source, call: cst.Call, model: str) -> str:
    """What the inference model of a model is made of, as text.

    Args:
        context: the program.
        thing: the model.
        source: the file in which the inference model is made.
        call: a call of the model, outside of training.
        model: its name there.
    """
    if not _asks_for_its_mode(context, thing):
        return model
    if len(call.args) != 1 or call.args[0].keyword is not None or call.args[0].star:
        reason = f"forward reads self.training: wrap {model} after eval(), which it does not follow"
        context.say(source, call, "ABP503", Verdict.MANUAL, reason)
        return model
    if not source.imported_as("torch"):
        context.edits(source).need("import torch")
    return f"torch.nn.Sequential({model})"


def _asks_for_its_mode(context: Context, thing: Thing) -> bool:
    if not isinstance(thing.made, cst.Call):
        return False
    cls = context.project.class_of(thing.source, thing.made.func)
    return cls is not None and any(findall(each, _MODE) for each in context.project.bases(cls))
