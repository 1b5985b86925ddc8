"""Training steps: a program with the loss in it, and one run of the session for each batch."""

from __future__ import annotations

from pathlib import PurePosixPath

import libcst as cst
from libcst import matchers as m

from abele.port.analysis.calls import models_updated
from abele.port.analysis.flow import writes
from abele.port.analysis.kinds import Kind
from abele.port.analysis.numbers import is_size
from abele.port.analysis.parts import statement_of
from abele.port.analysis.scopes import parameters
from abele.port.analysis.search import findall
from abele.port.analysis.steps import Statement, Step, StepError
from abele.port.context import Context
from abele.port.finding import Verdict
from abele.port.routes import NoRouteError, Wrapped
from abele.port.rules import places
from abele.port.rules.samba import optimizers
from abele.port.rules.training import define_module, put_call, say_carried, take_out
from abele.port.rules.wrapper import Wrapper, wrapper_of
from abele.port.source import Source

CODES = {
    "ABP2301": (
        "The model with its loss is made where its optimizer is, and its parameters become "
        "SambaFlow's."
    ),
    "ABP2302": "Gradients are computed and applied by the run of the session.",
    "ABP2303": (
        "The batch gets names, and one run of the session computes the loss, the gradients and "
        "the update. The first batch compiles the program."
    ),
    "ABP2304": "The learning rate goes along with each run.",
    "ABP2399": "The training step cannot become one compiled program.",
}

_TRACED = '''def {name}(model, inputs, optimizer):
    """The outputs of the program of a model, which its first batch compiles and loads."""
    if getattr(model, "output_tensors", None) is None:
        pef = samba.session.compile(model, inputs, optimizer, name="{file}"{losses})
        samba.utils.trace_graph(model, inputs, optimizer, pef=pef{losses})
    return model.output_tensors
'''
_RUN = """{tensors} = (
{named}
)
{results} = map(
    samba.to_torch,
    samba.session.run(
        {tensors},
        {traced}({model}, {tensors}, {optimizer}),
        section_types=["fwd", "bckwd", "opt"],{hyper}
    ),
)
"""


def apply(context: Context) -> None:
    """Rewrite the training step."""
    for source, error in context.refused:
        context.refuse(source, error, "ABP2399")
    for step in context.steps[:1]:
        try:
            _rewrite(context, step)
        except StepError as error:
            context.refuse(step.source, error, "ABP2399")
        except NoRouteError as error:
            reason = f"the model with its loss cannot be reached here: {error}"
            context.say(step.source, step.backward, "ABP2399", Verdict.BLOCKED, reason)


def _rewrite(context: Context, step: Step) -> None:
    _require(context, step)
    say_carried(context, step)
    wrapper = wrapper_of(context, step, mark=False)
    model = _wrap(context, step, wrapper)
    name = context.routes.name(model, step.source, step.backward)
    optimizer = context.routes.name_of(step.optimizer, step.source, step.backward)
    context.edits(step.source).need("from sambaflow import samba")
    put_call(context, step, name, _run(context, step, name, optimizer))
    reason = "the first batch compiles the program, and each is one run of it"
    context.say(step.source, step.place, "ABP2303", Verdict.MODIFIED, reason)
    context.training |= dict.fromkeys(step.gradients.optimizers, model)
    take_out(context, step, "ABP2302", "the run of the session does this, too")


def _require(context: Context, step: Step) -> None:
    """Refuse what a run does not do.

    Raises:
        StepError: says what.
    """
    if step.gradients.by_hand is not None:
        raise StepError(step.update, "this update is written by hand: use torch.optim.SGD")
    if not step.inputs:
        raise StepError(
            step.backward,
            "this step uses no tensor of the loop, and a compiled program needs an input",
        )
    _require_tensors(context, step)
    for name in {*step.inputs} - {*step.slow}:
        if is_size(step.source, step.loop or step.owner, name):
            raise StepError(
                step.place,
                f"{name} is how many rows a batch has, and a session takes tensors: write it as a "
                "size of a tensor where it is used, such as x.size(0)",
            )
    clip = step.gradients.clip
    if clip is not None:
        for each in step.gradients.optimizers:
            if not optimizers.is_replaced(context, each):
                raise StepError(clip, "samba.optim has no such optimizer that limits gradients")


def _require_tensors(context: Context, step: Step) -> None:
    """Refuse a batch that is a dictionary: a session takes tensors by name.

    Raises:
        StepError: the model with its loss takes elements by text of what it is given.
    """
    pieces: list[tuple[cst.CSTNode, set[str]]] = [(each, {*step.inputs}) for each in step.forward]
    pieces += [(each.body, {*parameters(each)}) for each in step.helpers]
    key = m.SubscriptElement(m.Index(m.SimpleString()))
    for piece, names in pieces:
        for node in findall(piece, m.Subscript(value=m.Name(), slice=[key])):
            value = cst.ensure_type(node, cst.Subscript).value
            if isinstance(value, cst.Name) and value.value in names:
                reason = (
                    f"{value.value} is a dictionary, and a program takes tensors; take them out"
                )
                raise StepError(step.place, f"{reason} before the model is called")


