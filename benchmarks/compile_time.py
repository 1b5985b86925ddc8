"""Where the time goes before the first step: capture, passes, key, lowering.

python benchmarks/compile_time.py                     all models, without lowering
python benchmarks/compile_time.py --only a21 --target cpu --record

Each repeat is a process of its own. Processor time of the process is counted, and the least of all
repeats, because other work on the machine only ever adds to it. Lowering starts compilers, which
are processes of their own and are not counted: for it, see ``wall_s``.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import importlib
import importlib.util
import json
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import harness
import torch

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "src"), str(ROOT / "examples")]

STAGES = {  # function to time -> stage; inner ones are taken off outer ones
    "poptorch._wrapper.capture.capture": "trace",
    "abele.trace.tracer.pure": "purify",
    "abele.passes.run": "passes",
    "abele.compilation.keys.key_parts": "key",
    "abele.compilation.build._compile": "lowering",
}


def _introduction() -> tuple[torch.nn.Module, tuple[torch.Tensor, ...]]:
    from garment_model import ClassificationModel

    return ClassificationModel(), (torch.randn(16, 1, 28, 28), torch.randint(0, 10, (16,)))


def _network(name: str) -> tuple[torch.nn.Module, tuple[torch.Tensor, ...]]:
    from networks import NETWORKS

    network = NETWORKS[name]
    return network.make(), network.batch()


def _a21() -> tuple[torch.nn.Module, tuple[torch.Tensor, ...]]:
    import poptorch
    from cosmictagger.config.network import named
    from cosmictagger.measures import Loss
    from cosmictagger.models import LossInForward, build

    size = (128, 128)
    mark = functools.partial(poptorch.identity_loss, reduction="none")
    model = LossInForward(build(named("a21"), size), Loss("focal"), mark)
    return model, (torch.randn(1, 3, *size), torch.randint(0, 3, (1, 3, *size)))


MODELS: dict[str, Callable[[], tuple[torch.nn.Module, tuple[torch.Tensor, ...]]]] = {
    "introduction": _introduction,
    "resnet18": lambda: _network("resnet18"),
    "transformer": lambda: _network("transformer"),
    "a21": _a21,
}


def main() -> int:
    """Measure and print; with --record also keeps the result."""
    parser = argparse.ArgumentParser(description=str(__doc__).split("\n")[0])
    parser.add_argument("--only", choices=MODELS, help="one model instead of all")
    parser.add_argument("--repeats", type=int, default=3, help="processes per model (default 3)")
    parser.add_argument("--threads", type=int, default=1, help="torch threads (default 1)")
    parser.add_argument("--target", default="reference", help="cpu also lowers (default reference)")
    parser.add_argument("--record", action="store_true", help="keep the result under records/")
    parser.add_argument("--child", choices=MODELS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    if options.child:
        print(json.dumps(measure(options.child)))
        return 0
    result: dict[str, Any] = {"environment": harness.environment(), "target": options.target}
    for name in [options.only] if options.only else MODELS:
        row = _repeated(name, options)
        if row is None:
            print(f"{name:14s} is not installed")
            continue
        result[name] = row
        stages = ", ".join(f"{stage} {took:.2f}" for stage, took in row["cpu_s"].items())
        print(f"{name:14s} {row['nodes']} nodes; {stages} s of processor time")
    if options.record:
        print(f"record: {harness.write_record('compile_time', result).relative_to(ROOT)}")
    return 0


def _repeated(name: str, options: argparse.Namespace) -> dict[str, Any] | None:
    """Return the least of each stage over several processes."""
    if name == "a21" and importlib.util.find_spec("cosmictagger") is None:
        return None
    runs = []
    for _ in range(options.repeats):
        env = {"ABELE_TARGET": options.target}
        arguments = ["--child", name, "--threads", str(options.threads)]
        runs.append(harness.in_new_process(__file__, *arguments, env=env))
    least = {
        key: {stage: min(each[key][stage] for each in runs) for stage in runs[0][key]}
        for key in ("cpu_s", "wall_s")
    }
    return {**runs[0], **least}


def measure(name: str) -> dict[str, Any]:
    """Compile a model in this process and return what each stage took."""
    started = time.process_time()
    import poptorch

    imported = time.process_time() - started
    torch.manual_seed(0)
    model, inputs = MODELS[name]()
    options = poptorch.Options().showCompilationProgressBar(False)
    rule = poptorch.optim.Adam(model.parameters(), lr=1e-3)
    wrapped = poptorch.trainingModel(model, options, rule)
    with _timed() as (cpu, wall):
        began, began_wall = time.process_time(), time.perf_counter()
        wrapped.compile(*inputs)
        cpu["all"], wall["all"] = time.process_time() - began, time.perf_counter() - began_wall
    assert wrapped._executable is not None
    program = wrapped._executable.captured.programs[0]
    return {
        "nodes": len(program.graph.graph.nodes),
        "cpu_s": {"import": imported} | {stage: round(took, 4) for stage, took in cpu.items()},
        "wall_s": {stage: round(took, 4) for stage, took in wall.items()},
    }


@contextlib.contextmanager
def _timed() -> Iterator[tuple[dict[str, float], dict[str, float]]]:
    """While open, adds up what the functions of ``STAGES`` take."""
    cpu, wall = dict.fromkeys(STAGES.values(), 0.0), dict.fromkeys(STAGES.values(), 0.0)
    open_stages: list[str] = []
    replaced = []
    for path, stage in STAGES.items():
        module = importlib.import_module(path.rpartition(".")[0])
        function = getattr(module, path.rpartition(".")[2])

        def timed(*args: Any, function: Any = function, stage: str = stage, **kwargs: Any) -> Any:
            open_stages.append(stage)
            before, before_wall = time.process_time(), time.perf_counter()
            try:
                return function(*args, **kwargs)
            finally:
                open_stages.pop()
                for seconds, since in (
                    (cpu, time.process_time() - before),
                    (wall, time.perf_counter() - before_wall),
                ):
                    seconds[stage] += since
                    if open_stages:
                        seconds[open_stages[-1]] -= since

        setattr(module, function.__name__, timed)
        replaced.append((module, function))
    try:
        yield cpu, wall
    finally:
        for module, function in replaced:
            setattr(module, function.__name__, function)


if __name__ == "__main__":
    sys.exit(main())
