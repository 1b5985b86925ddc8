"""Wrapped models of these tests are interpreted: no compiler, bitwise equal to plain PyTorch."""

import pytest


@pytest.fixture(autouse=True)
def _target(monkeypatch):
    monkeypatch.setenv("ABELE_TARGET", "reference")
