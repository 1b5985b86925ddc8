"""docs/porting-cosmictagger.md does what it says, from the first command to the last block."""

import json
import re
import shlex
from pathlib import Path

import pytest

from helpers.warm_python import run_program

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "porting-cosmictagger.md").read_text()


# The commands and the program of the page in one process: importing takes longer than most rungs.
DRIVER = """
import json, runpy, sys
from cosmictagger.cli import main

for command in json.loads(sys.argv[1]):
    assert main(command) == 0, command
runpy.run_path("page.py", run_name="__main__")
"""


@pytest.mark.long
def test_every_rung_holds(tmp_path):
    (shell,) = re.findall(r"```sh\n(.*?)```", PAGE, re.S)
    commands = [shlex.split(line) for line in shell.splitlines()]
    assert {command.pop(0) for command in commands} == {"cosmictagger"}
    (tmp_path / "page.py").write_text("\n".join(re.findall(r"```python\n(.*?)```", PAGE, re.S)))
    variables = {"ABELE_TARGET": "reference", "PYTHONPATH": str(ROOT / "src")}
    done = run_program("-c", DRIVER, json.dumps(commands), cwd=tmp_path, **variables)
    assert done.returncode == 0, done.stderr
    said = done.stdout + done.stderr
    assert "Mode CPU: PyTorch, eager" in said
    assert "Weights after step 2: " in said
    for rung in ("in plain", "on the device", "called neutrino", "state", "in half", "pipeline"):
        assert re.search(rf"^.*\b{rung}\b.*\d", said, re.M), f"nothing printed about {rung!r}"
