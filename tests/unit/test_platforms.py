"""`docs/platforms.md`: what ran where, from records that scripts/gen_platforms.py writes."""

import importlib.util
import json
import re
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "scripts" / "gen_platforms.py"
CASE = '<testcase classname="tests.unit.test_a" name="{}">{}</testcase>'
WHERE = {
    "date": "2026-11-29",
    "commit": "1a2b3c4d",
    "dirty": False,
    "torch": "2.15.0+cpu",
    "python": "3.14.8",
    "cpu": "AMD EPYC (avx2)",
    "gpu": None,
    "compiler": "g++ 16.2.0",
    "system": "Debian forky, x86_64",
}


@pytest.fixture(scope="module")
def script():
    spec = importlib.util.spec_from_file_location("gen_platforms", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    path = list(sys.path)
    spec.loader.exec_module(module)
    sys.path[:] = path
    return module


@pytest.fixture
def suite(tmp_path):
    """Return a function that writes what pytest writes about some tests."""

    def write(name, seconds, **cases):
        text = "".join(CASE.format(each, f"<{tag}/>" * bool(tag)) for each, tag in cases.items())
        path = tmp_path / name
        path.write_text(f'<testsuites><testsuite time="{seconds}">{text}</testsuite></testsuites>')
        return path

    return write


def test_a_test_that_ran_again_counts_once(script, suite):
    first = suite("1", 10, test_a="", test_b="failure", test_c="skipped", test_d="error")
    again = suite("2", 2.5, test_b="")
    assert script.of_junit([first, again]) == {
        "passed": 2,
        "failed": 1,
        "skipped": 1,
        "seconds": 12.5,
        "failures": ["tests.unit.test_a::test_d"],
    }


def test_the_page_says_what_passed_and_what_failed(script, suite, tmp_path):
    outcome = script.of_junit([suite("1", 600, test_a="", test_b="failure")])
    program = {"passed": 1, "failed": 0, "skipped": 0, "seconds": 8.6, "failures": []}
    folder = tmp_path / "records"
    for _ in range(2):  # the newer in place of the older
        script.write(folder, script.SUITE, outcome, WHERE)
    script.write(folder, script.README, program, {**WHERE, "dirty": True, "note": "in a root"})
    script.write(folder, "tests/unit", {**program, "seconds": 90}, {**WHERE, "gpu": "NVIDIA H200"})
    found = script.records(folder)
    assert len(found) == 3
    rows = script.rows(found)
    place = "| 2.15.0+cpu | 3.14.8 | {} | g++ 16.2.0 | Debian forky, x86_64 |"
    suite_row, program_row, gpu_row = rows.splitlines()[2:5]
    assert suite_row.startswith(
        place.format("AMD EPYC (avx2)") + " whole suite | 1 passed, 1 failed, 10 min | ["
    )
    assert program_row.startswith("|  |  |  |  |  | README program | passed, 8.6 s | [")
    assert program_row.endswith("), 1a2b3c4d with changes, in a root |")
    assert gpu_row.startswith(place.format("NVIDIA H200") + " tests/unit | 1 passed, 90.0 s | [")
    assert "- torch 2.15.0+cpu, Python 3.14.8, AMD EPYC (avx2): `tests.unit.test_a::test_b`" in rows
    claims = script.claims(found)
    assert "| torch 2.15 | README program with Python 3.14; 1 other part |" in claims
    assert "| torch 2.14 | nothing yet |" in claims
    for link in re.findall(r"\]\(([^)]+)\)", rows):
        assert (folder / Path(link).name).exists()


def test_a_record_is_written_on_one_line(script, monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(script, "RECORDS", tmp_path)
    monkeypatch.delenv("PYTHONDONTWRITEBYTECODE", raising=False)  # the benchmarks' harness does
    counts = ["--counts", "1", "0", "0", "--seconds", "14.2"]
    given = ["--set", "python=3.14.8", "system=Debian 13"]
    monkeypatch.setattr(sys, "argv", ["x", "--record", script.README, *counts, *given])
    assert script.main() == 0
    record = json.loads(Path(capsys.readouterr().out.strip()).read_text())
    assert (record["part"], record["passed"], record["seconds"]) == ("README program", 1, 14.2)
    assert record["environment"]["python"] == "3.14.8"
    assert record["environment"]["compiler"].split()[0] in ("g++", "none")
    monkeypatch.setattr(sys, "argv", ["x", "--record", script.README])
    with pytest.raises(SystemExit, match="2"):
        script.main()
    assert "--record needs either --junit or --counts." in capsys.readouterr().err


def test_no_version_is_claimed_without_a_run(script):
    claims = script.claims(script.records(script.RECORDS))
    assert claims.count("\n") > 6
    assert "nothing yet" not in claims
