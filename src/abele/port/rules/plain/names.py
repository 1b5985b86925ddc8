"""Rules for optimizers, marks of losses, and every name of PopTorch that is left."""

from __future__ import annotations

import libcst as cst
from libcst import matchers as m

from abele.port.analysis.batches import argument
from abele.port.analysis.parts import StepError
from abele.port.analysis.search import findall
from abele.port.context import Context
from abele.port.finding import Verdict
from abele.port.rules.plain import batches, models
from abele.port.rules.plain.removal import manual, remove, settle, without_empty
from abele.port.source import Source

OPTIMIZER_CODES = {
    "ABP1401": "The optimizer is torch's, with the same values.",
    "ABP1403": "The norm of gradients is limited before each update.",
    "ABP1409": "torch's optimizer makes another update.",
}
OPERATOR_CODES = {
    "ABP1501": "The mark of a loss is removed, and its reduction is computed.",
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
#: Arguments that torch's optimizers do not have.
_OTHER = _PRECISION | {
    *("bias_correction", "use_tf_variant", "decoupled_weight_decay", "max_weight_norm"),
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


def _replace(context: Context, source: Source, call: cst.Call, name: str) -> None:
    if name not in _TORCH:
        raise StepError(call, f"torch.optim has no {name}: use another optimizer, such as AdamW")
    for each in call.args:
        if each.keyword is not None and each.keyword.value in _OTHER:
            raise StepError(call, f"torch's {name} has no {each.keyword.value}: leave it out")
    if isinstance(argument(call, "lr", 1), cst.Tuple):
        raise StepError(call, "torch takes the rate alone: leave out whether it may change")
    limit = argument(call, "max_grad_norm")
    if limit is not None and m.matches(limit, m.Name("None")):
        limit = None
    gone = [
        index
        for index, each in enumerate(call.args)
        if each.keyword is not None and each.keyword.value == "max_grad_norm"
    ]
    context.treated |= {call.func, *(call.args[index] for index in gone)}
    edits = context.edits(source)
    edits.need("import torch")
    edits.replace(call.func, f"torch.optim.{name}")
    edits.change(call, lambda node: _without(node, gone))
    context.say(source, call, "ABP1401", Verdict.MODIFIED, f"torch.optim.{name} makes this update")
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


# -- losses ---------------------------------------------------------------------------------------


def apply_operators(context: Context) -> None:
    """Compute losses without marks."""
    for source in context.project.sources:
        for call in findall(source.module, m.Call()):
            if source.imported(call.func) == models.MARK:
                _loss(context, source, call)


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


# -- what is left ---------------------------------------------------------------------------------

_PACKAGES = ("poptorch", "popdist", "poptorch_geometric", "horovod")
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
    why = _SEVERAL if several else "nothing replaces it"
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
