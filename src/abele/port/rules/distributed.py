"""Ports distributed training: poprun starts the processes, and popdist connects them."""

from __future__ import annotations

from typing import Any

import libcst as cst
from libcst import matchers as m

from abele.port.analysis.batches import argument
from abele.port.analysis.kinds import Kind
from abele.port.analysis.parts import is_call, statement_of
from abele.port.context import Context
from abele.port.edits import is_named, keyword, laid_out
from abele.port.finding import Verdict
from abele.port.source import Source, findall

CODES = {
    "ABP801": "popdist.init() takes the place of a process group: poprun starts the instances.",
    "ABP802": "popdist answers what the script asks about processes; their end needs no call.",
    "ABP803": "A program updates the weights of all instances together, without a wrapper.",
    "ABP804": "poptorch.DataLoader gives each instance its share; a sampler is left out.",
    "ABP805": "poprun starts the processes that the program started by itself.",
    "ABP807": "Each instance writes this file, and needs a name of its own for it.",
}

_INIT = "torch.distributed.init_process_group"
#: What is known of a process, and popdist's name for it.
_NUMBERS = {
    "torch.distributed.get_rank": "popdist.getInstanceIndex()",
    "torch.distributed.get_world_size": "popdist.getNumInstances()",
    "torch.distributed.is_initialized": "popdist.isPopdistEnvSet()",
    "RANK": "popdist.getInstanceIndex()",
    "LOCAL_RANK": "popdist.getLocalInstanceIndex()",
    "WORLD_SIZE": "popdist.getNumInstances()",
}
_UNNEEDED = ("cuda.set_device", "distributed.barrier", "distributed.destroy_process_group")
#: What a program that starts its processes by itself tells them, and poprun tells instances.
_VARIABLES = frozenset(("MASTER_ADDR", "MASTER_PORT", "RANK", "LOCAL_RANK", "WORLD_SIZE"))
_OTHERS = (
    "a program with instances has no process group for this: leave it out where it combines "
    "gradients, and combine other tensors by hand"
)
_ANSWERS = "popdist answers this, also where there is only one instance"


def apply(context: Context) -> None:
    """Replace ``torch.distributed`` and data parallel wrappers by popdist."""
    for source in context.project.sources:
        for call in findall(source.module, m.Call()):
            name = source.imported(call.func)
            if name.endswith("DataParallel") and call.args:
                reason = "a program updates the weights of all instances and replicas together"
                context.edits(source).take_out(call, lambda node: node.args[0].value)
                context.say(source, call, "ABP803", Verdict.MODIFIED, reason)
                _without_module(context, source)
            elif context.distributed:
                _of_process(context, source, call, name)
        if context.distributed:
            _environment(context, source)
            _files(context, source)


def _of_process(context: Context, source: Source, call: cst.Call, name: str) -> None:
    """Rewrite calls of ``torch.distributed`` as calls of popdist, or remove them."""
    edits = context.edits(source)
    statement = statement_of(source, call)
    if name == _INIT and is_call(statement):
        edits.need("import popdist")
        text = "if popdist.isPopdistEnvSet():\n    popdist.init()"
        new = cst.parse_module(text).body[0]
        reason = "poprun starts the instances, and this connects them; without poprun there is one"
        edits.change(statement, lambda _: new)
        context.say(source, statement, "ABP801", Verdict.MODIFIED, reason)
    elif name in _NUMBERS:
        edits.need("import popdist")
        edits.replace(call, _NUMBERS[name])
        context.say(source, call, "ABP802", Verdict.MODIFIED, _ANSWERS)
    elif name.removeprefix("torch.") in _UNNEEDED and is_call(statement):
        edits.remove(statement)
        context.say(source, call, "ABP802", Verdict.MODIFIED, "instances need no call at their end")
    elif name == "torch.multiprocessing.spawn":
        _spawned(context, source, call)
    elif name.endswith(".DistributedSampler"):
        _sampler(context, source, call)
    elif name.startswith("torch.distributed."):
        context.say(source, call, "ABP802", Verdict.MANUAL, _OTHERS)


def _spawned(context: Context, source: Source, call: cst.Call) -> None:
    """Replace ``multiprocessing.spawn`` by a direct call, because poprun starts the processes."""
    function = argument(call, "fn", 0)
    args = argument(call, "args", 1)
    if function is None or not (args is None or isinstance(args, cst.Tuple)):
        reason = (
            "poprun starts the processes: call the function directly, with "
            "popdist.getLocalInstanceIndex() as its first argument"
        )
        context.say(source, call, "ABP805", Verdict.MANUAL, reason)
        return
    rest = [] if args is None else [source.code(each.value) for each in args.elements]
    code = ", ".join(["popdist.getLocalInstanceIndex()", *rest])
    context.edits(source).need("import popdist")
    context.edits(source).replace(call, f"{source.code(function)}({code})")
    reason = "poprun starts the processes: poprun --num-instances N python ..."
    context.say(source, call, "ABP805", Verdict.MODIFIED, reason)


