"""Finds what the conditions around a node say of names, and which calls can get there.

A condition counts where it has names, constants and operators only, and its names keep their values
from the condition to the node.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping
from typing import Any, TypeAlias

import libcst as cst
from libcst import matchers as m

from abele.port.analysis.flow import writes
from abele.port.analysis.scopes import names_in, parameters
from abele.port.analysis.search import findall
from abele.port.analysis.things import Things
from abele.port.source import Source

_BINDS = m.Assign() | m.AugAssign() | m.AnnAssign() | m.For() | m.With() | m.NamedExpr()

#: Whether each condition, as text, is true.
Facts: TypeAlias = Mapping[str, bool]

_PURE = (
    ast.Expression,
    ast.Name,
    ast.Load,
    ast.Constant,
    ast.Compare,
    ast.cmpop,
    ast.UnaryOp,
    ast.Not,
)


class _Unknown:
    """A value that the text of a program does not say."""


class _Object:
    """What is no constant, and neither None nor false."""


def plain(test: cst.BaseExpression) -> str:
    """A condition of names, constants and comparisons as text, the same for the same condition.

    Returns:
        The text without ``not``; ``""`` for any other condition.
    """
    code = cst.Module([]).code_for_node(test)
    parsed = ast.parse(f"({code})", mode="eval")
    if not all(isinstance(each, _PURE) for each in ast.walk(parsed)):
        return ""
    body = parsed.body
    while isinstance(body, ast.UnaryOp):
        body = body.operand
    return ast.unparse(body)


def is_negated(test: cst.BaseExpression) -> bool:
    """Whether a condition begins with an odd number of ``not``."""
    negated = False
    while isinstance(test, cst.UnaryOperation) and isinstance(test.operator, cst.Not):
        test, negated = test.expression, not negated
    return negated


def names_of(text: str) -> set[str]:
    """The names in a condition that is given as text."""
    return {each.id for each in ast.walk(ast.parse(text)) if isinstance(each, ast.Name)}


def facts(source: Source, node: cst.CSTNode) -> dict[str, bool]:
    """What the conditions around a node, in its function, say."""
    known: dict[str, bool] = {}
    written = _shared(source)
    inner = node
    for each in source.above(node):
        if isinstance(each, cst.FunctionDef | cst.Lambda | cst.ClassDef):
            break
        if isinstance(each, cst.If) and inner is not each.test:
            written |= {*writes(each)}
            text = plain(each.test)
            if text and not names_of(text) & written:
                known.setdefault(text, (inner is each.body) is not is_negated(each.test))
        elif isinstance(each, cst.For | cst.While):
            written |= {*writes(each)}
        inner = each
    return known


def _shared(source: Source) -> set[str]:
    """Names that a function may change for others."""
    declared = findall(source.module, m.Global() | m.Nonlocal())
    return {name.name.value for each in declared for name in each.names}


def says(known: Facts, test: cst.BaseExpression) -> bool | None:
    """Whether a condition is true where some others are known; None if they do not say."""
    text = plain(test) if known else ""
    return known[text] is not is_negated(test) if text in known else None


def left(known: Facts, node: cst.CSTNode) -> dict[str, bool]:
    """What is still known where a piece has not been run that may give the names their values."""
    written = {*writes(node)} if known else set[str]()
    return {text: true for text, true in known.items() if not names_of(text) & written}


def constants(known: Facts) -> dict[str, str | int]:
    """The names that some facts say are equal to a constant, with it."""
    equal: dict[str, str | int] = {}
    for text, true in known.items():
        body = ast.parse(text, mode="eval").body
        if (
            true
            and isinstance(body, ast.Compare)
            and isinstance(body.ops[0], ast.Eq)
            and len(body.ops) == 1
        ):
            for one, other in ((body.left, body.comparators[0]), (body.comparators[0], body.left)):
                if isinstance(one, ast.Name) and isinstance(other, ast.Constant):
                    value: Any = other.value
                    equal[one.id] = value
    return equal


def callers(things: Things, source: Source, node: cst.CSTNode) -> dict[cst.Call, Source]:
    """The calls by which a node is run: of the function around it, as far as they may get there.

    Args:
        things: what the program's names stand for.
        source: the file of the node.
        node: in a function.

    Returns:
        The calls, each with its file.
    """
    function = source.enclosing(node, cst.FunctionDef)
    calls = {} if function is None else things.calls(function)
    known = facts(source, node) if calls else None
    if function is None or not known:
        return calls
    return {
        call: caller
        for call, caller in calls.items()
        if allows_call(things, function, call, caller, known, {})
    }


def allows(known: Facts, names: Mapping[str, cst.BaseExpression], around: cst.CSTNode) -> bool:
    """Whether known conditions are as they have to be where names stand for expressions.

    Args:
        known: the conditions.
        names: each with the expression that it stands for.
        around: the function, or file, that gives other names their values.
    """
    return _agrees(known, _Value(names, around))


def allows_call(
    things: Things,
    function: cst.FunctionDef,
    call: cst.Call,
    caller: Source,
    known: Facts,
    names: Mapping[str, cst.BaseExpression],
) -> bool:
    """Whether what is known in a function may be so in one call of it.

    Args:
        things: what the program's names stand for.
        function: that is called.
        call: the call.
        caller: its file.
        known: in the function.
        names: where the call is, each with the expression that it stands for.
    """
    return _agrees(known, _ValueInCall(things, function, call, caller, names))


def _agrees(known: Facts, value: _Value) -> bool:
    """Whether no condition is known to be otherwise."""
    return all(value.of(text) in (None, true) for text, true in known.items())


class _Value:
    """Evaluates conditions where some names stand for expressions."""

    def __init__(self, names: Mapping[str, cst.BaseExpression], around: cst.CSTNode):
        self._names, self._around = names, around
        self._followed: set[str] = set()

    def of(self, text: str) -> bool | None:
        """Whether a condition is true; None if that is not known."""
        value = self._evaluate(ast.parse(text, mode="eval").body)
        if isinstance(value, _Unknown):
            return None
        return True if isinstance(value, _Object) else bool(value)

    def _evaluate(self, node: ast.expr) -> Any:
        if isinstance(node, ast.Constant):
            return node.value
        if isinstance(node, ast.Name):
            return self._of_name(node.id)
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            value = self.of(ast.unparse(node.operand))
            return _Unknown() if value is None else not value
        if isinstance(node, ast.Compare) and len(node.ops) == 1:
            return _compared(node.ops[0], *map(self._evaluate, (node.left, node.comparators[0])))
        return _Unknown()

    def _of_name(self, name: str) -> Any:
        return _constant(self._names[name]) if name in self._names else self._of_variable(name)

    def _of_variable(self, name: str) -> Any:
        """What a name that gets one value is."""
        bindings = [each for each in findall(self._around, _BINDS) if name in writes(each)]
        inner = [each for each in bindings if isinstance(each, cst.Assign)]
        if len(inner) != 1 or any(name in _bound(each) for each in bindings if each not in inner):
            return _Unknown()
        plain_name = m.Assign([m.AssignTarget(m.Name(name))])
        if name in self._followed or not m.matches(inner[0], plain_name):
            return _Unknown()
        self._followed.add(name)  # values that follow from each other are not known
        text = cst.Module([]).code_for_node(inner[0].value)
        value = self._evaluate(ast.parse(f"({text})", mode="eval").body)
        self._followed.remove(name)
        return value


class _ValueInCall(_Value):
    """Evaluates conditions as they are in one call of a function."""

    def __init__(
        self,
        things: Things,
        function: cst.FunctionDef,
        call: cst.Call,
        caller: Source,
        names: Mapping[str, cst.BaseExpression],
    ):
        super().__init__(names, function.body)
        self._things, self._function = things, function
        self._source, self._call, self._caller = things.file(function), call, caller

    def _of_name(self, name: str) -> Any:
        """What a name of the function is: a parameter, or a variable that gets one value."""
        if name not in parameters(self._function):
            return self._of_variable(name)
        bindings = [each for each in findall(self._function.body, _BINDS) if name in writes(each)]
        return _Unknown() if bindings else self._of_parameter(name)

    def _of_parameter(self, name: str) -> Any:
        if any(each.star for each in self._call.args):
            return _Unknown()
        value = self._things.arguments(self._function, self._call).get(name)
        if value is None:
            params = self._function.params
            every = (*params.params, *params.kwonly_params)
            value = next((each.default for each in every if each.name.value == name), None)
            return _Unknown() if value is None else _constant(value)
        if isinstance(value, cst.Name) and value.value in self._names:
            value = self._names[value.value]
        return _Object() if self._is_object(value) else _constant(value)

    def _is_object(self, value: cst.BaseExpression) -> bool:
        """Whether an argument is a model or optimizer in any case, and never None."""
        if isinstance(value, cst.Call):
            return bool(self._things.of(self._caller, value))
        variable = self._things.variable(self._caller, value)
        values = [
            each.value
            for each in findall(self._caller.module, m.Assign(targets=[m.AssignTarget()]))
            if self._things.variable(self._caller, each.targets[0].target) == variable
        ]
        return (
            variable is not None
            and bool(values)
            and all(
                isinstance(each, cst.Call) and self._things.of(self._caller, each)
                for each in values
            )
        )


def _bound(node: cst.CSTNode) -> list[str]:
    """Names that a statement binds by itself, without the statements in it."""
    if isinstance(node, cst.For):
        return list(names_in(node.target))
    return [] if isinstance(node, cst.With) and not _named(node) else writes(node)


def _named(statement: cst.With) -> bool:
    """Whether a ``with`` gives what it enters a name."""
    return any(each.asname is not None for each in statement.items)


def _constant(node: cst.BaseExpression) -> Any:
    """The value of a constant."""
    try:
        return ast.literal_eval(cst.Module([]).code_for_node(node))
    except (ValueError, SyntaxError):
        return _Unknown()


def _compared(operator: ast.cmpop, one: Any, other: Any) -> Any:
    """The result of a comparison."""
    if isinstance(one, _Unknown) or isinstance(other, _Unknown):
        return _Unknown()
    equal = isinstance(operator, ast.Eq | ast.Is)
    if not equal and not isinstance(operator, ast.NotEq | ast.IsNot):
        return _Unknown()
    if isinstance(one, _Object) or isinstance(other, _Object):
        known = one is None or other is None  # an object is not None, and may be anything else
        return not equal if known else _Unknown()
    return (one == other) is equal
