"""Times of operators for a run that is over and has none: its programs run again, by themselves."""

from __future__ import annotations

from pathlib import Path

import torch

from abele.errors import ReportError
from abele.report import executable_file, facts, timing
from abele.report.record import Run

BUDGET_S = 5.0


def measured(
    folder: Path, run: Run, *, alive: bool | None, again: bool = False, budget_s: float = BUDGET_S
) -> Run:
    """Return the record of a run with the times of its kernels.

    Args:
        folder: of the run; has its executable.
        run: what it is; one that has the times is returned as it is.
        alive: its process still runs; None if nobody can say.
        again: times that it has are taken anew.
        budget_s: how long each program is run.

    Raises:
        ReportError: the run goes on, ran on another processor, or its executable is gone or cannot
            be used here.
    """
    if run.programs and all(each.timing is not None for each in run.programs) and not again:
        return run
    if alive:
        raise ReportError(
            f"The run in {folder} still goes on, and timing would disturb it. Wait for its end, or "
            "call report(path, measure=True) in the program."
        )
    here = facts.machine().processor
    if here != run.machine.processor:
        raise ReportError(
            f"The run in {folder} was on {run.machine.processor}, this machine has {here}: times "
            "from here would say nothing of it. Time it there."
        )
    executable = executable_file.read(folder)
    threads = torch.get_num_threads()
    torch.set_num_threads(run.machine.threads)
    try:
        return timing.timed(run, executable, None, budget_s)
    finally:
        torch.set_num_threads(threads)