def _wrap(context: Context, step: Step, wrapper: Wrapper) -> Wrapped:
    """Make the model with its loss; before the optimizer, if all that it needs is there."""
    home = places.home(context, step)
    source, kept = home.source, home.variable
    prefix = "self." if kept.name.startswith("self.") else ""
    name = prefix + context.name(source, "training_model")
    cls = context.name(step.source, "ModelWithLoss")
    parts = [places.value(context, step.source, part.value, home) for part in wrapper.parts]
    arguments = ", ".join(parts)
    define_module(context, step, source, cls, wrapper)
    edits = context.edits(source)
    edits.need("from sambaflow import samba")
    text = f"{name} = samba.from_torch_model_({cls}({arguments}))"
    first = places.after_all(context, step, home, ())
    needed = places.needed(f"[{arguments}]")
    place = places.after_all(context, step, home, needed)
    if place is first and not _targets(source, first) & {*parts, *needed}:
        edits.before(place, text)
    else:
        _convert(context, step)
        edits.after(place, text)
    reason = f"{name} is made here: the model and its loss, with parameters of SambaFlow"
    context.say(source, home.statement, "ABP2301", Verdict.MODIFIED, reason)
    return Wrapped(name, source, kept.owner)


def _targets(source: Source, statement: Statement) -> set[str]:
    """What a statement assigns, as it is written."""
    targets = {*writes(statement)}
    for node in findall(statement, m.AssignTarget()):
        target = cst.ensure_type(node, cst.AssignTarget).target
        elements = target.elements if isinstance(target, cst.Tuple | cst.List) else ()
        targets |= {source.code(each) for each in (target, *(e.value for e in elements))}
    return targets


def _convert(context: Context, step: Step) -> None:
    """Have parameters become SambaFlow's before optimizers are given them."""
    for optimizer in step.gradients.optimizers:
        source, made = optimizer.source, optimizer.made
        assert isinstance(made, cst.Call)
        context.edits(source).need("from sambaflow import samba")
        statement = statement_of(source, made)
        for model in dict.fromkeys(source.code(each) for each in models_updated(made)):
            context.edits(source).before(statement, f"samba.from_torch_model_({model})")


def _run(context: Context, step: Step, name: str, optimizer: str) -> str:
    """The statements that run a batch."""
    source = step.source
    tensors, traced = context.name(source, "inputs"), context.name(source, "traced")
    losses = f", loss_indices=[{len(step.outputs)}]" if step.outputs else ""
    file = PurePosixPath(source.name).stem
    text = _TRACED.format(name=traced, file=file, losses=losses)
    context.edits(source).define(text)
    named = "\n".join(f"    samba.from_torch_tensor({_named(step, e)})," for e in step.inputs)
    results = (*step.outputs, step.loss)
    return _RUN.format(
        tensors=tensors,
        named=named,
        results=", ".join(results) if len(results) > 1 else f"({results[0]},)",
        traced=traced,
        model=name,
        optimizer=optimizer,
        hyper=_rate(context, step, optimizer),
    )


def _named(step: Step, name: str) -> str:
    """The arguments that give an input its name: a number that changes has no rows."""
    if name in step.slow:
        return f'torch.as_tensor({name}), name="{name}"'
    return f'{name}, name="{name}", batch_dim=0'


def _rate(context: Context, step: Step, optimizer: str) -> str:
    """The argument by which a run has the learning rate of its batch; ``""`` if it stays."""
    changed = [*_schedulers(context, step), *_written(context, step)]
    if not changed:
        return ""
    made = step.optimizer.made
    several = not (
        isinstance(made, cst.Call) and made.args and m.matches(made.args[0].value, m.Call())
    )
    one = f'{optimizer}.param_groups[0]["lr"]'
    each = f'[group["lr"] for group in {optimizer}.param_groups]'
    return f'\n        hyperparam_dict={{"lr": {each if several else one}}},'


def _schedulers(context: Context, step: Step) -> list[Statement]:
    """The steps of schedulers of an optimizer."""
    statements: list[Statement] = []
    for source in context.project.sources:
        pattern = m.SimpleStatementLine(body=[m.Expr(m.Call(m.Attribute(attr=m.Name("step"))))])
        for statement in findall(source.module, pattern):
            assert isinstance(statement, cst.SimpleStatementLine)
            small = cst.ensure_type(statement.body[0], cst.Expr)
            func = cst.ensure_type(cst.ensure_type(small.value, cst.Call).func, cst.Attribute)
            if context.things.of(source, func.value, Kind.SCHEDULER):
                reason = "each run of the session takes the rate along that this sets"
                context.say(source, statement, "ABP2304", Verdict.MATCH, reason)
                statements.append(statement)
    return statements


def _written(context: Context, step: Step) -> list[cst.CSTNode]:
    """Where the values of an optimizer are read or written by hand."""
    nodes: list[cst.CSTNode] = []
    for source in context.project.sources:
        for node in findall(source.module, m.Attribute(attr=m.Name("param_groups"))):
            assert isinstance(node, cst.Attribute)
            known = context.things.of(source, node.value, Kind.OPTIMIZER)
            if known & set(step.gradients.optimizers):
                reason = "each run of the session takes the present rate along"
                context.say(source, node, "ABP2304", Verdict.MATCH, reason)
                nodes.append(node)
    return nodes
