"""Accumulates gradients over a constant number of batches, in one call of the program."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import libcst as cst
from libcst import matchers as m

from abele.port.analysis import batches
from abele.port.analysis.flow import reads, writes
from abele.port.analysis.kinds import Kind, Thing
from abele.port.analysis.parts import Statement, StepError, block_of, calls_of, is_call
from abele.port.analysis.scopes import names_in
from abele.port.analysis.search import findall
from abele.port.analysis.steps import Step
from abele.port.context import Context
from abele.port.edits import parsed
from abele.port.finding import Verdict
from abele.port.source import Source

_HOW = (
    "; by hand: opts.Training.gradientAccumulation(k), opts.outputMode(poptorch.OutputMode.All), "
    "a poptorch.DataLoader with these options, which gives k batches at once, and a loop without "
    "a condition"
)
_NO_NUMBER = (
    "how many batches are accumulated, {number}, is no number in the text: write it there, or a "
    "constant of this file that is assigned once, such as PARTS = 4"
)
_OF_INSTANCES = (
    "gradients of {number} batches are added up, and those of the instances averaged, while "
    "options say one of the two for both: divide the loss by {number} before backward()"
)
_REASON = (
    "one call takes {every} batches, makes one update, and returns the loss of each; batches that "
    "are too few for an update at the end of an epoch are left out"
)
_KEPT = (
    "gradients of batches that are too few for an update at the end of an epoch go into the first "
    "update of the next epoch here, and the program leaves these batches out: choose a batch_size "
    "for which an epoch is a whole number of updates, or call zero_grad() before the loop"
)
_LENGTH = (
    "the loader of the program gives {every} batches at once, and len() counts these: multiply by "
    "{every} if batches are meant"
)
_ORDER = (
    "this may depend on the update, or change what it needs, and runs after it in a program: move "
    "it under the condition of the update"
)


def options(context: Context, loader: Thing) -> str:
    """Return the name of a loader's options if its batches are accumulated, else ``""``."""
    for step in context.steps:
        if step.gradients.every is not None and loader is _loader(context, step):
            return options_of(context, step, loader.source)
    return ""


def options_of(context: Context, step: Step, source: Source) -> str:
    """Return the name of a step's options in a file, ``""`` if it does not accumulate gradients."""
    number = _number(step)
    if number is None or _loader(context, step) is None:
        return ""
    kinds = [_kind(context, each) for each in context.steps if each.gradients.every is not None]
    count = list(dict.fromkeys(kinds)).index(_kind(context, step))
    name = context.name(source, f"training_opts_{count + 1}" if count else "training_opts")
    lines = [
        f"{name}.Training.gradientAccumulation({number})",
        f"{name}.outputMode(poptorch.OutputMode.All)",
    ]
    if not _kind(context, step)[1]:
        lines.append(
            f"{name}.Training.accumulationAndReplicationReductionType(poptorch.ReductionType.Sum)"
        )
    context.define_options(source, name)
    for line in lines:
        context.edits(source).define_once(line)
    return name


def _kind(context: Context, step: Step) -> tuple[int | None, bool]:
    """Return how many batches a step accumulates, and whether it divides the loss by that."""
    (original,) = (each for each in context.steps if each.backward is step.backward)
    return _number(step), bool(undivided(original)[1])


def _loader(context: Context, step: Step) -> Thing | None:
    """Return the loader that the loop of a step goes through with ``enumerate``."""
    return batches.loader_of(context.things, step.source, step.loop)


def _number(step: Step) -> int | None:
    """Return how many batches are accumulated, if that is a number or a constant of the file."""
    every = step.gradients.every
    if isinstance(every, cst.Name):
        name = every.value
        module = step.source.module
        given = [each for each in findall(module, _BINDS) if name in _bound(each)]
        made = given[0] if len(given) == 1 else None
        every = made.value if isinstance(made, cst.Assign) and made.targets[1:] == () else None
        every = every if made is not None and _is_at_top(step.source, made) else None
    return every.evaluated_value if isinstance(every, cst.Integer) else None


_BINDS = (
    m.Assign() | m.AugAssign() | m.AnnAssign() | m.For() | m.CompFor() | m.Param() | m.AsName()
) | (m.Global() | m.NamedExpr() | m.ImportAlias() | m.FunctionDef())


def _bound(node: cst.CSTNode) -> set[str]:
    """Return the names that one statement, loop or parameter gives a value."""
    if isinstance(node, cst.Assign):
        return {name for each in node.targets for name in names_in(each.target)}
    if isinstance(node, cst.Global):
        return {each.name.value for each in node.names}
    if isinstance(node, cst.AugAssign | cst.AnnAssign | cst.For | cst.CompFor | cst.NamedExpr):
        return {*names_in(node.target)}
    if isinstance(node, cst.Param | cst.AsName | cst.ImportAlias | cst.FunctionDef):
        return {*names_in(node.name)}
    return set()


def _is_at_top(source: Source, node: cst.CSTNode) -> bool:
    """Whether a statement runs once, when the file is read."""
    around = [*source.above(node)]
    return not any(isinstance(each, cst.BaseCompoundStatement) for each in around)


