"""The CPU target: programs compiled ahead of time or run operator by operator."""

from __future__ import annotations

import platform
import sys
from collections.abc import Collection, Mapping
from typing import Any

import torch

from abele import arena, processor
from abele.compilers import compiler_pool
from abele.errors import CompilerError
from abele.kernels import build, packaged, sources
from abele.kernels.build import Making
from abele.passes.of_lowerings.recurrent import recurrent_loops
from abele.targets.base import Lowering
from abele.targets.cpu.compiler import compiler, identity, instruction_set, why_unusable
from abele.targets.cpu.emitted import headers
from abele.targets.cpu.emitted.build import fingerprint as emitter_fingerprint
from abele.targets.cpu.emitted.lowering import Emitted
from abele.targets.cpu.op_by_op.lowering import OpByOp
from abele.targets.reference import HostTarget, Interpreter

_ARENA_S = 1.3  # that compiling what reserves memory takes, by g++ 12
# The first that gives a reason takes a program; the last takes what is left, and is measured beside
# others.
LOWERINGS: tuple[Lowering, ...] = (OpByOp(), Emitted(), Interpreter())


class Cpu(HostTarget):
    """The target that runs programs on the host CPU, with all of its instruction set extensions."""

    name = "cpu"
    lowerings = LOWERINGS
    cacheable = True
    apart = (recurrent_loops,)

    def cannot_compile(self, lowerings: Collection[str] | None = None) -> str | None:
        """Return why no C++ compiler is available, or None if one is or none is needed."""
        reason = why_unusable(compiler())
        if reason is None:
            return None
        names = lowerings or ()
        compiled = any(self.lowering(name).compiles for name in names)
        if OpByOp.name in names and not compiled and packaged.folder() is not None:
            return None
        return reason

    def why_slow(self) -> str | None:
        """Return why compiled programs are slow: kernels' vectors, which old processors lack."""
        known = packaged.instructions()
        if platform.machine() not in ("x86_64", "AMD64") or not known or "avx2" in known:
            return None
        return f"this processor ({processor.name()}) has no AVX2, which processors have since 2013"

    def setup_seconds_left(self, needed: Collection[str] | None = None) -> float:
        """Return the seconds of compiling missing library kernels and the allocator."""
        path = compiler()
        if path is None:
            return 0.0
        try:
            kernels_s = build.missing_s(path, instruction_set(), _kernels(needed))
        except CompilerError:
            return 0.0  # whoever compiles with it gets the message
        wants_memory = needed is not None and arena.NAME in needed and not arena.available()
        return kernels_s + (_ARENA_S if wants_memory else 0.0)

    def preparing(self, needed: Collection[str] | None = None) -> list[list[Making]]:
        """Return the jobs that compile missing kernel objects, then those that link them."""
        path = compiler() or "g++"
        first, *further = build.makings(path, instruction_set(), _kernels(needed))
        memory = arena.makings(path) if needed is None or arena.NAME in needed else []
        return [[*first, *memory], *further]

    def prepare(self, needed: Collection[str] | None = None) -> None:
        """Compile abele's library kernels, the allocator and the precompiled headers."""
        path = compiler() or "g++"
        with compiler_pool(1) as pool:
            wants_memory = needed is None or arena.NAME in needed
            memory = pool.submit(arena.made, path) if wants_memory else None
            read = pool.submit(headers.make, path, instruction_set())
            names = _kernels(needed)
            build.compile_objects(
                path, instruction_set(), [build.LIBRARY] if names is None else names
            )
            if memory is not None:
                memory.result()
            read.result()

    def toolchain(self) -> str:
        """Return an identifier of the C++ compiler; empty without a compiler."""
        return identity()

    def describe(self) -> Mapping[str, Any]:
        """Return the CPU, instruction set and library versions that compiled code depends on."""
        return {
            "target": self.name,
            "torch": torch.__version__,
            "system": sys.platform,
            "machine": platform.machine(),
            "isa": instruction_set(),
            # By this, torch and abele choose among kernels; ATEN_CPU_CAPABILITY lowers it.
            "capability": torch.backends.cpu.get_cpu_capability(),
            "kernels": " ".join((sources.fingerprint(), *packaged.digests())),
            "emitted": emitter_fingerprint(),
        }


def _kernels(needed: Collection[str] | None) -> list[str] | None:
    """Return the library kernels among the required libraries; None: all of them."""
    return None if needed is None else [each for each in needed if each != arena.NAME]


TARGET = Cpu()
