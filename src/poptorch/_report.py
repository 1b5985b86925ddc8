"""Recording of a wrapper's run for its report: record, journal and page of ``abele.report``."""

import contextlib
import dataclasses
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

from abele import questions
from abele.collectives import Counts
from abele.program import memory
from abele.report import facts, timing
from abele.report.card import Written, write
from abele.report.optimizer import Optimizer, optimizer_of
from abele.report.record import Option, Run
from abele.report.recorder import Latest, Recorder, Trouble, Uncalled, latest_call
from abele.runtime.observers import Observer
from abele.version import __version__
from poptorch._data.waiting import LoopAround
from poptorch._optim.state import OptimizerInUse
from poptorch._state.module_weights import shared_by, user_class
from poptorch._wrapper.compiled import CompiledModel, WrappedModel
from poptorch.options import Options, _table
from poptorch.options._engine import report_wanted

P = ParamSpec("P")
R = TypeVar("R")


def weakly(
    method: Callable[P, R], otherwise: Callable[P, R] = lambda *_, **__: None
) -> Callable[P, R]:
    """Return a function that calls a bound method through a weak reference to its object.

    Once the object is freed, ``otherwise`` is called instead.
    """
    reference = weakref.WeakMethod(method)

    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        return (reference() or otherwise)(*args, **kwargs)

    return call


class Recording:
    """Records the runs of one wrapper in the report folder of its options, if they name one."""

    def __init__(self, model: WrappedModel, optimizer: OptimizerInUse):
        self._model, self._optimizer = model, optimizer
        self._recorder: Recorder | None = None
        self._trouble = Trouble()
        self._loop = LoopAround()
        self._began_ns = time.perf_counter_ns()
        folder = self._folder()
        self._on_host = on_host = _steps_on_host(model)
        self._uncalled: Uncalled | None = None
        if folder is not None:
            before = self._before()
            self._uncalled = Uncalled(folder, lambda: dataclasses.replace(before, **on_host()))
        optimizer.changed = weakly(self._follow)

    def _follow(self) -> None:
        """Record the optimizer's new hyper-parameters in the report."""
        with self._trouble:
            now = _values(self._optimizer)
            if self._recorder is not None and now is not None:
                self._recorder.optimizer(now)

    @property
    def observers(self) -> Sequence[Observer]:
        """Observers that record compilations and calls of the wrapper; none without a report."""
        return () if self._recorder is None else (self._recorder,)

    @contextlib.contextmanager
    def compiling(self) -> Iterator[None]:
        """Start a new record for a compilation inside the block; note its error if it fails."""
        self.begun()
        self._began_ns = time.perf_counter_ns()
        self.end("ended: the model was compiled anew")
        folder = self._folder()
        self._recorder, self._loop = None, LoopAround()
        if folder is not None:
            with self._trouble:
                latest: Latest = weakly(self._now_known, lambda run, over: run)
                self._recorder = Recorder(folder, self._before(), latest, self._loop, self._trouble)
        try:
            yield
        except BaseException as error:
            if self._recorder is not None:
                self._recorder.failed("compiling", error)
            raise

    def begun(self) -> None:
        """Record that the program has used the wrapper."""
        if self._uncalled is not None:
            self._uncalled.begun()
        self._uncalled = None

    def compiled(self, change: str = "") -> None:
        """Record the compiled programs, or a switch to other programs, in the report."""
        made = self._model.get_compiled()
        if self._recorder is not None:
            with self._trouble:
                run = self._run(self._recorder.run, made)
                if change:
                    self._recorder.changed(run, change)
                else:
                    self._recorder.built(run, made.captured.loss)

    def end(self, how: str) -> None:
        """End the report of a run with the reason ``how``."""
        recorder, self._recorder = self._recorder, None
        uncalled, self._uncalled = self._uncalled, None
        if recorder is not None:
            recorder.ended(how)
        if uncalled is not None:
            uncalled.ended(how)

    def write(self, path: Path, *, measure: bool = False) -> Written:
        """Write the report so far, as an HTML page or as a folder; see ``executor.report``."""
        made = self._model.get_compiled()
        run = self._run(self._before() if self._recorder is None else self._recorder.run, made)
        if measure:
            run = timing.timed(run, made.session.executable, made.session)
        if self._recorder is not None:
            self._recorder.looked(run)
        if self._recorder is None:
            return write(path, run, latest_call(made.session.last_call, self._began_ns))
        return write(path, run, self._recorder.read(), of=self._recorder.folder)

    def _now_known(self, run: Run, over: bool) -> Run:
        """Return the run record updated with current communication, pipeline and loop statistics.

        Kernels can be timed if the run is ``over``.
        """
        made = self._model.compiled
        if made is None or not run.programs:
            return run
        run = dataclasses.replace(run, **self._changing(made))
        wanted = report_wanted(self._model.options, self._model.training)
        if over and wanted is not None and wanted.timed:
            return timing.timed(run, made.session.executable, made.session)
        return run

    # -- what is known ---------------------------------------------------------------------

    def _folder(self) -> Path | None:
        options = self._model.options
        wanted = report_wanted(options, self._model.training)
        if wanted is None or questions.inspecting:
            return None
        process = options.Distributed.processId
        return wanted.folder / f"instance_{process}" if process else wanted.folder

    def _before(self) -> Run:
        """Return the run record as of before compilation: machine, options, optimizer."""
        model = self._model
        config, options = model.config, model.options
        name = options.model_name if options.exists("model_name") else None
        return Run(
            abele=__version__,
            name=name or user_class(model.user_module).__name__,
            training=model.training,
            process=facts.process(self._began_ns),
            machine=facts.machine(),
            configuration={
                "device_iterations": config.device_iterations,
                "gradient_accumulation": config.gradient_accumulation,
                "replicas": config.replicas,
                "processes": config.processes,
            },
            options=tuple(_options(options)),
            optimizer=_values(self._optimizer),
        )

    def _run(self, before: Run, made: CompiledModel) -> Run:
        executable = made.session.executable
        return dataclasses.replace(
            before,
            build=facts.build(made.record),
            state=memory.state_bytes(executable.programs),
            programs=facts.programs(executable, made.record),
            **self._changing(made),
        )

    def _changing(self, made: CompiledModel) -> dict[str, Any]:
        """Return the fields of a run record that change with each call."""
        exchange = made.session.exchange
        counts = Counts() if exchange is None else exchange.counts
        report, passage, notes = made.pipeline_report(), None, ()
        if report.pipelining.stages > 1:
            notes = (report.sentence(),)
            if report.measured is not None:
                passage = facts.pipeline(report.measured, report.pipelining.names)
        return {
            "exchanged": {k: float(v) for k, v in dataclasses.asdict(counts).items()},
            "pipeline": passage,
            "notes": notes,
            "loop": self._loop.loop(),
            **self._on_host(),
        }