def undivided(step: Step) -> tuple[Step, str]:
    """Take the division by the number of batches out of a step: the program takes the mean.

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
    """Return a step without its last statement."""
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
    loader = _known_loader(context, step, every)
    if context.distributed and not divided:
        raise StepError(every, _OF_INSTANCES.format(number=step.source.code(every)) + _HOW)
    gone = {*step.forward, *step.zero, step.place, step.backward, step.update}
    gone |= {each.statement for each in gradients.removed}
    rest = [each for each in step.block if each not in gone and _stays(edits.applied(each))]
    last = gradients.once
    _check(context, step, rest, last)
    _require_own_loader(context, step, loader)
    losses = context.name(step.source, "losses")
    new: list[Any] = parsed(f"{losses} = {name}({step.arguments})")
    shown_later = {counter.value, step.loss} & step.later
    if rest or shown_later:
        shown = [] if divided in ("", "pass") else parsed(divided)
        body = [*shown, *(edits.applied(each) for each in rest)]
        counted = counter.value in step.later
        counted |= any(counter.value in reads(each) for each in rest)
        new.append(_loop(step, losses, body, counted=counted))
    for statement in step.block:
        if statement is not step.place:
            edits.remove(statement)

    def placed(_: Any) -> Any:
        # Only now all changes of what is done once are known, such as what follows a scheduler.
        return cst.FlattenSentinel([*new, *(node for each in last for node in edits.pieces(each))])

    edits.change(step.place, placed)
    _say(context, step, loader)


def _stays(node: Any) -> bool:
    return isinstance(node, cst.CSTNode)


def _known_loader(context: Context, step: Step, every: cst.BaseExpression) -> Thing:
    """Return the loader of a step.

    Raises:
        StepError: it, or how many of its batches are accumulated, is not known.
    """
    if not _number(step):
        raise StepError(every, _NO_NUMBER.format(number=step.source.code(every)) + _HOW)
    loader = _loader(context, step)
    if loader is None:
        raise StepError(
            every, "which loader this loop goes through with enumerate() is not known" + _HOW
        )
    return loader


def _require_own_loader(context: Context, step: Step, loader: Thing) -> None:
    """Raise a StepError if anything else goes through a loader that gives several batches."""
    same = {each.loop for each in context.steps if _kind(context, each) == _kind(context, step)}
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
    """Return the loop over the losses of the batches of one call, perhaps with their numbers."""
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


def _check(
    context: Context, step: Step, rest: Sequence[Statement], last: Sequence[Statement]
) -> None:
    """The statements beside the step may use nothing of a batch but its loss.

    Args:
        context: the program.
        step: the step.
        rest: what is done for each batch.
        last: what is done for each update, such as a step of a scheduler.

    Raises:
        StepError: a statement does more.
    """
    assert isinstance(step.loop, cst.For)
    of_one = {*names_in(cst.ensure_type(step.loop.target, cst.Tuple).elements[1].value)}
    several = [*step.outputs, *step.slow, *sorted(of_one & step.later)]
    if several:
        reason = f"{', '.join(several)} would be of several batches at once"
        raise StepError(step.place, reason + _HOW)
    of_batch = of_one | {name for each in step.forward for name in writes(each)} - {step.loss}
    first = step.block.index(
        next((each for each in step.forward if each in step.block), step.place)
    )
    counter = cst.ensure_type(step.gradients.counter, cst.Name).value
    for each in last:
        if (of_batch | {step.loss, counter}) & {*reads(each), *writes(each)}:
            raise StepError(each, "this would see several batches at once" + _HOW)
    moved = {name for each in last for name in (*reads(each), *writes(each))}
    for each in rest:
        for scheduler in calls_of(each, "step"):
            if _schedules(context, step, scheduler):
                reason = "the learning rate changes between batches that are added up"
                raise StepError(scheduler, f"{reason}; step the scheduler where the update is made")
        if of_batch & {*reads(each), *writes(each)} or step.block.index(each) < first:
            raise StepError(each, "this would see several batches at once" + _HOW)
        if moved & {*reads(each), *writes(each)} or (last and findall(each, _RATES)):
            raise StepError(each, _ORDER)


_RATES = m.Attribute(attr=m.Name("param_groups"))


def _schedules(context: Context, step: Step, call: cst.Call) -> bool:
    """Whether a call is a step of a scheduler."""
    func = cst.ensure_type(call.func, cst.Attribute)
    return bool(context.things.of(step.source, func.value, Kind.SCHEDULER))


def _say(context: Context, step: Step, loader: Thing) -> None:
    """Say what becomes of the step, of batches that are too few for an update, and of lengths."""
    every = str(_number(step))
    context.say(step.source, step.backward, "ABP311", Verdict.MODIFIED, _REASON.format(every=every))
    assert step.loop is not None
    block = block_of(step.source, step.loop)
    if not any(is_call(each) and calls_of(each, "zero_grad") for each in block):
        context.say(step.source, step.update, "ABP311", Verdict.MANUAL, _KEPT)
    for source in context.project.sources:
        for call in findall(source.module, m.Call(func=m.Name("len"), args=[m.Arg()])):
            if loader in context.things.of(source, call.args[0].value, Kind.LOADER):
                reason = _LENGTH.format(every=every)
                context.say(source, call, "ABP311", Verdict.MANUAL, reason)
