"""Several instances: processes of torch.distributed, started by torchrun, with one replica each."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import libcst as cst
from libcst import matchers as m

from abele.port.analysis.parts import statement_of
from abele.port.analysis.search import findall
from abele.port.context import Context
from abele.port.finding import Verdict
from abele.port.rules.plain.processes import constant
from abele.port.rules.plain.settings import LAUNCHED
from abele.port.source import Source

CODES = {
    "ABP1601": "A process group takes the place of popdist.init(): torchrun starts the processes.",
    "ABP1602": "What popdist answers is in the environment of a process, or does not change.",
    "ABP1603": "DistributedDataParallel averages the gradients of all processes.",
    "ABP1604": "The loader gives each process the rows that the instance read.",
    "ABP1605": "A condition names the processes that run this.",
    "ABP1606": "torchrun starts the processes that poprun started, one for each replica.",
    "ABP1609": "torch.distributed has nothing like it.",
}

_GROUP = (
    "torchrun starts the processes, and this connects them; they compute on the host, so the "
    "backend is gloo (nccl is for models and batches that are moved to GPUs)"
)
_FIRST = "; a wrapper did this by itself, so it comes before the options"
_VARIABLE = "torchrun sets this in the environment of each process; without it there is one process"
_ONE_EACH = "each process has one replica of the model"
_CHOSEN = "the function is called in these processes alone"
#: Functions of popdist and the constants, or values, in their place.
_NUMBERS = {
    "getInstanceIndex": "RANK",
    "getReplicaIndexOffset": "RANK",
    "getNumInstances": "WORLD_SIZE",
    "getNumTotalReplicas": "WORLD_SIZE",
    "getLocalInstanceIndex": "LOCAL_RANK",
    "getNumLocalReplicas": "1",
}
_OF_OPTIONS = {"processId": "RANK", "numProcesses": "WORLD_SIZE"}
_NONE = {
    "popdist.checkpoint": "save the state of model, optimizer and epoch with torch.save in one "
    "process, and load it in all",
    "popdist.places": "ask RANK and WORLD_SIZE of the environment",
    "popdist.run": "torchrun starts processes",
    "popdist.Error": "errors of torch.distributed are RuntimeError",
    "popdist.getDeviceId": "processes compute on the host here",
    "popdist.getNumIpusPerReplica": "nothing here runs on an IPU",
    "popdist.checkNumIpusPerReplica": "nothing here runs on an IPU",
    "horovod.torch": "it does not know the processes of torchrun: use all_reduce, broadcast or "
    "all_gather of torch.distributed",
}
_COMMAND = re.compile(r"\bpoprun\s+-[^`'\"\n]*")
_OPTION = re.compile(r"--(num-replicas|num-instances)[= ]+(\S+)")
_SCRIPT = re.compile(r"(?:\bpython[\d.]*\s+)?(\S+\.py\b.*)")


def apply(context: Context) -> None:
    """Have torch.distributed do what popdist did."""
    if not context.instances:
        return
    connects = [*_inits(context)]
    for source, call in connects:
        _connect(context, source, call, once=len(connects) == 1)
    if not connects:
        _connect_first(context)
    for source in context.project.sources:
        for call in findall(source.module, m.Call()):
            assert isinstance(call, cst.Call)
            package, _, name = source.imported(call.func).partition(".")
            if package == "popdist":
                _answer(context, source, call, name)
        for node in findall(source.module, _OF_DISTRIBUTED):
            number = constant(context, source, _OF_OPTIONS[node.attr.value])
            _replace(context, source, node, number, _VARIABLE)
        for node in findall(source.module, m.If()):
            if _asks(source, node.test):
                context.edits(source).change(node, _without_empty)
        _block(context, source)
        _say_commands(context, source)


_OF_DISTRIBUTED = m.Attribute(
    value=m.Attribute(attr=m.Name("Distributed")), attr=m.OneOf(*map(m.Name, _OF_OPTIONS))
)


# -- connecting --------------------------------------------------------------------------------


def _inits(context: Context) -> Iterator[tuple[Source, cst.Call]]:
    for source in context.project.sources:
        for call in findall(source.module, m.Call()):
            if source.imported(call.func) == "popdist.init":
                yield source, call


def _connect(context: Context, source: Source, call: cst.Call, *, once: bool) -> None:
    """Make a process group where ``popdist.init()`` is; nothing without torchrun, and once."""
    context.treated.add(call)
    context.edits(source).need("import torch")
    statement = statement_of(source, call)
    if not isinstance(source.parent(call), cst.Expr):
        reason = "write popdist.init() as a statement of its own, to have it replaced"
        context.say(source, call, "ABP1609", Verdict.BLOCKED, reason)
        return
    new = cst.parse_module(_group(source, call, once=once)).body[0]
    context.edits(source).change(
        statement, lambda node: new.with_changes(leading_lines=node.leading_lines)
    )
    context.say(source, statement, "ABP1601", Verdict.MODIFIED, _GROUP)


def _connect_first(context: Context) -> None:
    """Make a process group where the first options of popdist are."""
    made = [
        (source, call)
        for source in context.project.sources
        for call in findall(source.module, m.Call())
        if source.imported(call.func) == "popdist.poptorch.Options"
    ]
    for source, call in made:
        context.edits(source).need("import torch")
        text = _group(source, call, once=len(made) == 1)
        context.edits(source).before(statement_of(source, call), text)
        context.say(source, call, "ABP1601", Verdict.MODIFIED, _GROUP + _FIRST)


def _group(source: Source, call: cst.Call, *, once: bool) -> str:
    """The statement that makes a process group in the place of a call, or before it.

    Args:
        source: the file.
        call: of popdist.
        once: whether no other call does the same.
    """
    tests = [] if _is_guarded(source, call) else [LAUNCHED]
    tests += [] if once else ["not torch.distributed.is_initialized()"]
    text = 'torch.distributed.init_process_group("gloo")'
    return f"if {' and '.join(tests)}:\n    {text}\n" if tests else f"{text}\n"


def _is_guarded(source: Source, call: cst.Call) -> bool:
    """Whether the innermost condition around a call asks if there are several processes."""
    around = source.enclosing(call, cst.If, cst.FunctionDef)
    return (
        isinstance(around, cst.If)
        and isinstance(around.test, cst.Call)
        and _asks(source, around.test)
        and call in findall(around.body, m.Call())
    )


def _asks(source: Source, test: cst.BaseExpression) -> bool:
    calls = findall(test, m.Call())
    return any(source.imported(each.func) == "popdist.isPopdistEnvSet" for each in calls)


def _without_empty(node: Any) -> Any:
    """A condition without branches from which everything was removed."""
    if not isinstance(node, cst.If):
        return node
    if isinstance(node.orelse, cst.Else) and _is_empty(node.orelse.body):
        node = node.with_changes(orelse=None)
    if not _is_empty(node.body):
        return node
    if node.orelse is None:
        return cst.RemoveFromParent()
    if isinstance(node.orelse, cst.If):
        return node
    test = node.test
    opposite = (
        test.expression.with_changes(lpar=[], rpar=[])
        if isinstance(test, cst.UnaryOperation)
        else cst.UnaryOperation(cst.Not(), test)
    )
    return node.with_changes(test=opposite, body=node.orelse.body, orelse=None)


def _is_empty(body: cst.BaseSuite) -> bool:
    return cst.Module(list(getattr(body, "body", ()))).code.strip() in ("", "pass")


# -- questions ---------------------------------------------------------------------------------


def _answer(context: Context, source: Source, call: cst.Call, name: str) -> None:
    """Replace a call of popdist; those that are left are blocked."""
    if name == "isPopdistEnvSet":
        context.edits(source).need("import torch")
        _replace(context, source, call, LAUNCHED, "torchrun has started this process, or nothing")
    elif name in _NUMBERS:
        number = _NUMBERS[name]
        if number == "1":
            _replace(context, source, call, number, _ONE_EACH)
        else:
            _replace(context, source, call, constant(context, source, number), _VARIABLE)
    elif name == "execute_on_instances":
        _execute(context, source, call)


def _replace(
    context: Context, source: Source, node: cst.BaseExpression, text: str, reason: str
) -> None:
    context.treated.add(node)
    context.edits(source).replace(node, text)
    context.say(source, node, "ABP1602", Verdict.MODIFIED, reason)


def _execute(context: Context, source: Source, call: cst.Call) -> None:
    """Call a function under the condition that this process is one of some."""
    given = call.args[:2]
    if len(given) < 2 or any(each.keyword is not None or each.star for each in given):
        context.treated.add(call.func)
        reason = "give execute_on_instances its instances and its function by position"
        context.say(source, call, "ABP1609", Verdict.BLOCKED, reason)
        return
    rank, chosen = constant(context, source, "RANK"), given[0].value
    one = isinstance(chosen, cst.Set) and len(chosen.elements) == 1
    test = f"{rank} in {source.code(chosen)}"
    if one:
        test = f"{rank} == {source.code(cst.ensure_type(chosen, cst.Set).elements[0].value)}"
    context.treated.add(call.func)
    context.say(source, call, "ABP1605", Verdict.MODIFIED, _CHOSEN)
    context.edits(source).change(
        call, lambda node: node.with_changes(func=node.args[1].value, args=node.args[2:])
    )
    if isinstance(source.parent(call), cst.Expr):
        context.edits(source).change(
            statement_of(source, call), lambda node: _conditional(node, test)
        )
    else:
        alone = isinstance(source.parent(call), cst.Assign | cst.Arg | cst.Return)
        context.edits(source).change(call, lambda node: _or_none(node, test, alone=alone))


def _conditional(node: Any, test: str) -> Any:
    """A statement under a condition."""
    made: Any = cst.parse_module(f"if {test}:\n    pass\n").body[0]
    body = made.body.with_changes(body=[node.with_changes(leading_lines=[])])
    return made.with_changes(body=body, leading_lines=node.leading_lines)


def _or_none(node: cst.Call, test: str, *, alone: bool) -> cst.BaseExpression:
    """A call under a condition; ``alone`` if nothing is done with it in its expression."""
    return cst.IfExp(
        test=cst.parse_expression(test),
        body=node,
        orelse=cst.Name("None"),
        lpar=[] if alone else [cst.LeftParen()],
        rpar=[] if alone else [cst.RightParen()],
    )


# -- what has no equal, and commands -----------------------------------------------------------


def _block(context: Context, source: Source) -> None:
    """Name what has no equal, once in each expression."""
    for node in findall(source.module, m.Name() | m.Attribute()):
        if source.enclosing(node, cst.Import, cst.ImportFrom) is not None:
            continue
        name = source.imported(node)
        longer = isinstance(source.parent(node), cst.Attribute)
        why = [each for each in _NONE if name == each or name.startswith(f"{each}.")]
        if longer or not why:
            continue
        context.treated.add(node)
        reason = f"torch.distributed has no {name}; {_NONE[why[0]]}"
        context.say(source, node, "ABP1609", Verdict.BLOCKED, reason)


def _say_commands(context: Context, source: Source) -> None:
    """Name commands in comments and docstrings, with those that take their place."""
    for node in findall(source.module, m.SimpleString() | m.Comment()):
        for command in _COMMAND.findall(source.code(node)):
            numbers = dict(_OPTION.findall(command))
            script = _SCRIPT.search(command)
            count = numbers.get("num-replicas") or numbers.get("num-instances")
            if count and script:
                reason = f"by hand: torchrun --nproc-per-node {count} {script[1].strip()}"
                context.say(source, node, "ABP1606", Verdict.MATCH, reason)
