"""Blocks every name of PopTorch that no other rule has replaced."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst
from libcst import matchers as m

from abele.port.analysis.search import findall
from abele.port.context import Context
from abele.port.finding import Verdict
from abele.port.rules.plain import gaps
from abele.port.source import Source

CODES = {
    "ABP1901": "Nothing of these packages is used any longer.",
    "ABP1902": "An annotation names a module, a loader, or None for options.",
    "ABP1909": "Plain PyTorch has nothing like it.",
}

_PACKAGES = ("poptorch", "popdist", "poptorch_geometric")
_WHY = {
    "ctc_beam_search_decoder": "decode with another package, such as torchaudio",
    "custom_op": "it is compiled code for the device; write it with torch's operators",
    "CPU": "call its function itself",
    "for_loop": "write a loop of Python",
    "cond": "write a condition of Python, or torch.where",
    "dynamic_slice": "use torch.narrow",
    "dynamic_update": "use torch.index_copy",
    "autocast": "torch.autocast casts other operators; write the types that are meant",
    "identity_loss": "its reduction has to be written as 'none', 'mean' or 'sum'",
    "load": "the file has a compiled program; load its weights with torch.load",
    "Options": "options are given to wrappers and loaders only",
}
_INSTANCES = "torch.distributed has what processes do together"


def apply(context: Context) -> None:
    """Take imports out, and block what is left."""
    for source in context.project.sources:
        for node in _names(source):
            _left(context, source, node)
        for statement in findall(source.module, m.SimpleStatementLine()):
            assert isinstance(statement, cst.SimpleStatementLine)
            _import(context, source, statement)
    gaps.settle(context)


def _names(source: Source) -> Iterator[cst.Name | cst.Attribute]:
    """Every name that comes from one of the packages, as far as it is written out."""
    for node in findall(source.module, m.Name() | m.Attribute()):
        assert isinstance(node, cst.Name | cst.Attribute)
        if source.enclosing(node, cst.Import, cst.ImportFrom) is not None:
            continue
        parent = source.parent(node)
        longer = isinstance(parent, cst.Attribute) and parent.value is node
        named = isinstance(parent, cst.Attribute) and parent.attr is node
        keyword = isinstance(parent, cst.Arg) and parent.keyword is node
        if not (longer or named or keyword) and source.imported(node).split(".")[0] in _PACKAGES:
            yield node


def _left(context: Context, source: Source, node: cst.Name | cst.Attribute) -> None:
    if {node, *source.above(node)} & context.treated:
        return
    name = source.imported(node)
    if source.enclosing(node, cst.Annotation) is not None:
        text = "torch.utils.data.DataLoader" if name.endswith("DataLoader") else "torch.nn.Module"
        if name.endswith("Options"):
            text = "None"
        else:
            context.edits(source).need("import torch")
        context.edits(source).replace(node, text)
        context.say(source, node, "ABP1902", Verdict.MODIFIED, f"this is {text} now")
        return
    last = name.rpartition(".")[2]
    why = _INSTANCES if name.startswith("popdist") else _WHY.get(last, "nothing replaces it")
    reason = f"plain PyTorch has no {name}; {why}"
    context.say(source, node, "ABP1909", Verdict.BLOCKED, reason)


def _import(context: Context, source: Source, statement: cst.SimpleStatementLine) -> None:
    """Take out what an import statement takes from these packages."""
    if len(statement.body) != 1:
        return
    (small,) = statement.body
    kept: list[cst.ImportAlias] = []
    if isinstance(small, cst.ImportFrom):
        module = "" if small.module is None else source.code(small.module)
        if small.relative or module.split(".")[0] not in _PACKAGES:
            return
    elif isinstance(small, cst.Import):
        kept = [
            each for each in small.names if source.code(each.name).split(".")[0] not in _PACKAGES
        ]
        if len(kept) == len(small.names):
            return
    else:
        return
    context.say(source, statement, "ABP1901", Verdict.MODIFIED, "nothing of it is used")
    if kept:
        kept[-1] = kept[-1].with_changes(comma=cst.MaybeSentinel.DEFAULT)
        context.edits(source).change(small, lambda node: node.with_changes(names=kept))
        return
    gaps.remove(context, source, statement)
    guard = source.enclosing(statement, cst.Try)
    if guard is not None and guard not in context.once:
        context.once.add(guard)
        context.edits(source).change(guard, gaps.without_empty)
