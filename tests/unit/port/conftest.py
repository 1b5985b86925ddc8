"""What ports are tried with: programs run in this process, on target ``reference``."""

import sys

import pytest

from sambaflow.samba import session


@pytest.fixture
def in_process(monkeypatch, tmp_path):
    """The folder, arguments and session of a program that has just started."""
    monkeypatch.setenv("ABELE_TARGET", "reference")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(session, "graph", None)
    monkeypatch.setattr(sys, "argv", ["program.py"])
