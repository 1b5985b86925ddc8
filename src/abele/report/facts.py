"""Collects facts of a session for ``run.json``: process, machine, build, programs and memory."""

from __future__ import annotations

import dataclasses
import hashlib
import os
import platform
import time
from collections import Counter
from collections.abc import Mapping, Sequence

import torch

from abele import processor, systems
from abele.compilation.build import BuildRecord
from abele.compilation.executable import Executable
from abele.containers import is_sequence
from abele.pipeline.runner import Measured
from abele.program import Program, is_getitem, marks_of
from abele.program.core import node_phase, type_text, user_line
from abele.program.memory import MemoryUse, Piece, given_bytes
from abele.report import operators, record
from abele.storage import temporary
from abele.storage.values import raw_bytes
from abele.targets.base import COMPILED

LARGEST = 20
POINTS = 600
TEXT_BYTES = 400_000
TASKS = 2_000
#: What memory is for that is not always there.
KINDS = ("activations for backward", "gradients", "new values", "while operators run")


def process(began_ns: int) -> record.Process:
    """Return the record of this process, for a run that began at ``began_ns``."""
    now = time.perf_counter_ns()
    return record.Process(
        pid=os.getpid(),
        since=temporary.started() or 0,
        machine=temporary.this_machine(),
        began=time.time() - (now - began_ns) / 1e9,
        clock_ns=began_ns,
    )


def machine() -> record.Machine:
    """Return the record of the machine that this process runs on."""
    return record.Machine(
        processor=processor.name(),
        cores=processor.cores(),
        threads=torch.get_num_threads(),
        memory_bytes=systems.memory() or 0,
        system=f"{platform.system()} {platform.machine()}",
        python=platform.python_version(),
        torch=torch.__version__,
    )


def build(made: BuildRecord) -> record.Build:
    """Return the record of an executable's build."""
    return record.Build(
        target=made.target,
        forced=made.forced,
        fallback=made.fallback,
        executable=made.executable,
        cache=made.cache,
        why=made.why,
        seconds=dict(made.seconds),
        running=made.running.sentence(),
        interpreted=made.running.interpreted,
        log=made.log,
        compiled=made.running.manner == COMPILED,
        check=made.running.check or "",
    )


def programs(executable: Executable, made: BuildRecord) -> tuple[record.Program, ...]:
    """Return the records of an executable's programs."""
    lowered = (executable.lowered(each.name) for each in executable.programs)
    return tuple(_program(each, executable, made) for each in lowered)


def _program(program: Program, executable: Executable, made: BuildRecord) -> record.Program:
    lowering = executable.lowering(program.name)
    chosen = made.lowerings.get(program.name)
    reason = (
        chosen.reason if chosen is not None and chosen.name == lowering.name else made.running.why
    )
    stamps = [record.Stamp(by=s.by, seconds=s.seconds, nodes=s.nodes) for s in program.history]
    text = program.text()
    cut = len(text) > TEXT_BYTES
    return record.Program(
        name=program.name,
        lowering=lowering.name,
        reason=reason,
        given=given_bytes(program),
        history=tuple(stamps),
        operators=operators.of_program(program),
        memory=memory(lowering.memory(program)),
        text=f"{text[:TEXT_BYTES]}\n# cut off here" if cut else text,
        declined=dict(made.declined.get(program.name, {})),
        choices=operators.choices(lowering.kernel_choices(program)),
        captured=executable.key_parts["programs"][program.name],
        fingerprint=program.fingerprint(),
        constants={
            name: hashlib.sha256(raw_bytes(value)).hexdigest()
            for name, value in program.graph.state_dict().items()
        },
    )


def pipeline(call: Measured, stages: Sequence[str]) -> record.Pipeline:
    """Return the record of the first update of a measured call through a pipeline."""
    times = call.times[0] if call.times else ()
    first = min((each.begin for each in times), default=0)
    tasks = [
        record.Task(
            stage=each.task.stage,
            micro_batch=each.task.micro_batch,
            backward=each.task.backward,
            begin=(each.begin - first) / 1e9,
            end=(each.end - first) / 1e9,
        )
        for each in times[:TASKS]
    ]
    return record.Pipeline(
        stages=tuple(stages), tasks=tuple(tasks), bubble=call.bubble, ideal=call.ideal_bubble
    )


