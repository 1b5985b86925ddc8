"""Reads options: how many batches a call takes, and which results it returns."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence

import libcst as cst
from libcst import matchers as m

from abele.port.analysis.batches import argument
from abele.port.analysis.kinds import Kind, Thing
from abele.port.analysis.parts import StepError
from abele.port.analysis.search import findall
from abele.port.context import Context
from abele.port.rules.plain.latest import conditions, latest
from abele.port.source import Source

#: What has a factor of the batches of one call.
_FACTORS = {
    "deviceIterations": "iterations",
    "gradientAccumulation": "accumulation",
    "replicationFactor": "replicas",
}
#: Whether torchrun has started a process, as text.
LAUNCHED = "torch.distributed.is_torchelastic_launched()"
_POPDIST = "popdist.poptorch.Options"
_MODES = ("outputMode", "anchorMode")
_REDUCTIONS = ("accumulationAndReplicationReductionType", "accumulationReductionType")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Setting:
    """A method of options that is called.

    Attributes:
        name: of the method.
        source: the file.
        call: the expression.
        maybe: whether a condition decides that it is called.
    """

    name: str
    source: Source
    call: cst.Call
    maybe: bool


@dataclasses.dataclass(frozen=True)
class Batches:
    """How a call divides its rows; numbers as the program writes them.

    Attributes:
        iterations: updates that it makes.
        accumulation: batches that are added up for one.
        replicas: that share each of these.
        mode: which results it returns, such as ``Final``; ``""`` if nothing is said.
        is_sum: whether gradients are added up, and not averaged.
        nodes: the expressions of the numbers that are not 1.
    """

    iterations: str = "1"
    accumulation: str = "1"
    replicas: str = "1"
    mode: str = ""
    is_sum: bool = False
    nodes: tuple[tuple[Source, cst.BaseExpression], ...] = ()

    @property
    def one(self) -> bool:
        """Whether a call is one update of one batch."""
        return not self.factors

    @property
    def factors(self) -> list[str]:
        """The numbers that are not 1."""
        numbers = (self.iterations, self.accumulation, self.replicas)
        return [each for each in numbers if each != "1"]


def settings(context: Context, options: Thing) -> Iterator[Setting]:
    """Every method that is called of some options, in the order of the program."""
    for source in context.project.sources:
        for call in findall(source.module, m.Call()):
            assert isinstance(call, cst.Call)
            if _is_elsewhere(options, source, call):
                continue
            if isinstance(call.func, cst.Attribute) and options in context.things.of(
                source, call.func.value, Kind.OPTIONS
            ):
                yield _setting(options, source, call)


def _is_elsewhere(options: Thing, source: Source, call: cst.Call) -> bool:
    """Whether a call stands in the other branch of a condition than what makes some options."""
    if source is not options.source:
        return False
    shared = {*source.above(call)} & {*source.above(options.made)}
    return any(
        _side(source, each, call) is not _side(source, each, options.made)
        for each in shared
        if isinstance(each, cst.If)
    )


def _side(source: Source, condition: cst.If, node: cst.CSTNode) -> cst.CSTNode | None:
    """The branch of a condition that a node is in."""
    above = {*source.above(node)}
    return next((each for each in (condition.body, condition.orelse) if each in above), None)


def _setting(options: Thing, source: Source, call: cst.Call) -> Setting:
    maybe = conditions(source, call) - conditions(options.source, options.made)
    name = cst.ensure_type(call.func, cst.Attribute).attr.value
    return Setting(name=name, source=source, call=call, maybe=bool(maybe))


def options_of(
    context: Context, source: Source, call: cst.Call, place: int
) -> tuple[cst.BaseExpression | None, list[Thing]]:
    """The options that a wrapper or loader is given: the expression, and what it may be.

    Args:
        context: the program.
        source: the file.
        call: makes the wrapper or loader.
        place: of the options among its arguments.
    """
    options = argument(call, "options", place)
    things: list[Thing] = []
    if options is not None:
        things += latest(context, source, options, context.things.of(source, options, Kind.OPTIONS))
    return options, things


def batches_of(
    context: Context, source: Source, call: cst.Call, place: int, *, training: bool = True
) -> Batches:
    """How the calls of a wrapper, or a loader for them, divide their rows.

    Args:
        context: the program.
        source: the file.
        call: makes the wrapper or loader.
        place: of the options among its arguments.
        training: whether gradients are added up.

    Raises:
        StepError: it is not known before the program runs.
    """
    options, things = options_of(context, source, call, place)
    if options is None:
        return Batches()
    if not things:
        raise StepError(
            call,
            f"how many batches a call takes with {source.code(options)} was not found: make these "
            "options in the files that are ported",
        )
    every = [_batches(context, each, training=training) for each in things]
    if _are_of_processes(context, things):
        here, *others = [e for t, e in zip(things, every, strict=True) if t.name == _POPDIST]
        alone = [e for t, e in zip(things, every, strict=True) if t.name != _POPDIST]
        every = [_either(here, each) for each in alone] if not others else every
    if any(dataclasses.replace(each, nodes=()) != dataclasses.replace(every[0], nodes=())
           for each in every):  # fmt: skip
        raise StepError(
            call,
            "a condition decides which options are used, and so how many batches a call "
            "takes: use one for all",
        )
    return every[0]


def _batches(context: Context, options: Thing, *, training: bool) -> Batches:
    values: dict[str, str] = {}
    nodes: list[tuple[Source, cst.BaseExpression]] = []
    mode, is_sum = "", False
    for each in settings(context, options):
        if each.name not in (*_FACTORS, *_MODES, *_REDUCTIONS):
            continue
        if each.maybe:
            raise StepError(
                each.call, f"a condition decides whether {each.name} is set: set it in any case"
            )
        value = each.call.args[0].value if each.call.args else None
        if value is None:
            raise StepError(each.call, f"{each.name}() has no argument")
        code = each.source.code(context.edits(each.source).applied(value))
        if each.name in _MODES:
            mode = code.rpartition(".")[2]
        elif each.name in _REDUCTIONS:
            is_sum = code.endswith(".Sum")
        elif training or each.name != "gradientAccumulation":
            factor = _FACTORS[each.name]
            if values.get(factor, code) != code:
                raise StepError(
                    each.call, f"{each.name} is set twice, to different values: set it once"
                )
            values[factor] = code
            if code != "1":
                nodes.append((each.source, value))
    return Batches(**values, mode=mode, is_sum=is_sum, nodes=tuple(nodes))


def _are_of_processes(context: Context, things: Sequence[Thing]) -> bool:
    """Whether options are those of popdist where it has started the program, else others."""
    if {each.name for each in things} != {"poptorch.Options", _POPDIST}:
        return False
    for thing in things:
        calls = findall(context.things.owner(thing.source, thing.made), m.Call())
        names = {thing.source.imported(each.func) for each in calls}
        if "popdist.isPopdistEnvSet" not in names:
            return False
    return True


def _either(here: Batches, alone: Batches) -> Batches:
    """How a call divides its rows in one of several processes, or else alone."""
    numbers = {
        name: getattr(here, name)
        if getattr(here, name) == getattr(alone, name)
        else f"({getattr(here, name)} if {LAUNCHED} else {getattr(alone, name)})"
        for name in _FACTORS.values()
    }
    return dataclasses.replace(alone, **numbers, nodes=(*here.nodes, *alone.nodes))


def require_known(context: Context, batches: Batches, source: Source, node: cst.CSTNode) -> None:
    """Numbers of options are needed where a node is, too.

    Raises:
        StepError: one of them is another name's there.
    """
    require_visible(context, batches.nodes, source, node, "says how many batches a call takes")


def require_visible(
    context: Context,
    nodes: Sequence[tuple[Source, cst.BaseExpression]],
    source: Source,
    node: cst.CSTNode,
    what: str,
) -> None:
    """Expressions of options are needed where a node is, too.

    Args:
        context: the program.
        nodes: the expressions, each with its file.
        source: the file of the node.
        node: where they are needed.
        what: they do, for an error.

    Raises:
        StepError: one of them is another name's there.
    """
    for where, number in nodes:
        for name in findall(number, m.Name()):
            assert isinstance(name, cst.Name)
            there = context.things.named(source, node, name.value)
            if where is not source or there is not context.things.named(where, number, name.value):
                text = f"{where.code(number)} {what}, and is not known"
                raise StepError(node, f"{text} here; make it a constant of the file")
