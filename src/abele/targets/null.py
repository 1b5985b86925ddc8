"""A target that skips all computation, for fast tests of capture, passes and sessions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from abele.program import Program
from abele.targets.base import Compiled, Lowering
from abele.targets.reference import HostTarget


class Zeros(Lowering):
    """A lowering that returns zeros of the right shapes and leaves all state unchanged."""

    name = "zeros"
    manner = "compute nothing"
    trusted = True

    def why(self, program: Program) -> str | None:
        """Return the reason to choose this lowering, for every program."""
        del program
        return "the target computes nothing"

    def compile(self, program: Program) -> Compiled:
        """Compile a program to a callable that returns zeros for its output slots."""
        outputs = program.outputs

        def run(inputs: list[torch.Tensor]) -> list[torch.Tensor]:
            inputs.clear()
            return [torch.zeros(slot.shape, dtype=slot.dtype) for slot in outputs]

        return Compiled(run)


class Null(HostTarget):
    """A target that computes nothing, to measure the overhead of calls."""

    name = "null"
    lowerings = (Zeros(),)

    def describe(self) -> Mapping[str, Any]:
        """Return the target's name alone: results do not depend on the machine."""
        return {"target": self.name}


TARGET = Null()
