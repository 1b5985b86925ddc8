"""How many batches are added up, where that is no number in the text: options are made there."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import libcst as cst

from abele.port.analysis import batches
from abele.port.analysis.kinds import Thing
from abele.port.analysis.one_value import NotOneValueError, OneValue, Path
from abele.port.analysis.parts import Statement, StepError
from abele.port.analysis.steps import Step
from abele.port.analysis.update_conditions import counted_by
from abele.port.analysis.written_values import whole_number
from abele.port.context import Context
from abele.port.rules import places
from abele.port.source import Source

_INSTANCES = "options of a program in several instances are made before there are arguments"
_OTHER_PLACE = "what it is read from is given its value elsewhere than on the way to this"


def number_of(context: Context, step: Step) -> int | Path | None:
    """How many batches are added up: a number, or where it is read from; None if neither is known.

    What is read from somewhere has one value for the whole run.
    """
    every = step.gradients.every
    if every is None:
        return None
    number = whole_number(context.things, step.source, every)
    if number is not None:
        return number
    try:
        return _path(context, step, every)
    except NotOneValueError:
        return None


def why_not(context: Context, step: Step) -> str:
    """Why a number of batches that has a value in the run cannot be given to options."""
    every = step.gradients.every
    assert every is not None
    try:
        path = _path(context, step, every)
        for source, place in _places(context, step):
            _where(context, path, source, place)
    except NotOneValueError as error:
        return str(error)
    return ""


def text_at(context: Context, path: Path, source: Source, place: cst.CSTNode) -> str:
    """What the number is called in some place.

    Raises:
        StepError: it has no name there.
    """
    try:
        return OneValue(context.project, context.things).name(path, source, place)[0]
    except NotOneValueError as error:
        reason = f"this needs how many batches are added up, and {error}"
        raise StepError(place, reason) from error


def make_options(
    context: Context, steps: list[Step], source: Source, place: cst.CSTNode, text: str
) -> None:
    """Have options in the function around some place, before they are needed, once.

    Args:
        context: the program.
        steps: that add up as many.
        source: the file.
        place: that needs the options.
        text: that makes them, with ``{number}`` for how many batches are added up.
    """
    owner = context.things.owner(source, place)
    path = number_of(context, steps[0])
    assert isinstance(path, Path)
    statements = [
        _where(context, path, at, other)
        for step in steps
        for at, other in ((source, place), *_places(context, step))
        if context.things.owner(at, other) is owner
    ]
    number, first = min(statements, key=lambda each: source.position(each[1]))
    if (text, owner) not in context.once:
        context.once.add((text, owner))
        context.edits(source).before(first, text.format(number=number))


def loader_of(context: Context, step: Step) -> Thing | None:
    """The loader that the loop of a step goes through with ``enumerate``."""
    loop = step.loop
    return (
        None if counted_by(loop) is None else batches.loader_of(context.things, step.source, loop)
    )


def _path(context: Context, step: Step, every: cst.BaseExpression) -> Path:
    if context.distributed:
        raise NotOneValueError(_INSTANCES)
    return OneValue(context.project, context.things).path(step.source, every)


def _places(context: Context, step: Step) -> Iterator[tuple[Source, cst.CSTNode]]:
    """Where the loader and the training model of a step are made."""
    loader = loader_of(context, step)
    if loader is not None:
        yield loader.source, loader.made
    try:
        home = places.home(context, step)
    except StepError:
        return
    for each in places.homes(context, step, home):
        yield each.source, each.statement


def _where(
    context: Context, path: Path, source: Source, place: cst.CSTNode
) -> tuple[str, Statement]:
    """What the number is called where options are made for some place, and the statement behind.

    Raises:
        NotOneValueError: there is no such statement.
    """
    number, needed = OneValue(context.project, context.things).name(path, source, place)
    owner = context.things.owner(source, place)
    statements = [
        each
        for each in (place, *source.between(place, owner))
        if isinstance(each, cst.SimpleStatementLine | cst.BaseCompoundStatement)
        and isinstance(source.parent(each), cst.IndentedBlock | cst.Module)
    ]
    if needed is not None:
        statements = _behind(source, statements, needed)
    if not statements:
        raise NotOneValueError(_OTHER_PLACE)
    return number, statements[-1]


def _behind(
    source: Source, statements: Sequence[Statement], needed: cst.CSTNode
) -> list[Statement]:
    """Those statements that are behind one, in the same block."""
    around = (needed, *source.above(needed))
    first = next(each for each in around if isinstance(each, cst.SimpleStatementLine))
    return [
        each
        for each in statements
        if source.parent(each) is source.parent(first)
        and source.position(each) > source.position(first)
    ]
