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
from abele.fit import Answer, Calls, questions
from abele.fit.limits import of_machine
from abele.fit.questions import Say, silent
from abele.fit.verdict import compare, default_limit, table
from abele.program import Program, Slot
from abele.step.config import StepConfig
from abele.trace.module_state import ModuleState

_SECTIONS = "\n\nForward, backward and update run one by one: no output of forward is a loss."


@dataclasses.dataclass(frozen=True, kw_only=True)
class FitReport:
    """The answer whether a program fits into a memory; ``print`` it.

    Attributes:
        answer: verdict and estimate.
        in_sections: forward, backward and update run separately.
    """

    answer: Answer
    in_sections: bool

    def data(self) -> dict[str, Any]:
        """Return all fields as JSON values; sizes are in bytes."""
        return {**self.answer.data(), "in_sections": self.in_sections}

    def pieces(self, say: Say = silent) -> Iterator[str]:
        """Yield the text in one piece."""
        del say
        yield str(self)

    def __str__(self) -> str:
        return table(self.answer) + (_SECTIONS if self.in_sections else "")


def answer_if_asked(
    traced: Sectioned, model: torch.nn.Module, inputs: Mapping[str, torch.Tensor]
) -> None:
    """Answer the question of a command, if any, instead of compiling.

    Args:
        traced: the program that would be compiled.
        model: the captured model.
        inputs: inputs of one run.

    Raises:
        Answered, Refused, SystemExit: there was a question; ends the program.
    """
    taken = questions.taken()
    if taken is None:
        return
    if taken.question.command == "fit":
        taken.answer_with(lambda: report(traced, model, inputs, taken.question.wanted))
    taken.refuse(
        "Stages are those of a PopTorch program. A SambaFlow program has sections instead, "
        "forward, backward and update, which run on one device. Use abele fit SCRIPT."
    )


def report(
    traced: Sectioned,
    model: torch.nn.Module,
    inputs: Mapping[str, torch.Tensor],
    limit: str | None,
) -> FitReport:
    """Estimate what a program needs and compare it with a limit.

    Args:
        traced: the program; a full step in it is what runs.
        model: the captured model.
        inputs: inputs of one run.
        limit: ``cpu``, ``cuda:0`` or a size; None for the device that would be used.

    Raises:
        LimitError: there is no such limit, or it is that of IPUs.
    """
    target, _ = choose_target()
    known = of_machine(limit or default_limit(target))
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
    answer = compare(estimated, known, programs, target, counted=counted)
    return FitReport(answer=answer, in_sections=len(programs) > 1 and not whole)


def _handed(programs: Sequence[Program]) -> dict[str, int]:
    """Return the bytes of earlier sections' results during backward and update."""
    given = {slot.name for program in programs for slot in program.outputs}
    return {
        program.name: sum(_bytes(slot) for slot in program.inputs if slot.name in given)
        for program in programs
        if program.name in (BACKWARD, UPDATE)
    }


def _bytes(slot: Slot) -> int:
    return torch.empty(slot.shape, dtype=slot.dtype, device="meta").nbytes
