"""Modes of calls outside of training steps, and models whose forward asks for their mode.

A program keeps the mode of its first call, so an inference model runs where the text says that the
model is in evaluation mode; elsewhere the plain model runs, and the line is named.

An inference model has a copy of the model's top level. ``model.eval()`` reaches the layers of that
copy, which are the same objects, but not the copy. Inside of another module the model is a layer.
"""

from __future__ import annotations

import libcst as cst
from libcst import matchers as m

from abele.port.analysis.kinds import Thing
from abele.port.analysis.search import findall
from abele.port.analysis.training_mode import TrainingMode, mode_matters
from abele.port.context import Context
from abele.port.finding import Verdict
from abele.port.source import Source

_MODE = m.Attribute(value=m.Name("self"), attr=m.Name("training"))
_UNKNOWN = (
    "the model may be in training mode here, in which dropout draws and batch norm changes its "
    "averages on the host: the plain model runs, on the host; call eval() in this function before "
    "to run a program"
)


def may_train(context: Context, thing: Thing, source: Source, call: cst.Call) -> bool:
    """Return whether a call may be in training mode, where that matters, and name its line."""
    if not mode_matters(context.project, thing):
        return False
    if True not in TrainingMode(context.project, context.things, thing).at(source, call):
        return False
    if not _trains(context, source, call):
        context.say(source, call, "ABP504", Verdict.MANUAL, _UNKNOWN)
    return True


def _trains(context: Context, source: Source, call: cst.Call) -> bool:
    """Whether a call is of a training step that is refused: its loop has what says why."""
    loop = source.enclosing(call, cst.For, cst.While, cst.FunctionDef)
    inside = [each.node for at, each in context.refused if at is source]
    return any(loop is around for each in inside for around in source.above(each))


def wrapped(context: Context, thing: Thing, source: Source, call: cst.Call, model: str) -> str:
    """What the inference model of a model is made of, as text.

    Args:
        context: the program.
        thing: the model.
        source: the file in which the inference model is made.
        call: a call of the model, outside of training.
        model: its name there.
    """
    if not asks_for_its_mode(context, thing):
        return model
    if len(call.args) != 1 or call.args[0].keyword is not None or call.args[0].star:
        reason = (
            "forward reads self.training, and an inference model keeps the mode in which it is "
            f"made: call {model}.eval() before it is made"
        )
        context.say(source, call, "ABP503", Verdict.MANUAL, reason)
        return model
    if not source.imported_as("torch"):
        context.edits(source).need("import torch")
    return f"torch.nn.Sequential({model})"


def asks_for_its_mode(context: Context, thing: Thing) -> bool:
    """Whether the model's own class reads ``self.training``."""
    if not isinstance(thing.made, cst.Call):
        return False
    cls = context.project.class_of(thing.source, thing.made.func)
    return cls is not None and any(findall(each, _MODE) for each in context.project.bases(cls))
