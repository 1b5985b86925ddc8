"""Graph editing for passes: copy the graph, change the copy, and return a new program."""

from __future__ import annotations

import contextlib
import contextvars
from collections.abc import Callable, Generator
from typing import Any

import torch

from abele import _torch
from abele._torch.copies import copied_graph
from abele.contexts import held
from abele.program import Program, subgraphs

# The graph made by the previous pass, while no other code refers to it.
_passing = contextvars.ContextVar("passing", default=False)
_private: contextvars.ContextVar[torch.fx.GraphModule | None]
_private = contextvars.ContextVar("private", default=None)


@contextlib.contextmanager
def one_after_the_other() -> Generator[None]:
    """Let passes edit the previous pass's graph in place instead of a copy, in a context.

    Intermediate programs are then invalid, and graphs are linted once, after the last pass that
    changes them. A pass that changes the graph must call ``finished``. The context is reentrant.
    """
    if _passing.get():
        yield
        return
    try:
        with held(_passing, True):
            yield
            _hand_on(None)
    finally:
        _private.set(None)


def _hand_on(graph: torch.fx.GraphModule | None) -> None:
    """Let the next pass change ``graph`` in place; lint the previous graph if it is another one."""
    before = _private.get()
    _private.set(graph)
    if before is not None and before is not graph:
        before.graph.lint()


def editable(program: Program) -> torch.fx.GraphModule:
    """Return a copy of the program's graph that shares constants but no nodes."""
    if program.graph is _private.get():
        return program.graph
    return _torch.graph_module(program.graph, copied_graph(program.graph.graph))


def finished(program: Program, graph: torch.fx.GraphModule) -> Program:
    """Return the program with an edited ``graph``."""
    graph.recompile()  # marks the generated code as out of date
    if _passing.get():
        _hand_on(graph)
    else:
        graph.graph.lint()
    return program.replace(graph=graph)


def inserted(before: torch.fx.Node, target: Any, *arguments: Any, **options: Any) -> torch.fx.Node:
    """Insert a node before another, with that node's metadata and a fake value.

    Args:
        before: reads a tensor, whose fake mode computes the new value.
        target: what the node calls.
        arguments: positional arguments; nodes stand for their values.
        options: keyword arguments.
    """
    with before.graph.inserting_before(before):
        made = before.graph.call_function(target, arguments, options)
    given: Any = torch.fx.map_arg(arguments, lambda each: each.meta["val"])
    named: Any = torch.fx.map_arg(options, lambda each: each.meta["val"])
    with before.all_input_nodes[0].meta["val"].fake_mode, torch.no_grad():
        made.meta = {**before.meta, "val": target(*given, **named)}
    return made


def rewritten_where(
    program: Program,
    matches: Callable[[torch.fx.Node], bool],
    rewrite: Callable[[torch.fx.Node], None],
) -> Program:
    """Rewrite every matching node of the program, also in bodies of loops.

    Subgraphs are changed in place: only passes that run after a target has copied the subgraphs
    (``on_device`` does) may use it. A program without a match is returned unchanged.
    """
    if not _any_match(program.graph, matches):
        return program
    graph = editable(program)
    _rewrite_where(graph, matches, rewrite)
    return finished(program, graph)


def _any_match(graph: torch.fx.GraphModule, matches: Callable[[torch.fx.Node], bool]) -> bool:
    here = any(map(matches, graph.graph.nodes))
    return here or any(_any_match(inner, matches) for _, inner in subgraphs(graph))


def _rewrite_where(
    graph: torch.fx.GraphModule,
    matches: Callable[[torch.fx.Node], bool],
    rewrite: Callable[[torch.fx.Node], None],
) -> None:
    for node in list(graph.graph.nodes):
        if matches(node):
            rewrite(node)
    for _, inner in list(subgraphs(graph)):
        _rewrite_where(inner, matches, rewrite)
        inner.recompile()
