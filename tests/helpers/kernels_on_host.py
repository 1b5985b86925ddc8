"""Kernels for GPUs, compiled for the host: each block and thread in turn."""

import ctypes
import os
import re
import shutil
import subprocess
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import torch

from abele import passes
from abele.errors import CaptureError
from abele.kernels import sources as kernels
from abele.program import Program
from abele.targets.base import Compiled, Lowering
from abele.targets.cuda.emitted import lowering
from abele.targets.cuda.emitted.run import Runner
from abele.targets.reference import Reference
from abele.targets.translation.operations import constants_of
from helpers import emitted_programs, random_operators
from helpers.emitted_operators import program_of
from helpers.emitted_programs import Case

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
#define __noinline__ __attribute__((noinline, unused))
#define __launch_bounds__(threads)
#define __grid_constant__
#define __shared__ static
struct Place { unsigned x; };
static Place blockIdx, threadIdx;

// The threads of a block as coroutines: each runs to where all wait, then the next does.
#include <functional>
#include <vector>
#include <ucontext.h>
static ucontext_t others, contexts[256];
static bool ended[256];
static const std::function<void()>* work;
static void __syncthreads() { swapcontext(&contexts[threadIdx.x], &others); }
static void begin() {
  (*work)();
  ended[threadIdx.x] = true;
  swapcontext(&contexts[threadIdx.x], &others);
}
static void together(unsigned threads, const std::function<void()>& body) {
  constexpr size_t stack = 1 << 15;
  static std::vector<char> stacks(stack * 256);
  work = &body;
  for (unsigned t = 0; t < threads; ++t) {
    getcontext(&contexts[t]);
    contexts[t].uc_stack.ss_sp = stacks.data() + t * stack;
    contexts[t].uc_stack.ss_size = stack;
    contexts[t].uc_link = nullptr;
    ended[t] = false;
    makecontext(&contexts[t], begin, 0);
  }
  for (bool more = true; more;) {
    more = false;
    for (unsigned t = 0; t < threads; ++t) {
      if (ended[t]) continue;
      threadIdx.x = t;
      swapcontext(&others, &contexts[t]);
      more |= !ended[t];
    }
  }
}
"""
_KERNEL = re.compile(r"__global__ .*? (launch_\d+)\(\s*const __grid_constant__ (\S+) all\)")
_CALL = """
extern "C" void host_{name}(unsigned blocks, unsigned threads, void** addresses) {{
  {kind} all;
  std::memcpy(all.at, addresses, sizeof(all.at));
  for (blockIdx.x = 0; blockIdx.x < blocks; ++blockIdx.x)
    {threads}
}}
"""
_APART = "for (threadIdx.x = 0; threadIdx.x < threads; ++threadIdx.x) {name}(all);"
_TOGETHER = "together(threads, [&] {{ {name}(all); }});"
# Functions of device.h in which the threads of a block wait for each other.
_WAITING = ("column_sums", "channel_", "convolution", "pointwise")


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
        calls = [_call(name, kind, text) for name, kind in _KERNEL.findall(text)]
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


def drawn(kind: str, seeds: Iterable[int]) -> Iterator[tuple[Case, Program]]:
    """Yield random cases without effects and branches, and their programs after the passes.

    Args:
        kind: ``networks`` or ``operators``.
        seeds: of the cases; those without gradients, or that are refused, are left out.
    """
    for seed in seeds:
        try:
            cases = _cases(kind, seed)
        except (CaptureError, RuntimeError, NotImplementedError, IndexError):
            continue
        for case in cases:
            program = passes.run(case.program)
            if not emitted_programs._has_effects_or_branches(program):
                yield case, program


def _cases(kind: str, seed: int) -> list[Case]:
    if kind == "networks":
        return emitted_programs.of_network(seed)
    composed = random_operators.composed(seed)
    if not composed.calls:
        return []
    name = f"{seed}: {', '.join(composed.names)}"
    program = program_of(composed, composed.inputs, gradients=True)
    return [Case(name, program, list(composed.inputs), magnifies=True)]


def _call(name: str, kind: str, text: str) -> str:
    """What the host calls to run a kernel."""
    body = text.partition(f" {name}(")[2].partition("\n}")[0]
    threads = _TOGETHER if any(f"abele::{each}" in body for each in _WAITING) else _APART
    return _CALL.format(name=name, kind=kind, threads=threads.format(name=name))


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
