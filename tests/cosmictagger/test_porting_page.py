"""docs/porting-cosmictagger.md does what it says, from the first command to the last block."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

for extra in ("hydra", "h5py", "tensorboard"):
    pytest.importorskip(extra, reason="optional extra: pip install abele[cosmictagger]")

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "porting-cosmictagger.md").read_text()


def _run(arguments, folder):
    environment = {**os.environ, "ABELE_TARGET": "reference", "PYTHONPATH": str(ROOT / "src")}
    done = subprocess.run(
        arguments, capture_output=True, text=True, cwd=folder, env=environment, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


def test_every_rung_holds(tmp_path):
    (commands,) = re.findall(r"```sh\n(.*?)```", PAGE, re.S)
    for command in commands.splitlines():
        program, *arguments = shlex.split(command)
        assert program == "cosmictagger"
        said = _run([sys.executable, "-m", "cosmictagger.cli", *arguments], tmp_path)
    assert "Mode CPU: PyTorch, eager" in said
    assert "Weights after step 2: " in said
    (tmp_path / "page.py").write_text("\n".join(re.findall(r"```python\n(.*?)```", PAGE, re.S)))
    said = _run([sys.executable, "page.py"], tmp_path)
    for rung in ("in plain", "on the device", "called neutrino", "state", "in half", "pipeline"):
        assert re.search(rf"^.*\b{rung}\b.*\d", said, re.M), f"nothing printed about {rung!r}"
