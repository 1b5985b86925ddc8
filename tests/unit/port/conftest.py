"""What ports are tried with: programs run in this process, on target ``reference``."""

import sys

import pytest

from helpers import port_fixtures


@pytest.fixture
def in_process(monkeypatch, tmp_path):
    """The folder and arguments of a program that has just started, on target ``reference``."""
    monkeypatch.setenv("ABELE_TARGET", "reference")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["program.py"])


@pytest.fixture
def plain(tmp_path, monkeypatch):
    """Run the port of a program, or a changed one, where there is no PopTorch."""
    monkeypatch.syspath_prepend(str(tmp_path))

    def printed(texts):
        for name, text in texts.items():
            (tmp_path / name).write_text(text)
        with monkeypatch.context() as patch:
            patch.delitem(sys.modules, "plain_poptorch", raising=False)
            for name in [each for each in sys.modules if each.split(".")[0] == "poptorch"]:
                patch.setitem(sys.modules, name, None)
            return port_fixtures.printed(tmp_path / "run.py")

    return printed
