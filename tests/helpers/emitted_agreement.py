"""Random programs of torch's operators, by emitted code and interpreted, and what is counted."""

import collections
import re
import warnings
from collections.abc import Iterable
from typing import Any

from abele import passes
from abele.targets import get_target
from helpers import emitted_programs, random_operators
from helpers.emitted_operators import program_of
from helpers.emitted_programs import Case

# Programs in one file: starting the compiler takes as long as compiling one of them.
TOGETHER = 40


class Agreement:
    """Random programs, compared with the interpreter.

    Attributes:
        counts: programs by what became of them.
        operators: of programs that were traced, and how often.
        left: operators that torch computes in emitted programs, and how often.
        untraced: programs that no program can be made of, and why.
        declined: programs that the lowering leaves to others, and why.
        wrong: programs that differ, and how.
    """

    def __init__(self):
        self.counts, self.operators, self.left = (collections.Counter() for _ in range(3))
        self.untraced: dict[str, str] = {}
        self.declined: dict[str, str] = {}
        self.wrong: dict[str, str] = {}

    def run(self, seeds: Iterable[int]) -> None:
        """Try a program of each seed; all of them are compiled as one file."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of operators that torch is about to remove
            cases = [case for seed in seeds if (case := self._case(seed)) is not None]
            for outcome in emitted_programs.outcomes(cases):
                self._count(outcome)

    def data(self) -> dict[str, Any]:
        """All of it, for JSON."""
        return {
            "programs": dict(self.counts.most_common()),
            "operators": dict(self.operators.most_common()),
            "left_to_torch": dict(self.left.most_common()),
            "untraced": self.untraced,
            "declined": self.declined,
            "wrong": self.wrong,
        }

    def add(self, data: dict[str, Any]) -> None:
        """Count what ``data`` has of others, too."""
        self.counts.update(data["programs"])
        self.operators.update(data["operators"])
        self.left.update(data["left_to_torch"])
        for name in ("untraced", "declined", "wrong"):
            getattr(self, name).update(data[name])

    def _case(self, seed: int) -> Case | None:
        """A program, unless it cannot be traced."""
        composed = random_operators.composed(seed)
        name = f"{seed}: {', '.join(composed.names)}"
        self.counts["tried"] += 1
        try:
            program = program_of(composed, composed.inputs, gradients=True)
        except Exception as error:  # noqa: BLE001 - torch raises what it likes; each kind is counted
            self.counts["untraced"] += 1
            self.untraced[name] = _kind(error)
            return None
        self.operators.update(composed.names)
        reason = get_target("cpu").lowering("emitted").why_not_chosen(passes.run(program))
        self.counts["taken" if reason is None else "declined"] += 1
        if reason is not None:
            self.declined[name] = reason
        return Case(name, program, list(composed.inputs), magnifies=True)

    def _count(self, outcome: emitted_programs.Outcome) -> None:
        self.left.update(outcome.foreign())
        # Programs that are declined because they would not gain are compared, too.
        self.counts["compared"] += outcome.plan is not None
        difference = outcome.difference()
        if difference is not None:
            self.wrong[outcome.name] = difference
        self.counts["wrong"] += difference is not None


def _kind(error: Exception) -> str:
    operator = re.search(r"aten[.:]+\w+", str(error))
    return f"{type(error).__name__} {operator.group() if operator else ''}".strip()
