"""What the names of a program stand for: its models, optimizers, loaders and losses.

Each of them is known by where it is made. They are followed through assignments, parameters of
functions, results and attributes of objects, until nothing new is learned.
"""

from __future__ import annotations

import dataclasses

import libcst as cst
from libcst import matchers as m

from abele.port.analysis.kinds import Kind, Thing, kind_of_class
from abele.port.analysis.scopes import Variable, is_method, local_names
from abele.port.analysis.search import findall
from abele.port.project import Owner, Project
from abele.port.source import Source

#: Methods of a model that return the model.
_SAME = frozenset(
    (
        "to",
        "cuda",
        "cpu",
        "train",
        "eval",
        "half",
        "float",
        "double",
        "bfloat16",
        "requires_grad_",
        "apply",
        "share_memory",
    )
)
#: Functions of a model that return one with the same parameters.
_WRAPPERS = frozenset(
    (
        "torch.compile",
        "torch.jit.script",
        "torch.nn.DataParallel",
        "torch.nn.parallel.DataParallel",
        "torch.nn.parallel.DistributedDataParallel",
    )
)


class NoHomeError(Exception):
    """There is no one place where a thing gets its name."""


@dataclasses.dataclass(frozen=True)
class Home:
    """Where a thing gets the name by which the program goes on.

    Attributes:
        source: the file.
        statement: that assigns it.
        variable: that it is assigned to.
    """

    source: Source
    statement: cst.SimpleStatementLine
    variable: Variable


