"""How soon the first step is there, and what the steps until the compiled programs cost.

python -m benchmarks.starting                          rows of the table, two cores, then one
python -m benchmarks.starting --rows mlp,gpt-12 --cores 2 --record

Three runs of each row take turns, each a new process with empty caches and so many cores that
compiling shares: plain PyTorch, abele as it starts by itself, abele that waits for the compiler.
Abele's own kernels, which are compiled once per machine, are there already, and so are the times of
earlier compiles and the bytecode of abele's modules, which pip makes; with ``--new-machine`` the
kernels and the times are not, unless the installed package brings kernels (``PYTHONPATH=FOLDER`` of
an unpacked wheel). A run ends some steps after compiled programs took over, or after ``--limit-s``;
what 200 steps take is then the time so far, and the rest at the median of the last steps.
"""

from __future__ import annotations

import argparse
import compileall
import dataclasses
import functools
import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from benchmarks import harness
from benchmarks.table import ways
from benchmarks.table.rows import ABELE, EAGER, ROWS, Row
from torch import nn

import abele
from abele.kernels import packaged

ROOT = Path(__file__).resolve().parent.parent
DEFAULT = ("introduction-16", "mlp", "lstm", "gpt", "unet", "resnet18", "transformer")
# The table's GPT with more layers than four, which take longer to compile.
STARTING = {**ROWS}
for _layers in (12, 24):
    STARTING[f"gpt-{_layers}"] = dataclasses.replace(
        ROWS["gpt"],
        name=f"gpt-{_layers}",
        model=functools.partial(lambda layers, module: module.GPT(layers), _layers),
    )
# Layers of four times as many steps as the table's LSTM.
for _name, _kind in (("gru-256", nn.GRU), ("rnn-256", nn.RNN), ("lstm-256", nn.LSTM)):
    STARTING[_name] = dataclasses.replace(
        ROWS["lstm"],
        name=_name,
        model=functools.partial(lambda kind, module: module.Recurrent(kind), _kind),
        inputs="long",
    )
KINDS = ("eager", "tiered", "wait")
STEPS = 200
_AFTER, _AFTER_S = 20, 2.0  # what is measured of steps that will not change any more


