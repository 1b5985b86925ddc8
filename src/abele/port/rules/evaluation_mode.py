"""Models whose forward asks for the mode: an inference model has a copy of their top level.

``model.eval()`` reaches the layers of that copy, which are the same objects, but not the copy.
Inside of another module the model itself is a layer.

A program keeps the mode of its first call, and renews no averages of normalisation outside of
training steps. So it matters where a model may be called in training mode.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

import libcst as cst
from libcst import matchers as m

from abele.port.analysis.averages import keeps_averages
from abele.port.analysis.kinds import Thing
from abele.port.analysis.search import findall
from abele.port.analysis.training_mode import EITHER, TrainingMode
from abele.port.context import Context
from abele.port.finding import Verdict
from abele.port.source import Source

_MODE = m.Attribute(value=m.Name("self"), attr=m.Name("training"))


@dataclasses.dataclass(frozen=True)
class Modes:
    """In which modes a model is called outside of training steps.

    Attributes:
        here: in which it may be in one call: True for training.
        other: calls of it come in both.
    """

    here: frozenset[bool]
    other: bool


def of_calls(
    context: Context, calls: Iterable[tuple[Source, cst.Call, Thing]]
) -> dict[cst.Call, Modes]:
    """The modes of each call of a model."""
    here: dict[Thing, dict[cst.Call, frozenset[bool]]] = {}
    for source, call, thing in calls:
        mode = TrainingMode(context.project, context.things, thing).at(source, call)
        here.setdefault(thing, {})[call] = mode
    both = {thing: frozenset().union(*modes.values()) == EITHER for thing, modes in here.items()}
    return {
        call: Modes(mode, both[thing])
        for thing, modes in here.items()
        for call, mode in modes.items()
    }


def say_averages(
    context: Context, thing: Thing, source: Source, call: cst.Call, modes: Modes
) -> None:
    """Name a call that may renew averages, which the training model does not see."""
    if _trains(context, source, call):
        return
    if True in modes.here and keeps_averages(context.project, context.things, thing):
        reason = (
            "the model may be in training mode here, where batch norm changes its running "
            "averages on the host, which the training program does not see: call eval() before"
        )
        context.say(source, call, "ABP504", Verdict.MANUAL, reason)


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
