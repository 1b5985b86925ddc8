"""Compilation of CUDA C++ by NVRTC, NVIDIA's runtime compiler, and kernel launches.

NVIDIA's ``cuda-bindings`` reach both; CUDA builds of torch depend on them.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import importlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from abele.errors import CompilerError, CorruptExecutable
from abele.kernels import sources as kernels

# What kernels include, and what these include.
_HEADERS = (
    *(Path(__file__).parent / name for name in ("device.h", "convolutions.h")),
    *(kernels.FOLDER / name for name in ("bounds.h", "functions.h")),
)


def unavailable() -> str | None:
    """Return why NVRTC cannot compile kernels here, or None if it can."""
    try:
        _library("nvrtc").nvrtcVersion()
    except ImportError:
        return "NVIDIA's cuda-bindings are not installed (pip install cuda-bindings)"
    except RuntimeError as problem:  # the library behind them is not there
        first = (str(problem).strip().splitlines() or ["no reason was given"])[0]
        return f"NVRTC cannot be loaded ({first})"
    return None


def version() -> str:
    """Return the name and version of NVRTC; empty if it is unavailable."""
    if unavailable() is not None:
        return ""
    _, major, minor = _library("nvrtc").nvrtcVersion()
    return f"NVRTC {major}.{minor}"


@functools.cache
def fingerprint() -> str:
    """Return a hash of the CUDA headers that generated kernels include."""
    digest = hashlib.sha256()
    for header in _HEADERS:
        digest.update(header.read_bytes())
    return digest.hexdigest()[:16]


def compiled(text: str, capability: tuple[int, int]) -> bytes:
    """Compile CUDA C++ to machine code with NVRTC; needs no GPU.

    Args:
        text: CUDA C++; it may include ``device.h`` and ``functions.h``.
        capability: compute capability of the GPU, major and minor.

    Returns:
        Machine code (cubin) for ``Kernels``.

    Raises:
        CompilerError: the text does not compile; ``log`` has the compiler's message.
    """
    nvrtc = _library("nvrtc")
    sources = [header.read_bytes() for header in _HEADERS]
    names = [header.name.encode() for header in _HEADERS]
    program = _result(
        nvrtc.nvrtcCreateProgram(
            text.encode(errors="backslashreplace"), b"program.cu", len(names), sources, names
        )
    )
    try:
        major, minor = capability
        options = [f"--gpu-architecture=sm_{major}{minor}".encode(), b"--std=c++17"]
        (status,) = nvrtc.nvrtcCompileProgram(program, len(options), options)
        if status.value:
            log = bytearray(_result(nvrtc.nvrtcGetProgramLogSize(program)))
            nvrtc.nvrtcGetProgramLog(program, log)
            said = bytes(log).rstrip(b"\0").decode(errors="replace")
            raise CompilerError("NVRTC could not compile the program's kernels.", log=said)
        code = bytearray(_result(nvrtc.nvrtcGetCUBINSize(program)))
        _result(nvrtc.nvrtcGetCUBIN(program, code))
        return bytes(code)
    finally:
        nvrtc.nvrtcDestroyProgram(program)


class Kernels:
    """Compiled CUDA kernels loaded on the current GPU.

    Args:
        codes: results of ``compiled``.

    Raises:
        CorruptExecutable: the code is not for this GPU, or damaged.
    """

    def __init__(self, codes: Sequence[bytes]):
        self._driver = _library("driver")
        torch.cuda.synchronize()  # torch makes its context the one of this thread
        self._context = _result(self._driver.cuCtxGetCurrent())
        self._modules = [self._loaded(code) for code in codes]
        self._functions: dict[str, Any] = {}

    def _loaded(self, code: bytes) -> Any:
        status, module = self._driver.cuModuleLoadData(code)
        if status.value:
            raise CorruptExecutable(f"the kernels of a program cannot be loaded ({status!r})")
        return module

    def use(self) -> None:
        """Set this thread's CUDA context to the one in which the kernels are loaded."""
        _result(self._driver.cuCtxSetCurrent(self._context))

    def launch(self, name: str, blocks: int, threads: int, addresses: Sequence[int]) -> None:
        """Queue a CUDA kernel on the current stream.

        Args:
            name: of the kernel, whose only argument is an array of addresses.
            blocks: number of thread blocks.
            threads: per block.
            addresses: of tensors on the GPU.
        """
        function = self._functions.get(name)
        if function is None:
            function = self._functions[name] = self._found(name)
        argument = (ctypes.c_void_p * len(addresses))(*addresses)
        arguments = (ctypes.c_void_p * 1)(ctypes.addressof(argument))
        stream = torch.cuda.current_stream().cuda_stream
        size, shared, extra = (blocks, 1, 1, threads, 1, 1), 0, 0
        given = ctypes.addressof(arguments)
        _result(self._driver.cuLaunchKernel(function, *size, shared, stream, given, extra))

    def _found(self, name: str) -> Any:
        """Return the kernel function of a name from the loaded CUDA modules."""
        for module in self._modules:
            status, function = self._driver.cuModuleGetFunction(module, name.encode())
            if not status.value:
                return function
        raise CompilerError(f"The program's code has no kernel {name!r}.", log="")


def _library(name: str) -> Any:
    return importlib.import_module(f"cuda.bindings.{name}")


def _result(returned: tuple[Any, ...]) -> Any:
    """Return the values of a CUDA driver call without its status.

    Raises:
        CompilerError: the status is an error.
    """
    status, *values = returned
    if status.value:
        raise CompilerError(f"A call of NVIDIA's driver failed: {status!r}.", log="")
    return values[0] if values else None
