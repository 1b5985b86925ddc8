"""Wrapped models of these tests are interpreted: no compiler, bitwise equal to plain PyTorch."""

import sys

import pytest

from helpers.warm_python import python, spawning


@pytest.fixture(autouse=True)
def _target(monkeypatch):
    monkeypatch.setenv("ABELE_TARGET", "reference")


@pytest.fixture
def forks(monkeypatch):
    """Programs that run in this process start others from the Python that has loaded torch."""
    monkeypatch.setattr(sys, "executable", python())


@pytest.fixture(scope="module")
def _spawns():
    """Processes of `multiprocessing` start from the Python that has loaded torch."""
    with spawning():
        yield
