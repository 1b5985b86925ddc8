"""Kernels for GPUs, compiled for the host: each block and thread in turn."""

from __future__ import annotations

import ctypes
import os
import re
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import torch

from abele.kernels import build as kernels
from abele.targets.base import Compiled, Lowering
from abele.targets.cuda.emitted import lowering
from abele.targets.cuda.emitted.run import Runner
from abele.targets.reference import Reference
from abele.targets.translation.operations import constants_of

_FOLDER = Path(lowering.__file__).parent

_WORDS = """
#define ABELE_ON_HOST
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#define __device__
#define __global__
#define __constant__ static const
#define __forceinline__ inline
#define __launch_bounds__(threads)
#define __grid_constant__
struct Place { unsigned x; };
static Place blockIdx, threadIdx;
"""
_KERNEL = re.compile(r"__global__ .*? (launch_\d+)\(\s*const __grid_constant__ (\S+) all\)")
_CALL = """
extern "C" void host_{name}(unsigned blocks, unsigned threads, void** addresses) {{
  {kind} all;
  std::memcpy(all.at, addresses, sizeof(all.at));
  for (blockIdx.x = 0; blockIdx.x < blocks; ++blockIdx.x)
    for (threadIdx.x = 0; threadIdx.x < threads; ++threadIdx.x) {name}(all);
}}
"""


class Kernels:
    """What launches kernels on the host.

    Args:
        texts: CUDA C++.
        folder: for the compiler's files.

    Attributes:
        launches: how many there were.
    """

    def __init__(self, texts: Sequence[str], folder: Path):
        text = _joined(texts)
        calls = [_CALL.format(name=name, kind=kind) for name, kind in _KERNEL.findall(text)]
        source, library = folder / "kernels.cpp", folder / "kernels.so"
        source.write_text(_WORDS + text + "".join(calls))
        compiler = os.environ.get("CXX") or shutil.which("g++") or "clang++"
        flags = ["-std=c++17", "-O1", "-w", "-fPIC", "-shared", "-ffp-contract=off"]
        include = [f"-I{_FOLDER}", f"-I{kernels.FOLDER}"]
        command = [compiler, *flags, *include, str(source), "-o", str(library)]
        subprocess.run(command, check=True, capture_output=True, text=True)
        self._library = ctypes.CDLL(str(library))
        self.launches = 0

    def use(self) -> None:
        """The host has one context."""

    def launch(self, name: str, blocks: int, threads: int, addresses: Sequence[int]) -> None:
        """Run a kernel; see ``nvrtc.Kernels.launch``."""
        self.launches += 1
        array = (ctypes.c_void_p * len(addresses))(*addresses)
        self._library[f"host_{name}"](ctypes.c_uint(blocks), ctypes.c_uint(threads), array)


class OnHost(Lowering):
    """What target cuda writes, run by the host.

    Args:
        folder: for the compiler's files.

    Attributes:
        plans: of the programs that were compiled.
    """

    name = "on_host"

    def __init__(self, folder: Path):
        self._folder = folder
        self.plans: list[lowering.Plan] = []

    def why(self, program):
        return "a test says so"

    def compile(self, program):
        plan = lowering.planned(program)
        folder = self._folder / str(len(self.plans))
        folder.mkdir()
        self.plans.append(plan)
        return Compiled(runner(program, plan, Kernels(plan.texts, folder)).run)


def _joined(texts: Sequence[str]) -> str:
    """All kernels in one file, and each function once."""
    blocks = dict.fromkeys(block for text in texts for block in text.rstrip().split("\n\n"))
    return "\n\n".join(blocks) + "\n"


def runner(program, plan, kernels_of_plan) -> Runner:
    written = [slot.mutated for slot in program.inputs]
    constants = constants_of(program, plan.translation.constants)
    where = torch.device("cpu")
    steps = plan.translation, plan.steps, plan.freed
    return Runner(*steps, written, constants, kernels_of_plan, where)


def target(folder: Path) -> tuple[Reference, OnHost]:
    made = Reference()
    one = OnHost(folder)
    made.lowerings = (one,)
    return made, one
