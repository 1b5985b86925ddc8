"""Wrapped models of these tests are interpreted: what is refused is refused before compiling."""

import pytest


@pytest.fixture(autouse=True)
def _target(monkeypatch):
    monkeypatch.setenv("ABELE_TARGET", "reference")
