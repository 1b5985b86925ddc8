"""Finds the models, optimizers, loaders and losses behind the names of a program.

An object is identified by the expression that creates it, and followed through assignments,
parameters, results and attributes, until a fixed point is reached.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import TypeAlias

import libcst as cst
from libcst import matchers as m

from abele.port.analysis.flow import Variable, is_method, local_names, parameters
from abele.port.analysis.kinds import (
    SAME,
    WRAPPERS,
    Kind,
    Thing,
    copies,
    goes_through,
    goes_through_all,
    innermost,
    is_scheduler,
    kind_of_class,
    models_updated,
    yields,
)
from abele.port.project import Owner, Project
from abele.port.source import Source, findall

Origin: TypeAlias = tuple[Source, cst.BaseExpression]


class NoRouteError(Exception):
    """An object without a single variable, or that cannot be passed to a function."""


@dataclasses.dataclass(frozen=True)
class Home:
    """The assignment that binds a tracked object to the variable used from then on.

    Attributes:
        source: the file.
        variable: the name, or attribute of ``self``, that it assigns.
    """

    source: Source
    statement: cst.SimpleStatementLine
    variable: Variable


class Things:
    """The models, optimizers, loaders and losses of a program, and variables that hold them."""

    def __init__(self, project: Project):
        """Trace the objects of a program through its files."""
        self._project = project
        self._made: dict[cst.BaseExpression, Thing] = {}
        self._values: dict[Variable, set[Thing]] = {}
        self._results: dict[cst.FunctionDef, list[set[Thing]]] = {}
        self._calls: dict[cst.FunctionDef, dict[cst.Call, Source]] = {}
        self._locals: dict[Owner, set[str]] = {}
        # What passes objects on.
        kinds = m.Assign() | m.AnnAssign() | m.Return() | m.Call()
        self._events = [(at, node) for at in project.sources for node in findall(at.module, kinds)]
        self._unknown: dict[cst.BaseExpression, Source] = {}
        while self._learn() or self._guess():
            pass

    def all(self, kind: Kind) -> list[Thing]:
        """Return all tracked objects of a kind, such as optimizers, in file order."""
        return [each for each in self._made.values() if each.kind is kind]

    def of(self, source: Source, node: cst.BaseExpression, kind: Kind | None = None) -> set[Thing]:
        """Return the tracked objects that an expression may evaluate to."""
        things = self._evaluate(source, node)
        return things if kind is None else {each for each in things if each.kind is kind}

    def calls(self, function: cst.FunctionDef) -> dict[cst.Call, Source]:
        """Return the calls of a function of the program, each with its file."""
        return self._calls.get(function, {})

    def function(self, source: Source, call: cst.Call) -> cst.FunctionDef | None:
        """Return the function of the program that a call runs; the constructor for a class."""
        return self._function(source, call)

    def file(self, owner: Owner) -> Source:
        """Return the source file of a function, class or module."""
        return self._project.source(owner)

    def names(self, owner: Owner, thing: Thing) -> list[str]:
        """Return the variables of a function or module that may hold a tracked object."""
        return [
            variable.name
            for variable, values in self._values.items()
            if variable.owner is owner and thing in values
        ]

    def updated(self, optimizer: Thing, kind: Kind | None = None) -> set[Thing]:
        """Return the models whose parameters an optimizer updates."""
        models = models_updated(self.given(optimizer.source, optimizer.made))
        return {each for model in models for each in self.of(optimizer.source, model, kind)}

    def given(self, source: Source, made: cst.BaseExpression) -> cst.Call:
        """Return an optimizer's constructor call, with variables for parameter groups resolved."""
        args = [*made.args] if isinstance(made, cst.Call) else []
        named = {self.variable(source, each.value) for each in args} - {None}
        groups = [
            assign.value
            for at, assign in self.assignments()
            if isinstance(assign.value, cst.List | cst.Tuple | cst.ListComp)
            and any(self.variable(at, each.target) in named for each in assign.targets)
        ]
        return cst.Call(cst.Name("made"), [*map(cst.Arg, groups), *args])

    def home(self, thing: Thing) -> Home:
        """Return the first assignment of a tracked object to a variable.

        If a function creates and returns it, the assignment is that of the function's only call.

        Raises:
            NoRouteError: it is assigned to no name, or in several places.
        """
        source, node, home = thing.source, thing.made, self._assigned(thing.source, thing.made, 0)
        while (function := source.enclosing(node, cst.FunctionDef)) is not None:
            places = [
                i for i, values in enumerate(self._results.get(function, [])) if thing in values
            ]
            calls = self.calls(function)
            if not places or not calls:
                break
            if len(calls) > 1:
                raise NoRouteError(f"{function.name.value}() makes a new one in each of its calls")
            ((node, source),) = calls.items()
            home = self._assigned(source, node, places[0]) or home
        if home is None:
            home = self._kept_by_callee(thing)
        if home is None:
            raise NoRouteError("it is not assigned to a variable")
        return home

    def _kept_by_callee(self, thing: Thing) -> Home | None:
        """Return the assignment by which a called function stores an object it received."""
        for at, assign in self.assignments():
            if thing in self.of(at, assign.value) and len(assign.targets) == 1:
                variable = self.variable(at, assign.targets[0].target)
                statement = at.enclosing(assign, cst.SimpleStatementLine)
                if variable is not None and statement is not None:
                    return Home(at, statement, variable)
        return None

    def _assigned(self, source: Source, node: cst.BaseExpression, index: int) -> Home | None:
        """Return the assignment of an expression, or of one element of its value, to a variable."""
        assign = source.enclosing(node, cst.Assign)
        statement = source.enclosing(node, cst.SimpleStatementLine)
        if assign is None or statement is None or self._is_argument(source, node, assign):
            return None
        target: cst.BaseExpression = assign.targets[0].target
        if isinstance(target, cst.Tuple):
            if isinstance(assign.value, cst.Tuple):
                inside = {node, *source.above(node)}
                values = [element.value for element in assign.value.elements]
                index = next(number for number, each in enumerate(values) if each in inside)
            target = target.elements[index].value
        variable = self.variable(source, target)
        return None if variable is None else Home(source, statement, variable)

    def _is_argument(self, source: Source, node: cst.BaseExpression, assign: cst.Assign) -> bool:
        """Return whether an expression is an argument of a call that returns another object."""
        here = self.of(source, node)
        for each in source.between(node, assign):
            call = source.parent(each) if isinstance(each, cst.Arg) else None
            if isinstance(call, cst.Call) and not self.of(source, call) & here:
                return True
        return False

    def assignments(self) -> Iterator[tuple[Source, cst.Assign]]:
        """Return the assignments of the program, each with its file."""
        for source, node in self._events:
            if isinstance(node, cst.Assign):
                yield source, node

    def variable(self, source: Source, node: cst.BaseExpression) -> Variable | None:
        """Return the variable that a name, or an attribute of ``self``, refers to, or None."""
        if isinstance(node, cst.Name):
            return self._named(source, node, node.value)
        if m.matches(node, m.Attribute(value=m.Name("self"))):
            inside = source.enclosing(node, cst.ClassDef)
            if inside is not None and isinstance(node, cst.Attribute):
                root = self._project.bases(inside)[-1]
                return Variable(root, f"self.{node.attr.value}")
        return None

    def may_be(self, variable: Variable) -> set[Thing]:
        """Return the tracked objects that a variable may hold."""
        return self._values.get(variable, set())

    def owner(self, source: Source, node: cst.CSTNode) -> Owner:
        """Return the innermost function, or else the module, that contains a syntax node."""
        return source.enclosing(node, cst.FunctionDef) or source.module

    def named(self, source: Source, node: cst.CSTNode, name: str) -> Owner:
        """Return the function or module whose variable a name refers to at a syntax node."""
        return self._named(source, node, name).owner

    def _named(self, source: Source, node: cst.CSTNode, name: str) -> Variable:
        for each in source.above(node):
            if isinstance(each, cst.FunctionDef) and name in self._names(source, each):
                return Variable(each, name)
        return Variable(source.module, name)

    def _names(self, source: Source, owner: cst.FunctionDef) -> set[str]:
        """Return the cached local variable names of a function."""
        if owner not in self._locals:
            self._locals[owner] = local_names(owner)
        return self._locals[owner]

    def _learn(self) -> bool:
        """Propagate tracked objects through the program once; return whether any were new."""
        before = self._count()
        for source, node in self._events:
            if isinstance(node, cst.Assign):
                for target in node.targets:
                    self._bind(source, target.target, node.value)
            elif isinstance(node, cst.AnnAssign) and node.value is not None:
                self._bind(source, node.target, node.value)
            elif isinstance(node, cst.Return) and node.value is not None:
                self._returned(source, node, node.value)
            elif isinstance(node, cst.Call):
                self._called(source, node)
        return self._count() > before

    def _count(self) -> int:
        """Return the number of facts known about tracked objects."""
        known = sum(map(len, self._values.values()))
        known += sum(len(each) for result in self._results.values() for each in result)
        return known + len(self._made)

    def _bind(self, source: Source, target: cst.BaseExpression, value: cst.BaseExpression) -> None:
        if isinstance(target, cst.Tuple | cst.List):
            parts = self._parts(source, value, len(target.elements))
            for element, things in zip(target.elements, parts, strict=True):
                self._add(source, element.value, things)
        else:
            self._add(source, target, self._evaluate(source, value))

    def _add(self, source: Source, target: cst.BaseExpression, things: set[Thing]) -> None:
        variable = self.variable(source, target) if things else None
        if variable is not None:
            self._values.setdefault(variable, set()).update(things)

    def _parts(self, source: Source, value: cst.BaseExpression, count: int) -> list[set[Thing]]:
        """Return the tracked objects that each element of an unpacked value may be."""
        if isinstance(value, cst.Tuple | cst.List) and len(value.elements) == count:
            return [self._evaluate(source, element.value) for element in value.elements]
        if isinstance(value, cst.Call):
            function = self._function(source, value)
            results = self._results.get(function, []) if function is not None else []
            if len(results) == count:
                return results
        return [set() for _ in range(count)]

    def _returned(self, source: Source, node: cst.Return, value: cst.BaseExpression) -> None:
        function = source.enclosing(node, cst.FunctionDef)
        if function is None:
            return
        if isinstance(value, cst.Tuple):
            parts = [self._evaluate(source, element.value) for element in value.elements]
        else:
            parts = [self._evaluate(source, value)]
        known = self._results.setdefault(function, [set() for _ in parts])
        for results, things in zip(known, parts, strict=False):
            results.update(things)

    def _called(self, source: Source, node: cst.Call) -> None:
        """Propagate the objects in a call's arguments to the function's parameters."""
        self._evaluate(source, node)
        function = self._function(source, node)
        if function is None:
            return
        self._calls.setdefault(function, {})[node] = source
        for name, argument in self.arguments(function, node).items():
            things = self._evaluate(source, argument)
            if things:
                self._values.setdefault(Variable(function, name), set()).update(things)

    def arguments(self, function: cst.FunctionDef, call: cst.Call) -> dict[str, cst.BaseExpression]:
        """Return a call's argument for each parameter of a function, without ``*`` and ``**``."""
        names = [each.name.value for each in function.params.params]
        if is_method(function):
            names = names[1:]
        values: dict[str, cst.BaseExpression] = {}
        for index, argument in enumerate(call.args):
            if argument.star:
                break
            if argument.keyword is not None:
                values[argument.keyword.value] = argument.value
            elif index < len(names):
                values[names[index]] = argument.value
        return values

    def _function(self, source: Source, node: cst.Call) -> cst.FunctionDef | None:
        """Return the function of the program that a call runs; the constructor for a class."""
        function = self._project.function(source, node.func)
        if function is not None:
            return function
        made = self._project.class_of(source, node.func)
        if made is not None:
            return self._project.method(made, "__init__")
        if not isinstance(node.func, cst.Attribute):
            return None
        name = node.func.attr.value
        inside = source.enclosing(node, cst.ClassDef)
        if m.matches(node.func.value, m.Name("self")) and inside is not None:
            return self._project.method(inside, name)
        for thing in self._evaluate(source, node.func.value):
            cls = self._class(thing)
            method = None if cls is None else self._project.method(cls, name)
            if method is not None:
                return method
        return None

    def _class(self, thing: Thing) -> cst.ClassDef | None:
        """Return the class of a tracked object if the ported program defines it, or None."""
        made = thing.made
        return (
            self._project.class_of(thing.source, made.func) if isinstance(made, cst.Call) else None
        )

    def _evaluate(self, source: Source, node: cst.BaseExpression) -> set[Thing]:
        """Return the tracked objects that an expression may evaluate to."""
        if isinstance(node, cst.Name | cst.Attribute):
            variable = self.variable(source, node)
            if variable is not None:
                return self._values.get(variable, set())
            if isinstance(node, cst.Attribute) and node.attr.value == "module":
                return {
                    each for each in self._evaluate(source, node.value) if each.kind is Kind.MODEL
                }
            if isinstance(node, cst.Attribute):
                return self._of_object(source, node)
            return set()
        if isinstance(node, cst.IfExp):
            return self._evaluate(source, node.body) | self._evaluate(source, node.orelse)
        if isinstance(node, cst.BooleanOperation):
            return self._evaluate(source, node.left) | self._evaluate(source, node.right)
        if isinstance(node, cst.Call):
            return self._made_by(source, node)
        return set()

    def _of_object(self, source: Source, node: cst.Attribute) -> set[Thing]:
        """Return the tracked objects that an attribute of another object may hold."""
        things: set[Thing] = set()
        for thing in self._evaluate(source, node.value):
            cls = self._class(thing)
            if cls is not None:
                root = self._project.bases(cls)[-1]
                things |= self._values.get(Variable(root, f"self.{node.attr.value}"), set())
        return things

    def _made_by(self, source: Source, node: cst.Call) -> set[Thing]:
        """Return the tracked objects that a call may return."""
        if node in self._made:
            return {self._made[node]}
        if isinstance(node.func, cst.Attribute) and node.func.attr.value in SAME:
            models = self._evaluate(source, node.func.value)
            if models:
                return {each for each in models if each.kind is Kind.MODEL}
        name = source.imported(node.func)
        if node.args and (name in WRAPPERS or goes_through(name, node)):
            return self._evaluate(source, node.args[0].value)
        if goes_through_all(name, node):
            loaders = [self._evaluate(source, each.value) for each in node.args]
            return {thing for some in loaders for thing in some if thing.kind is Kind.LOADER}
        kind = kind_of_class(name) if name else None
        if kind is None and name and is_scheduler(name) and self._takes_optimizer(source, node):
            kind = Kind.SCHEDULER
        cls = self._project.class_of(source, node.func)
        if cls is not None:
            kind = self._kind_of_own(cls)
            name = cls.name.value
        if kind is not None:
            return {self._new(kind, source, node, name)}
        function = self._function(source, node)
        if function is not None and yields(function):
            loaders = [self._evaluate(source, each.value) for each in node.args]
            return {thing for some in loaders for thing in some if thing.kind is Kind.LOADER}
        results = self._results.get(function, []) if function is not None else []
        return results[0] if len(results) == 1 else set()

    def _takes_optimizer(self, source: Source, node: cst.Call) -> bool:
        """Return whether a call's first argument is an optimizer."""
        if not node.args:
            return False
        first = self._evaluate(source, node.args[0].value)
        return any(each.kind is Kind.OPTIMIZER for each in first)

    def _kind_of_own(self, cls: cst.ClassDef) -> Kind:
        """Return the kind of object, such as model or optimizer, of a class of the program."""
        source = self._project.source(cls)
        bases = [source.imported(base.value) for each in cls.bases for base in (each,)]
        if any(kind_of_class(each) is Kind.OPTIMIZER for each in bases):
            return Kind.OPTIMIZER
        return Kind.MODEL if self._project.is_module(cls) else Kind.OBJECT

    def _new(self, kind: Kind, source: Source, node: cst.BaseExpression, name: str) -> Thing:
        thing = self._made.setdefault(node, Thing(kind, source, node, name))
        if kind is Kind.OPTIMIZER and isinstance(node, cst.Call):
            models = models_updated(self.given(source, node))  # if nothing else is known of them
            self._unknown.update(dict.fromkeys(models, source))
        return thing

    def _guess(self) -> bool:
        """Track objects of unknown class as models if an optimizer updates their parameters.

        They are copies, or come from files or other packages. Return whether there were any.
        """
        unknown = [
            origin
            for model, source in self._unknown.items()
            for origin in [*self._origins(source, model, set())]
            or [(source, model)] * (not self.of(source, model))
        ]
        self._unknown.clear()
        for at, made in unknown:
            name = at.imported(made.func) if isinstance(made, cst.Call) else ""
            self._new(Kind.MODEL, at, made, name)
            self._add(at, made, {self._made[made]})
        return bool(unknown)

    def _origins(
        self, source: Source, node: cst.BaseExpression, seen: set[Variable]
    ) -> Iterator[Origin]:
        """Yield calls of unknown functions whose result an expression may be."""
        variable = self.variable(source, node)
        if isinstance(node, cst.IfExp):
            for each in (node.body, node.orelse):
                yield from self._origins(source, each, seen)
        elif isinstance(node, cst.BooleanOperation):
            for each in (node.left, node.right):
                yield from self._origins(source, each, seen)
        elif isinstance(node, cst.Call):
            made = innermost(node)
            if not self.of(source, made) and not self._is_given_a_model(source, made):
                yield source, made
        elif variable is not None and variable not in seen:
            seen.add(variable)
            for at, value in self.given_to(variable):
                yield from self._origins(at, value, seen)

    def given_to(self, variable: Variable) -> Iterator[Origin]:
        """Yield expressions that callers and assignments bind to a variable."""
        if isinstance(variable.owner, cst.FunctionDef):
            for call, caller in self.calls(variable.owner).items():
                value = self.arguments(variable.owner, call).get(variable.name)
                if value is not None:
                    yield caller, value
        for at, assign in self.assignments():
            if variable in [self.variable(at, each.target) for each in assign.targets]:
                yield at, assign.value

    def _is_given_a_model(self, source: Source, made: cst.BaseExpression) -> bool:
        """Return whether a call receives a model as an argument, other than to copy it."""
        if not isinstance(made, cst.Call) or copies(source, made):
            return False
        return any(self.of(source, each.value, Kind.MODEL) for each in made.args)

    def may_be_unknown(
        self, source: Source, node: cst.BaseExpression, seen: frozenset[Variable] = frozenset()
    ) -> bool:
        """Return whether an expression may also evaluate to an untracked object.

        A function that evaluates may be given the trained model by one caller, and an average of
        its weights by another.
        """
        if m.matches(node, m.Name("None")):
            return False
        if isinstance(node, cst.IfExp):
            return any(self.may_be_unknown(source, each, seen) for each in (node.body, node.orelse))
        variable = self.variable(source, node)
        if not self.of(source, node):
            function = None if variable is None else variable.owner
            given = isinstance(function, cst.FunctionDef) and variable in [
                Variable(function, name) for name in parameters(function)
            ]
            return not (
                given and isinstance(function, cst.FunctionDef) and not self.calls(function)
            )
        method = node.func if isinstance(node, cst.Call) else None
        if isinstance(method, cst.Attribute) and method.attr.value in SAME:
            return self.may_be_unknown(source, method.value, seen)
        if variable is None or variable in seen:
            return False
        return any(
            self.may_be_unknown(at, value, seen | {variable})
            for at, value in self.given_to(variable)
            if not self._is_made_of(at, value, variable)
        )

    def _is_made_of(self, source: Source, value: cst.BaseExpression, variable: Variable) -> bool:
        """Return whether a call other than a copy receives a variable, as ``prepare(model)``."""
        if not isinstance(value, cst.Call) or copies(source, value):
            return False
        inside = findall(value, m.Name() | m.Attribute(value=m.Name("self")))
        return any(self.variable(source, each) == variable for each in inside)
