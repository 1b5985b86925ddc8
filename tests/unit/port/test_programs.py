"""Programs of the shapes that people write: original and port print the same, number by number."""

import contextlib
import io
import runpy
import sys
from pathlib import Path

import pytest
import torch

from abele.port import files
from abele.port.engine import port
from abele.port.finding import Verdict

PROGRAMS = sorted((Path(__file__).parent / "programs").glob("*.py"))


def printed(path, monkeypatch):
    monkeypatch.setenv("ABELE_TARGET", "reference")
    monkeypatch.setattr(sys, "argv", [str(path)])
    output = io.StringIO()
    with torch.random.fork_rng(), contextlib.redirect_stdout(output):
        runpy.run_path(str(path), run_name="__main__")
    return output.getvalue()


@pytest.mark.parametrize("path", PROGRAMS, ids=lambda path: path.stem)
def test_a_port_prints_what_the_program_prints(path, tmp_path, monkeypatch):
    result = port(files.read(path))
    assert result.verdict is Verdict.MODIFIED, [str(each) for each in result.findings]
    files.write(result, path, tmp_path / "ported")
    ported = tmp_path / "ported" / path.name
    text = ported.read_text()
    assert "poptorch.trainingModel(" in text
    assert ".backward()" not in text
    numbers = printed(path, monkeypatch)
    assert len(numbers.split()) > 20
    assert printed(ported, monkeypatch) == numbers
