"""Learning rates, and other values of an optimizer that the program changes by hand."""

from __future__ import annotations

import libcst as cst
from libcst import matchers as m

from abele.port.analysis.batches import argument
from abele.port.analysis.calls import targets_of
from abele.port.analysis.kinds import Kind, Thing
from abele.port.analysis.parts import Statement, statement_of
from abele.port.analysis.scopes import names_in
from abele.port.analysis.search import findall
from abele.port.context import Context
from abele.port.edits import keyword
from abele.port.finding import Verdict
from abele.port.rules.schedulers import of_scheduler, tell
from abele.port.source import Source

CODES = {
    "ABP413": "What changes of an optimizer later is written as its argument; defaults are "
    "constants.",
    "ABP414": "This value of the optimizer cannot change once its program is compiled.",
    "ABP412": "The training model is given the optimizer again after its rate has changed.",
}


def apply(context: Context) -> None:
    """Give the optimizer to the training model after its groups were changed."""
    _follow_momentum(context)
    for source in context.project.sources:
        changed: dict[Statement, None] = {}
        for node in findall(source.module, m.Attribute(attr=m.Name("param_groups"))):
            assert isinstance(node, cst.Attribute)
            optimizers = context.things.of(source, node.value, Kind.OPTIMIZER)
            statement = statement_of(source, node)
            trained = [each for each in optimizers if each in context.training]
            if trained and statement not in changed and _writes(source, statement, node):
                changed[statement] = None
                for optimizer in trained:
                    _make_variable(context, source, statement, optimizer)
                tell(context, source, statement, trained[0], "ABP412")


def _follow_momentum(context: Context) -> None:
    """Have the program take the momentum that a scheduler changes beside the rate."""
    for scheduler in context.things.all(Kind.SCHEDULER):
        call, last = scheduler.made, scheduler.name.rpartition(".")[2]
        if last not in _CYCLES or not isinstance(call, cst.Call):
            continue
        cycles = argument(call, "cycle_momentum")
        if cycles is not None and m.matches(cycles, m.Name("False")):
            continue
        for optimizer in of_scheduler(context, scheduler) & context.training.keys():
            key = "betas" if optimizer.name.rpartition(".")[2] in _WITH_BETAS else "momentum"
            _make_key_variable(context, scheduler.source, call, optimizer, key)


def _make_variable(
    context: Context, source: Source, statement: Statement, optimizer: Thing
) -> None:
    """Have the program take what a statement changes of an optimizer beside its rate."""
    keys = {
        str(each.evaluated_value)
        for node in findall(statement, m.Assign() | m.AugAssign())
        for target in targets_of(node)
        if isinstance(target, cst.Subscript)
        for each in findall(target.slice[-1], m.SimpleString())
    }
    for key in sorted(keys & _CONSTANT):
        _make_key_variable(context, source, statement, optimizer, key)


def _make_key_variable(
    context: Context, source: Source, node: cst.CSTNode, optimizer: Thing, key: str
) -> None:
    """Have the program take one value of an optimizer that a node changes."""
    name, made = optimizer.name.rpartition(".")[2], optimizer.made
    defaults = _DEFAULTS.get(name, {})
    place = [*defaults].index(key) + _FIRST if key in defaults else None
    value = argument(made, key, place) if isinstance(made, cst.Call) else None
    if key not in defaults or (key == "momentum" and (value is None or m.matches(value, _ZERO))):
        reason = _KEPT.format(key=key, name=name)
        context.say(source, node, "ABP414", Verdict.BLOCKED, reason)
    elif value is None and isinstance(made, cst.Call) and (optimizer, key) not in context.once:
        context.once.add((optimizer, key))
        new = keyword(key, defaults[key])
        context.edits(optimizer.source).give(made, new)
        reason = _WRITTEN.format(key=key)
        context.say(optimizer.source, made, "ABP413", Verdict.MODIFIED, reason)


#: Schedulers that change a momentum, or the first of betas, unless they are told not to.
_CYCLES = ("OneCycleLR", "CyclicLR")
_WITH_BETAS = ("Adam", "AdamW")
_ZERO = m.Integer("0") | m.Float("0.0")
#: What programs have as constants unless it is given; the rate always may change.
_CONSTANT = frozenset(
    ("momentum", "dampening", "weight_decay", "betas", "eps", "alpha", "nesterov", "amsgrad")
)
#: Arguments of PopTorch's optimizers after the parameters and the rate, in order.
_DEFAULTS = {
    "SGD": {"momentum": "0", "dampening": "0", "weight_decay": "0"},
    "Adam": {"betas": "(0.9, 0.999)", "eps": "1e-08", "weight_decay": "0"},
    "AdamW": {"betas": "(0.9, 0.999)", "eps": "1e-08", "weight_decay": "0.01"},
    "RMSprop": {"alpha": "0.99", "eps": "1e-08", "weight_decay": "0", "momentum": "0"},
}
_FIRST = 2
_KEPT = (
    "{key} of {name} changes here, and a compiled program keeps what it was at its first call: "
    "make a new optimizer here, which gets a program of its own; a momentum may change if it is "
    "not 0 at first"
)
_WRITTEN = (
    "{key} changes later, so it is written as an argument: a compiled program takes arguments "
    "as variables and defaults as constants"
)


def _writes(source: Source, statement: Statement, groups: cst.Attribute) -> bool:
    """Whether a statement changes an element of an optimizer's groups."""
    if isinstance(statement, cst.For):
        names = set(names_in(statement.target))
        targets = [
            target
            for node in findall(statement.body, m.Assign() | m.AugAssign())
            for target in targets_of(node)
        ]
        roots = {_root(each) for each in targets if isinstance(each, cst.Subscript)}
        inside = any(_is_around(source, each, groups) for each in targets)
        return bool(names & roots) or inside
    return any(
        _is_around(source, target, groups)
        for node in findall(statement, m.Assign() | m.AugAssign())
        for target in targets_of(node)
    )


def _root(node: cst.BaseExpression) -> str:
    while isinstance(node, cst.Subscript | cst.Attribute):
        node = node.value
    return node.value if isinstance(node, cst.Name) else ""


def _is_around(source: Source, target: cst.BaseExpression, node: cst.CSTNode) -> bool:
    return isinstance(target, cst.Subscript) and target in source.above(node)
