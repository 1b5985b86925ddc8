"""Instances begin interpreted and change to compiled programs after the same update."""

import json
from pathlib import Path

import pytest

from conftest import usable
from helpers import instances, instances_starting

PROGRAM = Path(instances_starting.__file__)


def run(folder, what, count=2, **changed):
    """What every instance found in a run of the program."""
    changed = {"ABELE_START": "tiered", "POPTORCH_LOG_LEVEL": "ERR", **changed}
    instances.run(PROGRAM, [str(folder), what], count, changed=changed)
    return [json.loads((folder / f"{index}.json").read_text()) for index in range(count)]


def test_all_change_after_the_same_update(tmp_path):
    first, second = run(tmp_path, "late")
    assert first["since"] == second["since"] > second["resumed"]
    assert first["sentence"].startswith("compiled programs run since update")
    assert first["check"] == second["check"]
    assert first["check"].startswith("one micro-batch through both: ")
    assert first["weight"] == second["weight"]


def test_one_compiles_and_the_other_loads(tmp_path):
    compiled = run(tmp_path, "plain")
    assert compiled[0]["since"] == compiled[1]["since"] > 0
    assert sorted(each["compile_s"] > 0 for each in compiled) == [False, True]
    assert compiled[0]["weight"] == compiled[1]["weight"]

    for each in run(tmp_path, "plain"):
        assert (each["compilers"], each["since"]) == (0, 0), "all had the programs"
        assert each["sentence"] == "compiled programs run"

    first, second = run(tmp_path, "plain", ABELE_SWAP_AT="2")
    assert (first["since"], second["since"]) == (2, 2)
    assert first["weight"] == second["weight"]


def test_a_killed_process_of_one_keeps_all_interpreted(tmp_path):
    both = run(tmp_path, "killed")
    for each in both:
        problem = "process 1: the process that compiled was ended by SIGKILL"
        assert each["sentence"] == f"programs are interpreted: {problem}"
        assert len(each["warnings"]) == 1
    assert both[0]["weight"] == both[1]["weight"]


@pytest.mark.compiler
@pytest.mark.thorough
def test_with_a_compiler(tmp_path):
    usable("cpu")
    first, second = run(tmp_path, "plain", ABELE_TARGET="cpu", ABELE_SWAP_AT="3")
    assert (first["since"], second["since"]) == (3, 3)
    assert first["weight"] == second["weight"]
