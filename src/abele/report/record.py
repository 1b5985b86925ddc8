"""Record of a run, as typed values and as the JSON file ``run.json``.

Numbers are bytes, seconds, or counts. New fields have defaults, so that older files stay readable;
an incompatible change increases ``SCHEMA``.
"""

from __future__ import annotations

import dataclasses
import json
import types
import typing
from pathlib import Path
from typing import Any, cast

from abele.errors import ReportError
from abele.report.optimizer import Optimizer
from abele.storage import temporary
from abele.storage.atomic import write_text

SCHEMA = 1
FILE = "run.json"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Process:
    """The process of a run, described so that readers can check whether it is alive.

    Attributes:
        pid: process number.
        since: start of the process in clock ticks since boot; 0 if unknown.
        machine: digest of the machine and its boot.
        began: seconds since 1970 when the run began.
        clock_ns: ``time.perf_counter_ns`` at that moment; the origin of the journal's times.
    """

    pid: int
    since: int
    machine: str
    began: float
    clock_ns: int

    def is_alive(self) -> bool | None:
        """Return whether the run's process is alive; None on another machine."""
        if self.machine != temporary.this_machine():
            return None
        return temporary.runs(self.pid, self.since)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Machine:
    """The machine and software versions of a run.

    Attributes:
        processor: name of the processor.
        cores: cores that this process may use.
        threads: threads of torch.
        memory_bytes: memory of the machine; 0 if unknown.
        system: operating system and architecture.
        python: version.
        torch: version.
    """

    processor: str
    cores: int
    threads: int
    memory_bytes: int
    system: str
    python: str
    torch: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class Build:
    """The build of a run's executable; see ``abele.compilation.build.BuildRecord``.

    Attributes:
        compiled: whether code was compiled for a program; otherwise a cache saves no time.
        check: agreement of compiled with interpreted programs on this machine, in words; empty if
            nothing was compared.
    """

    target: str
    forced: bool
    fallback: str | None
    executable: str
    cache: str
    why: str | None
    seconds: dict[str, float]
    running: str
    interpreted: bool
    log: str | None
    compiled: bool = True
    check: str = ""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Stamp:
    """A compiler pass, with its time and the number of graph nodes after it."""

    by: str
    seconds: float
    nodes: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class Operators:
    """All uses of one operator in one module and phase.

    Attributes:
        name: ``aten.convolution.default``.
        phase: ``forward``, ``backward`` or ``update``.
        module: module path, names joined by ``/``; empty outside all modules.
        count: number of uses.
        operations: FLOPs of the uses for which torch has a formula.
        bytes: bytes of all tensors that are read and written, each once per use.
    """

    name: str
    phase: str
    module: str
    count: int
    operations: int
    bytes: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class Choice:
    """All uses of one operator in one phase by one backend, with the reason for the backend.

    Attributes:
        operator: as ``Operators.name``.
        phase: as of ``Operators``.
        by: backend, as ``Kernel.what``; ``no code`` for views and similar operators.
        why: reason, as a part of a sentence.
        count: number of uses.
    """

    operator: str
    phase: str
    by: str
    why: str
    count: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class Tensor:
    """A tensor that is live at the peak of a program's memory.

    Attributes:
        operator: the operator that computes it.
        phase: as of ``Operators``.
        module: as of ``Operators``.
        line: ``FILE:LINE in FUNCTION`` of the user's source; empty if unknown.
        type: ``f32[16, 8, 28, 28]``.
        bytes: size in bytes.
        first: the first step that uses it.
        last: the last step that uses it.
    """

    operator: str = ""
    phase: str = ""
    module: str = ""
    line: str = ""
    type: str = ""
    bytes: int
    first: int
    last: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class Kernel:
    """A timed kernel of a program: the work between two clock readings.

    Attributes:
        what: backend: ``torch``, ``loop``, or the name of a kernel.
        operators: operators it computes, each with its share of the time, in proportion to bytes.
        phase: ``forward``, ``backward`` or ``update``.
        module: path of the module, names joined by ``/``; empty outside all.
        line: ``FILE:LINE in FUNCTION`` of the user's source; empty if unknown.
        seconds: mean time in the fastest quarter of the runs.
        operations: FLOPs of the operators for which torch has a formula.
        bytes: least bytes read and written.
        least: least seconds of this machine for so many FLOPs and bytes.
    """

    what: str
    operators: tuple[tuple[str, float], ...]
    phase: str
    module: str
    line: str
    seconds: float
    operations: int
    bytes: int
    least: float


