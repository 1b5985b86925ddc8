"""Answers for ``abele fit`` and ``abele stage`` in place of the first compile of a program."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch

from abele import fit
from abele.capture.sections import BACKWARD, STEP, UPDATE, Sectioned
from abele.compile.build import choose_target
from abele.errors import LimitError
from abele.fit import Answer, Calls, asking, process
from abele.fit.answers import Say, silent
from abele.fit.limits import of_machine
from abele.fit.text import table
from abele.program import Program, Slot
from abele.stage import asking as asking_for_stages
from abele.step.config import StepConfig
from abele.trace.module_state import ModuleState

_SECTIONS = "\n\nForward, backward and update run one by one: no output of forward is a loss."


@dataclasses.dataclass(frozen=True, kw_only=True)
class FitReport:
    """Whether a program fits into a memory; ``print`` it.

    Attributes:
        answer: the verdict and what it rests on.
        in_sections: forward, backward and update are runs of their own.
    """

    answer: Answer
    in_sections: bool

    def data(self) -> dict[str, Any]:
        """Everything as JSON values; bytes."""
        return {**self.answer.data(), "in_sections": self.in_sections}

    def pieces(self, say: Say = silent) -> Iterator[str]:
        """The text, all of which is known."""
        del say
        yield str(self)

    def __str__(self) -> str:
        return table(self.answer) + (_SECTIONS if self.in_sections else "")


def answer_if_asked(
    traced: Sectioned, model: torch.nn.Module, inputs: Mapping[str, torch.Tensor]
) -> None:
    """Where a command has asked, answers it instead of compiling.

    Args:
        traced: what would be compiled.
        model: what it was captured of.
        inputs: of one run.

    Raises:
        Answered, Refused: this process asked; ends the program.
        SystemExit: another process did, and has the answer now.
    """
    taken = asking_for_stages.taken()
    if taken is not None:
        taken.refuse(
            "Stages are those of a PopTorch program. A SambaFlow program has sections instead, "
            "forward, backward and update, which run on one device. Use abele fit SCRIPT."
        )
    asking.answer(lambda limit: report(traced, model, inputs, limit))


def report(
    traced: Sectioned,
    model: torch.nn.Module,
    inputs: Mapping[str, torch.Tensor],
    limit: str | None,
) -> FitReport:
    """Estimate what a program needs and compare it with a limit.

    Args:
        traced: the program. Where it has the whole step, that is what runs.
        model: what it was captured of.
        inputs: of one run.
        limit: ``cpu``, ``cuda:0`` or a size; None for the device that would be used.

    Raises:
        LimitError: there is no such limit, or it is that of IPUs.
    """
    target, _ = choose_target()
    known = of_machine(limit or process.default_limit(target))
    if known.ipus is not None:
        raise LimitError(
            f"--limit {limit} is the memory of IPUs, on which no SambaFlow program runs. Give a "
            "size, such as --limit 8GiB."
        )
    programs = traced.captured.programs
    whole = tuple(each for each in programs if each.name == STEP)
    state = ModuleState.of(model)
    calls = Calls(
        module=sum(each.nbytes for each in (*state.params.values(), *state.buffers.values())),
        batch=sum(each.nbytes for each in inputs.values()),
        handed={} if whole else _handed(programs),
        returned={f"output{index}" for index in range(len(traced.outputs))},
    )
    config = StepConfig(training=len(programs) > 1)
    estimated = fit.estimate(whole or programs, config, target, calls)
    counted = calls.module + calls.batch
    answer = process.compare(estimated, known, programs, target, counted=counted)
    return FitReport(answer=answer, in_sections=len(programs) > 1 and not whole)


def _handed(programs: Sequence[Program]) -> dict[str, int]:
    """Bytes of what earlier sections have left for backward and update, while these run."""
    given = {slot.name for program in programs for slot in program.outputs}
    return {
        program.name: sum(_bytes(slot) for slot in program.inputs if slot.name in given)
        for program in programs
        if program.name in (BACKWARD, UPDATE)
    }


def _bytes(slot: Slot) -> int:
    return torch.empty(slot.shape, dtype=slot.dtype, device="meta").nbytes
