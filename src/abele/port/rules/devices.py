"""Moves to a device: a program is on its device from the first call on, and takes host tensors."""

from __future__ import annotations

from collections.abc import Sequence

import libcst as cst
from libcst import matchers as m

from abele.port.analysis.kinds import Kind
from abele.port.analysis.search import findall
from abele.port.context import Context
from abele.port.finding import Verdict
from abele.port.source import Source

CODES = {
    "ABP101": (
        "A move of a tensor or a model to a device is taken out. A program takes tensors of "
        "the host and returns them there; the model is copied to the device with the first "
        "call."
    ),
    "ABP102": "A checkpoint is read to the host, from where the program takes it.",
    "ABP103": "A tensor that was made on a device is made on the host.",
    "ABP104": (
        "The line that chooses a device stays as it is and has no effect on programs. The "
        "target is chosen by the environment or the options, and a run names it."
    ),
}

_MOVES = frozenset(("to", "cuda", "cpu", "xpu"))
_MODIFIED = "a program takes tensors of the host and returns them there; nothing is moved by hand"
_LAYOUT = (
    "; how tensors lie in memory is the program's own, so sums may be added up in another order "
    "than with memory_format, and differ in their last bits"
)


def apply(context: Context) -> None:
    """Take moves to devices out."""
    for source in context.project.sources:
        for node in findall(source.module, m.Call()):
            assert isinstance(node, cst.Call)
            if _is_move(context, source, node):
                _take_out(context, source, node)
            elif source.imported(node.func) == "torch.load":
                _to_host(context, source, node)
            elif source.imported(node.func).startswith("torch."):
                _without_device(context, source, node)
        for statement in findall(source.module, m.SimpleStatementLine()):
            _say_choice(context, source, statement)


def _is_move(context: Context, source: Source, call: cst.Call) -> bool:
    """Whether a call moves a tensor or a model and does nothing else."""
    if not isinstance(call.func, cst.Attribute) or call.func.attr.value not in _MOVES:
        return False
    if source.imported(call.func):  # a function of a module
        return False
    if call.func.attr.value != "to":
        return call.func.attr.value != "cpu" or not call.args
    return any(_is_device(context, source, each) for each in call.args)


def _is_device(context: Context, source: Source, argument: cst.Arg) -> bool:
    """Whether an argument names a device."""
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
    layout = any(m.matches(each, m.Arg(keyword=m.Name("memory_format"))) for each in call.args)
    reason = _MODIFIED + _LAYOUT if layout else _MODIFIED
    context.say(source, call, "ABP101", Verdict.MODIFIED, reason)
    rest = [
        argument
        for argument in call.args
        if not _is_device(context, source, argument)
        and not m.matches(argument, m.Arg(keyword=m.Name("non_blocking")))
    ]

    def change(node: cst.Call) -> cst.BaseExpression:
        if not rest:
            assert isinstance(node.func, cst.Attribute)
            return node.func.value
        return node.with_changes(args=_listed(_same(node, call, rest)))

    context.edits(source).take_out(call, change)


def _listed(arguments: Sequence[cst.Arg]) -> list[cst.Arg]:
    """Arguments without a comma after the last one."""
    *first, last = arguments
    return [*first, last.with_changes(comma=cst.MaybeSentinel.DEFAULT)]


def _to_host(context: Context, source: Source, call: cst.Call) -> None:
    """A checkpoint is read to the host."""
    for argument in call.args:
        if m.matches(argument, m.Arg(keyword=m.Name("map_location"))):
            context.say(
                source,
                argument,
                "ABP102",
                Verdict.MODIFIED,
                "the tensors are loaded to the host",
            )
            context.edits(source).replace(argument.value, '"cpu"')


def _without_device(context: Context, source: Source, call: cst.Call) -> None:
    """A tensor is made on the host."""
    kept = [
        argument
        for argument in call.args
        if not m.matches(argument, m.Arg(keyword=m.Name("device")))
    ]
    if len(kept) == len(call.args) or source.imported(call.func) == "torch.device":
        return
    context.say(source, call, "ABP103", Verdict.MODIFIED, "the tensor is made on the host")
    context.edits(source).change(
        call, lambda node: node.with_changes(args=_listed(_same(node, call, kept)))
    )


def _same(node: cst.Call, call: cst.Call, kept: Sequence[cst.Arg]) -> list[cst.Arg]:
    """The arguments of a changed call that stand for some of the original."""
    return [
        new for new, old in zip(node.args, call.args, strict=True) if any(old is k for k in kept)
    ]


def _say_choice(context: Context, source: Source, statement: cst.CSTNode) -> None:
    """The line that chooses a device stays; it has no effect on the program."""
    if findall(statement, m.Call()) and any(
        isinstance(call, cst.Call) and source.imported(call.func) == "torch.device"
        for call in findall(statement, m.Call())
    ):
        context.say(
            source,
            statement,
            "ABP104",
            Verdict.MATCH,
            "this device is no longer used: the program's target decides, and the run names it",
        )
