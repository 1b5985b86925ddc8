"""A program: one FX graph whose every input and output has a role.

Capture makes programs, passes rewrite them, targets compile them, the session runs them. A program
is pure except for ``copy_`` into its own inputs at the end: the state it updates.
"""

from __future__ import annotations

import dataclasses
import enum
import keyword
import operator
import re
from collections.abc import Iterator
from typing import Any, cast

import torch

from abele._torch import OpOverload, schema_of
from abele._torch.copies import called_targets
from abele.errors import ProgramError

# Torch says that they draw random numbers, for dropout. That of processors refuses dropout;
# programs have the others without.
_WITHOUT_DROPOUT = {
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default,
    torch.ops.aten._scaled_dot_product_efficient_attention.default,
    torch.ops.aten._scaled_dot_product_efficient_attention_backward.default,
}


class Role(enum.StrEnum):
    """What an input or output of a program is for."""

    PARAMETER = "parameter"
    BUFFER = "buffer"
    OPTIMIZER_STATE = "optimizer_state"
    ACCUMULATOR = "accumulator"
    HYPER = "hyper"
    COUNTER = "counter"
    INPUT = "input"
    OUTPUT = "output"
    MAGNITUDES = "magnitudes"
    ANCHOR = "anchor"  # a tensor from inside, returned because somebody wants to see it


@dataclasses.dataclass(frozen=True, kw_only=True)
class Slot:
    """One input or output of a program.

    Attributes:
        name: the user's name for it: ``conv1.weight``, ``group0.lr``, ``input0``.
        role: what it is for.
        shape: its shape for one micro-batch.
        dtype: its element type.
        mutated: the program writes a new value into it (inputs only).
    """

    name: str
    role: Role
    shape: tuple[int, ...]
    dtype: torch.dtype
    mutated: bool = False


@dataclasses.dataclass(frozen=True, kw_only=True)
class Stamp:
    """Who changed a program, how long it took, and how many nodes it left."""

    by: str
    seconds: float
    nodes: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class Check:
    """One operation that is watched for infinities and NaN.

    Attributes:
        magnitude: index of its result in the output of role ``MAGNITUDES``.
        sources: indices of its operands there.
        overflow: magnitude from which its type holds an infinity.
        infinite_constant: an operand is a constant infinity, so infinite results are no news.
        operator: ``aten.div.Tensor``.
        phase: ``forward``, ``backward`` or ``update``.
        scope: path of the module, names joined by ``/``; empty outside all.
        line: ``FILE:LINE in FUNCTION`` of the user's source, if known.
        is_comparison: it orders its operands, of which ``magnitude`` is one, and none may be NaN.
    """

    magnitude: int
    sources: tuple[int, ...]
    overflow: float
    infinite_constant: bool
    operator: str
    phase: str
    scope: str
    line: str
    is_comparison: bool = False


@dataclasses.dataclass(frozen=True, kw_only=True)
class Program:
    """A static program and the meaning of its inputs and outputs.

    Attributes:
        name: ``step``, ``accumulate``, ``apply`` or ``forward``.
        graph: the operations, one placeholder per input slot, in order.
        inputs: roles of the placeholders.
        outputs: roles of the returned values.
        history: one stamp per stage that made or changed it.
        checks: operations watched for infinities and NaN; see ``passes.trap_exceptions``.
    """

    name: str
    graph: torch.fx.GraphModule
    inputs: tuple[Slot, ...]
    outputs: tuple[Slot, ...]
    history: tuple[Stamp, ...] = ()
    checks: tuple[Check, ...] = ()

    def replace(self, **changes: object) -> Program:
        """A copy with some fields changed."""
        return dataclasses.replace(self, **changes)

    def placeholders(self) -> list[torch.fx.Node]:
        """The input nodes, in slot order."""
        return self.graph.graph.find_nodes(op="placeholder")

    @property
    def uses_random(self) -> bool:
        """Whether running it draws random numbers."""
        tag = torch.Tag.nondeterministic_seeded
        operators = set(operators_called(self.graph)) - _WITHOUT_DROPOUT
        return any(tag in operator.tags for operator in operators)

    def text(self, *, provenance: bool = True) -> str:
        """The program as Python, with shapes, dtypes and the user's source lines."""
        from abele.program.printing import program_text

        return program_text(self, provenance=provenance)

    def fingerprint(self) -> str:
        """Return a digest of everything in the program that decides its code.

        See ``abele.program.fingerprint``.
        """
        from abele.program.fingerprint import fingerprint

        return fingerprint(self)

    def verify(self) -> Program:
        """Checks the rules every stage may rely on and returns the program.

        Raises:
            ProgramError: naming the slot or node that breaks a rule.
        """
        _verify_inputs(self)
        _verify_outputs(self)
        _verify_writes(self)
        return self