@dataclasses.dataclass(frozen=True, kw_only=True)
class Timing:
    """The measured time of a program, in runs with and without clocks on copies of its state.

    Attributes:
        runs: number of runs of each kind that are averaged, the fastest quarter.
        seconds: seconds of a run without clocks.
        clocked: seconds of a run with clocks.
        clocks: overhead of the clocks in seconds, measured separately.
        kernels: kernels in execution order.
    """

    runs: int
    seconds: float
    clocked: float
    clocks: float
    kernels: tuple[Kernel, ...]

    @property
    def attributed(self) -> float:
        """Seconds of a timed run spent in kernels."""
        return sum(each.seconds for each in self.kernels)

    @property
    def unattributed(self) -> float:
        """Seconds of a timed run between kernels, without the overhead of the clocks."""
        return max(0.0, self.clocked - self.clocks - self.attributed)

    @property
    def whole(self) -> float:
        """Seconds of a timed run in and between kernels."""
        return self.attributed + self.unattributed


@dataclasses.dataclass(frozen=True, kw_only=True)
class Limits:
    """Measured peak FLOP rate and memory bandwidths of this machine.

    Attributes:
        threads: number of threads of torch.
        operations: FLOPs per second of a GEMM.
        bandwidths: pairs of bytes touched by an operator, and bytes per second.
    """

    threads: int
    operations: float
    bandwidths: tuple[tuple[int, float], ...]

    def least(self, operations: int, moved: int) -> float:
        """Return the least seconds that this machine needs for some FLOPs and bytes."""
        fitting = [rate for size, rate in self.bandwidths if size <= moved]
        rate = fitting[-1] if fitting else self.bandwidths[0][1]
        return max(operations / self.operations, moved / rate)


_LEAST_BATCHES, _LEAST_S = 100, 1.0  # a shorter loop says nothing of a rate


