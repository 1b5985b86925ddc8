"""Takes the steps of a port in the order in which people take them, up to the first that fails.

They are those of the guide that the project started from: it runs on a processor, its lines are
ported, a batch of one row trains, its model trains as a program and is evaluated as one, and it
fits; where it does not, numbers of half precision, recomputation and pipelines are among the
changes that the answer names.
"""

from __future__ import annotations

import dataclasses
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path

from abele.errors import CheckError
from abele.port.check import Comparison, check
from abele.port.check.process import Messages, Script
from abele.port.engine import Port
from abele.port.rungs import fitting, mending
from abele.port.rungs.process import answer_of

_STEPS = 5
_TIMEOUT_S = 600.0

#: Whether a step holds, and what was seen; those that a ``CheckError`` ends do not.
_Said = tuple[bool, str]


@dataclasses.dataclass(frozen=True)
class Rung:
    """One step.

    Attributes:
        title: what was tried.
        passed: whether it holds.
        says: what was seen, and where it does not hold, what mends it.
    """

    title: str
    passed: bool
    says: str

    def __str__(self) -> str:
        """Return the step with what was seen below it."""
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
    """Take one step after the other, and stop after the first that fails.

    Args:
        result: of porting ``original``.
        original: the script.
        port: what was written.
        arguments: of both.
        limit: a memory, as ``abele fit`` takes it.
        python: the command that runs Python.
    """
    for title, step in _steps(result, original, port, arguments, limit, python).items():
        try:
            passed, says = step()
        except CheckError as error:
            passed, says = False, str(error)
        yield Rung(title, passed, says)
        if not passed:
            return


def _steps(
    result: Port,
    original: Path,
    port: Path,
    arguments: Sequence[str],
    limit: str,
    python: str,
) -> dict[str, Callable[[], _Said]]:
    """What takes each step, by its title, in their order; arguments as of ``climb``."""
    return {
        "the program trains on this processor": lambda: _runs(original, arguments, python),
        "its lines are ported": lambda: _is_ported(result),
        "a batch of one row trains": lambda: _takes_one_row(original, port, arguments, python),
        "the training model computes the same": lambda: _trains(
            result, original, port, arguments, python
        ),
        "the inference model computes the same": lambda: _evaluates(
            original, port, arguments, python
        ),
        f"it fits into {limit}": lambda: _fits(port, arguments, limit, python),
    }


def _runs(original: Path, arguments: Sequence[str], python: str) -> _Said:
    deadline = time.monotonic() + _TIMEOUT_S
    script = Script(
        original, arguments, port=False, steps=1, seed=0, deadline=deadline, python=python
    )
    with closing(script):
        messages = Messages(script)
        while not messages.order and messages.reach_state() is not None:
            messages.go_on()
        messages.finish()
    if not messages.updates:
        return False, "it ends without an update; give it arguments with which it trains"
    return True, f"its first loss is {messages.updates[0, 1].losses[-1]:.6g}"


def _is_ported(result: Port) -> _Said:
    if result.unfinished:
        return False, "\n".join(each.with_line() for each in result.unfinished)
    places = [f"{each.path}:{each.line}" for each in result.findings if each.code == "ABP502"]
    evaluates = f"; inference models run at {', '.join(places)}" if places else ""
    return True, f"{len(result.findings)} lines were looked at, none is left to do{evaluates}"


def _takes_one_row(original: Path, port: Path, arguments: Sequence[str], python: str) -> _Said:
    answer = answer_of("one_row", port, arguments, python, _TIMEOUT_S)
    if answer["problem"]:
        return False, f"{answer['problem']}\n{mending.of_one_row(answer, port, original)}"
    if "untried" in answer:
        return True, f"there is nothing to try: {answer['untried']}"
    return True, f"one of {answer['rows']} rows has a loss and gradients by itself"


def _evaluates(original: Path, port: Path, arguments: Sequence[str], python: str) -> _Said:
    answer = answer_of("inference", port, arguments, python, _TIMEOUT_S)
    if answer["result"] == "other":
        return False, mending.of_inference(answer, port, original)
    if not answer["calls"]:
        return True, "nothing is evaluated by a program with these arguments"
    return True, f"{answer['calls']} calls return what the plain model does, bit for bit"


def _trains(
    result: Port,
    original: Path,
    port: Path,
    arguments: Sequence[str],
    python: str,
) -> _Said:
    comparison = check(
        original,
        port,
        _STEPS,
        arguments,
        timeout_s=_TIMEOUT_S,
        python=python,
    )
    if comparison.status:
        edit = _edit_of_training(result, comparison, port, arguments, python)
        return False, "\n".join(filter(None, [str(comparison), edit]))
    return True, f"losses and weights of {len(comparison.steps)} updates are equal"


def _edit_of_training(
    result: Port, comparison: Comparison, port: Path, arguments: Sequence[str], python: str
) -> str:
    """What mends a port that trains otherwise; empty if that is not known."""
    first = comparison.difference
    if first is not None and first.step <= 1:
        edit = mending.of_chance(result.before)
        if edit:
            return edit
    answer = answer_of("training", port, arguments, python, _TIMEOUT_S)
    return mending.of_training(answer) if answer["changed"] else ""


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
    said = done.stdout.strip() or done.stderr.strip()
    if done.returncode == 0:
        return True, said
    edit = fitting.of_fit(done.stdout, port)
    return False, f"{said}\nThe edit:\n{edit}" if edit else said
