"""Writes a function that does what one call of a training model did."""

from __future__ import annotations

import libcst as cst

from abele.port.analysis.parts import StepError
from abele.port.context import Context
from abele.port.layout import laid_out
from abele.port.rules.plain.processes import constant
from abele.port.rules.plain.settings import Batches
from abele.port.rules.plain.trainers import Trainer
from abele.port.source import Source

_ONE = '''def {name}(model, optimizer, *args, **kwargs):
    """Make one update; return what the model returns."""
    optimizer.zero_grad()
    results = model(*args, **kwargs)
    {backward}
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
        for {part} in range(parts):
{inside}            kept.append({detached})
{limit}        optimizer.step()
    return {returned}
'''
_PART = """\
            results = model(*next(pieces))
            {backward}
"""
_EXCHANGED = """\
            # Processes exchange their gradients once, with the last part.
            early = part + 1 < parts and hasattr(model, "no_sync")
            with model.no_sync() if early else contextlib.nullcontext():
                results = model(*next(pieces))
                {backward}
"""
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
    more = _numbers_of_batches(node, made.batches)
    name = _defined(context, source, node, made)
    model = source.code(node.func)

    def change(current: cst.Call) -> cst.Call:
        first = [cst.Arg(cst.parse_expression(each)) for each in (model, optimizer)]
        last = [
            cst.Arg(cst.parse_expression(value), keyword=cst.Name(key), equal=_TIGHT)
            for key, value in more.items()
        ]
        named = current.with_changes(func=cst.Name(name))
        return laid_out(source, node, named, [*first, *current.args, *last])

    context.edits(source).change(node, change)


def _numbers_of_batches(node: cst.Call, batches: Batches) -> dict[str, str]:
    """The arguments that say into how many parts a batch is cut, by name.

    Raises:
        StepError: the call has arguments that cannot be cut.
    """
    if batches.one:
        return {}
    if any(each.keyword is not None or each.star == "**" for each in node.args):
        raise StepError(
            node,
            "this call takes several batches, which its port cuts from positional "
            "arguments: pass its tensors by position",
        )
    more: dict[str, str] = {}
    if batches.iterations != "1":
        more["iterations"] = batches.iterations
    parts = [each for each in (batches.accumulation, batches.replicas) if each != "1"]
    if parts:
        more["parts"] = " * ".join(parts)
    if batches.mode != "All" and batches.replicas != "1":
        more["replicas"] = batches.replicas
    return more


def _defined(context: Context, source: Source, node: cst.Call, made: Trainer) -> str:
    """The name of a function that makes the updates of a call, defined unless it is already."""
    free = f"{detached(context, source)}(results)" if made.loss.count > 1 else "results.detach()"
    processes = constant(context, source, "WORLD_SIZE") if _is_scaled(context, made) else ""
    exchanges = context.instances and not made.batches.one
    if exchanges:
        context.edits(source).need("import contextlib")

    def written(name: str) -> str:
        return _text(node, made, name, free, processes, exchanges=exchanges)

    name = wanted = context.name(source, "training_step")
    text, number = written(name), 2
    while context.functions.setdefault((source, name), text) != text:
        name, number = context.name(source, f"{wanted}_{number}"), number + 1
        text = written(name)
    if (source, name) not in context.once:
        context.once.add((source, name))
        context.edits(source).define(text)
    return name


def _is_scaled(context: Context, made: Trainer) -> bool:
    """Whether processes add gradients up, of which DistributedDataParallel takes the mean."""
    return context.instances and made.batches.is_sum


def _text(
    node: cst.Call, made: Trainer, name: str, free: str, processes: str, *, exchanges: bool
) -> str:
    """The function.

    Args:
        node: the call that it takes the place of.
        made: the training model.
        name: of the function.
        free: what it returns of one evaluation.
        processes: how many add their gradients up; ``""`` if they take the mean.
        exchanges: whether the model may exchange gradients with those of other processes.
    """
    batches, loss = made.batches, made.loss
    limit = "" if made.limit is None else limited(made, "model", "optimizer")
    if batches.one:
        line = f"    {limit}\n" if limit else ""
        backward = _backward(loss.of("results"), "1", processes)
        return _ONE.format(name=name, backward=backward, limit=line, detached=free)
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
    backward = _backward(loss.of("results"), "1" if added_up else "parts", processes)
    inside = (_EXCHANGED if exchanges else _PART).format(backward=backward)
    return _SEVERAL.format(
        name=name,
        part="part" if exchanges else "_",
        inside=inside,
        limit=line,
        detached=free,
        returned=returned,
        what=_ALL if mode == "All" else _LAST_OF_EACH if several else _LAST,
        replicas=", replicas=1" if several else "",
    )


def _backward(loss: str, parts: str, processes: str) -> str:
    """The call of backward, as text.

    Args:
        loss: of one part.
        parts: by how many it is divided.
        processes: by how many gradients are multiplied, of which the mean is taken later.
    """
    if processes:
        return f"{loss}.backward(torch.full_like({loss}, {processes}))"
    return f"{loss}.backward()" if parts == "1" else f"({loss} / {parts}).backward()"


_TIGHT = cst.AssignEqual(cst.SimpleWhitespace(""), cst.SimpleWhitespace(""))
