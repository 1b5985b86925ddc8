"""Compiled models train in DistributedDataParallel; sharded tensors are refused."""

import json
import os
import subprocess
from pathlib import Path

from helpers.warm_python import python

ROOT = Path(__file__).parents[3]
LIMIT_S = 240


def test_two_processes_train_as_in_plain_pytorch(tmp_path):
    command = [python(), "-W", "ignore", "-m", "helpers.dynamo_processes"]
    path = os.pathsep.join(str(ROOT / name) for name in ("src", "tests"))
    variables = {**os.environ, "ABELE_TARGET": "reference", "PYTHONPATH": path}
    started = [
        subprocess.Popen([*command, str(rank), str(tmp_path)], env=variables, stderr=-1, text=True)
        for rank in range(2)
    ]
    for each in started:
        _, said = each.communicate(timeout=LIMIT_S)
        assert each.returncode == 0, said
    first, second = (json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(2))
    for found in (first, second):
        assert found["equal"], found
        assert found["refused"] == []
        assert found["graphs"].count("forward") > 1  # one for each bucket of gradients
        assert found["graphs"].count("forward") == found["graphs"].count("backward")
        assert "an input of the graph is a DTensor" in found["sharded"]
    assert first["sum"] == second["sum"]
