"""Where does the time of a step of emitted code go, and how far is it from the processor's limit?

    python benchmarks/account.py [--rows gpt,transformer] [--seconds 8] [--record]

A program with clocks between its kernels, with one thread and with two in turns, beside steps of
plain PyTorch, and the rate of multiply-adds of registers: nothing multiplies faster than that. Of
each kernel the time counts that an eighth of the runs do not reach.
"""

from __future__ import annotations

import argparse
import collections
import ctypes
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[0] = str(ROOT / "benchmarks")
sys.path[1:1] = [str(ROOT), str(ROOT / "src")]

import harness  # noqa: E402 - after the paths above
import torch  # noqa: E402
from benchmarks.table import rows as table  # noqa: E402
from benchmarks.table import ways  # noqa: E402

from abele import StepConfig, passes  # noqa: E402
from abele.capture import capture  # noqa: E402
from abele.kernels.sources import FLAGS  # noqa: E402
from abele.program import Program, Role  # noqa: E402
from abele.step.update_rules import Group, UpdateRule  # noqa: E402
from abele.targets.cpu.compiler import compiler  # noqa: E402
from abele.targets.cpu.emitted import lowering  # noqa: E402
from abele.targets.cpu.emitted.calls.products import Product  # noqa: E402

ADAM = {"lr": 1e-3, "beta1": 0.9, "beta2": 0.999, "eps": 1e-8}
THREADS = (1, 2)
# Twelve sums in the processor's longest registers; in an array some compilers keep them in memory.
_SUMS = 12
_REGISTERS = """
#if defined(__AVX512F__)
constexpr int BYTES = 64;
#else
constexpr int BYTES = 32;
#endif
using Vec = float __attribute__((vector_size(BYTES)));
extern "C" __attribute__((visibility("default"))) int multiply(long turns) {
  Vec a = Vec{} + 0.999f, b = Vec{} + 0.001f;
  Vec s0 = b, s1 = b, s2 = b, s3 = b, s4 = b, s5 = b;
  Vec s6 = b, s7 = b, s8 = b, s9 = b, s10 = b, s11 = b;
  for (long turn = 0; turn < turns; ++turn) {
    s0 = s0 * a + b, s1 = s1 * a + b, s2 = s2 * a + b, s3 = s3 * a + b;
    s4 = s4 * a + b, s5 = s5 * a + b, s6 = s6 * a + b, s7 = s7 * a + b;
    s8 = s8 * a + b, s9 = s9 * a + b, s10 = s10 * a + b, s11 = s11 * a + b;
    asm volatile("" : "+v"(s0), "+v"(s1), "+v"(s2), "+v"(s3), "+v"(s4), "+v"(s5));
    asm volatile("" : "+v"(s6), "+v"(s7), "+v"(s8), "+v"(s9), "+v"(s10), "+v"(s11));
  }
  return BYTES / 4;
}
"""
_TURNS = 10_000_000


