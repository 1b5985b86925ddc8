"""Writes a function that does what one call of a training model did."""

from __future__ import annotations

import libcst as cst

from abele.port.analysis.parts import StepError
from abele.port.context import Context
from abele.port.rules.plain.trainers import Trainer
from abele.port.source import Source

_ONE = '''def {name}(model, optimizer, *args, **kwargs):
    """Make one update; return what the model returns."""
    optimizer.zero_grad()
    results = model(*args, **kwargs)
    {loss}.backward()
{limit}    optimizer.step()
    return {detached}
'''
_SEVERAL = '''def {name}(model, optimizer, *batch, iterations=1, parts=1{replicas}):
    """Make as many updates as there are iterations, each with the gradients of some parts.

    Returns {what}.
    """
    rows, left = divmod(len(batch[0]), iterations * parts)
    if left:
        raise ValueError(f"{{iterations * parts}} batches do not divide {{len(batch[0])}} rows")
    pieces = zip(*(each.split(rows) for each in batch), strict=True)
    kept = []
    for _ in range(iterations):
        optimizer.zero_grad()
        for _ in range(parts):
            results = model(*next(pieces))
            {loss}.backward()
            kept.append({detached})
{limit}        optimizer.step()
    return {returned}
'''
_LAST = "what the model returned for the last part"
_LAST_OF_EACH = "what the model returned for the last parts, one of each replica"
_ALL = "what the model returned for each part, one after the other"


_DETACHED = '''def {name}(value):
    """A result as a program returns it: without gradients."""
    if isinstance(value, (tuple, list)):
        return type(value)({name}(each) for each in value)
    return value.detach() if isinstance(value, torch.Tensor) else value
'''


def detached(context: Context, source: Source) -> str:
    """The name of a function that takes a result, tensors in tuples too, out of its graph."""
    name = context.name(source, "detached")
    if (source, name) not in context.once:
        context.once.add((source, name))
        context.edits(source).need("import torch")
        context.edits(source).define(_DETACHED.format(name=name))
    return name


def limited(made: Trainer, model: str, optimizer: str) -> str:
    """The statement that limits the norm of gradients."""
    assert made.limit is not None
    limit = cst.Module([]).code_for_node(made.limit)
    if made.whole:
        return f"torch.nn.utils.clip_grad_norm_({model}.parameters(), {limit})"
    updated = f'[each for group in {optimizer}.param_groups for each in group["params"]]'
    return f"torch.nn.utils.clip_grad_norm_({updated}, {limit})"


def call(context: Context, source: Source, node: cst.Call, made: Trainer, optimizer: str) -> None:
    """Have a function make the updates of a call.

    Raises:
        StepError: what the call returned has no counterpart.
    """
    name = context.name(source, "training_step")
    batches = made.batches
    more: list[str] = []
    if not batches.one:
        if any(each.keyword is not None or each.star == "**" for each in node.args):
            raise StepError(
                node,
                "this call takes several batches, which its port cuts from positional "
                "arguments: pass its tensors by position",
            )
        parts = " * ".join(each for each in (batches.accumulation, batches.replicas) if each != "1")
        if batches.iterations != "1":
            more.append(f"iterations={batches.iterations}")
        if parts:
            more.append(f"parts={parts}")
        if batches.mode != "All" and batches.replicas != "1":
            more.append(f"replicas={batches.replicas}")
    free = f"{detached(context, source)}(results)" if made.loss.count > 1 else "results.detach()"
    text = _text(node, made, name, free)
    number = 2
    wanted = name
    while context.functions.setdefault((source, name), text) != text:
        name, number = context.name(source, f"{wanted}_{number}"), number + 1
        text = _text(node, made, name, free)
    if (source, name) not in context.once:
        context.once.add((source, name))
        context.edits(source).define(text)
    model = source.code(node.func)

    def change(current: cst.Call) -> cst.Call:
        first = [cst.Arg(cst.parse_expression(each)) for each in (model, optimizer)]
        last = [
            cst.Arg(cst.parse_expression(value), keyword=cst.Name(key), equal=_TIGHT)
            for key, value in (each.split("=", 1) for each in more)
        ]
        return current.with_changes(func=cst.Name(name), args=[*first, *current.args, *last])

    context.edits(source).change(node, change)


def _text(node: cst.Call, made: Trainer, name: str, free: str) -> str:
    """The function; ``free`` is what it returns of one evaluation."""
    batches, loss = made.batches, made.loss
    limit = "" if made.limit is None else limited(made, "model", "optimizer")
    if batches.one:
        line = f"    {limit}\n" if limit else ""
        return _ONE.format(name=name, loss=loss.of("results"), limit=line, detached=free)
    mode = batches.mode or "Final"
    if mode not in ("Final", "All", "Default"):
        raise StepError(
            node, f"the options of this call have output mode {mode}: select these results by hand"
        )
    added_up = batches.is_sum or (batches.accumulation == batches.replicas == "1")
    line = f"        {limit}\n" if limit else ""
    joined = "torch.cat([each.reshape(1) if each.dim() == 0 else each for each in {}])"
    several = mode != "All" and batches.replicas != "1"
    last = "[-replicas:]" if several else ""
    if mode != "All" and not several:
        returned = "kept[-1]"
    elif loss.count == 1:
        returned = joined.format(f"kept{last}")
    else:
        returned = f"tuple({joined.format('column')} for column in zip(*kept{last}, strict=True))"
    whole = loss.of("results")
    return _SEVERAL.format(
        name=name,
        loss=whole if added_up else f"({whole} / parts)",
        limit=line,
        detached=free,
        returned=returned,
        what=_ALL if mode == "All" else _LAST_OF_EACH if several else _LAST,
        replicas=", replicas=1" if several else "",
    )


_TIGHT = cst.AssignEqual(cst.SimpleWhitespace(""), cst.SimpleWhitespace(""))
