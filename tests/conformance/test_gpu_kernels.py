"""Kernels for GPUs of random programs, compiled for the host and compared with the interpreter.

``ABELE_RANDOM_KERNELS=400`` tries that many of each kind here.
"""

from __future__ import annotations

import os
import warnings

import pytest

from abele import passes
from abele.errors import CaptureError
from helpers import emitted_programs, kernels_on_host, random_operators, typed_agreement
from helpers.emitted_operators import program_of
from helpers.emitted_programs import Case, Outcome

COUNT = int(os.environ.get("ABELE_RANDOM_KERNELS", "4"))

pytestmark = pytest.mark.compiler


def of_operators(seed):
    composed = random_operators.composed(seed)
    if not composed.calls:
        raise RuntimeError("no operator that was drawn has gradients")
    name = f"{seed}: {', '.join(composed.names)}"
    program = program_of(composed, composed.inputs, gradients=True)
    return [Case(name, program, list(composed.inputs), magnifies=True)]


def of_types(seed):
    return [typed_agreement.interpreted(seed)[0]]


@pytest.mark.parametrize(
    "cases",
    [emitted_programs.of_network, of_operators, of_types],
    ids=["networks", "operators", "types"],
)
def test_random_programs_compute_what_is_interpreted(cases, tmp_path):
    compared, wrong = 0, {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of operators that torch is about to remove
        for seed in range(2000, 2000 + COUNT):
            try:
                made = cases(seed)
            except (CaptureError, RuntimeError, NotImplementedError):
                continue  # torch has no gradient, or no program of it
            for number, case in enumerate(made):
                program = passes.run(case.program)
                if emitted_programs._has_effects_or_branches(program):
                    continue
                folder = tmp_path / f"{seed}-{number}"
                folder.mkdir()
                outcome = Outcome(case.name)
                run = kernels_on_host.OnHost(folder).compile(program).run
                emitted_programs._run(case, program, outcome, run)
                compared += 1
                if (difference := outcome.difference()) is not None:
                    wrong[case.name] = difference
    assert not wrong
    assert compared >= COUNT // 2
