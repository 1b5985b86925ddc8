"""The page says of random programs what their record says; pieces are run once."""

import json
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
sys.path.append(str(ROOT / "benchmarks"))

import random_programs  # noqa: E402 - after the path above; benchmarks are no package

RECORDS = sorted((ROOT / "benchmarks" / "records").glob("random_programs_*.json"))


def of_piece(first, end):
    """What a piece returns in which one program is not traced and one is declined."""
    tried = end - first
    return {
        "programs": {
            "tried": tried,
            "compared": tried - (first == 0),
            "taken": tried - 2,
            "untraced": 1,
        },
        "operators": {"add": tried},
        "left_to_torch": {"aten.sort.default": 1},
        "untraced": {f"{first}: item": "Error"},
        "declined": {f"{first + 1}: sort": "9 of 30 operators would be called from Python"},
        "wrong": {},
        "process_s": 1.0,
    }


def test_pieces_follow_until_enough_are_compared(tmp_path, monkeypatch):
    run = []
    monkeypatch.setattr(random_programs, "PIECE", 10)
    monkeypatch.setattr(
        random_programs,
        "_in_new_process",
        lambda *numbers: run.append(numbers) or of_piece(*numbers),
    )
    result = random_programs.run(20, tmp_path)
    assert run == [(0, 10), (10, 20), (20, 21)]
    assert result["programs"]["compared"] == 20
    assert result["process_s"] == 3.0
    assert len(result["declined"]) == 3
    random_programs.run(20, tmp_path)
    assert len(run) == 3, "a piece that is there was run again"


def test_the_lines_count_reasons():
    said = random_programs.lines(of_piece(0, 10))
    assert "none differed" in said[0]
    assert "| too many operators would be called from Python | 1 |" in said
    assert "| not traced: Error | 1 |" in said
    assert said[-3:] == ["`sort.default`.", "", "</details>"]


def test_a_piece_that_fails_names_its_programs(monkeypatch):
    monkeypatch.setattr(random_programs, "__file__", "/no/such/file.py")
    with pytest.raises(RuntimeError, match="Programs 3 to 5 ended with 2"):
        random_programs._in_new_process(3, 5)


@pytest.mark.skipif(not RECORDS, reason="no record")
def test_the_page_has_the_record():
    result = json.loads(RECORDS[-1].read_text())
    page = (ROOT / "benchmarks" / "notes" / "random_programs.md").read_text()
    assert f"records/{RECORDS[-1].name}" in page
    assert "\n".join(random_programs.lines(result)) in page
    assert not result["wrong"]
