"""Programs: FX graphs whose inputs and outputs have roles.

Capture makes programs, passes rewrite them, targets compile them, the session runs them. A program
is pure except for ``copy_`` into its own inputs at the end: the state it updates.
"""

from __future__ import annotations

import dataclasses
import enum
import hashlib
import keyword
import math
import operator
import re
import struct
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, cast

import torch

from abele import libraries
from abele._torch import OpOverload, schema_of
from abele._torch.copies import called_targets
from abele.containers import is_sequence, traverse
from abele.errors import ProgramError
from abele.storage.values import raw_bytes

# Operators that torch tags as random, for dropout. The CPU's refuses dropout; programs call the
# others without dropout.
_WITHOUT_DROPOUT = {
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default,
    torch.ops.aten._scaled_dot_product_efficient_attention.default,
    torch.ops.aten._scaled_dot_product_efficient_attention_backward.default,
}


class Role(enum.StrEnum):
    """Purpose of an input or output of a program."""

    PARAMETER = "parameter"
    BUFFER = "buffer"
    OPTIMIZER_STATE = "optimizer_state"
    ACCUMULATOR = "accumulator"
    HYPER = "hyper"
    COUNTER = "counter"
    INPUT = "input"
    OUTPUT = "output"
    MAGNITUDES = "magnitudes"
    ANCHOR = "anchor"  # an intermediate tensor, returned for observation


@dataclasses.dataclass(frozen=True, kw_only=True)
class Slot:
    """An input or output of a program.

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
    """A change of a program: the pass, its seconds, and the number of nodes afterwards."""

    by: str
    seconds: float
    nodes: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class Check:
    """An operation whose result is checked for infinities and NaN.

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
    """A static program: an FX graph with the roles of its inputs and outputs.

    Attributes:
        name: ``step``, ``accumulate``, ``apply`` or ``forward``.
        graph: the operations, one placeholder per input slot, in order.
        inputs: roles of the placeholders.
        outputs: roles of the returned values.
        history: one stamp per stage that created or changed the program.
        checks: operations watched for infinities and NaN; see ``passes.trap_exceptions``.
    """

    name: str
    graph: torch.fx.GraphModule
    inputs: tuple[Slot, ...]
    outputs: tuple[Slot, ...]
    history: tuple[Stamp, ...] = ()
    checks: tuple[Check, ...] = ()

    def replace(self, **changes: object) -> Program:
        """Return a copy of the program with some fields changed."""
        return dataclasses.replace(self, **changes)

    def placeholders(self) -> list[torch.fx.Node]:
        """Return a program's input nodes, in slot order."""
        return self.graph.graph.find_nodes(op="placeholder")

    @property
    def uses_random(self) -> bool:
        """True if a run of the program draws random numbers."""
        tag = torch.Tag.nondeterministic_seeded
        operators = set(operators_called(self.graph)) - _WITHOUT_DROPOUT
        return any(tag in operator.tags for operator in operators)

    def text(self, *, provenance: bool = True) -> str:
        """Return the program as Python, with shapes, dtypes and the user's source lines."""
        return program_text(self, provenance=provenance)

    def fingerprint(self) -> str:
        """Return a digest of everything in the program that affects generated code."""
        return fingerprint(self)

    def verify(self) -> Program:
        """Return the program, or raise ProgramError naming the slot or node that breaks a rule."""
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
    """Check that only ``copy_`` writes, to each slot marked ``mutated`` and no other."""
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
    """Yield the nodes that write to an argument; searches by operator, which is fast."""
    for target in called_targets(graph):
        if isinstance(target, OpOverload) and schema_of(cast("Any", target)).is_mutable:
            yield from graph.find_nodes(op="call_function", target=cast("Any", target))


def writes(node: torch.fx.Node) -> bool:
    """Return whether a node changes one of its arguments in place."""
    called = called_operator(node)
    return called is not None and schema_of(called).is_mutable


_EFFECTS: set[OpOverload] = set()
# Namespaces whose operators are registered by importing this package, and have no side effects
# unless they are in ``_EFFECTS``.
_NAMESPACES = frozenset(("aten", "prims", "prim", "mkldnn", "quantized", "abele"))


def declare_effect(target: OpOverload) -> OpOverload:
    """Declare that an operator has side effects; its schema must have ``after``.

    It prints, or calls the user's own code. See ``has_effect`` for what follows.
    """
    _EFFECTS.add(target)
    return target


def has_effect(node: torch.fx.Node) -> bool:
    """Return whether a node has side effects besides computing its result.

    Such nodes run once each and in the order of forward: they are neither merged nor computed
    again, and ``effects_in_order`` chains them. A node with unused result is dead code.
    """
    return node.target in _EFFECTS