def memory(use: MemoryUse) -> record.Memory:
    """Return the memory record of a program, from its computed memory use."""
    alive, needed = use.alive(), use.needed()
    peak = max(needed)
    # Where memory is reserved, steps need about the same: the one that uses most of it says most.
    step = max(range(len(alive)), key=lambda index: (alive[index], needed[index]))
    pieces, points = use.at(step), fullest(alive)
    return record.Memory(
        basis=use.basis,
        steps=len(use.nodes),
        reserved=use.reserved,
        peak=peak,
        peak_step=step,
        live=tuple((at, alive[at]) for at in points),
        kinds=_kinds(use, points),
        phases=_phases(use.nodes),
        largest=tuple(_tensor(each) for each in pieces[:LARGEST]),
        others=sum(each.size for each in pieces[LARGEST:]),
    )


def _kinds(use: MemoryUse, points: Sequence[int]) -> dict[str, tuple[int, ...]]:
    """Return the live bytes by kind, such as gradients, at some steps of a program."""
    begins = _phases(use.nodes)
    sums = [Counter[str]() for _ in points]
    for counted, step in zip(sums, points, strict=True):
        for piece in use.at(step):
            counted[_kind(piece, begins)] += piece.size
    return {kind: tuple(each[kind] for each in sums) for kind in KINDS}


def _kind(piece: Piece, begins: Mapping[str, int]) -> str:
    """Return the kind of a buffer, such as gradients, from its producer and its lifetime."""
    phase = None if piece.node is None or piece.inner else node_phase(piece.node)
    if phase == "forward" and piece.last >= begins.get("backward", piece.last + 1):
        return KINDS[0]
    if phase == "backward" and piece.last >= begins.get("update", piece.last + 1):
        return KINDS[1]
    return KINDS[2] if phase == "update" else KINDS[3]


def fullest(alive: Sequence[int]) -> list[int]:
    """Group a program's steps, and return the step with the most live bytes of each group."""
    group = -(-len(alive) // POINTS)
    steps = range(0, len(alive), group)
    return [max(range(i, min(i + group, len(alive))), key=alive.__getitem__) for i in steps]


def line_of(node: torch.fx.Node) -> str:
    """Return the user's source line of a graph node, ``FILE:LINE in FUNCTION``, or ``""``."""
    frame = user_line(node.meta.get("stack_trace"))
    if frame is None:  # of backward, the line of forward that it belongs to
        return os.path.basename(str(marks_of(node).get("of_line") or ""))
    return f"{os.path.basename(frame[0])}:{frame[1]} in {frame[2]}"


def _phases(nodes: Sequence[torch.fx.Node | None]) -> dict[str, int]:
    first: dict[str, int] = {}
    for index, node in enumerate(nodes):
        phase = None if node is None or node.op != "call_function" else node_phase(node)
        if phase is not None:
            first.setdefault(phase, index)
    return first


def _tensor(piece: Piece) -> record.Tensor:
    made = record.Tensor(bytes=piece.size, first=piece.first, last=piece.last)
    node = piece.node
    if node is None:
        return made
    value = node.meta.get("val")
    if is_sequence(value):
        value = value[piece.result] if piece.result >= 0 else None
    return dataclasses.replace(
        made,
        operator="memory of the body"
        if piece.result < 0 and not piece.inner
        else operator_of(node),
        phase=node_phase(node) or "",
        module=operators.module_of(node),
        line=line_of(node),
        type=type_text(value) if isinstance(value, torch.Tensor) else "",
    )


def operator_of(node: torch.fx.Node) -> str:
    """Return the name of the operator that computes a graph node."""
    made_by = node.args[0] if is_getitem(node) else node
    return str(made_by.target if isinstance(made_by, torch.fx.Node) else node.target)
