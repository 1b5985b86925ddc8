"""The CUDA lowering that generates CUDA C++ for a program."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch

from abele.errors import CorruptExecutable
from abele.passes.of_lowerings.gpu import gpu_attention, gpu_biases, gpu_norms, gpu_patches
from abele.program import Program, has_effect, subgraphs
from abele.program.aliasing import last_uses
from abele.targets.base import Compiled, Lowering, require_code
from abele.targets.cuda.emitted import (
    convolutions,
    nvrtc,
    sums,
)
from abele.targets.cuda.emitted.choices import Step, backend, decoded, encoded, measured
from abele.targets.cuda.emitted.gemms import ConcurrentGemms, is_product, scheduled
from abele.targets.cuda.emitted.run import Runner
from abele.targets.cuda.emitted.source import Launch, Writer
from abele.targets.cuda.op_by_op import current_gpu, to_gpu
from abele.targets.replay import CudaGraphs, replayed
from abele.targets.translation.groups import Unit, grouped, kernel_choices
from abele.targets.translation.movement import MOVES
from abele.targets.translation.operations import Foreign, constants_of
from abele.targets.translation.places import Buffer, Kind
from abele.targets.translation.pointwise import NAMES
from abele.targets.translation.translate import Handler, Translator

aten = torch.ops.aten

# Kernels are compiled in so many pieces, each by a thread.
_FILES = 4

#: What moves elements as loops; sums, batch norms and convolutions
#: of few channels by blocks of threads. Of other operators torch has kernels for GPUs.
_HANDLERS: dict[Any, Handler] = {
    **MOVES,
    **sums.HANDLERS,
    **sums.BATCH_NORMS,
    **convolutions.HANDLERS,
}


class Emitted(Lowering):
    """A lowering to generated CUDA C++ for elementwise operators and torch's kernels for others."""

    name = "emitted"
    compiles = True
    passes = (
        to_gpu,
        gpu_attention,
        gpu_norms,
        gpu_biases,
        gpu_patches,
        convolutions.apart,
    )

    def why(self, program: Program) -> str | None:
        """Return the reason to generate CUDA C++ for a program, or None if that is impossible."""
        if self.why_not(program) is not None:
            return None
        return "few kernels compute its elementwise operators, compiled in a second"

    def why_not(self, program: Program) -> str | None:
        """Return why CUDA C++ cannot be generated (branches, side effects, no NVRTC), or None."""
        if any(True for _ in subgraphs(program.graph)):
            return "it has loops or branches"
        if any(has_effect(node) for node in program.graph.graph.nodes):
            return "it prints or calls the host"
        return nvrtc.unavailable()

    def compile(self, program: Program) -> Compiled:
        """Generate and compile CUDA kernels, and autotune GEMMs meanwhile."""
        plan = planned(program)
        with ThreadPoolExecutor(_FILES) as pool:
            capability = torch.cuda.get_device_capability()
            each = pool.map(functools.partial(nvrtc.compiled, capability=capability), plan.texts)
            choices = measured(plan.steps, current_gpu())
        return _runnable(program, plan, encoded(choices, list(each)))

    def load(self, program: Program, payload: bytes) -> Compiled:
        """Rebuild the launch plan for already compiled CUDA kernels."""
        require_code(payload, "cuda")
        return _runnable(program, planned(program), payload)

    def kernel_choices(self, program: Program) -> dict[torch.fx.Node, str]:
        """Return how each operator runs: fused loop, device function or ATen fallback."""
        units = grouped(Translator(program, _HANDLERS, NAMES).operations)
        return kernel_choices(program, units, backend)


@dataclasses.dataclass(frozen=True)
class Plan:
    """A program translated to launches, ATen calls and CUDA C++, before compilation.

    Attributes:
        translation: the program as operations on buffers.
        steps: in execution order.
        freed: buffers to free after each step.
        texts: CUDA files, which may be compiled in parallel.
    """

    translation: Translator
    steps: list[Step]
    freed: list[list[Buffer]]
    texts: list[str]


def planned(program: Program) -> Plan:
    """Translate a program to launches, ATen calls and CUDA C++; needs no GPU.

    Args:
        program: after the passes of the lowering.
    """
    translation = Translator(program, _HANDLERS, NAMES)
    units = grouped(translation.operations, is_product)
    in_memory = _in_memory(units, translation)
    writer, steps = Writer(in_memory), list[Step]()
    for step in scheduled(units):
        operations = [unit.operations[0] for unit in step]
        torchs = [each for each in operations if isinstance(each, Foreign)]
        if len(torchs) > 1:
            steps.append(ConcurrentGemms(torchs))
        else:
            steps += torchs or writer.launches(step)
    returned = {place.buffer for place in translation.outputs}
    uses = last_uses([_touched(step, in_memory) for step in steps])
    ours = (Kind.ARENA, Kind.FOREIGN)
    freed = [[e for e in unused if e.kind in ours and e not in returned] for unused in uses]
    return Plan(translation, steps, freed, writer.texts(_FILES))


def _in_memory(units: Sequence[Unit], translation: Translator) -> set[Buffer]:
    """Return the buffers that are written to memory: other results of loops stay in registers."""
    users: dict[Buffer, set[Unit]] = {}
    for unit in units:
        for buffer in unit.memory:
            users.setdefault(buffer, set()).add(unit)
    returned = {place.buffer for place in translation.outputs}
    foreign = {buffer for unit in units if not unit.elementwise for buffer in unit.memory}
    several = {
        buffer for buffer, using in users.items() if buffer.kind is not Kind.ARENA or len(using) > 1
    }
    return returned | foreign | several


def _touched(step: Step, in_memory: set[Buffer]) -> list[Buffer]:
    if isinstance(step, Launch):
        return [each[0] for each in step.pointers if not isinstance(each, int)]
    operations = step.operations if isinstance(step, ConcurrentGemms) else [step]
    places = [place for each in operations for place in (*each.reads, *each.writes)]
    return [place.buffer for place in places if place.buffer in in_memory]


def _runnable(program: Program, plan: Plan, payload: bytes) -> Compiled:
    choices, codes = decoded(payload)
    if not choices.fit(plan.steps):
        raise CorruptExecutable("the kernels of a program have choices for other products")
    runner = Runner(
        plan.translation,
        plan.steps,
        plan.freed,
        [slot.mutated for slot in program.inputs],
        constants_of(program, plan.translation.constants),
        nvrtc.Kernels(codes),
        current_gpu(),
        choices,
    )
    return replayed(program, Compiled(runner.run, payload), CudaGraphs())
