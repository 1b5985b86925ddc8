"""Estimates whether a compiled function of plain PyTorch fits into memory."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from abele.compilation.build import choose_target_of
from abele.compilation.start import Start, requested
from abele.fit.estimate import Answer, Verdict, compare, growth, table
from abele.fit.limits import of_machine
from abele.fit.run import Calls, estimate
from abele.program import Program, Role
from abele.program.memory import given_bytes
from abele.questions import Say, silent
from abele.step.config import StepConfig


@dataclasses.dataclass(frozen=True, kw_only=True)
class FunctionReport:
    """A report of whether a compiled function fits into memory; ``print`` it."""

    answer: Answer

    def data(self) -> dict[str, Any]:
        """Return a fit report as JSON values; sizes in bytes."""
        return {**self.answer.data(), "changes": None}

    def pieces(self, say: Say = silent) -> Iterator[str]:
        """Yield the text of the verdict, in one piece."""
        del say
        changes = "\nChanges that make it fit are tried for wrapped models only."
        yield table(self.answer) + ("" if self.answer.verdict is Verdict.FITS else changes)


def check(
    programs: Sequence[Program],
    config: StepConfig,
    device: torch.device,
    start: Start,
    *,
    limit: str | None,
) -> FunctionReport:
    """Estimate the memory of a compiled function and compare it with a limit.

    Its programs use the tensors of the caller, whose first call has been plain PyTorch.

    Args:
        programs: captured programs.
        config: the configuration of the capture.
        device: device of the function's tensors.
        start: how first calls run.
        limit: ``cpu``, ``cuda:0`` or a size; None for the memory of the device.

    Raises:
        LimitError: there is no such limit.
        TargetError: ``ABELE_TARGET`` does not run tensors of this device.
    """
    target, _ = choose_target_of(device)
    known = of_machine(limit or ("cuda:0" if device.type == "cuda" else "cpu"))
    given = [given_bytes(each) for each in programs]
    counted = sum(sum(each.values()) for each in given)
    calls = Calls(
        module=0,
        batch=sum(each.get(Role.INPUT, 0) for each in given),
        tiered=(requested() or start) is Start.TIERED,
        plain=growth(device),
    )
    estimated = estimate(programs, config, target, calls)
    return FunctionReport(answer=compare(estimated, known, programs, target, counted=counted))
