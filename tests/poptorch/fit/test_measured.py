"""The estimate is what a process takes: two models of ``benchmarks/fit.py``, each in a process."""

import json
import statistics
import subprocess
import sys
from pathlib import Path

import pytest

from abele.targets.cpu.compiler import compiler

ROOT = Path(__file__).resolve().parents[3]


pytestmark = [
    pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="only Linux says so"),
    pytest.mark.skipif(compiler() is None, reason="plans need a C++ compiler"),
]


def measured(folder, *asked):
    """The cells that are asked for, as ``benchmarks/fit.py`` keeps them."""
    command = [sys.executable, "-W", "ignore", str(ROOT / "benchmarks" / "fit.py"), *asked]
    subprocess.run([*command, "--pieces", str(folder)], check=True, capture_output=True)
    return [json.loads(path.read_text()) for path in sorted(folder.iterdir())]


def test_memory_is_estimated_closely_and_what_fits_is_not_refused(tmp_path):
    asked = ["--models", "introduction", "lstm", "--settings", "sgd", "--ways", "interpreted"]
    cells = measured(tmp_path, *asked)
    assert [each["model"] for each in cells] == ["introduction", "lstm"]
    for each in cells:
        assert "refused" not in each
        assert each["limited"]
    off = [abs(each["estimate"]["expected"] / each["measured"] - 1) for each in cells]
    assert statistics.median(off) <= 0.05
    assert max(off) <= 0.1


@pytest.mark.long
def test_every_way_takes_what_its_interval_says(tmp_path):
    cells = measured(tmp_path, "--models", "unet", "--settings", "sgd")
    assert {each["way"] for each in cells} == {"interpreted", "op by op", "compiled"}
    for each in cells:
        assert "refused" not in each
        off = 0.005 * each["measured"]
        low, high = each["estimate"]["low"] - off, each["estimate"]["high"] + off
        assert low <= each["measured"] <= high
