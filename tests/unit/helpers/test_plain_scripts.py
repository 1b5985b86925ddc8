"""The plain scripts that front doors are tried on train by themselves."""

import re
from pathlib import Path

import pytest

from helpers.warm_python import run_program

SCRIPTS = sorted((Path(__file__).parents[2] / "helpers" / "plain_scripts").glob("*.py"))
_LOSS = re.compile(r"loss\D{1,10}(\d+\.\d+)", re.IGNORECASE)  # no nan, no inf


@pytest.mark.long  # the compiled scripts are compared with them by default
@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.stem)
def test_a_script_prints_the_loss_of_each_step(script):
    done = run_program(script, "--steps", 4)
    assert done.returncode == 0, done.stderr
    losses = _LOSS.findall(done.stdout)
    assert len(losses) >= 4, done.stdout
    assert len(set(losses)) == len(losses)  # it trains
