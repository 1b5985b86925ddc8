"""Two processes train in DistributedDataParallel as in plain PyTorch, by programs or without."""

import json
import os
import re
import subprocess
from pathlib import Path

import pytest

from helpers import replicas
from helpers.warm_python import python

ROOT = Path(__file__).parents[3]
LIMIT_S = 240


def _found(folder: Path, cases, target: str) -> dict[str, list[dict]]:
    """What both processes found, by case."""
    names = [case.__name__ for case in cases]
    command = [python(), "-W", "ignore", "-m", "helpers.replicas"]
    path = os.pathsep.join(str(ROOT / name) for name in ("src", "tests"))
    variables = {**os.environ, "ABELE_TARGET": target, "PYTHONPATH": path}
    started = [
        subprocess.Popen([*command, str(rank), str(folder), *names], env=variables, stderr=-1)
        for rank in range(2)
    ]
    for each in started:
        _, said = each.communicate(timeout=LIMIT_S)
        assert each.returncode == 0, said.decode()
    both = [json.loads((folder / f"{rank}.json").read_text()) for rank in range(2)]
    return {name: [each[name] for each in both] for name in names}


@pytest.fixture(scope="module")
def found(tmp_path_factory) -> dict[str, list[dict]]:
    folder = tmp_path_factory.mktemp("replicas")
    return _found(folder, (*replicas.PROGRAMS, *replicas.EAGER), "reference")


# Programs and the calls that they serve, in process 0 and 1; of six calls the first is plain.
_SERVED = {
    "statistics_of_rank_0": [(2, 10), (2, 10)],
    "accumulated_outside": [(3, 16), (3, 16)],
    "other_shapes": [(1, 5), (2, 5)],
    "one_is_plain": [(1, 5), (0, 0)],
    "uneven_numbers_of_batches": [(1, 11), (1, 17)],
    "after_a_forward_alone": [(2, 5), (2, 5)],
    "after_a_forward_that_looks": [(2, 5), (2, 5)],
    "uneven_and_looked_for": [(1, 11), (1, 17)],
    "unused_parameters": [(1, 3), (1, 4)],
    "looked_for_and_accumulated": [(1, 2), (1, 2)],
}


@pytest.mark.parametrize("case", [each.__name__ for each in replicas.PROGRAMS])
def test_programs_have_the_bits_of_plain_pytorch(found, case):
    for each, served in zip(found[case], _SERVED.get(case, [(1, 5)] * 2), strict=True):
        assert "failed" not in each, each["failed"]
        assert (each["programs"], each["calls"]) == served
        reason = _REASONS.get(case, "^$")
        assert all(re.search(reason, eager) for eager in each["eager"])
        assert bool(each["eager"]) is (case in _REASONS)


_REASONS = {
    "unused_parameters": r"A backward gives 4 of 8 parameters .* at .*replicas.py:\d+: `loss.back",
    "looked_for_and_accumulated": "True is called in no_sync|A backward gives 4 of 8",
    "unused_and_not_looked_for": "A backward gives 4 of 8 parameters of a DistributedDataParallel",
    "static_graph": "with static_graph=True",
    "communication_hook": "with a communication hook",
    "fully_sharded": "FSDPSequential whose state is divided over devices or processes",
    "exchanged_by_hand": r"exchanges tensors with other processes itself, at .*replicas.py:\d+",
}


@pytest.mark.parametrize("case", [each.__name__ for each in replicas.EAGER])
def test_what_no_program_follows_stays_plain_pytorch(found, case):
    for each in found[case]:
        assert "failed" not in each, each["failed"]
        assert each["programs"] == 0
        (reason,) = each["eager"]
        assert re.search(_REASONS[case], reason), reason


@pytest.mark.compiler
def test_compiled_programs_agree_closely(tmp_path):
    cases = (replicas.plain, replicas.two_models, replicas.kept_gradients)
    for both in _found(tmp_path, cases, "cpu").values():
        for each in both:
            assert "failed" not in each, each["failed"]
            assert (each["programs"], each["calls"]) == (1, 5)
