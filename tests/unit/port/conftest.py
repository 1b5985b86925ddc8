"""What ports are tried with: programs run in this process, on target ``reference``."""

import sys

import pytest


@pytest.fixture
def in_process(monkeypatch, tmp_path):
    """The folder and arguments of a program that has just started, on target ``reference``."""
    monkeypatch.setenv("ABELE_TARGET", "reference")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["program.py"])
