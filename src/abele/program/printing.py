"""Programs as text: valid Python, with shapes, dtypes, roles and the user's source lines.

Two forms come from here. With provenance it is for people: header, phases, source lines. Without,
it is canonical: node names are counted, nothing depends on paths or times. With strides, equal
texts also mean equal layouts, so that it can be hashed.
"""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from abele import libraries
from abele.containers import is_sequence
from abele.program.core import (
    identifier,
    is_getitem,
    marks_of,
    node_argument,
    output_node,
    returned_nodes,
    subgraphs,
)

if TYPE_CHECKING:
    from abele.program.core import Program, Slot

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
    """Whether a stack frame of ``file`` is torch's or this project's, or generated code."""
    return libraries.has_file(file) or file.startswith("<eval_with_key>")


def user_line(stack_trace: str | None) -> tuple[str, int, str] | None:
    """File, line and function of the innermost frame outside torch and this project."""
    frames = list(_FRAME.finditer(stack_trace or ""))
    for match in reversed(frames):
        if not is_library(match["file"]):
            return match["file"], int(match["line"]), match["function"]
    return None


def hide_frames(program: Program, fragments: Sequence[str]) -> None:
    """Forgets stack frames of files whose path holds one of ``fragments``.

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
    """``f32[16, 1, 28, 28]`` for a tensor, a tuple of such for several results."""
    if isinstance(value, torch.Tensor):
        return f"{_DTYPES.get(value.dtype, str(value.dtype))}{list(value.shape)}"
    if is_sequence(value):
        return f"({', '.join(type_text(item) for item in value)})"
    return type(value).__name__


def _layout_text(value: Any) -> str:
    """``f32[16, 10] strides [1, 16]`` for a tensor, a tuple of such for several results.

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
    """Prints ``program``; see ``Program.text``.

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
    """``forward``, ``backward`` or ``update``, as marked by capture."""
    return marks_of(node).get("phase")


def _header(program: Program) -> list[str]:
    lines = [f"# program {program.name}"]
    for stamp in program.history:
        lines.append(f"# {stamp.by}: {stamp.nodes} nodes, {stamp.seconds * 1e3:.0f} ms")
    return lines


def node_lines(program: Program) -> list[str]:
    """A line for each operation; its names are those of the graph, which outlive passes."""
    names = {node: node.name for node in program.graph.graph.nodes}
    calls = (node for node in names if node.op not in ("placeholder", "output"))
    return [_statement(node, names) for node in calls if not _names_a_graph(node, program.graph)]


def _node_names(program: Program) -> dict[torch.fx.Node, str]:
    """One name per node; ``a.b`` and ``a_b`` must not become the same, or hashes would agree."""
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
    """The graph of a loop or branch as a function inside its program."""
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
    """``nan``, or a name with all bits if they are not those of ``math.nan``."""
    usual, here = (struct.pack(">d", each) for each in (math.nan, value))
    return "nan" if here == usual else f"nan_{here.hex()}"


def _source_text(node: torch.fx.Node) -> str | None:
    frame = user_line(node.meta.get("stack_trace"))
    if frame is None:
        return None
    file, line, function = frame
    return f"{Path(file).name}:{line} in {function}"