def _sampler(context: Context, source: Source, call: cst.Call) -> None:
    """Remove a distributed sampler, because ``poptorch.DataLoader`` divides the samples."""
    shuffle = argument(call, "shuffle")
    shuffled = shuffle is None or not m.matches(shuffle, m.Name("False"))
    reason = "poptorch.DataLoader gives each instance its share"
    statement = source.enclosing(call, cst.SimpleStatementLine)
    name = ""
    if statement is not None and m.matches(statement, m.SimpleStatementLine(body=[m.Assign()])):
        assign = cst.ensure_type(statement.body[0], cst.Assign)
        if assign.value is call:
            name = source.code(assign.targets[0].target)
    sampled = False
    for loader in context.things.all(Kind.LOADER):
        if isinstance(loader.made, cst.Call):
            sampler = argument(loader.made, "sampler")
            if sampler is call or (sampler is not None and name and source.code(sampler) == name):
                _unsample(context, loader.source, loader.made, shuffled)
                context.sampled.add(loader)
                sampled = True
    if not sampled:
        context.say(source, call, "ABP804", Verdict.MANUAL, f"leave it out: {reason}")
        return
    context.say(source, call, "ABP804", Verdict.MODIFIED, reason)
    if name and statement is not None:
        context.edits(source).remove(statement)
    for other in findall(source.module, m.Call(func=m.Attribute(attr=m.Name("set_epoch")))):
        if is_call(statement_of(source, other)):
            context.edits(source).remove(statement_of(source, other))
            context.say(source, other, "ABP804", Verdict.MODIFIED, reason)


def _unsample(context: Context, source: Source, call: cst.Call, shuffled: bool) -> None:
    """Replace the ``sampler`` argument of a data loader by ``shuffle``."""

    def change(node: cst.Call) -> cst.Call:
        kept = [each for each in node.args if not is_named(each, "sampler", "shuffle")]
        return laid_out(node, [*kept, keyword("shuffle", str(shuffled))])

    context.edits(source).change(call, change)


def _without_module(context: Context, source: Source) -> None:
    """Replace ``model.module`` by the model, which is no longer wrapped."""
    for node in findall(source.module, m.Attribute(attr=m.Name("module"))):
        if context.things.of(source, node.value, Kind.MODEL):
            context.edits(source).change(node, lambda each: getattr(each, "value", each))


def _environment(context: Context, source: Source) -> None:
    """Rewrite reads of the launcher's environment variables, and remove writes."""
    key = m.SaveMatchedNode(m.SimpleString(), "key")
    variable = m.Subscript(
        value=m.SaveMatchedNode(m.DoNotCare(), "place"), slice=[m.SubscriptElement(m.Index(key))]
    )
    read = m.Call(func=m.Name("int"), args=[m.Arg(variable)])
    written = m.SimpleStatementLine(body=[m.Assign(targets=[m.AssignTarget(variable)])])
    edits = context.edits(source)
    for node in findall(source.module, read | written):
        found: Any = m.extract(node, read if isinstance(node, cst.Call) else written)
        name = str(found["key"].evaluated_value)
        if source.imported(found["place"]) != "os.environ":
            continue
        if isinstance(node, cst.Call) and name in _NUMBERS:
            edits.need("import popdist")
            edits.replace(node, _NUMBERS[name])
            context.say(source, node, "ABP802", Verdict.MODIFIED, _ANSWERS)
        elif not isinstance(node, cst.Call) and name in _VARIABLES:
            edits.remove(node)
            reason = "poprun sets the address and the number of each instance"
            context.say(source, node, "ABP802", Verdict.MODIFIED, reason)


def _files(context: Context, source: Source) -> None:
    """Report files that every process writes."""
    for call in findall(source.module, m.Call()):
        name = source.imported(call.func) or source.code(call.func)
        mode = argument(call, "mode", 1) if name == "open" else None
        if name == "torch.save" or (mode is not None and {*"wax"} & {*source.code(mode)}):
            path = argument(call, "file", 0) if name == "open" else argument(call, "f", 1)
            own = path is not None and "getInstanceIndex" in source.code(path)
            if not own and not _is_guarded(source, call):
                context.say(source, call, "ABP807", Verdict.MANUAL, _EACH_WRITES)


_EACH_WRITES = (
    "each instance writes this file: put popdist.getInstanceIndex() into its name, here and where "
    "it is read, or write it in one instance"
)


def _is_guarded(source: Source, node: cst.CSTNode) -> bool:
    """Return whether an ``if`` around a syntax node tests the process's rank."""
    ranks = m.Name("rank") | m.Name("local_rank") | m.Name("gpu_id") | m.Name("getInstanceIndex")
    conditions = [each.test for each in source.above(node) if isinstance(each, cst.If)]
    return any(findall(each, ranks | m.Name("get_rank")) for each in conditions)
