"""Arguments and order of calls of a program's compiled code, stored as text with the code."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from typing import Any

import torch

from abele import _torch
from abele.arena import Places
from abele.errors import CorruptExecutable, SerializationError
from abele.program import Program
from abele.storage.values import decode, encode
from abele.targets.cpu.emitted.source import Segment
from abele.targets.translation.operations import Foreign, constants_of, places_changed
from abele.targets.translation.places import Buffer, Kind, Place

FORMAT = 3


@dataclasses.dataclass(frozen=True, kw_only=True)
class Calling:
    """A plan for calling a program's compiled code and its ATen fallbacks.

    Attributes:
        parts: segments and ATen calls, in execution order.
        table: the buffer for each entry of the pointer table.
        inputs: views of the program's arguments.
        outputs: views of its results.
        constants: names of the graph's constant tensors, by buffer index.
        offsets: byte offsets in the arena of the buffers that torch accesses.
        size: bytes of the arena.
        freed: ATen results to free after each part.
        places: planned memory of the tensors that torch allocates; None without ATen calls.
    """

    parts: Sequence[Segment | Foreign]
    table: Sequence[Buffer]
    inputs: Sequence[Place]
    outputs: Sequence[Place]
    constants: Sequence[str]
    offsets: dict[Buffer, int]
    size: int
    freed: Sequence[Sequence[Buffer]]
    places: Places | None


# -- as text ---------------------------------------------------------------------------------


def to_text(calling: Calling) -> str | None:
    """Serialize a call plan as JSON text; None if an ATen call cannot be serialized."""
    writer = _Writer()
    try:
        parts = [writer.part(each) for each in calling.parts]
    except SerializationError:
        return None
    data = {
        "format": FORMAT,
        "threads": torch.get_num_threads(),
        "parts": parts,
        "table": [writer.buffer(each) for each in calling.table],
        "inputs": [writer.place(each) for each in calling.inputs],
        "outputs": [writer.place(each) for each in calling.outputs],
        "constants": list(calling.constants),
        "freed": [[writer.buffer(each) for each in freed] for freed in calling.freed],
        "size": calling.size,
        "places": calling.places and dataclasses.astuple(calling.places),
    }
    data["buffers"] = [
        [each.kind.value, each.index, encode(each.dtype)["dtype"], each.size]
        for each in writer.buffers
    ]
    data["offsets"] = [calling.offsets.get(each, 0) for each in writer.buffers]
    return json.dumps(data)


def from_text(text: str, program: Program) -> Calling | None:
    """Parse the call plan that ``to_text`` wrote; None if it does not fit this process.

    Args:
        text: JSON.
        program: with the same slots and constants.

    Returns:
        None if it was written for another thread count, with which torch allocates other memory.

    Raises:
        CorruptExecutable: it is damaged, or was written for another program.
    """
    try:
        calling = _read(json.loads(text))
        if calling is not None:
            _check(calling, program)
    except Exception as error:  # a damaged text can be wrong in any way
        what = f"{type(error).__name__}: {error}"
        raise CorruptExecutable(f"how the code is called cannot be read ({what})") from error
    return calling


class _Writer:
    def __init__(self) -> None:
        self.buffers: dict[Buffer, int] = {}

    def buffer(self, buffer: Buffer) -> int:
        return self.buffers.setdefault(buffer, len(self.buffers))

    def place(self, place: Place) -> list[Any]:
        return [self.buffer(place.buffer), list(place.shape), list(place.stride), place.offset]

    def part(self, part: Segment | Foreign) -> dict[str, Any]:
        if isinstance(part, Segment):
            return {"name": part.name, "calls": part.calls, "constants": part.constants}
        if not _torch.is_operator(part.target):
            raise SerializationError(f"{part.target!r} has no name.")
        return {
            "operator": _torch.operator_name(part.target),
            "arguments": encode(part.arguments, self._argument),
            "options": encode(part.options, self._argument),
            "results": [each and self.place(each) for each in part.results],
            "several": part.several,
        }

    def _argument(self, value: Any) -> dict[str, Any]:
        if isinstance(value, Place):
            return {"place": self.place(value)}
        raise SerializationError(f"{value!r} cannot be stored.")


def _read(data: dict[str, Any]) -> Calling | None:
    if data["format"] != FORMAT:
        raise SerializationError(f"format {data['format']!r} is not {FORMAT}")
    places = data["places"]
    if places is not None and data["threads"] != torch.get_num_threads():
        return None
    stored: list[tuple[str, int, str, int]] = data["buffers"]
    buffers = [
        Buffer(Kind(kind), index, decode({"dtype": dtype}), size)
        for kind, index, dtype, size in stored
    ]

    def buffer(number: int) -> Buffer:
        return buffers[number]

    def place(content: list[Any]) -> Place:
        number, shape, stride, offset = content
        return Place(buffer(number), tuple(shape), tuple(stride), offset)

    return Calling(
        parts=[_part(each, place) for each in data["parts"]],
        table=[buffer(each) for each in data["table"]],
        inputs=[place(each) for each in data["inputs"]],
        outputs=[place(each) for each in data["outputs"]],
        constants=data["constants"],
        offsets=dict(zip(buffers, data["offsets"], strict=True)),
        size=data["size"],
        freed=[[buffer(each) for each in freed] for freed in data["freed"]],
        places=None if places is None else Places(*places),
    )


def _part(data: dict[str, Any], place: Any) -> Segment | Foreign:
    if "name" in data:
        constants = data["constants"]
        return Segment(data["name"], data["calls"], constants and tuple(constants))
    target = _torch.find_operator(data["operator"])
    if target is None:
        raise SerializationError(f"torch does not know {data['operator']!r} here")
    arguments, options = (decode(data[key], {"place": place}) for key in ("arguments", "options"))
    results = [each and place(each) for each in data["results"]]
    reads: list[Place] = []
    places_changed((arguments, options), reads.append)
    writes = [each for each in results if each is not None]
    return Foreign(reads, writes, target, arguments, options, results, data["several"])


def _check(calling: Calling, program: Program) -> None:
    """Raise an error if a call plan would access memory outside the program's own tensors."""
    inputs = [(each.shape, each.dtype) for each in calling.inputs]
    if inputs != [(slot.shape, slot.dtype) for slot in program.inputs]:
        raise SerializationError("the program has other inputs")
    outputs = [(each.shape, each.dtype) for each in calling.outputs]
    if outputs != [(slot.shape, slot.dtype) for slot in program.outputs]:
        raise SerializationError("the program has other results")
    constants = constants_of(program, calling.constants)
    for buffer in calling.table:
        if buffer.kind is Kind.CONSTANT and constants[buffer.index].dtype is not buffer.dtype:
            raise SerializationError("the program has other constants")
