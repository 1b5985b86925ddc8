"""The report of a compiled model: its programs, memory, operators and times, for people and tools.

    FOLDER/report.md               to read
    FOLDER/report.json             the same for programs
    FOLDER/programs/NAME.py.txt    each program as Python
    FOLDER/pipeline.md             times and memory of a pipeline's stages in the latest traced call
    FOLDER/steps.json              a Chrome trace of the first calls, micro-step by micro-step

Differs from the original: these are text files; its binary profile describes tiles and exchanges,
which do not exist here.
"""

import dataclasses
import json
import os
from pathlib import Path
from typing import Any

from abele.compile.executable import Executable
from abele.program import Program, Slot, summary
from abele.step import batching
from poptorch._compiled.model import CompiledModel
from poptorch._logging import logger
from poptorch._report.execution import ExecutionTrace
from poptorch._report.pipeline import report_of
from poptorch._report.tables import table
from poptorch.options import Options
from poptorch.options._engine import report_wanted

_EXPORT = "POPTORCH_EXPORT_PROTO_FILE"
_BINARY = "POPTORCH_EXPORT_PROTO_AS_BINARY"


def write_reports(compiled: CompiledModel, options: Options, seconds: float) -> None:
    """Writes what options and environment ask for, and arranges for a trace of the first calls.

    Args:
        compiled: the model, before its first call.
        options: of its wrapper.
        seconds: how long compiling took.

    Raises:
        poptorch.Error: POPLAR_ENGINE_OPTIONS cannot be read.
        OSError: a file cannot be written.
    """
    _export(compiled.session.executable)
    rewrite_reports(compiled, options, seconds)
    wanted = report_wanted(options, compiled.config.training)
    if wanted is not None and wanted.runs:
        compiled.session.add_observer(ExecutionTrace(compiled, wanted))


def rewrite_reports(compiled: CompiledModel, options: Options, seconds: float) -> None:
    """Writes the report anew, because other programs run than before.

    Args:
        compiled: the model.
        options: of its wrapper.
        seconds: how long compiling took.

    Raises:
        poptorch.Error: POPLAR_ENGINE_OPTIONS cannot be read.
        OSError: a file cannot be written.
    """
    wanted = report_wanted(options, compiled.config.training)
    if wanted is not None and wanted.graph:
        _write(wanted.folder, description(compiled, seconds), compiled)


def _export(executable: Executable) -> None:
    path = os.environ.get(_EXPORT)
    if not path:
        return
    if os.environ.get(_BINARY, "0") not in ("", "0"):
        logger.warning("%s: programs have no binary form here; %s gets text.", _BINARY, path)
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    Path(path).write_text("\n".join(program.text() for program in executable.programs))


def description(compiled: CompiledModel, seconds: float) -> dict[str, Any]:
    """Everything the report says, as JSON values; bytes and seconds."""
    config, record = compiled.config, compiled.record
    programs = compiled.session.executable.programs
    return {
        "target": record.target,
        "fallback": record.fallback,
        "executable": record.executable,
        "cache": record.cache,
        "running": {**dataclasses.asdict(record.running), "what": record.running.sentence()},
        "configuration": {
            "training": config.training,
            "device_iterations": config.device_iterations,
            "gradient_accumulation": config.gradient_accumulation,
            "replicas": config.replicas,
            "micro_batches_per_call": batching.micro_batches(config),
        },
        "seconds": {**record.seconds, "total": seconds},
        "memory": {
            "state": summary.state_bytes(programs),
            "buffer_copies": config.replicas,
            "peak_intermediate": {p.name: summary.peak_intermediate_bytes(p) for p in programs},
        },
        "pipeline": report_of(compiled).as_data(),
        "programs": {program.name: _of_program(program) for program in programs},
    }


def _of_program(program: Program) -> dict[str, Any]:
    stamps = [{"by": s.by, "seconds": s.seconds, "nodes": s.nodes} for s in program.history]
    return {
        "inputs": [_of_slot(slot) for slot in program.inputs],
        "outputs": [_of_slot(slot) for slot in program.outputs],
        "operators": summary.operators(program),
        "history": stamps,
    }


def _of_slot(slot: Slot) -> dict[str, Any]:
    dtype = str(slot.dtype).removeprefix("torch.")
    return {"name": slot.name, "role": slot.role, "shape": list(slot.shape), "dtype": dtype}


def _write(folder: Path, facts: dict[str, Any], compiled: CompiledModel) -> None:
    (folder / "programs").mkdir(parents=True, exist_ok=True)
    for program in compiled.session.executable.programs:
        (folder / "programs" / f"{program.name}.py.txt").write_text(program.text())
    (folder / "report.json").write_text(json.dumps(facts, indent=1) + "\n")
    (folder / "report.md").write_text(_as_markdown(folder.name, facts, compiled))


def add_host_training(options: Options, steps: int, sentence: str) -> None:
    """Adds to a model's report that training steps ran on the host, if reports were asked for.

    Args:
        options: of its wrapper.
        steps: how many.
        sentence: the same in words.
    """
    wanted = report_wanted(options, training=True)
    if wanted is None or not wanted.graph:
        return
    wanted.folder.mkdir(parents=True, exist_ok=True)
    path = wanted.folder / "report.json"
    facts = json.loads(path.read_text()) if path.exists() else {}
    facts["host_training"] = {"steps": steps, "what": sentence}
    path.write_text(json.dumps(facts, indent=1) + "\n")
    with (wanted.folder / "report.md").open("a") as file:
        file.write(f"\n## Not on the device\n\n{sentence}\n")


def _as_markdown(name: str, facts: dict[str, Any], compiled: CompiledModel) -> str:
    memory, settings = facts["memory"], facts["configuration"]
    rows = [(role.replace("_", " "), size) for role, size in memory["state"].items() if size]
    rows += [
        (f"intermediate values of `{program}`, at most", size)
        for program, size in memory["peak_intermediate"].items()
    ]
    took = [(part, f"{seconds:.3f}") for part, seconds in facts["seconds"].items()]
    per_call = (
        f"One call: {settings['micro_batches_per_call']} micro-batches = "
        f"{settings['device_iterations']} device iterations x "
        f"{settings['gradient_accumulation']} accumulated x {settings['replicas']} replicas."
    )
    sections = [
        f"# {name}",
        f"Target {facts['target']}, executable {facts['executable'][:12]}, cache "
        f"{facts['cache']}." + (f" Fallback: {facts['fallback']}" if facts["fallback"] else ""),
        f"What runs: {facts['running']['what']}.",
        per_call,
        "## Memory",
        table(("what", "KiB"), [(what, f"{size / 1024:.1f}") for what, size in rows]),
        *report_of(compiled).sections(),
        "## Compiling",
        table(("part", "seconds"), took),
        *(_operators_text(name, each) for name, each in facts["programs"].items()),
    ]
    return "\n\n".join(sections) + "\n"


def _operators_text(name: str, program: dict[str, Any]) -> str:
    rows = [
        (phase, f"`{operator}`", count)
        for phase, counts in program["operators"].items()
        for operator, count in counts.items()
    ]
    title = f"## Program `{name}`: {sum(row[2] for row in rows)} operations"
    return f"{title}\n\n{table(('phase', 'operator', 'count'), rows)}"