def main() -> int:
    """Measure and print; with --record also keeps the result."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    harness.add_arguments(parser)
    parser.set_defaults(threads=max(THREADS))
    parser.add_argument("--rows", default="gpt,transformer", help="of the table")
    parser.add_argument("--seconds", type=float, default=8.0, help="for each row (default 8)")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    prepared = {name: _prepared(name) for name in options.rows.split(",")}
    result: dict[str, Any] = {"environment": harness.environment(), "rows": {}}
    result["gflop_per_s_of_registers"] = round(_register_rate(), 1)
    print(result["gflop_per_s_of_registers"], "GFLOP/s of registers, one thread")
    for name, (program, clocked, inputs, eager) in prepared.items():
        entry = _account(program, clocked, inputs, eager, options.seconds)
        result["rows"][name] = entry
        print(name, entry, flush=True)
    if options.record:
        print(f"kept as {harness.write_record('account', result)}")
    return 0


def _prepared(name: str) -> tuple[Program, Any, list[torch.Tensor], Callable[[], Any]]:
    row = table.ROWS[name]
    module = row.load()
    assert row.model is not None
    assert row.optimizer is not None
    model, batch = row.model(module), module.batch(row.batch)
    decay = row.optimizer[1].get("weight_decay", 0)
    values = {**ADAM, "weight_decay": decay, "decoupled": int(decay > 0)}
    names = tuple(name for name, _ in model.named_parameters())
    rule = UpdateRule(kind="adam", groups=(Group(params=names, values=values),))
    config = StepConfig(training=True)
    (program,) = capture(lambda given: _results(model(*given)), model, batch, config, rule).programs
    program = passes.run_only(passes.run(program), lowering.Emitted.passes)
    given = iter(batch)
    inputs = [next(given) if s.role is Role.INPUT else _state(s, model) for s in program.inputs]
    return program, lowering.Emitted().clocked(program), inputs, ways.prepare(row, table.EAGER)


def _results(result: Any) -> list[torch.Tensor]:
    return list(result) if isinstance(result, tuple) else [result]


def _state(slot: Any, model: torch.nn.Module) -> torch.Tensor:
    parameters = dict(model.named_parameters())
    if slot.name in parameters:
        return parameters[slot.name].detach().clone()
    made = torch.rand(slot.shape) / 100 if slot.shape else torch.ones(slot.shape)
    return made.to(slot.dtype)


def _register_rate() -> float:
    """GFLOP/s of one thread, at best."""
    with tempfile.TemporaryDirectory() as folder:
        source, library = Path(folder, "registers.cpp"), Path(folder, "registers.so")
        source.write_text(_REGISTERS)
        command = [compiler() or "g++", *FLAGS, "-shared", str(source), "-o", str(library)]
        subprocess.run(command, check=True)
        multiply = ctypes.CDLL(str(library)).multiply
    multiply.argtypes = [ctypes.c_long]
    times, floats = [], 0
    for _ in range(10):
        began = time.perf_counter()
        floats = multiply(_TURNS)
        times.append(time.perf_counter() - began)
    return _TURNS * _SUMS * floats * 2 / min(times) / 1e9


def _account(
    program: Program, clocked: Any, inputs: list[torch.Tensor], eager: Any, seconds: float
) -> dict[str, Any]:
    units = lowering.planned_code(program).units
    runs: dict[int, list[list[float]]] = {threads: [] for threads in THREADS}
    steps: dict[int, list[float]] = {threads: [] for threads in THREADS}
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or len(steps[THREADS[-1]]) < harness.MIN_WINDOWS:
        for threads in THREADS:
            torch.set_num_threads(threads)
            for _ in range(
                3
            ):  # the first brings back what the others have pushed out of the caches
                clocked.run(list(inputs))
            runs[threads].append([(last - first) / 1e6 for first, last in clocked.times()])
            eager()
            began = time.perf_counter()
            eager()
            steps[threads].append(1e3 * (time.perf_counter() - began))
    kinds = [_kind(unit, kernel) for unit, kernel in zip(units, clocked.kernels, strict=True)]
    adds = sum(each.adds for unit in units for each in unit.operations if isinstance(each, Product))
    result: dict[str, Any] = {"gflop_of_products": round(2 * adds / 1e9, 2), "ms": {}}
    for threads in THREADS:
        each = [_eighth(list(times)) for times in zip(*runs[threads], strict=True)]
        total: collections.defaultdict[str, float] = collections.defaultdict(float)
        for kind, took in zip(kinds, each, strict=True):
            total[kind] += took
        result["ms"][threads] = {
            "eager": round(_eighth(steps[threads]), 2),
            "steps": round(_eighth([sum(run) for run in runs[threads]]), 2),
            "kernels": {
                kind: round(took, 3)
                for kind, took in sorted(total.items(), key=lambda pair: -pair[1])
            },
        }
    result["calls"] = dict(collections.Counter(kinds))
    return result


def _kind(unit: Any, kernel: Any) -> str:
    return "products" if isinstance(unit.operations[0], Product) else kernel.what


def _eighth(values: list[float]) -> float:
    return sorted(values)[len(values) // 8]


if __name__ == "__main__":
    sys.exit(main())
