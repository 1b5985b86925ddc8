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


def test_compiled_losses_that_are_rounded_otherwise_are_said_to_differ_by_that(monkeypatch, capsys):
    losses = iter(([1.0, 0.5], [1.0, 0.5 * (1 + 1e-6)]))
    trainer = type("Trainer", (), {"placement": "4 stages"})
    monkeypatch.setattr(pipelining, "train", lambda model: (trainer, next(losses)))
    pipelining.main()
    assert capsys.readouterr().out.endswith("Without blocks: losses differ by at most 1e-06\n")
