"""Passes the compiled program to methods through which a step calls its model."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import libcst as cst
from libcst import matchers as m

from abele.port.analysis.flow import reads, writes
from abele.port.analysis.parts import Statement, block_of, statement_of
from abele.port.analysis.scopes import names_in
from abele.port.analysis.search import findall
from abele.port.analysis.steps import Step, StepError
from abele.port.analysis.through import Through, called_through
from abele.port.context import Context
from abele.port.edits import keyword, parsed
from abele.port.finding import Verdict
from abele.port.modes import lazily
from abele.port.modes.edits import ModeEdits
from abele.port.routes import with_parameter
from abele.port.rules.wrapper import Wrapper, wrapper_of
from abele.port.source import Source

_HOST = "what is before this stays on the host; what comes from here on is the program's, if given"
_TRAINS = "{name} computes this, the loss, the gradients and the update, in one call"
_LOSS = "the loss is what the program has returned"
_EVALUATES = "{name} computes this as a program, with the weights of the training model"


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class Split:
    """A step that calls its model by way of a function.

    Attributes:
        original: the step as it is written.
        inlined: the step with the function's statements in the place of its call.
        through: the function.
        call: of it.
        targets: what the step calls the function's results.
        whole: the module with the loss.
        alone: the module without it.
        number: a suffix for the names of modules and programs; there is one for each step.
    """

    original: Step
    whole: Wrapper
    alone: Wrapper
    number: str
    through: Through
    call: cst.Call
    targets: tuple[str, ...]

    @property
    def loss(self) -> Sequence[cst.CSTNode]:
        """The statements that compute the loss of the results."""
        return self.original.forward[1:]


def split_of(context: Context, step: Step) -> Split | None:
    """A step with what its function does in the place of its call; None if it has no such function.

    Raises:
        StepError: the function does things that cannot be told apart.
    """
    if context.switch is None or step.gradients.every is not None:
        return None
    first = step.forward[0]
    call = _assigned_call(first)
    function = None if call is None else context.things.function(step.source, call)
    if call is None or function is None or function not in step.helpers:
        return None
    if context.project.source(function) is not step.source:
        raise StepError(call, f"{function.name.value}() is in another file than this step")
    through = called_through(step.source, context.things, function, call, step.models)
    targets = tuple(names_in(_target(first)))
    if len(targets) != len(through.results):
        raise StepError(
            call, f"{function.name.value}() returns several results as one value: give each a name"
        )
    _require_nothing_else(step, targets)
    results = [step.source.code(each) for each in through.results]
    renaming = f"{', '.join(targets)} = {', '.join(results)}"
    same = list(targets) == results
    forward: Any = (*through.body, *(() if same else parsed(renaming)), *step.forward[1:])
    rest = {name for each in step.forward[1:] for name in reads(each)}
    inlined = dataclasses.replace(
        step,
        forward=forward,
        inputs=tuple(through.inputs),
        constants=tuple(each for each in step.constants if each in rest and each != "self"),
        outputs=targets,
    )
    count = len(set(context.training.values()))
    return Split(
        original=step,
        whole=wrapper_of(context, inlined),
        alone=wrapper_of(context, _without_loss(inlined, step), results=True),
        number=str(count + 1) if count else "",
        through=through,
        call=call,
        targets=targets,
    )


def _assigned_call(statement: cst.CSTNode) -> cst.Call | None:
    """The call whose results a statement gives names."""
    shape = m.SimpleStatementLine(body=[m.Assign(targets=[m.DoNotCare()], value=m.Call())])
    if not m.matches(statement, shape):
        return None
    small: Any = cst.ensure_type(statement, cst.SimpleStatementLine).body[0]
    return small.value


def _target(statement: cst.CSTNode) -> cst.BaseExpression:
    small: Any = cst.ensure_type(statement, cst.SimpleStatementLine).body[0]
    return small.targets[0].target


def _require_nothing_else(step: Step, targets: Sequence[str]) -> None:
    """The loss may need the results and what is the same in every step, and nothing else."""
    known = {*targets, *step.constants, "self"}
    for statement in step.forward[1:]:
        for name in reads(statement):
            if name in step.inputs and name not in known:
                raise StepError(
                    statement, f"the loss needs {name}, which the compiled program does not get"
                )
        known |= set(writes(statement))


def call_program(context: Context, split: Split, name: str) -> None:
    """Have the step, and evaluations that go the same way, call programs.

    Args:
        context: the program.
        split: the step.
        name: of the training model in the step.
    """
    step, source = split.original, split.original.source
    parameter = _give_program(context, split)
    _replace(context, source, split.call, parameter, name, step.loss)
    context.say(source, split.call, "ABP303", Verdict.MODIFIED, _TRAINS.format(name=name))
    for statement in split.loss:
        context.edits(source).remove(statement)
        context.replaced.add(statement)
        context.say(source, statement, "ABP303", Verdict.MODIFIED, _LOSS)
    for call, caller in context.things.calls(split.through.function).items():
        if call is not split.call and caller is source:
            _evaluate(context, split, call, parameter)


def _give_program(context: Context, split: Split) -> str:
    """Have the function take a program and call it; the name of the parameter."""
    source, through = split.original.source, split.through
    edits = context.edits(source)
    assert isinstance(edits, ModeEdits)
    name = context.name(source, "program")
    edits.always(through.function.params, lambda node: with_parameter(node, name, optional=True))
    arguments = ", ".join(through.inputs.values())
    edits.always_before(through.place, f"if {name} is not None:\n    return {name}({arguments})\n")
    context.say(
        source, through.function, "ABP903", Verdict.MODIFIED, f"{name} is one more argument"
    )
    context.say(source, through.place, "ABP903", Verdict.MODIFIED, _HOST)
    return name


def _replace(
    context: Context, source: Source, call: cst.Call, parameter: str, name: str, loss: str
) -> None:
    """Give the function a program, and take the loss, too, where it has one."""
    edits = context.edits(source)
    edits.give(call, keyword(parameter, name))
    statement = statement_of(source, call)
    target = _target(statement)
    if loss:
        names = ", ".join([*names_in(target), loss])
        edits.change(target, lambda _: cst.parse_expression(names))


def _evaluate(context: Context, split: Split, call: cst.Call, parameter: str) -> None:
    """Have an evaluation call a program, with its loss where it computes the same."""
    step, source = split.original, split.original.source
    statement = statement_of(source, call)
    if _assigned_call(statement) is not call:
        reason = "the results of this call are not assigned to names: the plain model runs"
        context.say(source, call, "ABP509", Verdict.MANUAL, reason)
        return
    try:
        through = called_through(
            source, context.things, split.through.function, call, split.original.models
        )
    except StepError as error:
        context.say(source, call, "ABP509", Verdict.MANUAL, f"the plain model runs: {error.reason}")
        return
    loss = _same_loss(source, split, statement)
    if _code(source, through.body) != _code(source, split.through.body):
        reason = "this call does other things than that of the training step: the plain model runs"
        context.say(source, call, "ABP509", Verdict.MANUAL, reason)
        return
    name = _program(context, split, with_loss=bool(loss))
    _replace(context, source, call, parameter, name, step.loss if loss else "")
    context.say(source, call, "ABP502", Verdict.MODIFIED, _EVALUATES.format(name=name))
    for each in loss:
        context.edits(source).remove(each)
        context.replaced.add(each)
        context.say(source, each, "ABP904", Verdict.MODIFIED, _LOSS)


def _code(source: Source, nodes: Sequence[cst.CSTNode]) -> list[str]:
    return [source.code(_bare(each)).strip() for each in nodes]


def _bare(node: Any) -> Any:
    return node.with_changes(leading_lines=[]) if hasattr(node, "leading_lines") else node


def _same_loss(source: Source, split: Split, statement: Statement) -> list[Statement]:
    """The statements after an evaluation that compute its loss as the step does; none if others."""
    block = list(block_of(source, statement))
    wanted = _code(source, split.loss)
    later = block[block.index(statement) + 1 :]
    same = [each for each in later if _code(source, [each])[0] in wanted]
    target = _target(statement)
    if tuple(names_in(target)) != split.targets or _code(source, same) != wanted:
        return []
    return same


def _program(context: Context, split: Split, with_loss: bool) -> str:
    """The name of an inference model, with its loss or without, which the class makes."""
    source = split.original.source
    cls = source.enclosing(split.original.backward, cst.ClassDef)
    assert cls is not None
    wrapper = split.whole if with_loss else split.alone
    wanted = "ModelWithLoss" if with_loss else "ModelWithoutLoss"
    module = context.name(source, f"{wanted}{split.number}")
    if not with_loss:
        context.edits(source).define_function(wrapper.text.replace("{name}", module, 1))
    number = split.number and f"_{split.number}"
    name = context.name(source, f"{'evaluation' if with_loss else 'inference'}_model{number}")
    arguments = ", ".join(source.code(part.value) for part in wrapper.parts)
    lazily.define(
        context,
        source,
        cls,
        name,
        "The model with its loss as a program" if with_loss else "The model alone as a program",
        "inferenceModel",
        (f"{module}({arguments})", f"options={context.options(source)}"),
    )
    return f"self.{name}"


def _without_loss(inlined: Step, step: Step) -> Step:
    """A step up to its results."""
    loss = set(step.forward[1:])
    names = {node for each in loss for node in findall(each, m.Name() | m.Attribute())}
    return dataclasses.replace(
        inlined,
        forward=tuple(each for each in inlined.forward if each not in loss),
        models={thing: node for thing, node in step.models.items() if node not in names},
        constants=(),
    )
