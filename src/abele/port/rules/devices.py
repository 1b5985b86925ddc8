"""Removes moves to devices and mixed precision, and refuses switches of compute modes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import libcst as cst
from libcst import matchers as m

from abele.port.analysis.kinds import Kind
from abele.port.analysis.parts import is_autocast, is_autocast_call
from abele.port.context import Context
from abele.port.edits import is_named, parsed
from abele.port.finding import Verdict
from abele.port.project import Project
from abele.port.source import Source, findall

CODES = {
    "ABP101": "Moves to a device are taken out: a program takes and returns tensors of the host.",
    "ABP102": "A checkpoint is read to the host, from where the program takes it.",
    "ABP103": "A tensor that was made on a device is made on the host.",
    "ABP104": "The choice of a device stays and has no effect on programs: the target decides.",
}

_MOVES = frozenset(("to", "cuda", "cpu", "xpu"))
_CHOICE = "this device is no longer used: the program's target decides, and the run names it"
_MODIFIED = "a program takes tensors of the host and returns them there; nothing is moved by hand"


def apply(context: Context) -> None:
    """Remove moves of tensors and models to devices."""
    for source in context.project.sources:
        for node in findall(source.module, m.Call()):
            if _is_move(context, source, node):
                _take_out(context, source, node)
            elif source.imported(node.func) == "torch.load":
                _to_host(context, source, node)
            elif source.imported(node.func) == "torch.device":
                statement = source.enclosing(node, cst.BaseSmallStatement) or node
                context.say(source, statement, "ABP104", Verdict.MATCH, _CHOICE)
            elif source.imported(node.func).startswith("torch."):
                _without_device(context, source, node)


def _is_move(context: Context, source: Source, call: cst.Call) -> bool:
    """Return whether a call only moves a tensor or a model to a device."""
    if not isinstance(call.func, cst.Attribute) or call.func.attr.value not in _MOVES:
        return False
    if source.imported(call.func):  # a function of a module
        return False
    if call.func.attr.value != "to":
        return call.func.attr.value != "cpu" or not call.args
    return any(_is_device(context, source, each) for each in call.args)


def _is_device(context: Context, source: Source, argument: cst.Arg) -> bool:
    """Return whether an argument names a device."""
    if argument.keyword is not None:
        return argument.keyword.value == "device"
    value = argument.value
    if isinstance(value, cst.SimpleString):
        name = str(value.evaluated_value)
        return name.split(":")[0] in ("cuda", "cpu", "mps", "xpu", "ipu", "meta")
    if context.things.of(source, value, Kind.DEVICE):
        return True
    last = value.attr if isinstance(value, cst.Attribute) else value
    name = last.value if isinstance(last, cst.Name) else ""
    return "device" in name.lower() or name in ("local_rank", "rank", "gpu", "gpu_id")


def _take_out(context: Context, source: Source, call: cst.Call) -> None:
    context.say(source, call, "ABP101", Verdict.MODIFIED, _MODIFIED)
    kept = [each for each in call.args if not is_named(each, "non_blocking")]
    rest = [each for each in kept if not _is_device(context, source, each)]

    def change(node: cst.Call) -> cst.BaseExpression:
        if not rest:
            assert isinstance(node.func, cst.Attribute)
            return node.func.value
        return node.with_changes(args=_listed(_same(node, call, rest)))

    context.edits(source).take_out(call, change)


def _listed(arguments: Sequence[cst.Arg]) -> list[cst.Arg]:
    """Return call arguments without a trailing comma."""
    *first, last = arguments
    return [*first, last.with_changes(comma=cst.MaybeSentinel.DEFAULT)]


def _to_host(context: Context, source: Source, call: cst.Call) -> None:
    """Rewrite ``torch.load`` to load checkpoints on the host."""
    for argument in call.args:
        if is_named(argument, "map_location"):
            reason = "the tensors are loaded to the host"
            context.say(source, argument, "ABP102", Verdict.MODIFIED, reason)
            context.edits(source).replace(argument.value, '"cpu"')


def _without_device(context: Context, source: Source, call: cst.Call) -> None:
    """Remove the ``device`` argument of a call that creates a tensor."""
    kept = [each for each in call.args if not is_named(each, "device")]
    if len(kept) == len(call.args):
        return
    context.say(source, call, "ABP103", Verdict.MODIFIED, "the tensor is made on the host")
    context.edits(source).change(
        call, lambda node: node.with_changes(args=_listed(_same(node, call, kept)))
    )


def _same(node: cst.Call, call: cst.Call, kept: Sequence[cst.Arg]) -> list[cst.Arg]:
    """Return the arguments of an edited call that correspond to some of the original's."""
    return [
        new for new, old in zip(node.args, call.args, strict=True) if any(old is k for k in kept)
    ]


# -- mixed precision -------------------------------------------------------------------------------

AMP_CODES = {
    "ABP421": "What stood under autocast computes in float32: a program casts nothing by itself.",
    "ABP422": "A program in float32 scales no gradients; the scaler is no longer used.",
}

