"""Values that are known during capture because they depend on neither inputs nor state."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from abele import _torch
from abele._torch import OpOverload
from abele.containers import is_sequence
from abele.program import called_operator, has_tag, is_getitem
from abele.program.aliasing import base, written
from abele.trace.plain_tensors import written_stand_in


def constant_value(tensor: torch.Tensor) -> torch.Tensor | None:
    """Return the value of a traced tensor that is computed from constants, else None."""
    mode = _torch.get_proxy_mode()
    if not isinstance(tensor, _torch.FakeTensor):
        changed = written_stand_in(tensor)
        if changed is None:
            return tensor
        tensor = changed
    node = _torch.traced_node(tensor)
    return None if node is None or mode is None else computed(node, mode.tracer)


def computed(node: torch.fx.Node, tracer: torch.fx.Tracer) -> torch.Tensor | None:
    """Return the present value of a node if it is computed from constants, else None.

    Writes into its memory and into that of its operands are taken into account, through any view.
    """
    dependencies = _dependencies(node, tracer.graph)
    if not all(map(_computes_the_same_now, dependencies)):
        return None
    with _torch.outside_the_trace(), _torch.without_torch_function_modes():
        values = _constants(dependencies, tracer.root)
        for each in tracer.graph.nodes:
            if each in dependencies and each not in values:
                args, kwargs = torch.fx.map_arg((each.args, each.kwargs), values.__getitem__)
                values[each] = each.target(*args, **kwargs)
        return values[node]


def _dependencies(node: torch.fx.Node, graph: torch.fx.Graph) -> set[torch.fx.Node]:
    """Return all nodes that a node's present value depends on: operands, and writes they see."""
    order = {each: index for index, each in enumerate(graph.nodes)}
    writers: dict[torch.fx.Node, list[torch.fx.Node]] = {}
    for each in graph.nodes:
        for target in written(each):
            writers.setdefault(base(target), []).append(each)
    dependencies: set[torch.fx.Node] = set()
    read_until: dict[torch.fx.Node, int] = {}
    stack = [(node, len(order))]
    while stack:
        current, time = stack.pop()
        memory = base(current)
        if read_until.get(memory, 0) < time:
            read_until[memory] = time
            stack += [(each, order[each]) for each in writers.get(memory, ()) if order[each] < time]
        if current not in dependencies:
            dependencies.add(current)
            stack += [(source, order[current]) for source in current.all_input_nodes]
    return dependencies


def _constants(
    nodes: set[torch.fx.Node], root: torch.nn.Module
) -> dict[torch.fx.Node, torch.Tensor]:
    """Return the constants among nodes; those that other nodes write into are copies."""
    named = {node: getattr(root, str(node.target)) for node in nodes if node.op == "get_attr"}
    changed = {base(target) for node in nodes for target in written(node)}
    memories: dict[torch.fx.Node, torch.UntypedStorage] = {}
    for node, value in named.items():
        memory = base(node)
        if memory in changed:
            if memory not in memories:
                memories[memory] = value.untyped_storage().clone()
            layout = value.storage_offset(), value.shape, value.stride()
            named[node] = torch.empty(0, dtype=value.dtype, device=value.device).set_(
                memories[memory], *layout
            )
    return named


def results(
    function: OpOverload,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    value_of: Callable[[torch.Tensor], torch.Tensor | None],
) -> Any:
    """Return what an operator returns if ``value_of`` knows each of its tensors, else None."""
    missing = False

    def value(each: Any) -> Any:
        nonlocal missing
        if is_sequence(each):
            return type(each)(value(item) for item in each)
        if not isinstance(each, torch.Tensor):
            return each
        constant = value_of(each)
        missing = missing or constant is None
        return constant

    args = [value(each) for each in args]
    kwargs = {name: value(each) for name, each in kwargs.items()}
    if missing:
        return None
    with _torch.outside_the_trace(), _torch.without_torch_function_modes():
        return function(*args, **kwargs)


def _computes_the_same_now(node: torch.fx.Node) -> bool:
    """Return whether it is a constant or an operation that draws no numbers."""
    of_graph = node.op == "get_attr" or is_getitem(node) or _is_of_torch(node)
    return of_graph and not has_tag(node, torch.Tag.nondeterministic_seeded)


def _is_of_torch(node: torch.fx.Node) -> bool:
    """Return whether an operator is torch's; host calls and prints may differ from run to run."""
    operator = called_operator(node)
    return operator is not None and operator.namespace == "aten"
