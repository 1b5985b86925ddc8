"""Rules for optimizers, operators inside of models, and every name of PopTorch that is left."""

from __future__ import annotations

from typing import Any

import libcst as cst
from libcst import matchers as m

from abele.port.analysis.batches import argument
from abele.port.analysis.parts import StepError, is_call, statement_of
from abele.port.analysis.search import findall
from abele.port.context import Context
from abele.port.finding import Verdict
from abele.port.rules.plain import batches, models
from abele.port.rules.plain.removal import is_alone, manual, remove, settle, without_empty
from abele.port.source import Source

OPTIMIZER_CODES = {
    "ABP1401": "The optimizer is torch's, with the same values.",
    "ABP1402": "Loss scales, types of accumulators, and marks of constant values go.",
    "ABP1403": "The norm of gradients is limited before each update.",
    "ABP1409": "torch's optimizer makes another update.",
}
OPERATOR_CODES = {
    "ABP1501": "The mark of a loss is removed, and its reduction is computed.",
    "ABP1502": "Blocks, stages and names on the device do not change numbers, and go.",
    "ABP1503": "The operator is one of torch's.",
    "ABP1504": "Nothing here runs on an IPU.",
}
REMAINING_CODES = {
    "ABP1901": "Nothing of these packages is used any longer.",
    "ABP1902": "An annotation that names a class of PopTorch becomes object.",
    "ABP1909": "Plain PyTorch has no counterpart that is carried: see to it by hand.",
}

# -- optimizers -----------------------------------------------------------------------------------

_TORCH = frozenset(("SGD", "Adam", "AdamW", "RMSprop"))
_PRECISION = frozenset(
    (
        *("loss_scaling", "velocity_scaling", "use_combined_accum", "accum_type"),
        *("velocity_accum_type", "first_order_momentum_accum_type"),
        *("second_order_momentum_accum_type",),
    )
)
#: Arguments that torch's optimizers do not have, with the value by which they change nothing.
_OTHER = {
    "bias_correction": "True",
    "use_tf_variant": "False",
    "decoupled_weight_decay": "False",
    "max_weight_norm": "None",
}
_LIMITED = '''def {name}(optimizer, norm):
    """An optimizer that tells its training model the limit of the norm of gradients."""
    optimizer.max_grad_norm = norm
    return optimizer
'''


def apply_optimizers(context: Context) -> None:
    """Take optimizers from ``torch.optim``."""
    for source in context.project.sources:
        for call in findall(source.module, m.Call()):
            name = source.imported(call.func)
            if name.startswith("poptorch.optim."):
                try:
                    _replace(context, source, call, name.rpartition(".")[2])
                except StepError as error:
                    manual(context, source, call, "ABP1409", error.reason)
        for node in findall(source.module, m.Attribute(attr=m.Name("variable_attrs"))):
            statement = statement_of(source, node)
            if is_call(statement):  # markAsConstant, markAsVariable
                remove(context, source, statement)
                reason = "every value of torch's optimizers may change"
                context.say(source, statement, "ABP1402", Verdict.MODIFIED, reason)


def _replace(context: Context, source: Source, call: cst.Call, name: str) -> None:
    if name not in _TORCH:
        raise StepError(call, f"torch.optim has no {name}: use another optimizer, such as AdamW")
    for other, same in _OTHER.items():
        value = argument(call, other)
        if value is not None and source.code(value) not in (same, "None"):
            raise StepError(call, f"torch's {name} updates otherwise than this with {other}")
    if isinstance(argument(call, "lr", 1), cst.Tuple):
        raise StepError(call, "torch takes the rate alone: leave out whether it may change")
    limit = argument(call, "max_grad_norm")
    if limit is not None and m.matches(limit, m.Name("None")):
        limit = None
    gone = [
        index
        for index, each in enumerate(call.args)
        if each.keyword is not None
        and each.keyword.value in _PRECISION | {*_OTHER, "max_grad_norm"}
    ]
    context.treated |= {call.func, *(call.args[index] for index in gone)}
    edits = context.edits(source)
    edits.need("import torch")
    edits.replace(call.func, f"torch.optim.{name}")
    edits.change(call, lambda node: _without(node, gone))
    context.say(source, call, "ABP1401", Verdict.MODIFIED, f"torch.optim.{name} makes this update")
    for index in gone:
        word = call.args[index].keyword
        if word is not None and word.value in _PRECISION:
            reason = f"{word.value} is for half precision; float32 needs none"
            context.say(source, call.args[index], "ABP1402", Verdict.MODIFIED, reason)
    if limit is not None:
        limited = context.name(source, "limited")
        if (source, limited) not in context.once:
            context.once.add((source, limited))
            edits.define(_LIMITED.format(name=limited))
        norm = cst.Arg(limit)
        edits.change(call, lambda node: cst.Call(cst.Name(limited), [cst.Arg(node), norm]))
        reason = "clip_grad_norm_ limits the norm before each update of its training model"
        context.say(source, limit, "ABP1403", Verdict.MODIFIED, reason)


