"""Passes a wrapped model from where it is made to the functions that call it."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import libcst as cst

from abele.port.analysis.kinds import Thing
from abele.port.analysis.things import NoHomeError
from abele.port.edits import keyword
from abele.port.finding import Verdict
from abele.port.layout import with_one_more
from abele.port.project import Owner
from abele.port.source import Source

if TYPE_CHECKING:
    from abele.port.context import Context


@dataclasses.dataclass(frozen=True, eq=False)
class Wrapped:
    """A wrapped model.

    Attributes:
        name: of its variable, perhaps ``self.something``.
        source: the file that makes it.
        owner: the function, module or class that has the variable.
    """

    name: str
    source: Source
    owner: Owner


@dataclasses.dataclass
class _Argument:
    """A new parameter of a function: name, file, and the argument of each call."""

    name: str
    source: Source
    values: list[tuple[cst.Call, Source, str]]


class NoRouteError(Exception):
    """Error: a wrapped model cannot be passed to its call."""


class Routes:
    """Passes wrapped models on as arguments, each once."""

    def __init__(self, context: Context):
        """Begin.

        Args:
            context: the program; its functions and calls are changed.
        """
        self._context = context
        self._passed: dict[tuple[Wrapped, cst.FunctionDef], str] = {}

    def name(self, wrapped: Wrapped, source: Source, node: cst.CSTNode) -> str:
        """Return the name of a wrapped model at a node.

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
        """Return the name at a node; append parameters that functions need to ``new``."""
        if source is wrapped.source and self._sees(wrapped, source, node):
            return wrapped.name
        function = source.enclosing(node, cst.FunctionDef)
        if function is None:
            raise NoRouteError("it is wrapped in another file")
        return self._argument(wrapped, source, function, new)

    def name_of(self, thing: Thing, source: Source, node: cst.CSTNode) -> str:
        """Return the name of an optimizer or another created object at a node.

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
        """Return the variable that holds an object.

        Raises:
            NoRouteError: there is none, or there are several.
        """
        try:
            home = self._context.things.home(thing)
        except NoHomeError as error:
            raise NoRouteError(str(error)) from error
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
        """Plan that a function has the model as one more argument."""
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
        """Have a function take one more argument, and its callers give it."""
        name, source = argument.name, argument.source
        self._say(source, function, f"{name} is one more argument: it is made where its parts are")
        self._context.edits(source).change(function.params, lambda node: with_parameter(node, name))
        for call, caller, value in argument.values:
            self._say(caller, call, f"{function.name.value}() is given {value}")
            self._context.edits(caller).give(call, keyword(name, value))

    def _say(self, source: Source, node: cst.CSTNode, reason: str) -> None:
        self._context.say(source, node, "ABP304", Verdict.MODIFIED, reason)


def with_parameter(params: cst.Parameters, name: str) -> cst.Parameters:
    """Return parameters with one more of some name."""
    new = cst.Param(cst.Name(name))
    if params.star_arg is not cst.MaybeSentinel.DEFAULT or params.kwonly_params:
        return params.with_changes(kwonly_params=with_one_more(params.kwonly_params, new))
    if any(each.default is not None for each in params.params):
        new = new.with_changes(default=cst.Name("None"), equal=cst.AssignEqual(*_TIGHT))
    return params.with_changes(params=with_one_more(params.params, new))


_TIGHT = (cst.SimpleWhitespace(""), cst.SimpleWhitespace(""))
