"""Fixtures of tests that call kernels."""

from __future__ import annotations

import pytest
import torch

from helpers.kernel_library import kernels


@pytest.fixture(scope="session")
def own():
    """The library of kernels, compiled for this machine."""
    return kernels()


@pytest.fixture(scope="session")
def library():
    """The library of kernels, compiled for this machine."""
    return kernels()


@pytest.fixture
def capable(monkeypatch):
    """A processor with registers of 256 bits, whatever this one is."""
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "AVX2")
