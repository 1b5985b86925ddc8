"""What a profile of steps says; without a GPU it has the host alone."""

import json
import sys

import pytest
from benchmarks import gpu_profile


@pytest.fixture(autouse=True)
def _switches_stay(monkeypatch):
    monkeypatch.setattr(gpu_profile.ways, "plain_float32", lambda: None)


def test_a_profile_has_each_way_with_its_steps_and_operators(monkeypatch, capsys, tmp_path):
    words = ["--rows", "introduction-1", "--ways", "eager", "--steps", "2", "--device", "cpu"]
    monkeypatch.setattr(sys, "argv", ["gpu_profile", *words, "--out", str(tmp_path)])
    assert gpu_profile.main() == 0
    assert "introduction-1, eager: " in capsys.readouterr().out
    (row,) = json.loads((tmp_path / "profile.json").read_text())["rows"].values()
    entry = row["eager"]
    assert entry["step_us"] > 0
    assert entry["gpu"] == []
    assert ["aten::convolution_backward", 2.0] in [each[:2] for each in entry["host"]]


@pytest.mark.parametrize("way", ["eager", "abele"])
def test_a_row_that_fails_says_why_and_the_next_is_profiled(way, monkeypatch, capsys):
    def fails(name, *_):
        raise RuntimeError(f"no {name} here\n")

    monkeypatch.setattr(gpu_profile, "profiled", fails)
    monkeypatch.setattr(sys, "argv", ["gpu_profile", "--rows", "mlp,gpt", "--ways", way])
    assert gpu_profile.main() == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines == [f"{row}, {way} failed: RuntimeError: no {row} here" for row in ("mlp", "gpt")]
