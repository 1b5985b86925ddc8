"""The code of many programs of the lowering `emitted` in one library.

Compiling is what a test of emitted code costs, and most of that is the same for every file. So the
code of all programs is put into one, each in a namespace of its own.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any
from unittest import mock

import torch

from abele.program import Program, Role
from abele.targets.base import Run
from abele.targets.cpu.emitted import build, lowering
from abele.targets.cpu.emitted.calling import Calling, from_text, to_text
from abele.targets.cpu.emitted.lowering import Plan
from abele.targets.cpu.emitted.source import REPEAT

# Optimizing more takes longer to compile and changes no rounding: nothing reorders sums.
_FLAGS = tuple("-O1" if flag == "-O3" else flag for flag in build.FLAGS)
_START, _NAMES = "using abele::Index;", ("abele_segment_", REPEAT)


def together(programs: Sequence[Program], plans: Sequence[Plan]) -> list[Run]:
    """Compile plans as one file.

    Args:
        programs: after all passes.
        plans: of the programs.

    Returns:
        The call of each.
    """
    if not plans:
        return []
    parts = [plan.source.text.partition(_START) for plan in plans]
    includes = dict.fromkeys(line for head, _, _ in parts for line in head.splitlines())
    texts = [_in_namespace(number, body) for number, (_, _, body) in enumerate(parts)]
    with mock.patch.object(build, "FLAGS", _FLAGS):
        library = build.loaded(build.compiled("many", "\n".join([*includes, *texts])))
    return [
        _call(program, _calling(program, plan, number), _Renamed(library, number))
        for number, (program, plan) in enumerate(zip(programs, plans, strict=True))
    ]


def inputs_of(program: Program, scale: float = 1.0) -> list[torch.Tensor]:
    """Return random inputs of a program, the same ones each time."""
    generator = torch.Generator().manual_seed(1)
    return [
        torch.full(slot.shape, 0.05, dtype=slot.dtype)
        if slot.role is Role.HYPER
        else (torch.rand(slot.shape, generator=generator) * scale).to(slot.dtype)
        for slot in program.inputs
    ]


def trained(program: Program, run: Run, scale: float = 1.0) -> list[torch.Tensor]:
    """Return all that a program returns in two calls, and then its inputs, which it writes."""
    inputs, results = inputs_of(program, scale), []
    for _ in range(2):
        results += [each.clone() for each in run(list(inputs))]
    return results + inputs


def _in_namespace(number: int, body: str) -> str:
    return f"namespace p{number} {{\n{_START}\n{_renamed(body, number)}\n}}"


def _renamed(text: str, number: int) -> str:
    for name in _NAMES:
        text = text.replace(name, f"{name}p{number}_")
    return text


def _calling(program: Program, plan: Plan, number: int) -> Calling:
    """How its code is called; every other one as it is read from a file."""
    calling = plan.calling()
    text = to_text(calling) if number % 2 else None
    return calling if text is None else from_text(text, program) or calling


def _call(program: Program, calling: Calling, library: _Renamed) -> Run:
    with mock.patch.object(build, "loaded", return_value=library):
        return lowering._runnable(program, calling, b"abele").run


class _Renamed:
    """A library, for a program that does not know the number of its namespace."""

    def __init__(self, library: ctypes.CDLL, number: int):
        self._library, self._number = library, number

    def __getattr__(self, name: str) -> Any:
        return getattr(self._library, _renamed(name, self._number))
