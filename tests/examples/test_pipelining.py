"""The pipelining example shows its placement and equal losses."""

import re

import pytest

pytest.importorskip("poptorch")

import pipelining


def test_pipelining_from_start_to_end(monkeypatch, capsys):
    monkeypatch.setenv("ABELE_TARGET", "reference")
    pipelining.main()
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[:4] for line in lines[1:5]] == [
        [f"layer{index}", str(index), "0", str(index)] for index in range(4)
    ]
    assert lines[5] == "4 stages, 4 IPUs"
    first, last = map(float, re.findall(r"\d+\.\d+", lines[6]))
    assert last < first / 2
    assert lines[7] == "Without blocks: the same losses"