class Things:
    """The models, optimizers, loaders and losses of a program, and the names that they have."""

    def __init__(self, project: Project):
        """Follow them.

        Args:
            project: the program.
        """
        self._project = project
        self._made: dict[cst.BaseExpression, Thing] = {}
        self._values: dict[Variable, set[Thing]] = {}
        self._results: dict[cst.FunctionDef, list[set[Thing]]] = {}
        self._calls: dict[cst.FunctionDef, dict[cst.Call, Source]] = {}
        self._locals: dict[Owner, set[str]] = {}
        self._events = [
            (source, node) for source in project.sources for node in _interesting(source)
        ]
        self._unknown: dict[cst.BaseExpression, Source] = {}
        while self._learn() or self._guess():
            pass

    def all(self, kind: Kind) -> list[Thing]:
        """Every one of a kind, in the order of the files."""
        return [each for each in self._made.values() if each.kind is kind]

    def of(self, source: Source, node: cst.BaseExpression, kind: Kind | None = None) -> set[Thing]:
        """What an expression may be."""
        things = self._evaluate(source, node)
        return things if kind is None else {each for each in things if each.kind is kind}

    def calls(self, function: cst.FunctionDef) -> dict[cst.Call, Source]:
        """The calls of a function in the program, each with its file."""
        return self._calls.get(function, {})

    def function(self, source: Source, call: cst.Call) -> cst.FunctionDef | None:
        """The function of the program that is called; the constructor where a class is."""
        return self._function(source, call)

    def names(self, owner: Owner, thing: Thing) -> list[str]:
        """The variables of a function or module that may be a thing."""
        return [
            variable.name
            for variable, values in self._values.items()
            if variable.owner is owner and thing in values
        ]

    def home(self, thing: Thing) -> Home:
        """Where a thing is first given the name by which the program goes on.

        A function that makes and returns it is followed to the one call of it.

        Raises:
            NoHomeError: it is assigned to no name, or in several places.
        """
        home = self._assigned(thing.source, thing.made, 0)
        function = thing.source.enclosing(thing.made, cst.FunctionDef)
        source = thing.source
        while function is not None:
            places = [
                index
                for index, results in enumerate(self._results.get(function, []))
                if thing in results
            ]
            calls = self.calls(function)
            if not places or not calls:
                break
            if len(calls) > 1:
                raise NoHomeError(f"{function.name.value}() makes one in each of its calls")
            ((call, source),) = calls.items()
            home = self._assigned(source, call, places[0]) or home
            function = source.enclosing(call, cst.FunctionDef)
        if home is None:
            raise NoHomeError("it is assigned to no name")
        return home

    def _assigned(self, source: Source, node: cst.BaseExpression, index: int) -> Home | None:
        """The assignment around an expression, to the variable that an element of it goes to."""
        assign = next((each for each in source.above(node) if isinstance(each, cst.Assign)), None)
        if assign is None:
            return None
        target: cst.BaseExpression = assign.targets[0].target
        if isinstance(target, cst.Tuple):
            place = index
            if isinstance(assign.value, cst.Tuple):
                values = [element.value for element in assign.value.elements]
                inside = {node, *source.above(node)}
                place = next(number for number, each in enumerate(values) if each in inside)
            target = target.elements[place].value
        variable = self.variable(source, target)
        statement = source.enclosing(assign, cst.SimpleStatementLine)
        if variable is None or statement is None:
            return None
        return Home(source, statement, variable)

    def variable(self, source: Source, node: cst.BaseExpression) -> Variable | None:
        """The variable that a name, or an attribute of ``self``, stands for."""
        if isinstance(node, cst.Name):
            return self._named(source, node, node.value)
        if m.matches(node, m.Attribute(value=m.Name("self"))):
            inside = source.enclosing(node, cst.ClassDef)
            if inside is not None and isinstance(node, cst.Attribute):
                root = self._project.bases(inside)[-1]
                return Variable(root, f"self.{node.attr.value}")
        return None

    def owner(self, source: Source, node: cst.CSTNode) -> Owner:
        """The function, or else the module, around a node."""
        return source.enclosing(node, cst.FunctionDef) or source.module

    def named(self, source: Source, node: cst.CSTNode, name: str) -> Owner:
        """The function or module whose variable a name is where a node is."""
        return self._named(source, node, name).owner

    def _named(self, source: Source, node: cst.CSTNode, name: str) -> Variable:
        for each in source.above(node):
            if isinstance(each, cst.FunctionDef) and name in self._names(source, each):
                return Variable(each, name)
        return Variable(source.module, name)

    def _names(self, source: Source, owner: cst.FunctionDef) -> set[str]:
        """Local names of a function."""
        if owner not in self._locals:
            self._locals[owner] = local_names(owner)
        return self._locals[owner]

    def _learn(self) -> bool:
        """Go through the program once; whether anything is new."""
        before = sum(map(len, self._values.values())) + len(self._made)
        before += sum(len(each) for result in self._results.values() for each in result)
        for source, node in self._events:
            if isinstance(node, cst.Assign):
                for target in node.targets:
                    self._bind(source, target.target, node.value)
                    self._given_another(source, target.target, node.value)
            elif isinstance(node, cst.AnnAssign) and node.value is not None:
                self._bind(source, node.target, node.value)
            elif isinstance(node, cst.Return) and node.value is not None:
                self._returned(source, node, node.value)
            elif isinstance(node, cst.Call):
                self._called(source, node)
        after = sum(map(len, self._values.values())) + len(self._made)
        after += sum(len(each) for result in self._results.values() for each in result)
        return after > before

    def _bind(self, source: Source, target: cst.BaseExpression, value: cst.BaseExpression) -> None:
        if isinstance(target, cst.Tuple | cst.List):
            parts = self._parts(source, value, len(target.elements))
            for element, things in zip(target.elements, parts, strict=True):
                self._add(source, element.value, things)
        else:
            self._add(source, target, self._evaluate(source, value))

    def _given_another(
        self, source: Source, target: cst.BaseExpression, value: cst.BaseExpression
    ) -> None:
        """What a model's variable is given after its optimizer was made is another model."""
        models = self.of(source, target, Kind.MODEL)
        known = isinstance(value, cst.Call) or self.variable(source, value) is not None
        if not models or not known or m.matches(value, m.Name("None")):
            return
        changed = isinstance(value, cst.Call) and not _copies(source, value)
        args = value.args if isinstance(value, cst.Call) and changed else ()
        if any(models & self._evaluate(source, each.value) for each in args):
            return  # it is changed, or wrapped
        if self._is_trained_before(source, target) and not self._evaluate(source, value):
            self._unknown[value] = source

    def _is_trained_before(self, source: Source, target: cst.BaseExpression) -> bool:
        """Whether an optimizer of a variable is made, and none after an assignment to it."""
        at = source.position(target)
        owner, variable = self.owner(source, target), self.variable(source, target)
        same = [
            source.position(thing.made)
            for thing in self.all(Kind.OPTIMIZER)
            if thing.source is source
            and self.owner(source, thing.made) is owner
            and isinstance(thing.made, cst.Call)
            and variable in [self.variable(source, each) for each in models_updated(thing.made)]
        ]
        return bool(same) and max(same) < at

    def _add(self, source: Source, target: cst.BaseExpression, things: set[Thing]) -> None:
        variable = self.variable(source, target) if things else None
        if variable is not None:
            self._values.setdefault(variable, set()).update(things)

    def _parts(self, source: Source, value: cst.BaseExpression, count: int) -> list[set[Thing]]:
        """What each element of an expression may be."""
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
        """What the arguments of a call are is what the function's parameters are."""
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
        """What a call gives for each of a function's parameters, without ``*`` and ``**``."""
        names = [each.name.value for each in function.params.params]
        if is_method(function):
            names = names[1:]
        given: dict[str, cst.BaseExpression] = {}
        for index, argument in enumerate(call.args):
            if argument.star:
                break
            if argument.keyword is not None:
                given[argument.keyword.value] = argument.value
            elif index < len(names):
                given[names[index]] = argument.value
        return given

    def _function(self, source: Source, node: cst.Call) -> cst.FunctionDef | None:
        """The function of the program that is called; the constructor where a class is."""
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
        """The class of the program that a thing is of."""
        made = thing.made
        return (
            self._project.class_of(thing.source, made.func) if isinstance(made, cst.Call) else None
        )

    def _evaluate(self, source: Source, node: cst.BaseExpression) -> set[Thing]:
        """What an expression may be."""
        if isinstance(node, cst.Name | cst.Attribute):
            variable = self.variable(source, node)
            if variable is not None:
                return self._values.get(variable, set())
            if isinstance(node, cst.Attribute) and node.attr.value == "module":
                return {
                    each for each in self._evaluate(source, node.value) if each.kind is Kind.MODEL
                }
            if isinstance(node, cst.Attribute):
                return self._options(source, node) or self._of_object(source, node)
            return set()
        if isinstance(node, cst.IfExp):
            return self._evaluate(source, node.body) | self._evaluate(source, node.orelse)
        if isinstance(node, cst.Call):
            return self._made_by(source, node)
        return set()

    def _options(self, source: Source, node: cst.Attribute) -> set[Thing]:
        """The options of which an attribute is a part, such as ``opts.Training``."""
        things = self._evaluate(source, node.value)
        return {each for each in things if each.kind is Kind.OPTIONS}

    def _of_object(self, source: Source, node: cst.Attribute) -> set[Thing]:
        """The attribute of an object of the program."""
        things: set[Thing] = set()
        for thing in self._evaluate(source, node.value):
            cls = self._class(thing)
            if cls is not None:
                root = self._project.bases(cls)[-1]
                things |= self._values.get(Variable(root, f"self.{node.attr.value}"), set())
        return things

    def _made_by(self, source: Source, node: cst.Call) -> set[Thing]:
        """What a call gives."""
        if node in self._made:
            return {self._made[node]}
        if isinstance(node.func, cst.Attribute) and node.func.attr.value in _SAME:
            models = self._evaluate(source, node.func.value)
            if models:
                return {each for each in models if each.kind is Kind.MODEL}
        if isinstance(node.func, cst.Attribute):
            options = self._options(source, node.func)
            if options:  # whose methods return them
                return options
        name = source.imported(node.func)
        if node.args and (name in _WRAPPERS or _goes_through(name, node)):
            return self._evaluate(source, node.args[0].value)
        kind = kind_of_class(name) if name else None
        cls = self._project.class_of(source, node.func)
        if cls is not None:
            kind = self._kind_of_own(cls)
            name = cls.name.value
        if kind is not None:
            return {self._new(kind, source, node, name)}
        function = self._function(source, node)
        results = self._results.get(function, []) if function is not None else []
        return results[0] if len(results) == 1 else set()

    def _kind_of_own(self, cls: cst.ClassDef) -> Kind:
        """What a class of the program makes."""
        source = self._project.source(cls)
        bases = [source.imported(base.value) for each in cls.bases for base in (each,)]
        if any(kind_of_class(each) is Kind.OPTIMIZER for each in bases):
            return Kind.OPTIMIZER
        return Kind.MODEL if self._project.is_module(cls) else Kind.OBJECT

    def _new(self, kind: Kind, source: Source, node: cst.BaseExpression, name: str) -> Thing:
        thing = self._made.setdefault(node, Thing(kind, source, node, name))
        if kind is Kind.OPTIMIZER and isinstance(node, cst.Call):
            self._updated_by(source, node)
        return thing

    def _updated_by(self, source: Source, node: cst.Call) -> None:
        """What has its parameters updated is a model, wherever it comes from."""
        for model in models_updated(node):
            if not self._evaluate(source, model):
                self._unknown[model] = source

    def _guess(self) -> bool:
        """Take what has its parameters updated for models; whether there was any."""
        unknown = [
            (source, model)
            for model, source in self._unknown.items()
            if not self._evaluate(source, model)
        ]
        self._unknown.clear()
        for source, model in unknown:
            for at, made in self._origins(source, model, set()):
                name = at.imported(made.func) if isinstance(made, cst.Call) else ""
                self._new(Kind.MODEL, at, made, name)
                self._add(at, made, {self._made[made]})
        return bool(unknown)

    def _origins(
        self, source: Source, node: cst.BaseExpression, seen: set[Variable]
    ) -> list[tuple[Source, cst.BaseExpression]]:
        """The calls that make what a name stands for; the name itself where none is known."""
        variable = self.variable(source, node)
        if variable is None or variable in seen:
            return [(source, node)]
        seen.add(variable)
        origins: list[tuple[Source, cst.BaseExpression]] = []
        if isinstance(variable.owner, cst.FunctionDef):
            for call, caller in self.calls(variable.owner).items():
                given = self.arguments(variable.owner, call).get(variable.name)
                if given is not None:
                    origins += self._origins(caller, given, seen)
        for at, event in self._events:
            if isinstance(event, cst.Assign) and isinstance(event.value, cst.Call):
                targets = [self.variable(at, each.target) for each in event.targets]
                if variable in targets and not self._evaluate(at, event.value):
                    origins.append((at, _innermost(event.value)))
        return origins or [(source, node)]


