"""NVIDIA's libraries behind kernels, with libraries that are not there."""

import ctypes

import pytest
import torch

from abele.errors import CompilerError, CorruptExecutable
from abele.targets.cuda.emitted import nvrtc


class Status:
    def __init__(self, value):
        self.value = value

    def __repr__(self):
        return f"status {self.value}"


class Driver:
    """Notes launches; a module's kernels are the words of its code."""

    def __init__(self):
        self.launched, self.context = [], None

    def cuCtxGetCurrent(self):
        return Status(0), "context"

    def cuCtxSetCurrent(self, context):
        self.context = context
        return (Status(0),)

    def cuModuleLoadData(self, code):
        return Status(0 if code else 200), code.split()

    def cuModuleGetFunction(self, module, name):
        return Status(0 if name in module else 500), name

    def cuLaunchKernel(self, function, *given):
        *size, _, stream, arguments, _ = given
        pointer = ctypes.cast(arguments, ctypes.POINTER(ctypes.POINTER(ctypes.c_void_p)))
        addresses = [pointer[0][i] for i in range(2)]
        self.launched.append((function, size, stream, addresses))
        return (Status(0 if function == b"one" else 700),)


@pytest.fixture
def driver(monkeypatch):
    made = Driver()
    monkeypatch.setattr(nvrtc, "_library", lambda name: made)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)

    class Stream:
        cuda_stream = 17

    monkeypatch.setattr(torch.cuda, "current_stream", Stream)
    return made


def test_a_kernel_is_launched_on_the_current_stream_with_its_addresses(driver):
    kernels = nvrtc.Kernels([b"other", b"one two"])
    kernels.use()
    assert driver.context == "context"
    kernels.launch("one", 3, 256, [4096, 8192])
    assert driver.launched == [(b"one", [3, 1, 1, 256, 1, 1], 17, [4096, 8192])]


def test_damaged_code_is_named_as_such(driver):
    with pytest.raises(CorruptExecutable, match=r"cannot be loaded \(status 200\)"):
        nvrtc.Kernels([b"one", b""])


def test_errors_of_the_driver_are_errors(driver):
    kernels = nvrtc.Kernels([b"one two"])
    with pytest.raises(CompilerError, match="driver failed: status 700"):
        kernels.launch("two", 1, 256, [1, 2])
    with pytest.raises(CompilerError, match="has no kernel 'three'"):
        kernels.launch("three", 1, 256, [1, 2])


def test_why_nothing_can_be_compiled(monkeypatch):
    class Missing:
        def nvrtcVersion(self):
            raise RuntimeError("Failure finding libnvrtc.so\nlooked everywhere")

    monkeypatch.setattr(nvrtc, "_library", lambda name: Missing())
    assert nvrtc.unavailable() == "NVRTC cannot be loaded (Failure finding libnvrtc.so)"
    assert nvrtc.version() == ""
    monkeypatch.setattr(Missing, "nvrtcVersion", lambda self: (Status(0), 13, 0))
    assert nvrtc.unavailable() is None
    assert nvrtc.version() == "NVRTC 13.0"


def test_kept_code_is_that_of_its_headers(tmp_path, monkeypatch):
    before = nvrtc.fingerprint()
    changed = tmp_path / "device.h"
    changed.write_bytes(nvrtc._HEADERS[0].read_bytes() + b"// changed")
    monkeypatch.setattr(nvrtc, "_HEADERS", (changed, *nvrtc._HEADERS[1:]))
    nvrtc.fingerprint.cache_clear()
    try:
        assert nvrtc.fingerprint() != before
    finally:
        nvrtc.fingerprint.cache_clear()
