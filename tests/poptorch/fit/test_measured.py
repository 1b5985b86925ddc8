"""The estimate is what a process takes: two models of ``benchmarks/fit.py``, each in a process."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from abele.targets.cpu.compiler import compiler

ROOT = Path(__file__).resolve().parents[3]


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="only Linux says how much")
@pytest.mark.skipif(compiler() is None, reason="plans need a C++ compiler")
def test_memory_is_estimated_within_five_percent_and_what_fits_is_not_refused(tmp_path):
    kept = tmp_path / "cells"
    asked = ["--models", "introduction", "lstm", "--settings", "sgd", "--ways", "interpreted"]
    command = [sys.executable, "-W", "ignore", str(ROOT / "benchmarks" / "fit.py"), *asked]
    subprocess.run([*command, "--kept", str(kept)], check=True, capture_output=True)
    cells = [json.loads(line) for line in kept.read_text().splitlines()]
    assert [each["model"] for each in cells] == ["introduction", "lstm"]
    for each in cells:
        assert "refused" not in each
        assert each["limited"]
        assert each["estimate"]["expected"] == pytest.approx(each["measured"], rel=0.05)
