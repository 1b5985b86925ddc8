"""Emitted code of random programs of torch's own operators, forward and backward.

Programs are composed of the operators in the database that torch tests itself with. Those that the
lowering declines are compared as well, where there is code for them, and counted by reason.
``ABELE_RANDOM_NETWORKS=50`` tries that many instead of 2,000; ``-s`` shows the counts.
"""

from __future__ import annotations

import collections
import json
import os
import re
import warnings

import pytest

from abele import passes
from abele.targets.cpu.emitted import choice
from helpers import emitted_programs, random_operators
from helpers.emitted_operators import program_of
from helpers.emitted_programs import Case

COUNT = int(os.environ.get("ABELE_RANDOM_NETWORKS", "2000"))
TOGETHER = 40

pytestmark = [pytest.mark.compiler, pytest.mark.long]


class Tried:
    """Random programs, compared with the interpreter.

    Attributes:
        counts: of programs by what became of them, and by why the lowering declined them.
        operators: that were compared, and how often.
        left: operators that torch computes, and how often.
        wrong: programs that differ, and how.
    """

    def __init__(self):
        self.counts, self.operators, self.left = (collections.Counter() for _ in range(3))
        self.wrong: dict[str, str] = {}

    def case(self, seed: int) -> Case | None:
        """A program, unless it cannot be traced."""
        composed = random_operators.composed(seed)
        name = f"{seed}: {', '.join(composed.names)}"
        try:
            program = program_of(composed, composed.inputs, gradients=True)
        except Exception as error:  # noqa: BLE001 - torch raises what it likes; each kind is counted
            self.counts[f"not traced: {_kind(error)}"] += 1
            return None
        self.operators.update(composed.names)
        reason = choice.why_not(passes.run(program))
        kind = (
            "taken" if reason is None else f"declined: {re.sub('[0-9]+ of [0-9]+', 'of', reason)}"
        )
        self.counts[kind] += 1
        return Case(name, program, list(composed.inputs), magnifies=True)

    def compare(self, cases: list[Case]) -> None:
        """Run programs by emitted code, and interpreted."""
        for outcome in emitted_programs.outcomes(cases):
            self.counts["compared"] += outcome.plan is not None
            self.left.update(outcome.foreign())
            difference = outcome.difference()
            if difference is not None:
                self.wrong[outcome.name] = difference

    def said(self) -> str:
        """All counts, as JSON."""
        data = {
            "programs": dict(self.counts.most_common()),
            "operators": len(self.operators),
            "left to torch": dict(self.left.most_common()),
        }
        return json.dumps(data, indent=1)


def _kind(error: Exception) -> str:
    operator = re.search(r"aten[.:]+\w+", str(error))
    return f"{type(error).__name__} {operator.group() if operator else ''}".strip()


def test_programs_of_torchs_operators_compute_what_is_interpreted(monkeypatch):
    monkeypatch.setenv("ABELE_TARGET", "reference")
    tried, cases, seed = Tried(), [], 0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of operators that torch is about to remove
        while tried.counts["compared"] + len(cases) < COUNT:
            case = tried.case(seed)
            cases += [] if case is None else [case]
            seed += 1
            if len(cases) == min(TOGETHER, COUNT):
                tried.compare(cases)
                cases = []
        tried.compare(cases)
    print(tried.said())
    assert not tried.wrong
    assert tried.counts["taken"] > COUNT // 4
