"""Records of runs: written and read without loss, and refused in words."""

import dataclasses
import json

import pytest

from abele.errors import ReportError
from abele.report.record import FILE, SCHEMA, read_run
from helpers.reported import run_before, run_of


def test_a_record_is_read_as_it_was_written(tmp_path):
    run = run_of("introduction")
    run.write(tmp_path)
    assert read_run(tmp_path) == run
    assert read_run(tmp_path / FILE) == run


def test_keys_of_later_versions_are_left_out(tmp_path):
    run = run_of("dense")
    run.write(tmp_path)
    data = json.loads((tmp_path / FILE).read_text())
    data["programs"][0]["colour"] = "green"
    (tmp_path / FILE).write_text(json.dumps(data))
    assert read_run(tmp_path) == run


def test_a_later_schema_is_refused(tmp_path):
    dataclasses.replace(run_of("dense"), schema=SCHEMA + 1).write(tmp_path)
    with pytest.raises(ReportError, match=f"has schema {SCHEMA + 1}, this version reads up to"):
        read_run(tmp_path)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"schema": "one"}', '{"schema": 1}'])
def test_what_is_no_record_is_refused(text, tmp_path):
    (tmp_path / FILE).write_text(text)
    with pytest.raises(
        ReportError, match=r"run\.json is no record of a run, or damaged: .* Give the folder"
    ):
        read_run(tmp_path)


def test_what_is_no_text_is_refused_without_showing_it(tmp_path):
    (tmp_path / FILE).write_bytes(b"\xff" * 5000)
    with pytest.raises(ReportError, match=r"damaged: UnicodeDecodeError: .*position 0") as refused:
        read_run(tmp_path)
    assert len(str(refused.value)) < 500


def test_a_folder_without_a_run_is_refused(tmp_path):
    with pytest.raises(
        ReportError, match=r"There is no run in .* Give the folder of a run that was recorded"
    ):
        read_run(tmp_path)


def test_runs_inside_of_a_folder_are_named(tmp_path):
    run_before().write(tmp_path / "net")
    with pytest.raises(ReportError, match=r"There are runs in .*net\.$"):
        read_run(tmp_path)


def test_facts_of_a_program_are_those_of_its_graph():
    run = run_of("introduction")
    (program,) = run.programs
    assert program.lowering == "interpreter"
    counted = {each.name: each for each in program.operators if each.module == "fc1"}
    # 4 images, 972 inputs, 100 outputs; a multiplication and an addition each.
    assert counted["aten.addmm.default"].operations == 2 * 4 * 972 * 100
    memory = program.memory
    fullest = max(size for _, size in memory.live)
    assert sum(each.bytes for each in memory.largest) + memory.others == fullest
    assert [size for _, size in memory.live] == [
        sum(sizes) for sizes in zip(*memory.kinds.values(), strict=True)
    ]
    assert all(any(sizes) for sizes in memory.kinds.values())
    # At planned places, which a machine has that has compiled before, there are gaps.
    assert (fullest <= memory.peak) if memory.reserved else (fullest == memory.peak)
    lines = {each.line for each in program.memory.largest if each.phase == "forward"}
    assert any(each.startswith("models.py:") for each in lines)
    assert program.given["parameter"] == run.state["parameter"]
