"""The state that rules share while a program with a switch is ported."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from abele.port.analysis.scopes import local_names
from abele.port.context import Context
from abele.port.edits import Edits, keyword
from abele.port.finding import Verdict
from abele.port.modes.edits import ModeEdits
from abele.port.modes.options import options as options_of_mode
from abele.port.modes.specialised import Specialised
from abele.port.modes.switch import Switch
from abele.port.project import Owner, Project
from abele.port.routes import NoRouteError, with_parameter
from abele.port.source import Source

_UNKNOWN = (
    "which mode this run is in is not known here; give this function the object that has the mode"
)


class ModeContext(Context):
    """A program with a switch while it is ported.

    Attributes:
        whole: its files, with what all modes do.
        modes: the switch.
    """

    def __init__(self, project: Project, popdist: bool, switch: Switch):
        """Look at a program.

        Args:
            project: its files.
            popdist: whether the new mode is to run in several instances.
            switch: of the program.
        """
        sources = {each: Specialised(each, switch) for each in project.sources}
        super().__init__(Project(list(sources.values())), popdist)
        self.distributed = popdist  # how other modes have several processes is their affair
        self.switch = self.modes = switch
        self.whole = project
        self._sources = sources
        self._edits: dict[Source, Edits] = {
            each: ModeEdits(each, switch, lambda node, source=each: self._condition(source, node))
            for each in sources.values()
        }
        self._mode_expressions = [
            (source, node) for source in sources for node in switch.mode_expressions(source)
        ]
        self._conditions: dict[cst.CSTNode, str] = {}
        self._arguments: dict[cst.FunctionDef, str] = {}

    def options(self, source: Source) -> str:
        """The expression of a file's options: other modes make none."""
        return options_of_mode(self, source)

    def say(
        self, source: Source, node: cst.CSTNode, code: str, verdict: Verdict, reason: str
    ) -> None:
        """Say something of the line on which a node of either tree begins."""
        super().say(self._sources.get(source, source), node, code, verdict, reason)

    def test(self, source: Source, node: cst.CSTNode) -> str:
        """The text of "this run is in the new mode" where a node is.

        Raises:
            NoRouteError: nothing there knows the mode.
        """
        assert isinstance(source, Specialised)
        mode = self._mode(source, node)
        return f"{mode} == {self._name(source)}.{self.modes.new}"

    def _condition(self, source: Specialised, node: cst.CSTNode) -> str:
        where = source.enclosing(node, cst.FunctionDef) or source.module
        if where not in self._conditions:
            try:
                self._conditions[where] = self.test(source, node)
            except NoRouteError as error:
                self.say(source, node, "ABP909", Verdict.BLOCKED, f"{_UNKNOWN} ({error})")
                self._conditions[where] = "None == None"  # nothing is written
        return self._conditions[where]

    def _name(self, source: Specialised) -> str:
        """How a file calls the enumeration."""
        names = self.modes.names(source.whole)
        if names:
            return names[0]
        module = self.modes.source.name.removesuffix(".py").replace("/", ".")
        name = self.modes.cls.name.value
        self.edits(source).need(f"from {module} import {name}")
        return name

    def _mode(self, source: Specialised, node: cst.CSTNode) -> str:
        """The expression that gives the mode where a node is."""
        for code in self._visible(source, node):
            return code
        function = source.enclosing(node, cst.FunctionDef)
        if function is None or not self._callers_know(function, set()):
            raise NoRouteError("no condition where this is called asks for it")
        return self._argument(source, function)

    def _callers_know(self, function: cst.FunctionDef, seen: set[cst.FunctionDef]) -> bool:
        """Whether every call of a function is where the mode is known, or can be."""
        calls = self.things.calls(function)
        if function in seen or not calls:
            return False
        seen.add(function)
        for call, source in calls.items():
            assert isinstance(source, Specialised)
            caller = source.enclosing(call, cst.FunctionDef)
            if next(self._visible(source, call), None) is None and (
                caller is None or not self._callers_know(caller, seen)
            ):
                return False
        return True

    def _argument(self, source: Specialised, function: cst.FunctionDef) -> str:
        """Have a function take the mode as one more argument; its name."""
        if function in self._arguments:
            return self._arguments[function]
        name = self._arguments[function] = self.name(source, "compute_mode")
        self.edits(source).always(function.params, lambda node: with_parameter(node, name))
        reason = f"{name} is one more argument: the mode of the run"
        self.say(source, function, "ABP304", Verdict.MODIFIED, reason)
        for call, caller in self.things.calls(function).items():
            assert isinstance(caller, Specialised)
            mode = self._mode(caller, call)
            self.edits(caller).give(call, keyword(name, mode), always=True)
        return name

    def _visible(self, source: Specialised, node: cst.CSTNode) -> Iterator[str]:
        """Expressions of the program that give the mode and are known where a node is."""
        whole = source.whole
        around = [*whole.above(source.origin(node))]
        for owner in around:
            if not isinstance(owner, cst.FunctionDef | cst.Module | cst.ClassDef):
                continue
            for at, mode in self._mode_expressions:
                if _root(mode) == "self":
                    cls = at.enclosing(mode, cst.ClassDef)
                    if (
                        isinstance(owner, cst.ClassDef)
                        and cls is not None
                        and self._kin(owner, cls)
                    ):
                        yield at.code(mode)
                elif at is whole and self._owner(at, mode) is owner:
                    yield at.code(mode)

    def _kin(self, one: cst.ClassDef, other: cst.ClassDef) -> bool:
        """Whether one class is derived from the other."""
        return other in self.whole.bases(one) or one in self.whole.bases(other)

    def _owner(self, source: Source, node: cst.BaseExpression) -> Owner:
        """The function, or module, whose variable an expression begins with."""
        for each in source.above(node):
            if isinstance(each, cst.FunctionDef) and _root(node) in local_names(each):
                return each
        return source.module


def _root(node: cst.BaseExpression) -> str:
    while isinstance(node, cst.Attribute):
        node = node.value
    return node.value if isinstance(node, cst.Name) else ""
