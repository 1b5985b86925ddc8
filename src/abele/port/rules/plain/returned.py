"""Finds the result of a model that is its loss."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence

import libcst as cst
from libcst import matchers as m

from abele.port.analysis.batches import argument
from abele.port.analysis.kinds import Kind, Thing
from abele.port.analysis.parts import StepError
from abele.port.analysis.scopes import names_in
from abele.port.analysis.search import findall
from abele.port.context import Context
from abele.port.rules.wrapper import FUNCTIONS
from abele.port.source import Source

_HOW = "; mark it with poptorch.identity_loss where forward returns it"
MARK = "poptorch.identity_loss"


@dataclasses.dataclass(frozen=True)
class Loss:
    """Where the loss is among the results of a model.

    Attributes:
        place: from 0.
        count: how many results there are.
    """

    place: int
    count: int

    def of(self, results: str) -> str:
        """The loss among results, as text."""
        return results if self.count == 1 else f"{results}[{self.place}]"


def loss_of(context: Context, training: Thing) -> Loss:
    """Where the loss is among the results of a training model.

    Raises:
        StepError: its forward is not in these files, or does not say which one it is.
    """
    assert isinstance(training.made, cst.Call)
    model = argument(training.made, "model", 0)
    if model is None:
        raise StepError(training.made, "it is given no model")
    answers = {
        _of_model(context, each, training.made)
        for each in context.things.of(training.source, model, Kind.MODEL)
    }
    if not answers:
        raise StepError(model, "the class of its model is not in the files that are ported, so "
                               "which result is the loss is not known")  # fmt: skip
    if len(answers) > 1:
        raise StepError(model, "its models return the loss at different positions")
    return answers.pop()


def _of_model(context: Context, model: Thing, node: cst.CSTNode) -> Loss:
    cls = None
    if isinstance(model.made, cst.Call):
        cls = context.project.class_of(model.source, model.made.func)
    forward = None if cls is None else context.project.method(cls, "forward")
    if cls is None or forward is None:
        name = model.name or "its model"
        raise StepError(
            node,
            f"the forward of {name} is not in the files that are ported, so which result is the "
            "loss is not known",
        )
    source = next(each for each, function in context.project.functions() if function is forward)
    known = {_loss(context, source, forward, each) for each in _results(source, forward)}
    losses = {each for each in known if each is not None}
    if len(losses) == 1:
        return losses.pop()
    if len(losses) > 1:
        raise StepError(node, "forward returns the loss at different positions")
    counts = {len(each) for each in _results(source, forward)}
    if counts == {1}:
        return Loss(0, 1)
    raise StepError(
        node, f"which result of {cls.name.value}.forward is the loss was not found{_HOW}"
    )


def _results(source: Source, forward: cst.FunctionDef) -> Iterator[Sequence[cst.BaseExpression]]:
    """What each of its ``return`` statements returns."""
    for node in findall(forward.body, m.Return()):
        assert isinstance(node, cst.Return)
        if source.enclosing(node, cst.FunctionDef) is forward and node.value is not None:
            value = node.value
            several = (
                [each.value for each in value.elements] if isinstance(value, cst.Tuple) else []
            )
            yield several or [value]


def _loss(
    context: Context,
    source: Source,
    forward: cst.FunctionDef,
    results: Sequence[cst.BaseExpression],
) -> Loss | None:
    """Where the loss is among some results: what is marked, or else what a loss of torch made."""
    assigned = _assigned(forward)
    for marked in (True, False):
        places = [
            index
            for index, each in enumerate(results)
            if _is_loss(context, source, each, assigned, marked=marked)
        ]
        if len(places) == 1:
            return Loss(places[0], len(results))
        if places:
            raise StepError(forward, f"forward returns several losses{_HOW}")
    return None


def _assigned(forward: cst.FunctionDef) -> dict[str, list[cst.BaseExpression]]:
    """What is assigned to each name of a function."""
    values: dict[str, list[cst.BaseExpression]] = {}
    for node in findall(forward.body, m.Assign()):
        assert isinstance(node, cst.Assign)
        for target in node.targets:
            for name in names_in(target.target):
                values.setdefault(name, []).append(node.value)
    return values


def _is_loss(
    context: Context,
    source: Source,
    node: cst.BaseExpression,
    assigned: dict[str, list[cst.BaseExpression]],
    *,
    marked: bool,
) -> bool:
    """Whether an expression is a loss, marked or of torch."""
    if isinstance(node, cst.Name):
        others = {name: [] for name in assigned if name == node.value} | assigned
        values = others.pop(node.value, [])
        return any(_is_loss(context, source, each, others, marked=marked) for each in values)
    if not isinstance(node, cst.Call):
        return False
    name = source.imported(node.func)
    if marked:
        return name == MARK
    of_torch = name.startswith("torch.nn.functional.") and name.rpartition(".")[2] in FUNCTIONS
    made = source.imported(node.func.func) if isinstance(node.func, cst.Call) else ""
    is_class = made.startswith("torch.nn.") and made.endswith("Loss")
    return of_torch or is_class or bool(context.things.of(source, node.func, Kind.LOSS))