def _values(optimizer: OptimizerInUse) -> Optimizer | None:
    """Return the optimizer's hyper-parameters for the next update; None for inference."""
    rule = optimizer.rule
    if rule is None:
        return None
    kind = type(optimizer.in_use)
    name = rule.kind if optimizer.in_use is None else f"{kind.__module__}.{kind.__qualname__}"
    if name.startswith("torch.optim."):  # each class has a file of its own
        name = f"torch.optim.{kind.__qualname__}"
    return optimizer_of(rule, name, optimizer.restored or {})


def _steps_on_host(model: WrappedModel) -> Callable[[], dict[str, Any]]:
    """Return a function that counts the training steps that the user's module has run on the host.

    It does not keep the model alive.
    """
    shared = shared_by(model.user_module)
    counts = model.training and model.options._host_training_warning

    def steps() -> dict[str, Any]:
        watch = shared.host_training if counts else None
        if watch is None:
            return {}
        return {"host_steps": watch.steps, "host_said": watch.sentence() if watch.steps else ""}

    return steps


def _options(options: Options) -> Iterator[Option]:
    for row, value in _table.given(options):
        name = row.setter if row.setter != "set" else row.name
        if name == "setEngineOptions":  # where a report goes is no difference between two runs
            value = {key: each for key, each in value.items() if key != "autoReport.directory"}
        status = row.status.value
        yield Option(
            name=f"{row.namespace}.{name}", value=repr(value), status=status, note=row.note
        )
