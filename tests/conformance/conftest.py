"""Fixtures of tests that call kernels."""

import pytest
import torch


@pytest.fixture(scope="session")
def own():
    """The library of kernels, compiled for this machine."""
    from helpers.kernel_library import kernels  # the compiler's cache comes after this file

    return kernels()


@pytest.fixture
def threads():
    """A function that sets the number of torch's threads for one test."""
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


@pytest.fixture
def capable(monkeypatch):
    """A processor with registers of 256 bits, whatever this one is."""
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "AVX2")