def _innermost(call: cst.Call) -> cst.BaseExpression:
    """The call that makes what is only moved by those around it, such as ``Net().to(device)``."""
    while (
        isinstance(call.func, cst.Attribute)
        and call.func.attr.value in _SAME
        and isinstance(call.func.value, cst.Call)
    ):
        call = call.func.value
    return call


def _copies(source: Source, value: cst.BaseExpression) -> bool:
    """Whether an expression is a copy of something."""
    names = ("copy.copy", "copy.deepcopy")
    return isinstance(value, cst.Call) and source.imported(value.func) in names


def _goes_through(name: str, call: cst.Call) -> bool:
    """Whether a call gives what its argument gives, one after the other."""
    return m.matches(call.func, m.Name("enumerate")) or name.startswith("tqdm.")


def models_updated(call: cst.Call) -> list[cst.BaseExpression]:
    """The expressions of which an optimizer's constructor is given the parameters."""
    methods = m.Name("parameters") | m.Name("named_parameters")
    calls = findall(
        cst.Tuple([cst.Element(each.value) for each in call.args]),
        m.Call(func=m.Attribute(attr=methods)),
    )
    return [
        each.func.value
        for each in calls
        if isinstance(each, cst.Call) and isinstance(each.func, cst.Attribute)
    ]


def _interesting(source: Source) -> list[cst.CSTNode]:
    """What has to be looked at again and again: assignments, results and calls."""
    kinds = m.Assign() | m.AnnAssign() | m.Return() | m.Call()
    return list(findall(source.module, kinds))
