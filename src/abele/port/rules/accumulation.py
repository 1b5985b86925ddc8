"""Gradients that are added up over several batches: the program does it, in one call."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import libcst as cst
from libcst import matchers as m

from abele.port.analysis import batches
from abele.port.analysis.flow import reads, writes
from abele.port.analysis.kinds import Kind, Thing
from abele.port.analysis.one_value import Path
from abele.port.analysis.parts import Statement, StepError, calls_of
from abele.port.analysis.scopes import names_in
from abele.port.analysis.search import findall
from abele.port.analysis.steps import Step
from abele.port.context import Context
from abele.port.edits import parsed
from abele.port.rules import accumulated, left_over
from abele.port.source import Source

_HOW = (
    "; by hand: opts.Training.gradientAccumulation(k), opts.outputMode(poptorch.OutputMode.All), "
    "a poptorch.DataLoader with these options, which gives k batches at once, and a loop without "
    "a condition"
)
_NO_NUMBER = (
    "how many batches are added up, {number}, has to be known and the same for the whole run where "
    "the loader and the training model are made, and {why}: write a constant for it, or an "
    "argument of the program that nothing changes"
)

_OF_INSTANCES = (
    "gradients of {number} batches are added up, and those of the instances averaged, while "
    "options say one of the two for both: divide the loss by {number} before backward()"
)


def options(context: Context, loader: Thing) -> str:
    """The options of a loader whose batches are added up; ``""`` if they are not."""
    for step in context.steps:
        if step.gradients.every is not None and loader is accumulated.loader_of(context, step):
            return options_of(context, step, loader.source, loader.made)
    return ""


def added_up(context: Context, loader: Thing) -> int | None:
    """How many batches of a loader a call takes; None if the text does not say it."""
    for step in context.steps:
        if step.gradients.every is not None and loader is accumulated.loader_of(context, step):
            number = accumulated.number_of(context, step) or 1
            return None if isinstance(number, Path) else number
    return 1


def options_of(context: Context, step: Step, source: Source, place: cst.CSTNode) -> str:
    """The options of a step that adds up gradients; ``""`` if it does not, or cannot.

    Args:
        context: the program.
        step: the step.
        source: the file that needs them.
        place: that needs them.
    """
    loader = accumulated.loader_of(context, step)
    number = accumulated.number_of(context, step)
    if loader is None or number is None:
        return ""
    if isinstance(number, Path) and accumulated.why_not(context, step):
        return ""
    name = _options_name(context, step, source)
    lines = [
        f"{name}.Training.gradientAccumulation({{number}})",
        f"{name}.outputMode(poptorch.OutputMode.All)",
    ]
    if not _is_divided(context, step):
        lines.append(
            f"{name}.Training.accumulationAndReplicationReductionType(poptorch.ReductionType.Sum)"
        )
    if isinstance(number, Path):
        lines.insert(0, f"{name} = poptorch.Options()")
        context.edits(source).need("import poptorch")
        kind = _kind(context, step)
        steps = [each for each in context.steps if _kind(context, each) == kind]
        steps = [each for each in steps if not accumulated.why_not(context, each)]
        accumulated.make_options(context, steps, source, place, "\n".join(lines))
        return name
    context.define_options(source, name)
    for line in lines:
        context.edits(source).define_once(line.format(number=number))
    return name


def _kind(context: Context, step: Step) -> tuple[int | Path | None, bool]:
    """What the options of a step say."""
    return accumulated.number_of(context, step), _is_divided(context, step)


def _options_name(context: Context, step: Step, source: Source) -> str:
    """What the options of a step are called in a file."""
    kinds = [_kind(context, each) for each in context.steps if each.gradients.every is not None]
    count = list(dict.fromkeys(kinds)).index(_kind(context, step))
    return context.name(source, f"training_opts_{count + 1}" if count else "training_opts")


def _is_divided(context: Context, step: Step) -> bool:
    """Whether the program itself divides the losses that are added up."""
    (original,) = (each for each in context.steps if each.backward is step.backward)
    return bool(undivided(original)[1])


def undivided(step: Step) -> tuple[Step, str]:
    """A step whose loss is not divided by how many are added up: the program takes the mean.

    Returns:
        The step, and the statement that divides what the program returns: ``"pass"`` if what is
        shown is not divided, and ``""`` if nothing is.
    """
    every = step.gradients.every
    if every is None:
        return step, ""
    last = step.forward[-1]
    number = step.source.code(every)
    small = last.body[0] if isinstance(last, cst.SimpleStatementLine) else None
    if (
        isinstance(small, cst.AugAssign)
        and isinstance(small.operator, cst.DivideAssign)
        and step.source.code(small.value) == number
    ):
        return _shorter(step, step.loss), f"{step.loss} /= {number}"
    if not isinstance(small, cst.Assign) or not _divides(step, small.value, number):
        return step, ""
    left = cst.ensure_type(small.value, cst.BinaryOperation).left
    if isinstance(left, cst.Name):
        named = last not in step.block
        shown = "pass" if named else f"{step.loss} = {step.loss} / {number}"
        return _shorter(step, left.value), shown
    whole = cst.SimpleStatementLine([cst.Assign(small.targets, left)])
    step = dataclasses.replace(step, forward=(*step.forward[:-1], whole))
    return step, f"{step.loss} = {step.loss} / {number}"


def _divides(step: Step, value: cst.BaseExpression, number: str) -> bool:
    division = m.BinaryOperation(operator=m.Divide())
    return m.matches(value, division) and (
        step.source.code(cst.ensure_type(value, cst.BinaryOperation).right) == number
    )


def _shorter(step: Step, loss: str) -> Step:
    """A step without its last statement."""
    outputs = tuple(name for name in step.outputs if name != loss)
    return dataclasses.replace(step, forward=step.forward[:-1], loss=loss, outputs=outputs)


def call(context: Context, step: Step, name: str, divided: str) -> None:
    """Put one call, and a loop over the losses of its batches, in the place of a step.

    Raises:
        StepError: the loop does something with a batch that it does not do with several at once.
    """
    gradients = step.gradients
    counter, every = gradients.counter, gradients.every
    assert counter is not None
    assert every is not None
    edits = context.edits(step.source)
    loader, number = _known(context, step, every)
    if context.distributed and not _is_divided(context, step):
        raise StepError(every, _OF_INSTANCES.format(number=step.source.code(every)) + _HOW)
    gone = {*step.forward, *step.zero, step.place, step.backward, step.update}
    gone |= {each.statement for each in gradients.removed}
    rest = [each for each in step.block if each not in gone and _stays(edits.applied(each))]
    last = gradients.once
    _check(context, step, rest, last)
    _require_own_loader(context, step)
    losses = context.name(step.source, "losses")
    new: list[Any] = parsed(f"{losses} = {name}({step.arguments})")
    shown_later = {counter.value, step.loss} & step.later
    if rest or shown_later or any({counter.value, step.loss} & {*reads(e)} for e in last):
        shown = [] if divided in ("", "pass") else parsed(divided)
        body = [*shown, *(edits.applied(each) for each in rest)]
        counted = counter.value in step.later
        counted |= any(counter.value in reads(each) for each in (*rest, *last))
        # One batch has one loss, which is no row of losses.
        rows = losses if isinstance(number, int) else f"{losses}.reshape(-1)"
        new.append(_loop(step, rows, body, counted=counted))
    for statement in step.block:
        if statement is not step.place:
            edits.remove(statement)

    def placed(_: Any) -> Any:
        # Only now all changes of what is done once are known, such as what follows a scheduler.
        return cst.FlattenSentinel([*new, *(node for each in last for node in edits.pieces(each))])

    edits.change(step.place, placed)
    left_over.say(context, step, loader, number)
    left_over.count_batches(context, step, loader, number)


def _known(context: Context, step: Step, every: cst.BaseExpression) -> tuple[Thing, int | Path]:
    """The loader of a step, and how many of its batches are added up.

    Raises:
        StepError: one of them is not known where options are made.
    """
    loader, number = accumulated.loader_of(context, step), accumulated.number_of(context, step)
    why = "" if isinstance(number, int) else accumulated.why_not(context, step)
    if number is None or why:
        code = step.source.code(every)
        raise StepError(every, _NO_NUMBER.format(number=code, why=why) + _HOW)
    if loader is None:
        raise StepError(
            every, "which loader this loop goes through with enumerate() is not known" + _HOW
        )
    return loader, number


def _require_own_loader(context: Context, step: Step) -> None:
    """Nothing else may go through the loader, which gives several batches at once.

    Raises:
        StepError: something does, and is not a step that adds up as many.
    """
    loader, own = accumulated.loader_of(context, step), _kind(context, step)
    same = {each.loop for each in context.steps if _kind(context, each) == own}
    for source in context.project.sources:
        for loop in findall(source.module, m.For() | m.CompFor()):
            if loop not in same and loader in batches.loaders_of(context.things, source, loop):
                line, _ = source.position(loop)
                raise StepError(
                    step.backward,
                    f"the loader would give several batches at once, also in line {line} of "
                    f"{source.name}: make a loader of its own for that",
                )


def _loop(step: Step, losses: str, body: Sequence[Any], *, counted: bool) -> Any:
    """The loop over the losses of the batches of one call; ``counted`` with their numbers."""
    counter, every = step.gradients.counter, step.gradients.every
    assert counter is not None
    assert every is not None
    head = f"for {step.loss} in {losses}:"
    if counted:
        first = f"{counter.value} * {step.source.code(every)}"
        if step.gradients.start:
            first = f"({counter.value} - 1) * {step.source.code(every)} + 1"
        head = f"for {counter.value}, {step.loss} in enumerate({losses}, {first}):"
    (loop,) = parsed(f"{head}\n    pass")
    made: Any = loop
    return made.with_changes(body=made.body.with_changes(body=body or parsed("pass")))


def _stays(node: Any) -> bool:
    return isinstance(node, cst.CSTNode)


def _check(
    context: Context, step: Step, rest: Sequence[Statement], last: Sequence[Statement]
) -> None:
    """The statements beside the step may use nothing of a batch but its loss.

    Args:
        context: the program.
        step: the step.
        rest: what is done for each batch.
        last: what is done for each update; after all of its batches now.
    """
    assert isinstance(step.loop, cst.For)
    if step.outputs:
        names = ", ".join(step.outputs)
        raise StepError(step.place, f"{names} would be of several batches at once" + _HOW)
    of_one = {*names_in(cst.ensure_type(step.loop.target, cst.Tuple).elements[1].value)}
    if of_one & step.later:
        names = ", ".join(sorted(of_one & step.later))
        raise StepError(
            step.place,
            f"{names} is read after the loop, and would be of several batches at once" + _HOW,
        )
    if step.slow:
        names = ", ".join(step.slow)
        raise StepError(step.place, f"{names} changes, and has no row for each batch" + _HOW)
    target = cst.ensure_type(step.loop.target, cst.Tuple)
    of_batch = {*names_in(target.elements[1].value)}
    of_batch |= {name for each in step.forward for name in writes(each)} - {step.loss}
    first = step.block.index(
        next((each for each in step.forward if each in step.block), step.place)
    )
    for each in rest:
        for call in calls_of(each, "step"):
            assert isinstance(call.func, cst.Attribute)
            if context.things.of(step.source, call.func.value, Kind.SCHEDULER):
                reason = "the learning rate changes between batches that are added up"
                raise StepError(call, f"{reason}; step the scheduler where the update is made")
    for each in (*rest, *last):
        early = each in rest and step.block.index(each) < first
        if of_batch & {*reads(each), *writes(each)} or early:
            raise StepError(each, "this would see several batches at once" + _HOW)
    _check_order(step, rest, last)


def _check_order(step: Step, rest: Sequence[Statement], last: Sequence[Statement]) -> None:
    """What stands behind the update may not depend on what is done with it, nor change that."""
    changed = {name for each in last for name in (*writes(each), *_called(step, each))}
    needed = {name for each in last for name in reads(each)}
    rates = m.Attribute(attr=m.Name("param_groups"))
    for each in rest:
        if step.block.index(each) < step.block.index(step.update):
            continue
        shared = changed & {*reads(each), *writes(each)} | needed & {*writes(each)}
        if shared - {step.loss}:
            names = ", ".join(sorted(shared - {step.loss}))
            raise StepError(each, f"{names} may change between the update and this" + _HOW)
        if last and findall(each, rates):
            raise StepError(each, "a learning rate may change between the update and this" + _HOW)


def _called(step: Step, statement: Statement) -> set[str]:
    """Names of objects that calls of their methods may change."""
    names = set[str]()
    for call in findall(statement, m.Call(func=m.Attribute())):
        root = cst.ensure_type(call, cst.Call).func
        while isinstance(root, cst.Attribute | cst.Call | cst.Subscript):
            root = root.func if isinstance(root, cst.Call) else root.value
        if isinstance(root, cst.Name) and not step.source.imported(root):
            names.add(root.value)
    return names
