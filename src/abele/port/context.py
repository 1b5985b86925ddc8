"""The state that porting rules share: the program, its analysis, edits and findings."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import NamedTuple

import libcst as cst
from libcst import matchers as m

from abele.port.analysis import batches
from abele.port.analysis.kinds import Kind, Thing
from abele.port.analysis.parts import StepError
from abele.port.analysis.steps import Step, training_steps
from abele.port.analysis.things import NoRouteError, Things
from abele.port.edits import Edits, keyword, with_one_more
from abele.port.finding import Finding, Verdict
from abele.port.project import Owner, Project
from abele.port.source import Source, findall


@dataclasses.dataclass(frozen=True, eq=False)
class Wrapped:
    """The variable that holds a training or inference model of the port.

    Attributes:
        name: the variable, perhaps ``self.something``.
        source: the file that creates the model.
        owner: the function, module or class that owns the variable.
    """

    name: str
    source: Source
    owner: Owner


@dataclasses.dataclass
class _Argument:
    """A parameter that the port adds to a function, and the argument of each call."""

    name: str
    source: Source
    values: list[tuple[cst.Call, Source, str]]


class Routes:
    """Adds parameters to functions, so that wrapped models reach the places that use them."""

    def __init__(self, context: Context):
        """Begin without added parameters.

        Args:
            context: the program whose functions and calls are changed.
        """
        self._context = context
        self._passed: dict[tuple[Wrapped, cst.FunctionDef], str] = {}

    def name(self, wrapped: Wrapped, source: Source, node: cst.CSTNode) -> str:
        """Return the name of a wrapped model at a syntax node; add parameters if needed.

        Raises:
            NoRouteError: the function around the node is called by nobody who has it.
        """
        new: dict[cst.FunctionDef, _Argument] = {}
        name = self._find(wrapped, source, node, new)
        for function, argument in new.items():
            self._passed[wrapped, function] = argument.name
            self._pass(function, argument)
        return name

    def _find(
        self,
        wrapped: Wrapped,
        source: Source,
        node: cst.CSTNode,
        new: dict[cst.FunctionDef, _Argument],
    ) -> str:
        """Return a wrapped model's name at a node; collect parameters to add in ``new``."""
        if source is wrapped.source and self._sees(wrapped, source, node):
            return wrapped.name
        function = source.enclosing(node, cst.FunctionDef)
        if function is None:
            raise NoRouteError("it is wrapped in another file")
        return self._argument(wrapped, source, function, new)

    def name_of(self, thing: Thing, source: Source, node: cst.CSTNode) -> str:
        """Return the name of an optimizer or other object at a node; add parameters if needed.

        Raises:
            NoRouteError: the function around the node is called by nobody who has it.
        """
        things = self._context.things
        for owner in source.above(node):
            if isinstance(owner, cst.FunctionDef | cst.Module):
                names = things.names(owner, thing)
                if names:
                    return names[0]
        return self.name(self.kept(thing), source, node)

    def kept(self, thing: Thing) -> Wrapped:
        """Return the variable that holds a tracked object.

        Raises:
            NoRouteError: no variable holds it, or several do.
        """
        home = self._context.things.home(thing)
        return Wrapped(home.variable.name, home.source, home.variable.owner)

    def _sees(self, wrapped: Wrapped, source: Source, node: cst.CSTNode) -> bool:
        if isinstance(wrapped.owner, cst.ClassDef):
            inside = source.enclosing(node, cst.ClassDef)
            return inside is not None and wrapped.owner in self._context.project.bases(inside)
        return wrapped.owner in source.above(node)

    def _argument(
        self,
        wrapped: Wrapped,
        source: Source,
        function: cst.FunctionDef,
        new: dict[cst.FunctionDef, _Argument],
    ) -> str:
        """Plan a new parameter of a function for a wrapped model; return its name."""
        if (wrapped, function) in self._passed:
            return self._passed[wrapped, function]
        if function in new:
            return new[function].name
        calls = self._context.things.calls(function)
        if not calls:
            raise NoRouteError(f"nothing in these files calls {function.name.value}()")
        name = self._context.name(source, wrapped.name.rpartition(".")[2])
        argument = new[function] = _Argument(name, source, [])
        for call, caller in calls.items():
            argument.values.append((call, caller, self._find(wrapped, caller, call, new)))
        return name

    def _pass(self, function: cst.FunctionDef, argument: _Argument) -> None:
        """Add a parameter to a function, and the argument to all calls of the function."""
        name, source = argument.name, argument.source
        self._say(source, function, f"{name} is one more argument: it is made where its parts are")
        self._context.edits(source).change(function.params, lambda node: with_parameter(node, name))
        for call, caller, value in argument.values:
            self._say(caller, call, f"{function.name.value}() is given {value}")
            self._context.edits(caller).give(call, keyword(name, value))

    def _say(self, source: Source, node: cst.CSTNode, reason: str) -> None:
        self._context.say(source, node, "ABP304", Verdict.MODIFIED, reason)


def with_parameter(params: cst.Parameters, name: str) -> cst.Parameters:
    """Return a function's parameters with a new one appended."""
    new = cst.Param(cst.Name(name))
    if params.star_arg is not cst.MaybeSentinel.DEFAULT or params.kwonly_params:
        return params.with_changes(kwonly_params=with_one_more(params.kwonly_params, new))
    if any(each.default is not None for each in params.params):
        new = new.with_changes(default=cst.Name("None"), equal=cst.AssignEqual(*_TIGHT))
    return params.with_changes(params=with_one_more(params.params, new))