def main() -> int:
    """Measure and print; with --record also keeps the result."""
    parser = argparse.ArgumentParser(description=str(__doc__).split("\n")[0])
    parser.add_argument("--rows", type=lambda text: text.split(","), default=DEFAULT)
    parser.add_argument("--cores", type=int, nargs="+", default=[2, 1])
    parser.add_argument("--repeats", type=int, default=1, help="runs of each kind (default 1)")
    parser.add_argument("--limit-s", type=float, default=20, help="of a run (default 20)")
    parser.add_argument("--new-machine", action="store_true", help="without abele's own kernels")
    parser.add_argument("--record", action="store_true", help="keep the result under records/")
    parser.add_argument("--child", nargs=2, metavar=("ROW", "KIND"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        row, kind = options.child
        print(json.dumps(_run(STARTING[row], kind, options.cores[0], options.limit_s)))
        return 0
    torch.set_num_threads(max(options.cores))
    compileall.compile_dir(Path(abele.__file__).parents[1], quiet=2, maxlevels=20)
    result: dict[str, Any] = {
        "environment": harness.environment(),
        "steps": STEPS,
        "new_machine": options.new_machine,
        "packaged_kernels": packaged.folder() is not None,
        "rows": {},
    }
    path = None
    for name in options.rows:
        for cores in options.cores:
            runs = {kind: [] for kind in KINDS}
            for _ in range(options.repeats):
                for kind in KINDS:
                    run = _in_new_process(
                        name, kind, cores, options.limit_s, new_machine=options.new_machine
                    )
                    runs[kind].append(run)
            row = {"summary": summary(runs), "runs": runs}
            result["rows"].setdefault(name, {})[f"{cores} cores"] = row
            print(f"{name:16s} {cores} cores: {_text(row['summary'])}", flush=True)
            if options.record:  # after each, because the next may be stopped
                path = _keep(result, path)
    return 0


def _keep(result: dict[str, Any], path: Path | None) -> Path:
    if path is None:
        return harness.write_record("starting", result)
    path.write_text(json.dumps(result, indent=1) + "\n")
    return path


def _in_new_process(
    row: str, kind: str, cores: int, limit_s: float, *, new_machine: bool
) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        environment = {
            **os.environ,
            "ABELE_START": "wait" if kind == "wait" else "",  # else what users get
            "OMP_NUM_THREADS": str(cores),
            "POPTORCH_CACHE_DIR": f"{folder}/executables",
            "TORCHINDUCTOR_CACHE_DIR": f"{folder}/inductor",
            **({"XDG_CACHE_HOME": f"{folder}/machine"} if new_machine else {}),
        }
        command = [sys.executable, "-W", "ignore", "-m", "benchmarks.starting"]
        done = subprocess.run(
            [*command, "--child", row, kind, "--cores", str(cores), "--limit-s", str(limit_s)],
            cwd=ROOT,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
    if done.returncode:
        raise RuntimeError(f"{row}, {kind} failed:\n{done.stderr[-2000:]}")
    return json.loads(done.stdout.strip().splitlines()[-1])


def _run(row: Row, kind: str, cores: int, limit_s: float) -> dict[str, Any]:
    """Take steps as a new process does; when each ended, in seconds after the imports."""
    torch.set_num_threads(cores)
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:cores])
    way = EAGER if kind == "eager" else ABELE
    ways.load(row, way)
    module = row.load()
    torch.manual_seed(0)
    wrapped: Any = None
    if row.mode_step is None:
        assert row.model is not None
        model, batch = row.model(module), getattr(module, row.inputs)(row.batch)
    began = time.perf_counter()
    if row.mode_step is not None:  # keeps its wrapped model to itself
        step = ways.prepare(row, way)
    elif way == EAGER:
        step = ways._loop(model, ways.optimizer_of(row, model), batch, torch.device("cpu"))
    else:
        wrapped = ways.trainer(row, model)
        step = lambda: wrapped(*batch)  # noqa: E731 - beside the other one
    ends: list[float] = []
    settled: int | None = None
    while len(ends) < STEPS and (len(ends) < 4 or ends[-1] < limit_s):
        step()
        ends.append(time.perf_counter() - began)
        running = None if wrapped is None else wrapped.build_record.running
        if settled is None and (running is None or not running.interpreted):
            settled = len(ends)
        elif settled is not None and _is_enough(ends[settled - 1 :]):
            break
    since = 0 if running is None else running.since
    return {
        "ends_s": [round(end, 4) for end in ends],
        "interpreted": len(ends) if settled is None and way == ABELE else since,
        "running": None if running is None else running.sentence(),
        "lowerings": wrapped
        and sorted({chosen.name for chosen in wrapped.build_record.lowerings.values()}),
        "seconds": wrapped and wrapped.build_record.seconds,
        "compile_s": running and running.compile_s,
    }


def _is_enough(ends: list[float]) -> bool:
    return len(ends) > _AFTER or (len(ends) > 3 and ends[-1] - ends[0] > _AFTER_S)


def summary(runs: dict[str, list[dict[str, Any]]]) -> dict[str, Any]:
    """Return what the runs of a row say, medians where there are several."""
    first = {kind: _median(run["ends_s"][0] for run in each) for kind, each in runs.items()}
    total = {kind: _median(map(total_s, each)) for kind, each in runs.items()}
    eager = _median(1 / _last_step_s(run["ends_s"]) for run in runs["eager"])
    meanwhile = [rate for run in runs["tiered"] if (rate := _interpreted_rate(run)) is not None]
    return {
        "first_step_s": first,
        "total_s": total,
        "over_wait": round(total["tiered"] / total["wait"], 3),
        "eager_step_per_s": eager,
        "meanwhile_over_eager": round(_median(meanwhile) / eager, 3) if meanwhile else None,
        "interpreted_steps": [run["interpreted"] for run in runs["tiered"]],
        "took_over_s": [_took_over_s(run) for run in runs["tiered"]],
    }


def total_s(run: dict[str, Any]) -> float:
    """Return what ``STEPS`` steps take, in seconds; steps that were not taken are like the last."""
    ends = run["ends_s"]
    return ends[-1] + (STEPS - len(ends)) * (_last_step_s(ends) if len(ends) < STEPS else 0.0)


def _last_step_s(ends: list[float]) -> float:
    steps = [end - begin for begin, end in itertools.pairwise(ends)]
    return statistics.median(steps[-_AFTER:] if len(steps) < STEPS - 1 else steps[1:])


def _interpreted_rate(run: dict[str, Any]) -> float | None:
    """Return steps per second between the first one and the change; None for fewer than two."""
    ends = run["ends_s"][: run["interpreted"]]
    return (len(ends) - 1) / (ends[-1] - ends[0]) if len(ends) > 2 else None


def _took_over_s(run: dict[str, Any]) -> float | None:
    """Return when compiled programs took over; None if they did not within the run."""
    ends, count = run["ends_s"], run["interpreted"]
    return None if count == len(ends) else ends[count - 1] if count else 0.0


def _median(values: Any) -> float:
    return round(statistics.median(values), 4)


def _text(row: dict[str, Any]) -> str:
    first, meanwhile = row["first_step_s"], row["meanwhile_over_eager"]
    rate = "no step" if meanwhile is None else f"{meanwhile:.2f} x eager's rate"
    return (
        f"first step {first['tiered']:.2f} s (waiting {first['wait']:.2f}, eager "
        f"{first['eager']:.2f}); {rate} meanwhile; {row['interpreted_steps']} interpreted, took "
        f"over after {row['took_over_s']} s; {STEPS} steps {row['total_s']['tiered']:.1f} s, "
        f"{row['over_wait']:.2f} x waiting"
    )


if __name__ == "__main__":
    sys.exit(main())
