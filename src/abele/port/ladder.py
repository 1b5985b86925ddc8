"""Check a port in stages, up to the first that fails: one run and one row of the table each.

The stages: the original trains on this processor, its lines are ported, a batch of one row trains,
its model trains as a program, is evaluated as one, and fits.
"""

from __future__ import annotations

import dataclasses
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from abele.errors import CheckError
from abele.port.check import check
from abele.port.check.process import Recorded, Run, recorded
from abele.port.engine import Port

_STEPS = 5
_TIMEOUT_S = 600.0
_NORM_ERROR = "Expected more than 1 value per channel"
#: Advice on a batch of one row, by the name of the operation that needs more.
_ONE_ROW = {
    "batch_norm": "batch norm averages over the rows of a batch, and "
    "one row gives no average; GroupNorm(1, ...) averages within each row. Weights that were "
    "trained with batch norm do not fit it.",
    "squeeze": "squeeze() removes every dimension of size 1, also that of the rows: name the one "
    "that is meant.",
    "std": "this estimate divides by the number of rows less one: give var(correction=0).sqrt().",
    "var": "this estimate divides by the number of rows less one: give correction=0.",
    "": "this line needs more than one row; write it so that each row is computed by itself.",
}

#: Whether a stage holds, and what was seen.
_Said = tuple[bool, str]


@dataclasses.dataclass(frozen=True)
class Rung:
    """A stage of the ladder.

    Attributes:
        title: what was tried.
        passed: it holds.
        says: what was seen, and if it does not hold, what to do.
    """

    title: str
    passed: bool
    says: str

    def __str__(self) -> str:
        """Return the stage with what was seen below it."""
        first, *rest = self.says.splitlines() or [""]
        mark = "passed" if self.passed else "FAILED"
        return "\n".join([f"{mark}  {self.title}: {first}", *(f"        {line}" for line in rest)])


def climb(
    result: Port,
    original: Path,
    port: Path,
    arguments: Sequence[str],
    limit: str,
    python: str = sys.executable,
) -> Iterator[Rung]:
    """Take one stage after the other, and stop after the first that fails.

    Args:
        result: of porting ``original``.
        original: the script.
        port: what was written.
        arguments: of both.
        limit: a memory, as ``abele fit`` accepts it.
        python: the command that runs Python.
    """
    stages: dict[str, Callable[[], _Said]] = {
        "the program trains on this processor": lambda: _runs(original, arguments, python),
        "its lines are ported": lambda: _is_ported(result),
        "a batch of one row trains": lambda: _takes_one_row(port, arguments, python),
        "the training model computes the same": lambda: _trains(original, port, arguments, python),
        "the inference model computes the same": lambda: _evaluates(port, arguments, python),
        f"it fits into {limit}": lambda: _fits(port, arguments, limit, python),
    }
    for title, stage in stages.items():
        try:
            passed, says = stage()
        except CheckError as error:
            passed, says = False, str(error)
        yield Rung(title, passed, says)
        if not passed:
            return


def _watched(
    watcher: str, script: Path, arguments: Sequence[str], python: str, name: str = "port"
) -> Recorded:
    deadline = time.monotonic() + _TIMEOUT_S
    return recorded(
        Run(
            script=script, name=name, watcher=watcher, arguments=arguments, deadline=deadline,
            python=python,
        )
    )  # fmt: skip


def _runs(original: Path, arguments: Sequence[str], python: str) -> _Said:
    updates = _watched("original", original, arguments, python, "original").updates
    if not updates or not updates[0].losses:
        return False, "it ends without an update; give it arguments with which it trains"
    return True, f"its first loss is {updates[0].losses[-1]:.6g}"


def _is_ported(result: Port) -> _Said:
    if result.unfinished:
        return False, "\n".join(each.with_line() for each in result.unfinished)
    places = [f"{each.path}:{each.line}" for each in result.findings if each.code == "ABP502"]
    evaluates = f"; inference models run at {', '.join(places)}" if places else ""
    return True, f"{len(result.findings)} lines were looked at, none is left to do{evaluates}"


def _takes_one_row(port: Path, arguments: Sequence[str], python: str) -> _Said:
    answer = _watched("one_row", port, arguments, python).answer
    if answer["problem"]:
        name = "batch_norm" if _NORM_ERROR in answer["problem"] else answer["name"]
        advice = _ONE_ROW.get(name, _ONE_ROW[""])
        return False, f"{answer['problem']}\n{answer['line']}\n{advice}"
    if "untried" in answer:
        return True, f"there is nothing to try: {answer['untried']}"
    return True, f"one of {answer['rows']} rows has a loss and gradients by itself"


def _trains(original: Path, port: Path, arguments: Sequence[str], python: str) -> _Said:
    more: dict[str, Any] = {"timeout_s": _TIMEOUT_S, "python": python}
    comparison = check(original, port, _STEPS, arguments, **more)
    if comparison.status:
        return False, str(comparison)
    return True, f"losses and weights of {len(comparison.steps)} updates are equal"


def _evaluates(port: Path, arguments: Sequence[str], python: str) -> _Said:
    answer = _watched("inference", port, arguments, python).answer
    if not answer["calls"]:
        return True, "nothing is evaluated by a program with these arguments"
    if not answer["line"]:
        return True, f"{answer['calls']} calls return what the plain model does, bit for bit"
    advice = "call copyWeightsToDevice() of the program after its weights have changed"
    if answer["mode"]:
        advice = (
            "a wrapper copies the mode of its model, and a program keeps that of its first call: "
            f"call {answer['mode']} of the model in the port before it is wrapped"
        )
    says = "returns something else than the plain model"
    return False, f"call {answer['calls']} {says}: {advice}\n{answer['line']}"


def _fits(port: Path, arguments: Sequence[str], limit: str, python: str) -> _Said:
    command = [python, "-m", "abele", "fit", str(port), "--limit", limit, "--", *arguments]
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            encoding="utf-8",
            errors="backslashreplace",
            timeout=_TIMEOUT_S,
        )
    except subprocess.TimeoutExpired:
        raise CheckError(
            f"abele fit has no answer within {_TIMEOUT_S:g} s. Give the program arguments with "
            "which it has less to do before its first step."
        ) from None
    return done.returncode == 0, done.stdout.strip() or done.stderr.strip()