def _without(node: cst.Call, gone: list[int]) -> cst.Call:
    kept = [each for index, each in enumerate(node.args) if index not in gone]
    if kept and gone:
        last = node.args[-1]
        kept[-1] = kept[-1].with_changes(
            comma=last.comma, whitespace_after_arg=last.whitespace_after_arg
        )
    return node.with_changes(args=kept)


# -- operators ------------------------------------------------------------------------------------

_PLACES = "there is one device; the numbers do not change"
#: What returns its first argument, and says something to the compiler.
_FIRST = frozenset(
    (
        *("BeginBlock", "nop", "set_available_memory", "set_overlap_for_input"),
        *("set_overlap_for_output", "ipu_print_tensor", "AsynchronousDataAccessor"),
        *("recomputationCheckpoint", "LegacyBeginBlockFn"),
    )
)
_AROUND = frozenset(("Block", "MultiConv", "Attribute", "NameScope", "BlockFunction"))
_STATEMENTS = frozenset(("setLogLevel", "removeBlocks", "Block.useAutoId", "Block.start"))
_FALSE = frozenset(("isRunningOnIpu", "ipuHardwareIsAvailable"))


def apply_operators(context: Context) -> None:
    """Replace what PopTorch has for models."""
    for source in context.project.sources:
        for call in findall(source.module, m.Call()):
            package, _, name = source.imported(call.func).partition(".")
            if package == "poptorch":
                _operator(context, source, call, name)


def _operator(context: Context, source: Source, call: cst.Call, name: str) -> None:
    edits, code, reason = context.edits(source), "ABP1502", _PLACES
    if f"poptorch.{name}" == models.MARK:
        _loss(context, source, call)
        return
    if name in _STATEMENTS | _FIRST and is_alone(source, call):
        remove(context, source, statement_of(source, call))
    elif name == "recomputationCheckpoint" and len(call.args) > 1:
        context.treated.add(call.func)
        elements = cst.Element
        edits.change(call, lambda node: cst.Tuple([elements(each.value) for each in node.args]))
    elif name in _FIRST and call.args and not call.args[0].star:
        context.treated |= {call.func, *call.args[1:]}
        edits.take_out(call, lambda node: node.args[0].value)
    elif name in _AROUND:
        if not _around(context, source, call):
            return
    elif name == "serializedMatMul":
        context.treated |= {call.func, *call.args[2:]}
        edits.need("import torch")
        edits.replace(call.func, "torch.matmul")
        edits.change(call, lambda node: _without(node, [*range(2, len(call.args))]))
        code, reason = "ABP1503", "torch.matmul computes the same"
    elif name in _FALSE:
        context.treated.add(call)
        edits.replace(call, "False")
        code, reason = "ABP1504", "nothing runs on an IPU here, so the script goes on as on a host"
    else:
        return
    context.say(source, call, code, Verdict.MODIFIED, reason)


def _loss(context: Context, source: Source, call: cst.Call) -> None:
    values, how = argument(call, "x", 0), argument(call, "reduction", 1)
    way = str(how.evaluated_value) if isinstance(how, cst.SimpleString) else ""
    if values is None or way not in ("none", "mean", "sum"):
        return  # named with everything else that is left
    at = next(index for index, each in enumerate(call.args) if each.value is values)
    context.treated |= {call.func, *(e for i, e in enumerate(call.args) if i != at)}

    def change(node: cst.Call) -> cst.BaseExpression:
        value = node.args[at].value
        return value if way == "none" else cst.Call(cst.Attribute(_bracketed(value), cst.Name(way)))

    context.edits(source).take_out(call, change)
    reason = f"the loss is the {way} of these values, as the program had it"
    if way == "none":
        reason = "backward() begins with this loss; a loss of several values needs .sum()"
    context.say(source, call, "ABP1501", Verdict.MODIFIED, reason)


def _bracketed(value: cst.BaseExpression) -> cst.BaseExpression:
    simple = isinstance(value, cst.Name | cst.Attribute | cst.Call | cst.Subscript)
    if simple or value.lpar:
        return value
    return value.with_changes(lpar=[cst.LeftParen()], rpar=[cst.RightParen()])