def _verify_inputs(program: Program) -> None:
    placeholders = program.placeholders()
    if len(placeholders) != len(program.inputs):
        raise ProgramError(
            f"Program {program.name!r} has {len(placeholders)} placeholders for "
            f"{len(program.inputs)} input slots."
        )
    # A parameter may be called like an input: a name is unique among slots of its role.
    names = [(slot.role, slot.name) for slot in program.inputs]
    if len(set(names)) != len(names):
        twice = sorted({name for role, name in names if names.count((role, name)) > 1})
        raise ProgramError(f"Program {program.name!r} has input slots named alike: {twice}.")
    for node, slot in zip(placeholders, program.inputs, strict=True):
        _verify_value(program, slot, node)


def _verify_outputs(program: Program) -> None:
    returned = returned_nodes(program.graph)
    if len(returned) != len(program.outputs):
        raise ProgramError(
            f"Program {program.name!r} returns {len(returned)} values for "
            f"{len(program.outputs)} output slots."
        )
    for node, slot in zip(cast("list[object]", returned), program.outputs, strict=True):
        if not isinstance(node, torch.fx.Node):
            raise ProgramError(
                f"Output {slot.name!r} of program {program.name!r} is not a node: {node!r}."
            )
        _verify_value(program, slot, node)


def _verify_value(program: Program, slot: Slot, node: torch.fx.Node) -> None:
    value = node.meta.get("val")
    actual = (tuple(value.shape), value.dtype) if isinstance(value, torch.Tensor) else value
    if actual != (slot.shape, slot.dtype):
        raise ProgramError(
            f"Slot {slot.name!r} of program {program.name!r} says {slot.shape} {slot.dtype}, "
            f"its node {node.name!r} holds {actual}."
        )


def _verify_writes(program: Program) -> None:
    """Only ``copy_`` into a slot marked ``mutated`` may write, and every such slot is written."""
    slots = dict(zip(program.placeholders(), program.inputs, strict=True))
    written: set[str] = set()
    for node in _writing(program.graph.graph):
        target = node_argument(node, 0)
        if node.target is not torch.ops.aten.copy_.default or target not in slots:
            raise ProgramError(
                f"Program {program.name!r} writes in place at node {node.name!r} ({node.target}), "
                "only copy_ into an input slot may."
            )
        written.add(slots[target].name)
    for _, inner in subgraphs(program.graph):
        for each in all_graphs(inner):
            for node in _writing(each.graph):
                raise ProgramError(
                    f"Program {program.name!r} writes in place inside a loop or a branch, at node "
                    f"{node.name!r} ({node.target}); only copy_ into an input slot may."
                )
    claimed = {slot.name for slot in program.inputs if slot.mutated}
    if claimed != written:
        raise ProgramError(
            f"Program {program.name!r} claims to write {sorted(claimed)}, writes {sorted(written)}."
        )


def _writing(graph: torch.fx.Graph) -> Iterator[torch.fx.Node]:
    """The nodes that change an argument, by operator: there are few, and thousands of nodes."""
    for target in called_targets(graph):
        if isinstance(target, OpOverload) and schema_of(cast("Any", target)).is_mutable:
            yield from graph.find_nodes(op="call_function", target=cast("Any", target))


def writes(node: torch.fx.Node) -> bool:
    """Whether a node changes one of its arguments in place."""
    called = called_operator(node)
    return called is not None and schema_of(called).is_mutable


_EFFECTS: set[OpOverload] = set()
# Operators of these are registered by importing this package, and do nothing but compute unless
# they are among the above.
_NAMESPACES = frozenset(("aten", "prims", "prim", "mkldnn", "quantized", "abele"))


def declare_effect(target: OpOverload) -> OpOverload:
    """Declares that an operator reaches outside the program; its schema must have ``after``.

    It prints, or calls the user's own code. See ``has_effect`` for what follows.
    """
    _EFFECTS.add(target)
    return target


