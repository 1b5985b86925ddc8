"""The example of exported files runs as a user runs it, on the target that needs no compiler."""

import os
import subprocess
from pathlib import Path

from helpers.warm_python import python

REPOSITORY = Path(__file__).resolve().parents[2]


def test_the_new_process_goes_on_with_equal_outputs(tmp_path):
    environment = {
        **os.environ,
        "ABELE_TARGET": "reference",
        "PYTHONPATH": str(REPOSITORY / "src"),
    }
    command = [python(), str(REPOSITORY / "examples" / "save_and_load.py")]
    done = subprocess.run(
        command, env=environment, cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr + done.stdout
    head, *table = [line.split() for line in done.stdout.splitlines()]
    assert head[0] == "step"
    assert [line[0] for line in table] == ["5", "6", "7", "8", "9"]
    assert all(line[1] == line[2] and line[3] == "yes" for line in table)
    assert os.listdir(tmp_path) == []