def calls_effect(graph: torch.fx.Graph) -> bool:
    """Return whether a node of a graph has side effects, loop and branch bodies excluded."""
    return not _EFFECTS.isdisjoint(called_targets(graph))


def users_operator(program: Program) -> str | None:
    """Return an operator of a program that only user code registers, or None."""
    for called in operators_called(program.graph):
        if called.namespace not in _NAMESPACES:
            return str(called)
    return None


def is_view(node: torch.fx.Node) -> bool:
    """Return whether all results of a node are views of its first argument."""
    called = called_operator(node)
    if called is None:
        return False
    schema = schema_of(called)
    reads = bool(schema.arguments) and not schema.is_mutable
    return reads and schema.arguments[0].alias_info is not None


def output_node(graph: torch.fx.GraphModule) -> torch.fx.Node:
    """Return the output node of a graph."""
    return next(node for node in reversed(graph.graph.nodes) if node.op == "output")


def returned_nodes(graph: torch.fx.GraphModule) -> list[torch.fx.Node]:
    """Return the nodes whose values a graph returns, in order."""
    returned = output_node(graph).args[0]
    assert isinstance(returned, list | tuple)
    return cast("list[torch.fx.Node]", list(returned))  # verify() checks that each is one


def subgraphs(graph: torch.fx.GraphModule) -> Iterator[tuple[str, torch.fx.GraphModule]]:
    """Yield the bodies of a graph's loops and branches, by attribute name."""
    for node in graph.graph.find_nodes(op="get_attr"):
        inner = getattr(graph, str(node.target), None)
        if isinstance(inner, torch.fx.GraphModule):
            yield str(node.target), inner


def all_nodes(graph: torch.fx.GraphModule) -> Iterator[torch.fx.Node]:
    """Yield the nodes of a graph and of every body inside it."""
    for each in all_graphs(graph):
        yield from each.graph.nodes


def all_graphs(graph: torch.fx.GraphModule) -> Iterator[torch.fx.GraphModule]:
    """Yield a graph and every loop or branch body inside it."""
    yield graph
    for _, inner in subgraphs(graph):
        yield from all_graphs(inner)


def operators_called(graph: torch.fx.GraphModule) -> Iterator[OpOverload]:
    """Yield the operators that a graph and the bodies inside it call, each at least once."""
    for each in all_graphs(graph):
        for target in called_targets(each.graph):
            if isinstance(target, OpOverload):
                yield cast("Any", target)


def ancestors(*nodes: torch.fx.Node) -> set[torch.fx.Node]:
    """Return every node from which the values of some nodes are computed."""
    sources = (source for node in nodes for source in node.all_input_nodes)
    return {*traverse(sources, lambda node: node.all_input_nodes)}


def node_argument(node: torch.fx.Node, index: int) -> torch.fx.Node:
    """Return an argument of a node that is a node itself."""
    argument = node.args[index]
    assert isinstance(argument, torch.fx.Node), (node, index)
    return argument


def called_operator(node: torch.fx.Node) -> OpOverload | None:
    """Return the operator that a node calls; None for other nodes."""
    target: Any = node.target
    return cast("Any", target) if isinstance(target, OpOverload) else None


def marks_of(node: torch.fx.Node) -> dict[str, Any]:
    """Return the marks recorded on a node while it was traced; see ``abele.trace.scopes``."""
    return node.meta.get("custom") or {}


def has_tag(node: torch.fx.Node, tag: torch.Tag) -> bool:
    """Return whether the operator that a node calls has one of torch's tags."""
    called = called_operator(node)
    return called is not None and tag in called.tags


def is_getitem(node: torch.fx.Node) -> bool:
    """Return whether a node picks one result of an operation with several."""
    return node.target is operator.getitem


def identifier(name: str) -> str:
    """Convert a slot's name to a Python identifier."""
    text = re.sub(r"\W+", "_", name)
    return f"_{text}" if text[:1].isdigit() or keyword.iskeyword(text) else text


_DTYPES = {
    torch.float32: "f32",
    torch.float64: "f64",
    torch.float16: "f16",
    torch.bfloat16: "bf16",
    torch.int64: "i64",
    torch.int32: "i32",
    torch.int16: "i16",
    torch.int8: "i8",
    torch.uint8: "u8",
    torch.bool: "b8",
}
_FRAME = re.compile(r'File "(?P<file>[^"]+)", line (?P<line>\d+), in (?P<function>.+)')
_WHOLE_FRAME = re.compile(r' *File "[^"]+", line .*\n(?: {4}.*\n?)*')


def is_library(file: str) -> bool:
    """Return whether a stack frame of ``file`` is torch's, this project's, or generated code."""
    return libraries.has_file(file) or file.startswith("<eval_with_key>")