def _rate(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


@dataclasses.dataclass(slots=True)
class Waits:
    """Accumulated time for which a thread waited for batches of a data loader.

    Attributes:
        ns: nanoseconds so far.
    """

    ns: int = 0


@dataclasses.dataclass(frozen=True, kw_only=True)
class Loop:
    """Measured times of a loop over a data loader.

    Attributes:
        batches: number of batches.
        steps: device steps per batch.
        seconds: total seconds from batch to batch.
        waiting: part of ``seconds`` spent waiting for requested batches.
        why_single: reason why items were fetched one by one; empty if they were not.
    """

    batches: int
    steps: int
    seconds: float
    waiting: float
    why_single: str = ""

    @property
    def bound(self) -> str:
        """Bottleneck of the loop: ``input-bound`` or ``compute-bound``."""
        return "input-bound" if self.waiting > 0.5 * self.seconds else "compute-bound"

    def sentence(self) -> str | None:
        """Return the loop's bottleneck and its rate without waiting; None after a short loop."""
        working = self.seconds - self.waiting
        if self.batches < _LEAST_BATCHES or self.seconds < _LEAST_S or working <= 0:
            return None
        share, steps = self.waiting / self.seconds, self.batches * self.steps
        text = (
            f"{self.bound}: {_rate(steps / self.seconds)} steps/s, of which waiting for batches "
            f"took {share:.0%}; with free input {_rate(steps / working)} steps/s"
        )
        if self.bound == "input-bound" and self.why_single:
            text += f" (items were fetched one by one: {self.why_single})"
        return text


@dataclasses.dataclass(frozen=True, kw_only=True)
class Memory:
    """Recorded memory use of a program, in addition to its state and inputs.

    Attributes:
        basis: source of the numbers.
        steps: number of steps.
        reserved: bytes that stay allocated between calls.
        peak: peak bytes.
        peak_step: first step at the peak.
        live: pairs of step and live bytes; of many steps, the maximum of each group.
        kinds: bytes of each entry of ``live``, by kind.
        phases: first step of each phase.
        largest: buffers at the peak, the largest first.
        others: bytes of the other buffers at the peak.
    """

    basis: str
    steps: int
    reserved: int
    peak: int
    peak_step: int
    phases: dict[str, int]
    largest: tuple[Tensor, ...]
    others: int
    live: tuple[tuple[int, int], ...] = ()
    kinds: dict[str, tuple[int, ...]] = dataclasses.field(
        default_factory=dict[str, tuple[int, ...]]
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Task:
    """The forward or backward pass of a pipeline stage on a micro-batch, with its time.

    Attributes:
        stage: number of the stage.
        micro_batch: number of the micro-batch.
        backward: whether the pass is backward.
        begin: seconds since the first task of the pipeline began.
        end: seconds since the first task of the pipeline began.
    """

    stage: int
    micro_batch: int
    backward: bool
    begin: float
    end: float


@dataclasses.dataclass(frozen=True, kw_only=True)
class Pipeline:
    """A timeline of micro-batches through the stages of a pipeline, up to an update.

    Attributes:
        stages: description of each stage.
        tasks: tasks in any order.
        bubble: share of all stages' time in which they waited.
        ideal: the same share for equally long stages.
    """

    stages: tuple[str, ...]
    tasks: tuple[Task, ...]
    bubble: float
    ideal: float


@dataclasses.dataclass(frozen=True, kw_only=True)
class Program:
    """The record of a compiled program of a run.

    Attributes:
        name: ``step``, ``accumulate``, ``apply``, ``forward``, or a part of a pipeline.
        lowering: name of its lowering.
        reason: reason for the lowering.
        given: bytes of its inputs by role.
        history: capture and passes.
        operators: the operators, by module and phase.
        memory: memory use.
        text: the operations as Python code; truncated if very long.
        timing: times of its kernels; None if they were not timed.
        untimed: reason why they were not timed, if timing was wanted.
        declined: reason of each preferred lowering that declined the program.
        choices: backends of its operators with reasons; the most frequent first.
        captured: hash of the program before the passes of its lowering.
        fingerprint: hash of the program after all passes.
        constants: hash of each constant by name.
    """

    name: str
    lowering: str
    reason: str
    given: dict[str, int]
    history: tuple[Stamp, ...]
    operators: tuple[Operators, ...]
    memory: Memory
    text: str
    timing: Timing | None = None
    untimed: str = ""
    declined: dict[str, str] = dataclasses.field(default_factory=dict[str, str])
    choices: tuple[Choice, ...] = ()
    captured: str = ""
    fingerprint: str = ""
    constants: dict[str, str] = dataclasses.field(default_factory=dict[str, str])


@dataclasses.dataclass(frozen=True, kw_only=True)
class Option:
    """An option that the user has set, and its effect.

    Attributes:
        name: name in the user's program.
        value: value as text.
        status: ``honoured``, ``no effect`` or ``rejected``.
        note: explanation of the status.
    """

    name: str
    value: str
    status: str
    note: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class Run:
    """The record of a run of a model, as stored in ``run.json``.

    Attributes:
        schema: version of this file.
        abele: version that wrote it.
        training: whether the run trains.
        configuration: partition of a call's batch.
        options: options that were set.
        build: build of the executable; None before it is built.
        state: bytes of one copy of parameters, buffers and so on, by role.
        programs: the compiled programs; empty before the build.
        exchanged: ``calls``, ``bytes`` and ``seconds`` of exchanges with other processes.
        notes: further sentences, such as why there is no pipeline.
        limits: peak rates of the machine, if kernels were timed.
        pipeline: latest timeline of the pipeline; None without stages.
        host_steps: training steps on the host, outside of the programs; None if not counted.
        host_said: source lines of these steps.
        loop: longest loop over a data loader around the calls; None without one.
        optimizer: the optimizer; None for inference.
    """

    schema: int = SCHEMA
    abele: str
    name: str
    training: bool
    process: Process
    machine: Machine
    configuration: dict[str, int]
    options: tuple[Option, ...] = ()
    build: Build | None = None
    state: dict[str, int] = dataclasses.field(default_factory=dict[str, int])
    programs: tuple[Program, ...] = ()
    exchanged: dict[str, float] = dataclasses.field(default_factory=dict[str, float])
    notes: tuple[str, ...] = ()
    limits: Limits | None = None
    pipeline: Pipeline | None = None
    host_steps: int | None = None
    host_said: str = ""
    loop: Loop | None = None
    optimizer: Optimizer | None = None

    def write(self, folder: Path) -> None:
        """Write ``run.json`` atomically into a folder.

        Raises:
            OSError: the folder cannot be written, or the disk is full.
        """
        write_text(folder / FILE, json.dumps(dataclasses.asdict(self), indent=1) + "\n")


def only_run(path: Path) -> Path:
    """Return the folder of the only run inside a folder that is no run itself.

    Args:
        path: folder or file, as for ``read_run``.

    Returns:
        ``path`` if it is a run, or if it does not contain exactly one run.
    """
    if not path.is_dir() or _is_record(path / FILE):
        return path
    inside = _inside(path)
    return inside[0] if len(inside) == 1 else path


def _is_record(file: Path) -> bool:
    """Return whether a ``run.json`` may be a record; other programs use this name, too."""
    try:
        return "schema" in json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return False
    except (OSError, ValueError, TypeError):
        return True  # reading it says what is the matter


def _inside(path: Path) -> list[Path]:
    """Return the folders of runs in a folder, or else in its subfolders."""
    for pattern in (f"*/{FILE}", f"*/*/{FILE}"):
        if found := sorted(each for each in path.glob(pattern) if _is_record(each)):
            return [each.parent for each in found]
    return []


def read_run(path: Path) -> Run:
    """Read the record of a run.

    Args:
        path: the file or its folder.

    Raises:
        ReportError: the file is missing or damaged, or a newer version wrote it.
    """
    file = path / FILE if path.is_dir() else path
    try:
        data = json.loads(file.read_text(encoding="utf-8"))
        schema = data["schema"]
        if schema > SCHEMA:
            raise ReportError(
                f"{file} has schema {schema}, this version reads up to {SCHEMA}. Read it with the "
                f"version that wrote it: {data.get('abele')}."
            )
        return cast("Run", _decoded(Run, data))
    except OSError as error:
        raise ReportError(
            f"There is no run in {path}: {file.name}: {error.strerror}. Give the folder of a run "
            f"that was recorded.{_hint(path)}"
        ) from None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ReportError(
            f"{file} is no record of a run, or damaged: {type(error).__name__}: {error}. Give the "
            # Not repr, which may have the whole file in it.
            f"folder of a run, or its {FILE}.{_hint(file.parent)}"
        ) from None


def _hint(folder: Path) -> str:
    inside = ", ".join(map(str, _inside(folder)))
    return f" There are runs in {inside}." if inside else ""


def _decoded(kind: Any, value: Any) -> Any:
    """Convert a JSON value to the type of a record's field; unknown keys are ignored."""
    if dataclasses.is_dataclass(kind):
        types_of = typing.get_type_hints(kind)
        known = [field.name for field in dataclasses.fields(kind) if field.name in value]
        return cast("Any", kind)(**{name: _decoded(types_of[name], value[name]) for name in known})
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin in (types.UnionType, typing.Union):
        chosen = next(each for each in arguments if each is not type(None))
        return None if value is None else _decoded(chosen, value)
    if origin is tuple:
        if arguments[-1] is Ellipsis:
            return tuple(_decoded(arguments[0], each) for each in value)
        return tuple(_decoded(each, item) for each, item in zip(arguments, value, strict=True))
    if origin is dict:
        return {str(name): _decoded(arguments[1], each) for name, each in value.items()}
    return _plain(kind, value)


def _plain(kind: Any, value: Any) -> Any:
    if kind is float and isinstance(value, int):
        return float(value)
    if not isinstance(value, kind):
        raise TypeError(f"{value!r} is no {kind.__name__}")
    return value