def _around(context: Context, source: Source, call: cst.Call) -> bool:
    """Remove a decorator, or have statements under ``with`` stand by themselves."""
    parent = source.parent(call)
    around = source.parent(parent) if isinstance(parent, cst.WithItem) else None
    if isinstance(parent, cst.Decorator):
        context.edits(source).change(parent, lambda _: cst.RemoveFromParent())
    elif isinstance(around, cst.With) and isinstance(around.body, cst.IndentedBlock):
        if around not in context.once:
            context.once.add(around)
            context.edits(source).change(around, lambda node: _open(node, around, context.treated))
    else:
        return False
    assert parent is not None
    context.treated.add(parent)
    return True


def _open(node: Any, around: cst.With, treated: set[cst.CSTNode]) -> Any:
    """Return a ``with`` statement without some of its items; without any, its statements."""
    pairs = zip(node.items, around.items, strict=True)
    items = [new for new, old in pairs if old not in treated]
    if items:
        items[-1] = items[-1].with_changes(comma=cst.MaybeSentinel.DEFAULT)
        return node.with_changes(items=items)
    body: list[Any] = list(node.body.body)
    body[0] = body[0].with_changes(leading_lines=[*node.leading_lines, *body[0].leading_lines])
    return cst.FlattenSentinel(body)


# -- what is left ---------------------------------------------------------------------------------

_PACKAGES = ("poptorch", "popdist", "poptorch_geometric", "horovod")
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
}
_SEVERAL = "write what processes do together with torch.distributed, and start it with torchrun"
#: Methods of wrappers and options, that no other package has.
_METHODS = (
    models.METHODS - {"target", "placement", "exchanges", "rng_state"}
    | batches.METHODS
    | {"variable_attrs"}
)


def apply_remaining(context: Context) -> None:
    """Name what is left of PopTorch, and remove imports of files in which nothing is."""
    for source in context.project.sources:
        for node in findall(source.module, m.Name() | m.Attribute() | m.SimpleString()):
            if source.enclosing(node, cst.Import, cst.ImportFrom) is None and not (
                {node, *source.above(node)} & context.treated
            ):
                _left(context, source, node)
        if ("left", source) not in context.once:
            for statement in findall(source.module, m.SimpleStatementLine()):
                _import(context, source, statement)
        settle(context, source)


def _left(context: Context, source: Source, node: cst.BaseExpression) -> None:
    parent = source.parent(node)
    if isinstance(node, cst.SimpleString):
        if isinstance(parent, cst.Index) and node.evaluated_value in _PRECISION:
            reason = f"{node.evaluated_value} is a value of PopTorch's optimizers alone"
            manual(context, source, node, "ABP1909", reason)
        return
    if isinstance(parent, cst.Attribute) or (
        isinstance(parent, cst.Arg) and parent.keyword is node
    ):
        return  # a part of a longer name, or no name at all
    name = source.imported(node)
    last = name.rpartition(".")[2]
    if name.split(".")[0] not in _PACKAGES:
        unknown = [
            each.attr.value
            for each in (node, *findall(node, m.Attribute()))
            if isinstance(each, cst.Attribute) and each.attr.value in _METHODS and not name
        ]
        if unknown:
            reason = f"{unknown[0]} is a name of PopTorch, of something that is not followed"
            manual(context, source, node, "ABP1909", reason)
        return
    if source.enclosing(node, cst.Annotation) is not None:
        context.edits(source).replace(node, "object")
        context.say(source, node, "ABP1902", Verdict.MODIFIED, "this is no type any longer")
        return
    several = name.split(".")[0] in ("popdist", "horovod")
    why = _SEVERAL if several else _WHY.get(last, "nothing replaces it")
    manual(context, source, node, "ABP1909", f"plain PyTorch has no {name}; {why}")


def _import(context: Context, source: Source, statement: cst.SimpleStatementLine) -> None:
    """Remove what an import statement takes from these packages."""
    small = statement.body[0]
    if len(statement.body) != 1 or not isinstance(small, cst.Import | cst.ImportFrom):
        return
    kept: list[cst.ImportAlias] = []
    if isinstance(small, cst.ImportFrom):
        module = "" if small.module is None else source.code(small.module)
        if small.relative or module.split(".")[0] not in _PACKAGES:
            return
    else:
        names = [*small.names]
        kept = [each for each in names if source.code(each.name).split(".")[0] not in _PACKAGES]
        if len(kept) == len(names):
            return
    context.say(source, statement, "ABP1901", Verdict.MODIFIED, "nothing of it is used")
    if kept:
        kept[-1] = kept[-1].with_changes(comma=cst.MaybeSentinel.DEFAULT)
        context.edits(source).change(small, lambda node: node.with_changes(names=kept))
        return
    remove(context, source, statement)
    guard = source.enclosing(statement, cst.Try)
    if guard is not None and guard not in context.once:
        context.once.add(guard)
        context.edits(source).change(guard, without_empty)
