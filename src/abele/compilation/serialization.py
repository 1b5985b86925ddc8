"""Serialization of programs as JSON text, with their constants as separate tensors.

What is written decides everything about a program: operations by their qualified names, arguments,
the shape and layout of each value, phases and scopes, and the user's source lines. Reading looks
operations up in ``torch.ops`` and nowhere else. Every name is checked to be an identifier, because
torch turns a graph into Python source: a name must not be able to smuggle code into it.
"""

from __future__ import annotations

import contextlib
import json
import keyword
import operator
import os
import re
from collections.abc import Generator, Iterable, Mapping
from typing import Any

import torch

import abele.ops  # noqa: F401 # pyright: ignore[reportUnusedImport] - registers our operators
from abele import _torch
from abele.errors import AbeleError, CorruptExecutable, SerializationError
from abele.program import Program, Role, Slot, Stamp
from abele.program.core import program_text, user_line
from abele.storage.container import Container
from abele.storage.values import decode, encode

FORMAT = 1
_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
# Functions of Python that a graph may call.
_FUNCTIONS: dict[str, Any] = {
    "getitem": operator.getitem,
    "set_grad_enabled": torch.set_grad_enabled,
}


def to_text(program: Program) -> tuple[str, dict[str, torch.Tensor]]:
    """Serialize a program as JSON text.

    Returns:
        The text, and the program's constants by name.

    Raises:
        SerializationError: an operation or argument that cannot be stored; names it.
    """
    data = {
        "format": FORMAT,
        "name": program.name,
        "inputs": [_slot_data(slot) for slot in program.inputs],
        "outputs": [_slot_data(slot) for slot in program.outputs],
        "history": [[stamp.by, stamp.seconds, stamp.nodes] for stamp in program.history],
        "graph": _graph_data(program.graph),
    }
    return _one_node_per_line(data), dict(program.graph.state_dict())


def from_text(text: str, constants: Mapping[str, torch.Tensor]) -> Program:
    """Read and verify a program from the text of ``to_text``.

    Raises:
        SerializationError: the text is not of a program, or names an unknown operator.
        ProgramError: the program breaks a rule.
    """
    with _meaning("program"):
        data = _checked(text)
        program = Program(
            name=_identifier(data["name"]),
            graph=_graph_of(data["graph"], constants),
            inputs=tuple(_slot_of(each) for each in data["inputs"]),
            outputs=tuple(_slot_of(each) for each in data["outputs"]),
            history=tuple(Stamp(by=b, seconds=s, nodes=n) for b, s, n in data["history"]),
        )
    return program.verify()


def to_members(programs: Iterable[Program]) -> dict[str, Any]:
    """Serialize programs as members of a container.

    Raises:
        SerializationError: an operation or argument that cannot be stored; names it.
    """
    members: dict[str, Any] = {}
    for program in programs:
        text, constants = to_text(program)
        members[f"programs/{program.name}.json"] = text.encode()
        for name, value in constants.items():
            members[f"constants/{program.name}/{name}"] = value
    return members


def from_members(file: Container, fingerprints: Mapping[str, str]) -> tuple[Program, ...]:
    """Read programs from a container and check the fingerprint of each.

    Raises:
        CorruptExecutable: a member is damaged, or a program is not the one that was stored.
        SerializationError: a program calls an operator that is unknown here.
    """
    programs: list[Program] = []
    for name, fingerprint in fingerprints.items():
        text = file.text(f"programs/{name}.json")
        program = from_text(text, file.tensors(f"constants/{name}/"))
        if program.fingerprint() != fingerprint:
            raise CorruptExecutable(f"{file.path}: program {name} is not the one that was stored.")
        programs.append(program)
    return tuple(programs)


def graph_to_text(graph: torch.fx.GraphModule) -> tuple[str, dict[str, torch.Tensor]]:
    """Serialize an FX graph that is not a program as JSON text.

    Returns:
        The text, and the graph's constants by name.

    Raises:
        SerializationError: an operation or argument that cannot be stored; names it.
    """
    data = {"format": FORMAT, "graph": _graph_data(graph)}
    return _one_node_per_line(data), dict(graph.state_dict())