def user_line(stack_trace: str | None) -> tuple[str, int, str] | None:
    """Return file, line and function of the innermost frame outside torch and this project."""
    frames = list(_FRAME.finditer(stack_trace or ""))
    for match in reversed(frames):
        if not is_library(match["file"]):
            return match["file"], int(match["line"]), match["function"]
    return None


def line_of(node: torch.fx.Node) -> str:
    """Return the user's source line of a node, after a comma; empty if unknown."""
    line = user_line(node.stack_trace)
    return "" if line is None else f", at {line[0]}:{line[1]}"


def hide_frames(program: Program, fragments: Sequence[str]) -> None:
    """Remove stack frames of files whose path contains one of ``fragments``.

    The line that is named as the user's is then one further out.
    """
    if not fragments:
        return
    for node in program.graph.graph.nodes:
        trace = node.meta.get("stack_trace")
        if trace:
            frames = [frame for frame in _WHOLE_FRAME.findall(trace) if not _has(frame, fragments)]
            node.meta["stack_trace"] = "".join(frames)


def _has(frame: str, fragments: Sequence[str]) -> bool:
    match = _FRAME.search(frame)
    return match is not None and any(fragment in match["file"] for fragment in fragments)


def type_text(value: Any) -> str:
    """Format a tensor's dtype and shape, as in ``f32[16, 1, 28, 28]``, also for tuples."""
    if isinstance(value, torch.Tensor):
        return f"{_DTYPES.get(value.dtype, str(value.dtype))}{list(value.shape)}"
    if is_sequence(value):
        return f"({', '.join(type_text(item) for item in value)})"
    return type(value).__name__


def _layout_text(value: Any) -> str:
    """Format dtype, shape and strides, as in ``f32[16, 10] strides [1, 16]``, also for tuples.

    Strides are there for contiguous tensors too: torch leaves those of dimensions of one element
    undefined, and emitted code may multiply by them.
    """
    if isinstance(value, torch.Tensor):
        where = "" if value.device.type == "cpu" else f" on {value.device}"
        return f"{type_text(value)} strides {list(value.stride())}{where}"
    if is_sequence(value):
        return f"({', '.join(map(_layout_text, value))})"
    return type_text(value)


def program_text(program: Program, *, provenance: bool, strides: bool = False) -> str:
    """Format a program as Python; see ``Program.text``.

    Args:
        program: to be printed.
        provenance: show who changed the program, and phases and lines of the user's source.
        strides: show strides and device of each tensor.
    """
    names = _node_names(program)
    kind = _layout_text if strides else type_text
    lines = _header(program) if provenance else []
    lines.append(f"def {program.name}(")
    slots = zip(program.placeholders(), program.inputs, strict=True)
    lines += [_parameter(node, names, slot, kind) for node, slot in slots]
    lines.append("):")
    phase, source = None, None
    for name, inner in subgraphs(program.graph):
        lines += _body(name, inner, "    ", kind)
    for node in program.graph.graph.nodes:
        if node.op in ("placeholder", "output") or _names_a_graph(node, program.graph):
            continue
        if provenance:
            found_phase, found_source = node_phase(node), _source_text(node)
            if found_phase != phase:
                lines.append(f"    # -- {found_phase or 'program'}")
                phase = found_phase
            if found_source and found_source != source:
                lines.append(f"    # {found_source}")
                source = found_source
        lines.append(f"    {_statement(node, names, kind)}")
    returned = [names[node] for node in returned_nodes(program.graph)]
    lines.append(f"    return [{', '.join(returned)}]")
    return "\n".join(lines) + "\n"


def node_phase(node: torch.fx.Node) -> str | None:
    """Return a node's phase: ``forward``, ``backward`` or ``update``, as capture marked it."""
    return marks_of(node).get("phase")


def _header(program: Program) -> list[str]:
    lines = [f"# program {program.name}"]
    for stamp in program.history:
        lines.append(f"# {stamp.by}: {stamp.nodes} nodes, {stamp.seconds * 1e3:.0f} ms")
    return lines


def _node_names(program: Program) -> dict[torch.fx.Node, str]:
    """Return a unique name per node; ``a.b`` and ``a_b`` must differ, or hashes would agree."""
    names: dict[torch.fx.Node, str] = {}
    taken: set[str] = set()
    for node, slot in zip(program.placeholders(), program.inputs, strict=True):
        names[node] = _unused(identifier(slot.name), taken)
    _name_values(program.graph, names, taken)
    return names


def _name_values(
    graph: torch.fx.GraphModule, names: dict[torch.fx.Node, str], taken: set[str]
) -> None:
    for count, node in enumerate(n for n in graph.graph.nodes if n not in names):
        wanted = identifier(str(node.target)) if node.op == "get_attr" else f"v{count}"
        names[node] = _unused(wanted, taken)


