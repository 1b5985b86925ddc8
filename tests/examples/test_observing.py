"""The example that watches gradients runs as a user runs it."""

import os
import subprocess
from pathlib import Path

import pytest

from helpers.warm_python import python

pytest.importorskip("matplotlib", reason="optional extra: pip install abele[demo]")

REPOSITORY = Path(__file__).resolve().parents[2]


def test_the_table_shows_smaller_gradients_and_the_picture_is_written(tmp_path):
    command = [python(), str(REPOSITORY / "examples" / "observing_tensors.py")]
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY / "src")}
    environment["ABELE_TARGET"] = "reference"
    result = subprocess.run(
        command, env=environment, capture_output=True, text=True, cwd=tmp_path, check=False
    )
    assert result.returncode == 0, result.stderr
    head, *lines = result.stdout.splitlines()
    assert head.split() == ["step", "loss", "|gradient", "of", "fc1|", "|gradient", "of", "fc2|"]
    table = [[float(value) for value in line.split()] for line in lines]
    assert [row[0] for row in table] == [0, 10, 20, 30, 40, 50]
    assert table[-1][1] < table[0][1]
    assert all(0 < row[2] < 1 and 0 < row[3] < 1 for row in table)
    picture = (tmp_path / "out" / "observing_tensors.png").read_bytes()
    assert picture.startswith(b"\x89PNG")
    assert len(picture) > 10_000