def graph_from_text(text: str, constants: Mapping[str, torch.Tensor]) -> torch.fx.GraphModule:
    """Read an FX graph from the text of ``graph_to_text``.

    Raises:
        SerializationError: the text is not of a graph, or names an unknown operator.
    """
    with _meaning("graph"):
        return _graph_of(_checked(text)["graph"], constants)


def _one_node_per_line(data: Mapping[str, Any]) -> str:
    """Format JSON with one node per line, so that files can be read and compared."""
    return json.dumps(data, allow_nan=False).replace('{"node_name"', '\n{"node_name"')


def _checked(text: str) -> dict[str, Any]:
    data = json.loads(text)
    if data["format"] != FORMAT:
        raise SerializationError(f"Program format {data['format']!r} is not {FORMAT}.")
    return data


@contextlib.contextmanager
def _meaning(kind: str) -> Generator[None]:
    """Convert any error while reading serialized text to a SerializationError."""
    try:
        yield
    except AbeleError:
        raise
    except Exception as error:  # a damaged text can be wrong in any way
        raise SerializationError(
            f"The text is not of a {kind} ({type(error).__name__}: {error})."
        ) from error


# -- writing ---------------------------------------------------------------------------------


def _slot_data(slot: Slot) -> dict[str, Any]:
    return {
        "name": slot.name,
        "role": slot.role.value,
        "shape": list(slot.shape),
        "dtype": encode(slot.dtype),
        "mutated": slot.mutated,
    }


def _graph_data(graph: torch.fx.GraphModule) -> dict[str, Any]:
    graphs: dict[str, dict[str, Any]] = {}
    known = graph.state_dict()
    for node in graph.graph.nodes:
        if node.op != "get_attr" or node.target in known:
            continue
        inner = getattr(graph, node.target, None)
        if not isinstance(inner, torch.fx.GraphModule):
            raise SerializationError(
                f"Constant {node.target!r} cannot be stored: it is a {type(inner).__name__}, "
                "only tensors and graphs are."
            )
        graphs[node.target] = _graph_data(inner)
    return {"nodes": [_node_data(node) for node in graph.graph.nodes], "graphs": graphs}


def _node_data(node: torch.fx.Node) -> dict[str, Any]:
    def reference(value: Any) -> Any:
        if isinstance(value, torch.fx.Node):
            return {"node": value.name}
        raise SerializationError(
            f"An argument of node {node.name!r} ({node.target}) cannot be stored: {value!r}."
        )

    data = {
        "node_name": node.name,
        "op": node.op,
        "target": _target_name(node),
        "args": [encode(argument, reference) for argument in node.args],
        "kwargs": {key: encode(value, reference) for key, value in node.kwargs.items()},
        "val": encode(node.meta.get("val"), _layout),
    }
    custom, line = node.meta.get("custom"), user_line(node.meta.get("stack_trace"))
    if custom:
        data["custom"] = encode(dict(custom))
    if line:
        # The name of the file without its folder, which says more about a person than a program.
        data["line"] = [os.path.basename(line[0]), line[1], line[2]]
    return data


def _target_name(node: torch.fx.Node) -> str:
    target = node.target
    if isinstance(target, str):
        return target
    for name, function in _FUNCTIONS.items():
        if target is function:
            return name
    if _torch.is_operator(target):
        return _torch.operator_name(target)
    raise SerializationError(
        f"Node {node.name!r} calls {target!r}, which is not an operator of torch.ops and cannot be "
        "stored. Register the function with torch.library.custom_op."
    )


