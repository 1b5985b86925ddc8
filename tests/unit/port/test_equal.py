"""Each fixture that is ported whole prints what it printed before: the same losses, digit by digit.

Both run in this process, on target ``reference``.
"""

import contextlib
import io
from pathlib import Path

import pytest
import torch

FIXTURES = Path(__file__).parent / "rules"


#: Fixtures that print no losses.
SILENT = {"optimizer_state"}


def fixtures():
    names = {each.name.removesuffix(".out.py") for each in FIXTURES.glob("*.out.py")}
    return sorted(names - SILENT)


def printed(path):
    """The lines that a program prints."""
    torch.manual_seed(7)
    lines = io.StringIO()
    names = {"__name__": "__main__", "__file__": str(path)}
    with contextlib.redirect_stdout(lines):
        exec(compile(path.read_text(), path, "exec"), names)
    return lines.getvalue().splitlines()


@pytest.mark.parametrize("name", fixtures())
def test_a_port_prints_the_same_losses(name, monkeypatch, tmp_path):
    monkeypatch.setenv("ABELE_TARGET", "reference")
    monkeypatch.chdir(tmp_path)
    before = printed(FIXTURES / f"{name}.in.py")
    assert len(before) > 1
    assert printed(FIXTURES / f"{name}.out.py") == before