_TIGHT = (cst.SimpleWhitespace(""), cst.SimpleWhitespace(""))


class Context:
    """The state of a program during porting: its analysis, edits and findings.

    Attributes:
        project: the program's files.
        things: the program's models, optimizers, loaders and losses.
        steps: its training steps.
        refused: training steps that cannot be ported, with their errors.
        findings: findings about lines of the program.
        routes: passes wrapped models to functions.
        distributed: whether the port runs in several instances, with popdist.
        sampled: loaders whose samples a sampler divided among processes.
        once: keys of edits that must not be repeated.
        added: texts of new files that are written next to the program, by name.
        training: the training model that each optimizer is passed to.
        finished: whether the remaining rules are skipped.
    """

    def __init__(self, project: Project, popdist: bool = False):
        """Analyze a program for porting.

        Args:
            project: the program's files.
            popdist: whether the port runs in several instances, which it always does if the
                program starts several processes.
        """
        self.project = project
        self.finished = False
        self.things = Things(project)
        read = list(training_steps(project, self.things))
        self.steps = [step for _, step in read if isinstance(step, Step)]
        self.refused = [(source, error) for source, error in read if isinstance(error, StepError)]
        self.findings: list[Finding] = []
        self._edits = {source: Edits(source) for source in project.sources}
        self.routes = Routes(self)
        self.training: dict[Thing, Wrapped] = {}
        self.sampled: set[Thing] = set()
        self.once: set[object] = set()
        self.added: dict[str, str] = {}
        self.distributed = popdist or any(map(_has_processes, project.sources))
        self._names: dict[Source, dict[str, str]] = {}

    def optimizers(self) -> Iterator[tuple[Thing, cst.Call]]:
        """Return the optimizers of training steps, each with the call that creates it."""
        used = {each for step in self.steps for each in step.gradients.optimizers}
        for thing in self.things.all(Kind.OPTIMIZER):
            if thing in used and isinstance(thing.made, cst.Call):
                yield thing, thing.made

    def trained_loaders(self) -> set[Thing]:
        """Return the data loaders that training steps iterate over or pass to ``next``."""
        loaders: set[Thing] = set()
        for step in self.steps:
            for _, _, around in batches.loaders_around(self.things, step.source, step.backward):
                loaders |= around
            calls = findall(step.loop or step.owner, m.Call(func=m.Name("next")))
            for call in calls:
                if call.args:
                    loaders |= self.things.of(step.source, call.args[0].value, Kind.LOADER)
        return loaders

    def edits(self, source: Source) -> Edits:
        """Return the collected edits of a source file."""
        return self._edits[source]

    def say(
        self, source: Source, node: cst.CSTNode, code: str, verdict: Verdict, reason: str
    ) -> None:
        """Record a finding about the line on which a syntax node begins."""
        line, column = source.position(node)
        self.findings.append(
            Finding(
                code=code,
                verdict=verdict,
                path=source.name,
                line=line,
                column=column,
                text=source.line(line),
                reason=reason,
            )
        )

    def refuse(self, source: Source, error: StepError, code: str) -> None:
        """Record a *blocked* finding for a training step that cannot be ported."""
        self.say(source, error.node, code, Verdict.BLOCKED, error.reason)

    def name(self, source: Source, wanted: str) -> str:
        """Return an unused variable name in a file, the preferred name if possible.

        The same preferred name always gets the same result.
        """
        names = self._names.setdefault(source, {})
        if wanted not in names:
            names[wanted] = self._free(source, wanted)
        return names[wanted]

    def _free(self, source: Source, wanted: str) -> str:
        used = {node.value for node in findall(source.module, m.Name())}
        name, number = wanted, 2
        separator = "" if wanted[0].isupper() else "_"
        while name in used:
            name, number = f"{wanted}{separator}{number}", number + 1
        return name

    def options(self, source: Source) -> str:
        """Define ``poptorch.Options()`` at the top of a file; return the variable's name."""
        name, edits = self.name(source, "opts"), self.edits(source)
        edits.need("import poptorch")
        if self.distributed:
            edits.need("import popdist")
            edits.need("import popdist.poptorch")
            connect = "" if any(map(_has_processes, self.project.sources)) else _CONNECT
            edits.define_once(_INSTANCES.format(name=name, connect=connect))
        else:
            edits.define_once(f"{name} = poptorch.Options()")
        return name


#: Instances shuffle alike only with a common seed.
_INSTANCES = """if popdist.isPopdistEnvSet():
{connect}    {name} = popdist.poptorch.Options()
    {name}.randomSeed(42)
else:
    {name} = poptorch.Options()"""
_CONNECT = "    popdist.init()\n"


def _has_processes(source: Source) -> bool:
    """Return whether a file uses torch's distributed training."""
    names = ("init_process_group", "DistributedDataParallel")
    return any(
        isinstance(call, cst.Call) and source.imported(call.func).rpartition(".")[2] in names
        for call in findall(source.module, m.Call())
    )


class Rule(NamedTuple):
    """A porting rule for one construct.

    Attributes:
        title: name of the construct.
        codes: codes of its findings, each with an explanation.
        apply: edits a program and records findings.
    """

    title: str
    codes: dict[str, str]
    apply: Callable[[Context], None]