def _layout(value: Any) -> dict[str, Any]:
    """Encode shape, strides, type and device of a traced tensor."""
    if not isinstance(value, torch.Tensor) or value.layout is not torch.strided:
        raise SerializationError(f"A traced value of type {type(value).__name__} cannot be stored.")
    shape, stride = list(value.shape), list(value.stride())
    return {"tensor": [shape, stride, encode(value.dtype), str(value.device)]}


# -- reading ---------------------------------------------------------------------------------


def _slot_of(data: Mapping[str, Any]) -> Slot:
    return Slot(
        name=data["name"],
        role=Role(data["role"]),
        shape=tuple(data["shape"]),
        dtype=decode(data["dtype"]),
        mutated=data["mutated"],
    )


def _graph_of(
    data: Mapping[str, Any], constants: Mapping[str, torch.Tensor]
) -> torch.fx.GraphModule:
    root = torch.nn.Module()
    for name, graph in data["graphs"].items():
        path = f"{name}."
        inner = {k.removeprefix(path): v for k, v in constants.items() if k.startswith(path)}
        root.add_module(_identifier(name), _graph_of(graph, inner))
    for name, constant in constants.items():
        if "." not in name:
            root.register_buffer(_identifier(name), constant)
    graph = torch.fx.Graph()
    nodes: dict[str, torch.fx.Node] = {}
    mode = _torch.static_fakes()
    for each in data["nodes"]:
        nodes[each["node_name"]] = _node_of(graph, each, nodes, mode)
    return torch.fx.GraphModule(root, graph)


def _node_of(
    graph: torch.fx.Graph,
    data: Mapping[str, Any],
    nodes: Mapping[str, torch.fx.Node],
    mode: _torch.FakeTensorMode,
) -> torch.fx.Node:
    references = {"node": nodes.__getitem__}
    op = data["op"]
    if op not in ("placeholder", "get_attr", "call_function", "output"):
        raise SerializationError(f"Unknown kind of node {op!r}.")
    target = _operator(data["target"]) if op == "call_function" else _identifier(data["target"])
    node = graph.create_node(
        op,
        target,
        tuple(decode(argument, references) for argument in data["args"]),
        {_identifier(key): decode(v, references) for key, v in data["kwargs"].items()},
        name=_identifier(data["node_name"]),
    )

    def tensor(content: list[Any]) -> torch.Tensor:
        shape, stride, dtype, device = content
        return _torch.laid_out(shape, stride, decode(dtype), torch.device(device), mode)

    value = decode(data["val"], {"tensor": tensor})
    if value is not None or op != "output":
        node.meta["val"] = value
    if "custom" in data:
        node.meta["custom"] = decode(data["custom"])
    if "line" in data:
        file, line, function = data["line"]
        node.meta["stack_trace"] = f'File "{file}", line {int(line)}, in {function}'
    return node


def _operator(name: str) -> Any:
    if name in _FUNCTIONS:
        return _FUNCTIONS[name]
    known = _torch.find_operator(name)
    if known is None:
        raise SerializationError(
            f"The program calls operator {name!r}, which torch does not know here. Import or load "
            "the library that registers it, then try again."
        )
    return known


def _identifier(name: Any) -> str:
    """Validate that a name is an identifier, as it becomes part of generated source."""
    if not (isinstance(name, str) and _IDENTIFIER.fullmatch(name)) or keyword.iskeyword(name):
        raise SerializationError(f"{name!r} in the text of a program is not an identifier.")
    return name


def first_difference(stored: Program, wanted: Program) -> str | None:
    """Describe the first difference of two programs; None if they are equal."""
    if stored.fingerprint() == wanted.fingerprint():
        return None
    texts = (program_text(each, provenance=False, strides=True) for each in (stored, wanted))
    old, new = (text.splitlines() for text in texts)
    for left, right in zip(old, new, strict=False):
        if left != right:
            return f"program {stored.name}: {left.strip()!r} there, {right.strip()!r} here"
    if len(old) != len(new):
        return f"program {stored.name}: {len(old)} lines there, {len(new)} here"
    return f"program {stored.name}: the values or strides of its constants"