def has_effect(node: torch.fx.Node) -> bool:
    """Whether a node reaches outside the program besides computing its result.

    Such nodes run once each and in the order of forward: they are neither merged nor computed
    again, and ``effects_in_order`` chains them. One whose result nobody reads is dead code.
    """
    return node.target in _EFFECTS


def calls_effect(graph: torch.fx.Graph) -> bool:
    """Whether a node of a graph has an effect; bodies of loops and branches are not looked into."""
    return not _EFFECTS.isdisjoint(called_targets(graph))


def users_operator(program: Program) -> str | None:
    """An operator that only a user's program registers, if there is one in ``program``."""
    for called in operators_called(program.graph):
        if called.namespace not in _NAMESPACES:
            return str(called)
    return None


def is_view(node: torch.fx.Node) -> bool:
    """Whether a node's results, one or several, live in the memory of its first argument."""
    called = called_operator(node)
    if called is None:
        return False
    schema = schema_of(called)
    reads = bool(schema.arguments) and not schema.is_mutable
    return reads and schema.arguments[0].alias_info is not None


def output_node(graph: torch.fx.GraphModule) -> torch.fx.Node:
    """The node that returns a graph's results."""
    return next(node for node in reversed(graph.graph.nodes) if node.op == "output")


def returned_nodes(graph: torch.fx.GraphModule) -> list[torch.fx.Node]:
    """The nodes whose values a graph returns, in order."""
    returned = output_node(graph).args[0]
    assert isinstance(returned, list | tuple)
    return cast("list[torch.fx.Node]", list(returned))  # verify() checks that each is one


def subgraphs(graph: torch.fx.GraphModule) -> Iterator[tuple[str, torch.fx.GraphModule]]:
    """The bodies of a graph's loops and branches, by the name its nodes use."""
    for node in graph.graph.find_nodes(op="get_attr"):
        inner = getattr(graph, str(node.target), None)
        if isinstance(inner, torch.fx.GraphModule):
            yield str(node.target), inner


def all_nodes(graph: torch.fx.GraphModule) -> Iterator[torch.fx.Node]:
    """The nodes of a graph and of every body inside it."""
    for each in all_graphs(graph):
        yield from each.graph.nodes


def all_graphs(graph: torch.fx.GraphModule) -> Iterator[torch.fx.GraphModule]:
    """A graph and every body inside it."""
    yield graph
    for _, inner in subgraphs(graph):
        yield from all_graphs(inner)


def operators_called(graph: torch.fx.GraphModule) -> Iterator[OpOverload]:
    """The operators that a graph and the bodies inside it call, each at least once."""
    for each in all_graphs(graph):
        for target in called_targets(each.graph):
            if isinstance(target, OpOverload):
                yield cast("Any", target)


def ancestors(*nodes: torch.fx.Node) -> set[torch.fx.Node]:
    """Every node that the values of some nodes are computed from."""
    seen: set[torch.fx.Node] = set()
    stack = [source for node in nodes for source in node.all_input_nodes]
    while stack:
        current = stack.pop()
        if current not in seen:
            seen.add(current)
            stack += current.all_input_nodes
    return seen


def node_argument(node: torch.fx.Node, index: int) -> torch.fx.Node:
    """An argument that is known to be a node."""
    argument = node.args[index]
    assert isinstance(argument, torch.fx.Node), (node, index)
    return argument


def called_operator(node: torch.fx.Node) -> OpOverload | None:
    """Return the operator that a node calls; None for other nodes."""
    target: Any = node.target
    return cast("Any", target) if isinstance(target, OpOverload) else None


def marks_of(node: torch.fx.Node) -> dict[str, Any]:
    """Return what was written on a node while it was traced; see ``abele.trace.scopes``."""
    return node.meta.get("custom") or {}


def has_tag(node: torch.fx.Node, tag: torch.Tag) -> bool:
    """Return whether the operator that a node calls has one of torch's tags."""
    called = called_operator(node)
    return called is not None and tag in called.tags


def is_getitem(node: torch.fx.Node) -> bool:
    """Whether a node picks one result of an operation with several."""
    return node.target is operator.getitem


def identifier(name: str) -> str:
    """A Python identifier that still shows the slot's name."""
    text = re.sub(r"\W+", "_", name)
    return f"_{text}" if text[:1].isdigit() or keyword.iskeyword(text) else text
