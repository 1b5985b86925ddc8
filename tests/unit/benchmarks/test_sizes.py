"""Rates beside limits: limits are what the network needs, the page says what was measured."""

import json
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
sys.path.append(str(ROOT / "benchmarks"))

import sizes  # noqa: E402 - after the path above; benchmarks are no package
import sizes_page  # noqa: E402

RECORD = max((ROOT / "benchmarks" / "records").glob("sizes_*.json"))
LIMIT = {"flop_per_s": 11e9, "byte_per_s": {"10": 28e9}, "call_s": 1e-3}


def test_each_limit_alone():
    assert sizes.bounds(LIMIT, 5, 10) == {
        "arithmetic": 11e9 / (2 * 5 * 10 * 10 * 11),
        "memory": 28e9 / (7 * 4 * 4 * 10 * 10),
        "call": pytest.approx(1000),
    }


def test_the_page_has_the_record():
    result = json.loads(RECORD.read_text())
    page = (ROOT / "benchmarks" / "notes" / "sizes.md").read_text()
    assert f"records/{RECORD.name}" in page
    assert all(line in page for line in sizes_page.lines(result))
    for part in result["parts"]:
        assert {(point["batch"], point["width"]) for point in part["points"]} == {*sizes.POINTS}
        for point in part["points"]:
            assert point["bounds"] == sizes.bounds(part["limits"], point["batch"], point["width"])


def test_the_nearest_limit_is_the_lowest():
    point = {"bounds": {"arithmetic": 30.0, "memory": 20.0, "call": 50.0}}
    assert sizes_page.nearest(point) == ("memory", 20.0)


def test_the_picture_shows_every_way_and_limit(tmp_path):
    sizes_page.draw(json.loads(RECORD.read_text()), tmp_path / "sizes.svg")
    drawn = (tmp_path / "sizes.svg").read_text()
    for label in (*sizes_page.WAYS, *(f"limit: {name}" for name in sizes_page.LIMITS)):
        assert f">{label}<" in drawn


def test_both_ways_take_the_same_steps(monkeypatch):
    monkeypatch.setenv("ABELE_TARGET", "reference")
    steps = sizes.steps(4, 8)
    losses = [{name: step().item() for name, step in steps.items()} for _ in range(3)]
    assert [each["abele"] for each in losses] == [each["eager"] for each in losses]
    assert losses[2]["eager"] < losses[0]["eager"]
