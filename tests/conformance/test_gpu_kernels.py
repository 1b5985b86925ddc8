"""Kernels for GPUs of random programs, compiled for the host and compared with the interpreter.

``ABELE_RANDOM_KERNELS=400`` tries that many of each kind here.
"""

import os
import warnings

import pytest

from helpers import emitted_programs, kernels_on_host
from helpers.emitted_programs import Outcome
from helpers.kernels_on_host import drawn

COUNT = int(os.environ.get("ABELE_RANDOM_KERNELS", "3"))

pytestmark = pytest.mark.compiler


@pytest.mark.parametrize("kind", ["networks", "operators"])
def test_random_programs_compute_what_is_interpreted(kind, tmp_path):
    compared, wrong = 0, {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of operators that torch is about to remove
        for number, (case, program) in enumerate(drawn(kind, range(2000, 2000 + COUNT))):
            folder = tmp_path / str(number)
            folder.mkdir()
            outcome = Outcome(case.name)
            run = kernels_on_host.OnHost(folder).compile(program).run
            emitted_programs._run(case, program, outcome, run)
            compared += 1
            if (difference := outcome.difference()) is not None:
                wrong[case.name] = difference
    assert not wrong
    assert compared >= COUNT // 2