def _body(
    name: str, graph: torch.fx.GraphModule, indent: str, kind: Callable[[Any], str]
) -> list[str]:
    """Format the graph of a loop or branch as a function inside its program."""
    names: dict[torch.fx.Node, str] = {}
    given = [node for node in graph.graph.nodes if node.op == "placeholder"]
    for index, node in enumerate(given):
        names[node] = f"a{index}"
    _name_values(graph, names, set(names.values()))
    lines = [f"def {name}({', '.join(names[node] for node in given)}):"]
    for inner_name, inner in subgraphs(graph):
        lines += _body(inner_name, inner, "    ", kind)
    for node in graph.graph.nodes:
        if node.op not in ("placeholder", "output") and not _names_a_graph(node, graph):
            lines.append(f"    {_statement(node, names, kind)}")
    lines.append(f"    return {_argument(output_node(graph).args[0], names)}")
    return [f"{indent}{line}" for line in lines]


def _names_a_graph(node: torch.fx.Node, graph: torch.fx.GraphModule) -> bool:
    return node.op == "get_attr" and any(node.target == name for name, _ in subgraphs(graph))


def _unused(name: str, taken: set[str]) -> str:
    while name in taken:
        name += "_"
    taken.add(name)
    return name


def _parameter(
    node: torch.fx.Node, names: dict[torch.fx.Node, str], slot: Slot, kind: Callable[[Any], str]
) -> str:
    written = ", written" if slot.mutated else ""
    return f"    {names[node]},  # {kind(node.meta['val'])} {slot.role}{written}"


def _statement(
    node: torch.fx.Node,
    names: dict[torch.fx.Node, str],
    kind: Callable[[Any], str] = type_text,
) -> str:
    if node.op == "get_attr":
        return f"{names[node]} = constant({node.target!r})  # {kind(node.meta.get('val'))}"
    if is_getitem(node):
        call = f"{names[node_argument(node, 0)]}[{node.args[1]}]"
    else:
        arguments = [_argument(argument, names) for argument in node.args]
        arguments += [f"{key}={_argument(value, names)}" for key, value in node.kwargs.items()]
        call = f"{node.target}({', '.join(arguments)})"
    return f"{names[node]} = {call}  # {kind(node.meta.get('val'))}"


def _argument(value: Any, names: dict[torch.fx.Node, str]) -> str:
    if isinstance(value, torch.fx.Node):
        return names[value]
    if is_sequence(value):
        return f"[{', '.join(_argument(item, names) for item in value)}]"
    if type(value) is float and math.isnan(value):
        return _nan_text(value)
    return str(value) if isinstance(value, torch.dtype | torch.device) else repr(value)


def _nan_text(value: float) -> str:
    """Format a NaN as ``nan``, or by its bits if they are not those of ``math.nan``."""
    usual, here = (struct.pack(">d", each) for each in (math.nan, value))
    return "nan" if here == usual else f"nan_{here.hex()}"


def _source_text(node: torch.fx.Node) -> str | None:
    frame = user_line(node.meta.get("stack_trace"))
    if frame is None:
        return None
    file, line, function = frame
    return f"{Path(file).name}:{line} in {function}"


def fingerprint(program: Program) -> str:
    """Return the digest of a program; equal digests mean equal code from the same lowering.

    Code is found without writing it again, so the digest covers all that a lowering reads:

    - nodes: the canonical text has their operators, their arguments with every bit, and shape,
      dtype, strides and device of every value, also inside loops and branches;
    - constants: their strides and bytes. Addresses in code follow from strides, and 0.0 and -0.0
      are equal and give other code. Nothing writes to constants, so shared memory is no matter;
    - slots: role, shape and dtype of each, and whether it is written.

    Phases, scopes and source lines serve reports and messages, which are made from the program.
    """
    digest = hashlib.sha256(
        program_text(program, provenance=False, strides=True).encode(errors="backslashreplace")
    )
    for name, value in sorted(dict(_constants(program.graph)).items()):
        layout = value.dtype, value.device.type, [*value.shape], [*value.stride()]
        lazy = value.storage_offset(), value.is_conj(), value.is_neg()
        digest.update(f"\0{name}\0{layout}\0{lazy}\0".encode(errors="backslashreplace"))
        digest.update(raw_bytes(value))
    return digest.hexdigest()


def _constants(graph: torch.fx.GraphModule, outer: str = "") -> Iterator[tuple[str, torch.Tensor]]:
    """Yield a graph's constant tensors by qualified name, loop and branch bodies included.

    Not ``state_dict``, which lacks tensors that are no registered buffers.
    """
    for node in graph.graph.find_nodes(op="get_attr"):
        name = str(node.target)
        value: Any = operator.attrgetter(name)(graph)
        if isinstance(value, torch.Tensor):
            yield f"{outer}{name}", value
        elif isinstance(value, torch.fx.GraphModule):
            yield from _constants(value, f"{outer}{name}.")
