"""Finds values that change between epochs and not within: a program takes them as inputs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import libcst as cst
from libcst import matchers as m

from abele.port.analysis.flow import reads, writes
from abele.port.analysis.kinds import Kind, Thing
from abele.port.analysis.numbers import given_others, is_number
from abele.port.analysis.parts import StepError
from abele.port.analysis.scopes import local_names
from abele.port.analysis.search import findall
from abele.port.analysis.things import Things
from abele.port.project import Owner
from abele.port.source import Source

_DISPLAYS = cst.Dict | cst.DictComp | cst.List | cst.ListComp
_ATTRIBUTE = m.Attribute(value=m.Name("self"))


def changed_outside(
    source: Source, things: Things, node: cst.CSTNode, optimizers: Iterable[Thing]
) -> set[str]:
    """Names that get other values around a step, or in the file, once it has an optimizer.

    Args:
        source: the file.
        things: what its names stand for.
        node: of the step.
        optimizers: that update: what is made anew with them is the same for all of their steps.
    """
    owner = things.owner(source, node)
    made = {each for thing in optimizers for each in thing.source.above(thing.made)}
    around = source.between(node, owner)
    loops = [each for each in around if isinstance(each, cst.For | cst.While)]
    names = set[str]().union(*(writes(each) for each in loops if each not in made))
    if isinstance(owner, cst.FunctionDef):
        names |= _of_file(source, things, made) - local_names(owner)
        names |= given_others(things, owner, made)
        names |= _derived(source, things, owner, node, names)
    return names - _names_of_things(source, things, owner)


def _derived(
    source: Source, things: Things, owner: cst.FunctionDef, node: cst.CSTNode, slow: set[str]
) -> set[str]:
    """Numbers that a function computes, before the loop of a step, from names with other values."""
    loop = source.enclosing(node, cst.For, cst.While, cst.FunctionDef)
    names: set[str] = set()
    for each in findall(owner.body, m.Assign(targets=[m.AssignTarget(m.Name())])):
        inside = loop is not None and loop in (each, *source.above(each))
        if loop is owner or inside or things.owner(source, each) is not owner:
            continue
        if (slow | names) & {*reads(each.value)} and is_number(source, things, each.value):
            names |= {*writes(each)}
    return names


def varies(source: Source, value: cst.BaseExpression, made: Iterable[Thing] = ()) -> bool:
    """Whether an expression may have another value when it is evaluated again, in its function.

    Args:
        source: the file.
        value: the expression.
        made: what is made anew in loops that do not count.
    """
    names = {*reads(value)}
    anew = {each for thing in made for each in thing.source.above(thing.made)}
    for loop in source.above(value):
        if isinstance(loop, cst.FunctionDef):
            break
        if isinstance(loop, cst.For | cst.While) and loop not in anew and names & {*writes(loop)}:
            return True
    return False


def check_functions(
    source: Source, things: Things, forward: Sequence[cst.CSTNode], slow: set[str]
) -> None:
    """What a program calls is the same function in each update.

    Args:
        source: the file.
        things: what its names stand for.
        forward: the statements of the program.
        slow: names that get other values.

    Raises:
        StepError: it gets others.
    """
    for statement in forward:
        for call in findall(statement, m.Call(func=m.Name())):
            name = call.func.value
            if name in slow and not things.of(source, call.func):
                raise StepError(
                    call,
                    f"{name} becomes another function later, and a compiled program keeps the "
                    "first: use one function, and pass what changes to it as a tensor",
                )


def is_display(source: Source, name: str) -> bool:
    """Whether a name is given dictionaries or lists, which a program takes as they are."""
    assigns = findall(source.module, m.Assign(targets=[m.AssignTarget(m.Name(name))]))
    return any(isinstance(each.value, _DISPLAYS) for each in assigns)


def _of_file(source: Source, things: Things, made: set[cst.CSTNode]) -> set[str]:
    """Names of the file that loops in it, or functions, give other values."""
    names: set[str] = set()
    for node in findall(source.module, m.For() | m.While() | m.AugAssign() | m.Global()):
        if isinstance(node, cst.Global):
            names |= {each.name.value for each in node.names}
        elif things.owner(source, node) is source.module and node not in made:
            names |= set(writes(node))
    return names


def _names_of_things(source: Source, things: Things, owner: Owner) -> set[str]:
    """Names of models, losses and loaders, which a program has or does not need."""
    every = [thing for kind in Kind for thing in things.all(kind)]
    owners = (owner, source.module)
    return {name for thing in every for each in owners for name in things.names(each, thing)}


def is_changed(source: Source, attribute: cst.Attribute) -> bool:
    """Whether an attribute of ``self`` gets other values once the object is made.

    Args:
        source: the file.
        attribute: of ``self``.
    """
    same = m.Attribute(value=m.Name("self"), attr=m.Name(attribute.attr.value))
    if findall(source.module, m.AugAssign(target=same)):
        return True
    targets = findall(source.module, m.AssignTarget(target=same))
    later = [each for each in targets if not _is_made(source, each)]
    return any(source.enclosing(each, cst.For, cst.While) for each in later) or (
        len(targets) > 1 and bool(later)
    )


def _is_made(source: Source, node: cst.CSTNode) -> bool:
    """Whether a node is in a constructor."""
    function = source.enclosing(node, cst.FunctionDef)
    return function is not None and function.name.value == "__init__"
