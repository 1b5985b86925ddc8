"""Reads the statements after ``backward()``: gradient scaling and clipping, then the update."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence

import libcst as cst
from libcst import matchers as m

from abele.port.analysis.batches import argument
from abele.port.analysis.kinds import Kind, Thing
from abele.port.analysis.parts import Statement, StepError, calls_of, is_call
from abele.port.analysis.things import Things
from abele.port.source import Source, findall

_CLIP = ("torch.nn.utils.clip_grad_norm_", "torch.nn.utils.clip_grad_norm")
_TWO = m.Integer("2") | m.Float("2.0") | m.Float("2.")
_SUMS = (
    "where gradients of k batches are added up, by hand: divide no loss by k, set "
    "opts.Training.gradientAccumulation(k) and opts.outputMode(poptorch.OutputMode.All), take a "
    "poptorch.DataLoader with these options, which gives k batches at once, and leave out the "
)
CONDITION = (
    "the update depends on a condition, and a compiled program makes one in each call; "
    f"{_SUMS}condition"
)
_UNKNOWN = (
    "this optimizer, or what it updates, was not found: make it in the files that are ported, "
    "by the name of its class, as in torch.optim.SGD(model.parameters(), lr=0.1)"
)
_SEVERAL_STEPS = (
    "several updates follow one backward(), and a compiled program makes one: give one optimizer "
    "all parameters, in groups, and call its step() once for each backward()"
)
_SEVERAL = (
    "backward() is called several times in this block, and a compiled program makes one update of "
    "one loss: add the losses, or put each update, from the model to step(), into a function of "
    "its own"
)
_CLOSURE = (
    "step() with a closure evaluates the model as often as it needs for one update, and a compiled "
    "program does so once: call step() without a closure, of another optimizer than LBFGS"
)
NO_STEP = (
    "no step() of an optimizer follows in this block: call backward() and step() in one block; an "
    "update that is written out by hand becomes an optimizer first, such as torch.optim.SGD; "
    f"{_SUMS}loop over them"
)
_LIMIT = (
    "an optimizer of a compiled program limits the Euclidean norm of all gradients, once "
    "(max_grad_norm): call clip_grad_norm_ once, in a statement of its own and with norm_type=2; "
    "opts.anchorTensor returns gradients whose norm is to be read"
)
_SCALER = (
    "whether the scaler is updated depends on a condition: call its update() in each turn of the "
    "loop"
)


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class Removed:
    """A statement of the original program that the port removes.

    Attributes:
        code: the code of its finding.
        reason: the reason that the finding gives.
    """

    statement: Statement
    code: str
    reason: str


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class Update:
    """The parameter update of a training step, and the changes of gradients before it.

    Attributes:
        optimizers: the optimizers that may update; they share a variable.
        clip: the call that clips the norm of gradients, or None.
        removed: other statements that the port removes.
    """

    statement: Statement
    optimizers: tuple[Thing, ...]
    clip: cst.Call | None
    removed: tuple[Removed, ...]


def read_update(
    source: Source, things: Things, block: Sequence[Statement], backward: cst.Call, at: Statement
) -> Update:
    """Return the parameter update that follows a call of ``backward``.

    Args:
        source: the file.
        things: the tracked objects of the program.
        block: the statements of the block that contains the update.
        backward: the call of ``backward``.
        at: its statement in the block, or a loop around it.

    Raises:
        StepError: there is no update, or none that a compiled program supports.
    """
    index = block.index(at)
    inner = [each for each in block if not isinstance(each, cst.FunctionDef | cst.ClassDef)]
    if any(call is not backward for each in inner for call in calls_of(each, "backward")):
        raise StepError(backward, _SEVERAL)
    updates = [each for piece in block[index + 1 :] for each in _updates(source, things, piece)]
    if not updates:
        raise _without(source, block[index + 1 :], backward)
    if len(updates) > 1:
        raise StepError(updates[1][1], _SEVERAL_STEPS)
    ((statement, call, made),) = updates
    scaled = things.of(source, cst.ensure_type(call.func, cst.Attribute).value, Kind.SCALER)
    if (call.args and not scaled) or any(each.name.endswith(".LBFGS") for each in made):
        raise StepError(call, _CLOSURE)
    if not is_call(statement):
        raise StepError(call, CONDITION)
    clips = list(_clips(source, block[index + 1 : block.index(statement)]))
    reason = "the optimizer limits the norm of all gradients: max_grad_norm"
    return Update(
        statement=statement,
        optimizers=tuple(sorted(made, key=lambda each: each.source.position(each.made))),
        clip=clips[0][1] if clips else None,
        removed=(
            *_of_scaler(source, things, block),
            *(Removed(statement=each, code="ABP431", reason=reason) for each, _ in clips),
        ),
    )


def _updates(
    source: Source, things: Things, statement: Statement
) -> Iterator[tuple[Statement, cst.Call, set[Thing]]]:
    """Yield statements with a call that updates parameters, and the optimizers it may use."""
    for call in calls_of(statement, "step"):
        node = cst.ensure_type(call.func, cst.Attribute).value
        if call.args and things.of(source, node, Kind.SCALER):
            node = call.args[0].value
        made = things.of(source, node, Kind.OPTIMIZER)
        if made:
            yield statement, call, made


def _without(source: Source, later: Sequence[Statement], backward: cst.Call) -> StepError:
    """Return the error that explains why a step has no parameter update."""
    function = source.enclosing(backward, cst.FunctionDef)
    for call in calls_of(source.module, "step"):
        if function is not None and any(
            m.matches(each.value, m.Name(function.name.value)) for each in call.args
        ):
            return StepError(backward, _CLOSURE)
    unknown = [call for statement in later for call in calls_of(statement, "step")]
    return StepError(unknown[0], _UNKNOWN) if unknown else StepError(backward, NO_STEP)


def _of_scaler(source: Source, things: Things, block: Sequence[Statement]) -> Iterator[Removed]:
    """Yield statements that unscale gradients or update a gradient scaler.

    Raises:
        StepError: such a call is conditional.
    """
    reason = "gradients are computed in float32 and need no scaling"
    for statement in block:
        for call in (*calls_of(statement, "update"), *calls_of(statement, "unscale_")):
            if things.of(source, cst.ensure_type(call.func, cst.Attribute).value, Kind.SCALER):
                if _only_limits(source, statement):
                    continue
                if not is_call(statement):
                    raise StepError(call, _SCALER)
                yield Removed(statement=statement, code="ABP422", reason=reason)


def _clips(source: Source, between: Sequence[Statement]) -> Iterator[tuple[Statement, cst.Call]]:
    """Yield the statement that clips the norm of gradients, with its call.

    Raises:
        StepError: gradients are clipped by another norm than the Euclidean one.
    """
    seen = False
    for statement in between:
        for call in findall(statement, m.Call()):
            name = source.imported(call.func)
            if not name.startswith("torch.nn.utils.clip_grad"):
                continue
            norm = argument(call, "norm_type", 2)
            euclidean = name in _CLIP and (norm is None or m.matches(norm, _TWO))
            alone = is_call(statement) or _only_limits(source, statement)
            if seen or not euclidean or not alone:
                raise StepError(call, _LIMIT)
            seen = True
            yield statement, call


def _only_limits(source: Source, statement: Statement) -> bool:
    """Return whether an ``if`` without ``else`` clips and unscales gradients, and does no more."""
    if not m.matches(statement, _CALLS):
        return False
    every = findall(statement, m.Call())
    calls = [each for each in every if isinstance(source.parent(each), cst.Expr)]
    clips = [each for each in calls if source.imported(each.func) in _CLIP]
    return len(clips) == 1 and len(calls) == 1 + len(calls_of(statement, "unscale_"))


_CALLS = m.If(
    body=m.IndentedBlock([m.AtLeastN(m.SimpleStatementLine([m.Expr(m.Call())]), n=1)]), orelse=None
)


def is_forgotten(
    source: Source,
    things: Things,
    node: cst.CSTNode,
    trained: set[Thing],
    seen: frozenset[cst.CSTNode] = frozenset(),
) -> bool:
    """Return whether each iteration of the loop around ``backward`` calls ``zero_grad``.

    Args:
        source: the file.
        things: the tracked objects of the program.
        node: the call of ``backward``, or of a function that calls it.
        trained: the models and optimizers whose gradients must be cleared.
        seen: functions that were visited.
    """
    for each in source.above(node):
        if isinstance(each, cst.IndentedBlock | cst.Module) and any(
            forgets(source, things, statement, trained) for statement in each.body
        ):
            return True
        if isinstance(each, cst.For | cst.While | cst.CompFor | cst.BaseComp):
            return False
        if isinstance(each, cst.FunctionDef):
            calls = {} if each in seen else things.calls(each)
            return bool(calls) and all(
                is_forgotten(at, things, call, trained, seen | {each}) for call, at in calls.items()
            )
    return False


def forgets(source: Source, things: Things, statement: cst.CSTNode, trained: set[Thing]) -> bool:
    """Return whether a statement clears the gradients of a trained or unknown object."""
    inside = statement.body if isinstance(statement, cst.With) else None
    if inside is not None:
        return any(forgets(source, things, each, trained) for each in inside.body)
    for call in calls_of(statement, "zero_grad"):
        known = things.of(source, cst.ensure_type(call.func, cst.Attribute).value)
        if isinstance(statement, cst.SimpleStatementLine) and (not known or known & trained):
            return True
    return False
