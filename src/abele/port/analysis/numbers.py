"""Finds expressions that are Python numbers: one that changes is passed on as a tensor."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst
from libcst import matchers as m

from abele.port.analysis.flow import writes
from abele.port.analysis.scopes import names_in, parameters
from abele.port.analysis.search import findall
from abele.port.analysis.things import Things
from abele.port.source import Source

_ALWAYS = frozenset(("int", "float", "len", "ord", "hash"))
_OF_NUMBERS = frozenset(("abs", "round", "max", "min", "sum", "pow"))
_NO_NUMBERS = (
    "choice",
    "choices",
    "sample",
    "shuffle",
    "permutation",
    "seed",
    "Random",
    "default_rng",
)


def is_number(source: Source, things: Things, node: cst.BaseExpression) -> bool:
    """Whether an expression is a number of Python's or numpy's, as far as the program says.

    Args:
        source: the file.
        things: what its names stand for.
        node: the expression.
    """
    return _Numbers(things).of(source, node) is True


def is_size(source: Source, around: cst.CSTNode, name: str) -> bool:
    """Whether a name is how many rows a batch has: a size, of which a program has one.

    Args:
        source: the file.
        around: the loop or function in which it gets its values.
        name: of a number.
    """
    assigns = findall(around, m.Assign(targets=[m.AssignTarget(m.Name(name))]))
    given = parameters(around) if isinstance(around, cst.FunctionDef) else ()
    longer = m.Attribute(value=m.Name(), attr=m.OneOf(*map(m.Name, ("append", "extend"))))
    grow = {each.value.value for each in findall(source.module, longer)}
    batches = {*writes(around), *given} - grow
    return bool(assigns) and all(
        m.matches(each.value, m.Call(func=m.Name("len"), args=[m.Arg(m.Name())]))
        and each.value.args[0].value.value in batches
        for each in assigns
    )


class _Numbers:
    """Answers True for a number, False for something else, None for what is not known."""

    def __init__(self, things: Things):
        self._things = things
        self._seen: set[tuple[cst.CSTNode, str]] = set()

    def of(self, source: Source, node: cst.BaseExpression) -> bool | None:
        if isinstance(node, cst.Integer | cst.Float):
            return True
        if isinstance(node, cst.UnaryOperation):
            return self.of(source, node.expression)
        if isinstance(node, cst.BinaryOperation):
            return _all(self.of(source, each) for each in (node.left, node.right))
        if isinstance(node, cst.IfExp):
            return _all(self.of(source, each) for each in (node.body, node.orelse))
        if isinstance(node, cst.Call):
            return self._of_call(source, node)
        if isinstance(node, cst.Name):
            return self._of_name(source, node)
        return None if isinstance(node, cst.Attribute | cst.Subscript) else False

    def _of_call(self, source: Source, call: cst.Call) -> bool | None:
        name = source.imported(call.func)
        first, last = name.partition(".")[0], name.rpartition(".")[2]
        values = [each.value for each in call.args]
        if first == "math":
            return True
        if first == "random" or name.startswith("numpy.random."):
            alone = not any(m.matches(each, m.Arg(keyword=m.Name("size"))) for each in call.args)
            arrays = last in ("rand", "randn") and bool(values)
            return last not in _NO_NUMBERS and alone and not arrays
        if first == "numpy":
            return _all(self.of(source, each) for each in values) if values else None
        if isinstance(call.func, cst.Name) and not name:
            if call.func.value in _ALWAYS:
                return True
            if call.func.value in _OF_NUMBERS and values:
                return _all(self.of(source, each) for each in values)
        if m.matches(call.func, m.Attribute(attr=m.Name("item"))):
            return True
        function = self._things.function(source, call)
        if function is None or function.name.value == "__init__":
            return False
        return self._of_function(function)

    def _of_function(self, function: cst.FunctionDef) -> bool | None:
        key = function, ""
        if key in self._seen:
            return None
        self._seen.add(key)
        source = self._things.file(function)
        returned = findall(function.body, m.Return())
        values = [each.value for each in returned if isinstance(each, cst.Return)]
        if not values or any(each is None for each in values):
            return False
        return _all(self.of(source, each) for each in values if each is not None)

    def _of_name(self, source: Source, node: cst.Name) -> bool | None:
        owner = self._things.named(source, node, node.value)
        key = owner, node.value
        if key in self._seen:
            return None
        self._seen.add(key)
        known = [self.of(at, each) for at, each in self._values_of(source, owner, node.value)]
        numbers = [*known, *self._by_loops(source, owner, node.value)]
        return _all(iter(numbers)) if numbers else None

    def _values_of(
        self, source: Source, owner: cst.CSTNode, name: str
    ) -> Iterator[tuple[Source, cst.BaseExpression]]:
        """What is assigned to a name, or given for a parameter."""
        for node in findall(owner, m.Assign() | m.AugAssign()):
            target = node.targets[0].target if isinstance(node, cst.Assign) else node.target
            if self._things.named(source, node, name) is not owner or name not in names_in(target):
                continue
            parts: cst.BaseExpression = node.value
            if isinstance(target, cst.Tuple):
                index = [name in names_in(each.value) for each in target.elements].index(True)
                yield from self._elements(source, parts, index, len(target.elements))
            else:
                yield source, parts
        if isinstance(owner, cst.FunctionDef) and name in parameters(owner):
            for call, caller in self._things.calls(owner).items():
                value = self._things.arguments(owner, call).get(name)
                if value is not None:
                    yield caller, value

    def _elements(
        self, source: Source, value: cst.BaseExpression, index: int, count: int
    ) -> Iterator[tuple[Source, cst.BaseExpression]]:
        """One element of a tuple, or of those that a function of the program returns."""
        tuples: list[tuple[Source, cst.BaseExpression | None]] = [(source, value)]
        function = self._things.function(source, value) if isinstance(value, cst.Call) else None
        if function is not None:
            at = self._things.file(function)
            tuples = [(at, each.value) for each in findall(function.body, m.Return())]
        for at, each in tuples:
            if isinstance(each, cst.Tuple) and len(each.elements) == count:
                yield at, each.elements[index].value
            else:
                yield source, cst.Name("None")

    def _by_loops(self, source: Source, owner: cst.CSTNode, name: str) -> Iterator[bool]:
        """Whether a name counts the turns of loops that bind it."""
        for loop in findall(owner, m.For()):
            if name in names_in(loop.target) and self._things.owner(source, loop) is owner:
                counts = m.matches(loop.iter, m.Call(func=m.Name("range")))
                number = m.Call(func=m.Name("enumerate"))
                first = isinstance(loop.target, cst.Tuple) and name in names_in(
                    loop.target.elements[0].value
                )
                yield counts or (m.matches(loop.iter, number) and first)


def _all(answers: Iterator[bool | None]) -> bool | None:
    known = list(answers)
    if False in known:
        return False
    return True if True in known else None


def given_others(things: Things, owner: cst.CSTNode, made: set[cst.CSTNode]) -> set[str]:
    """Parameters of a function for which its calls give different values.

    Args:
        things: what names stand for.
        owner: the function.
        made: loops that do not count, because they make anew what the function trains.
    """
    if not isinstance(owner, cst.FunctionDef):
        return set()
    return {name for name in parameters(owner) if _differs(things, owner, name, made, frozenset())}


def _differs(
    things: Things,
    owner: cst.FunctionDef,
    name: str,
    made: set[cst.CSTNode],
    seen: frozenset[cst.CSTNode],
) -> bool:
    values: list[tuple[Source, cst.BaseExpression]] = []
    for call, caller in things.calls(owner).items():
        value = things.arguments(owner, call).get(name)
        if value is not None:
            values.append((caller, value))
    if len({caller.code(value) for caller, value in values}) > 1:
        return True
    return any(_changes(things, caller, value, made, seen | {owner}) for caller, value in values)


def _changes(
    things: Things,
    source: Source,
    value: cst.BaseExpression,
    made: set[cst.CSTNode],
    seen: frozenset[cst.CSTNode],
) -> bool:
    """Whether an argument may have another value in another call."""
    names = {each.value for each in findall(value, m.Name())}
    for each in source.above(value):
        if isinstance(each, cst.For | cst.While) and each not in made and names & {*writes(each)}:
            return True
        if isinstance(each, cst.FunctionDef):
            if each in seen:
                return False
            local = names & {*parameters(each)}
            return any(_differs(things, each, name, made, seen) for name in local)
    return False