_CAST = (
    "nothing is cast by itself in a program: this computes in float32, which is never less "
    "precise; for half, write model.half()"
)
_SCALER = (
    "gradients in float32 need no scale, and nothing uses this any longer; an optimizer's "
    "loss_scaling is there for half"
)


def apply_amp(context: Context) -> None:
    """Remove autocast, and report gradient scalers, which are no longer used."""
    for source in context.project.sources:
        for node in findall(source.module, m.With()):
            _without_autocast(context, source, node)
        for node in findall(source.module, m.Decorator()):
            if isinstance(node.decorator, cst.Call) and is_autocast_call(source, node.decorator):
                context.say(source, node, "ABP421", Verdict.MODIFIED, _CAST)
                context.edits(source).remove(node)
    for scaler in context.things.all(Kind.SCALER):
        context.say(scaler.source, scaler.made, "ABP422", Verdict.MATCH, _SCALER)


def _without_autocast(context: Context, source: Source, node: cst.With) -> None:
    casts = [
        each
        for each in node.items
        if isinstance(each.item, cst.Call) and is_autocast_call(source, each.item)
    ]
    if not casts:
        return
    context.say(source, node, "ABP421", Verdict.MODIFIED, _CAST)
    if is_autocast(source, node):
        context.edits(source).change(node, _opened)
        return
    for index, item in enumerate(node.items):
        if item in casts:
            context.edits(source).remove(item)
        elif all(each in casts for each in node.items[index + 1 :]):
            context.edits(source).change(
                item, lambda each: each.with_changes(comma=cst.MaybeSentinel.DEFAULT)
            )


def _opened(node: cst.With) -> Any:
    """Return the statements of a ``with`` block without the ``with``."""
    body = list(node.body.body)
    if len(body) == 1 and body[0].deep_equals(parsed("pass")[0]):
        return cst.RemoveFromParent()
    first: Any = body[0]
    lines = [*node.leading_lines, *first.leading_lines]
    return cst.FlattenSentinel([first.with_changes(leading_lines=lines), *body[1:]])


# -- switches of compute modes ---------------------------------------------------------------------

MODE_CODES = {
    "ABP900": "The program has a compute mode for IPUs already. It stays as it is.",
    "ABP901": "The program chooses among compute modes: a mode for IPUs is added by hand.",
}

_OTHERS = frozenset(("cuda", "dpcpp", "gpu", "hpu", "mps", "rdu", "rocm", "tpu", "xla", "xpu"))
_THERE = "the program has the mode {new} already and uses poptorch: it stays as it is"
_BY_HAND = (
    "the program chooses among compute modes, and a port would lose the others: add a member IPU "
    "by hand and a branch for it at each of these lines (`abele docs porting-cosmictagger` shows "
    "the edits), or port a copy without the switch"
)


def apply_modes(context: Context) -> None:
    """Refuse a program that selects among compute modes, unless it has an IPU mode."""
    switch = _switch(context.project)
    if switch is None:
        return
    source, cls, lines = switch
    ipu = next((each for each in _members(cls) if each.lower() == "ipu"), "")
    context.finished = True
    if ipu and any("poptorch" in each.text for each in context.project.sources):
        context.say(source, cls, "ABP900", Verdict.MATCH, _THERE.format(new=ipu))
        return
    for at, node in ((source, cls), *lines):
        context.say(at, node, "ABP901", Verdict.BLOCKED, _BY_HAND)


def _switch(
    project: Project,
) -> tuple[Source, cst.ClassDef, list[tuple[Source, cst.CSTNode]]] | None:
    """Return the enumeration of compute modes, its file, and nodes that test for a mode."""
    for source in project.sources:
        for cls in findall(source.module, m.ClassDef()):
            bases = [source.imported(each.value) for each in cls.bases]
            names = {each.lower() for each in _members(cls)}
            if any(each.startswith("enum.") for each in bases) and (
                "cpu" in names and _OTHERS & names
            ):
                lines = [(at, node) for at in project.sources for node in _asked(project, at, cls)]
                if lines:
                    return source, cls, lines
    return None


def _members(cls: cst.ClassDef) -> list[str]:
    """Return the member names of an enumeration class."""
    target = m.SaveMatchedNode(m.Name(), "name")
    pattern = m.SimpleStatementLine(body=[m.Assign(targets=[m.AssignTarget(target)])])
    found = [m.extract(statement, pattern) for statement in cls.body.body]
    return [cst.ensure_type(each["name"], cst.Name).value for each in found if each]


def _asked(project: Project, source: Source, cls: cst.ClassDef) -> Iterator[cst.CSTNode]:
    """Yield comparisons, cases and dictionaries of a file that use members of an enumeration."""
    for node in findall(source.module, m.Attribute()):
        if project.class_of(source, node.value) is cls:
            around = source.enclosing(node, cst.Comparison, cst.MatchCase, cst.Dict)
            if around is not None:
                yield around
