"""Compiling a wrapped model: what is refused and warned of before, and what follows."""

import contextlib
import dataclasses
import datetime
import os
import sys
import time
import weakref
from pathlib import Path
from typing import Any

from tqdm import tqdm

from abele import cpython
from abele.compile.executable import Announce, Executable
from abele.compile.start import Start
from abele.step.config import StepConfig
from abele.storage.atomic import write_text
from poptorch import _stage, profiling
from poptorch._compiled import progress
from poptorch._compiled.compilation import Origin
from poptorch._compiled.model import CompiledModel
from poptorch._compiled.wrapped import WrappedModel
from poptorch._data import waiting
from poptorch._error import error
from poptorch._files.resuming import Resuming
from poptorch._fit import Trial
from poptorch._forward import blocks
from poptorch._forward.arguments import Bound
from poptorch._logging import logger
from poptorch._optim.state import OptimizerInUse
from poptorch._report.recording import Recording
from poptorch._state import module_weights
from poptorch._state.weights import Weights, groupings
from poptorch._wrapper import compile_traps
from poptorch._wrapper.errors_of_engine import Translated
from poptorch._wrapper.host_training import HostTraining
from poptorch.enums import ConnectionType

_EXPORT = "POPTORCH_EXPORT_PROTO_FILE"
_BINARY = "POPTORCH_EXPORT_PROTO_AS_BINARY"


@dataclasses.dataclass(frozen=True)
class Training:
    """Return the connection of a module to its training executor.

    Attributes:
        executor: the wrapper, which is not kept alive.
        watch: for training steps on the host.
    """

    executor: weakref.ref
    watch: HostTraining


class Compiling:
    """Compiles the model of one wrapper.

    Args:
        model: the wrapped model.
        optimizer: what trains it.
        weights: its weights.
        resuming: state that may wait for a session.
        translated: raises the engine's errors as programs catch them.

    Attributes:
        training: of a training wrapper; None for inference.
        seconds: how long compiling took; None before.
        recording: writes down what happens, if the options ask for a report.
    """

    def __init__(
        self,
        model: WrappedModel,
        optimizer: OptimizerInUse,
        weights: Weights,
        resuming: Resuming,
        translated: Translated,
    ):
        self._model, self._optimizer, self._weights = model, optimizer, weights
        self._resuming, self._translated = resuming, translated
        self._late_changes = compile_traps.LateChanges(model.user_module)
        self.training: Training | None = None
        self.seconds: float | None = None
        self.recording = Recording(model, optimizer)

    def wrap(self, executor: Any) -> None:
        """Ties the user's module to its executor for training."""
        model = self._model
        watch = HostTraining(
            executor, module_weights.user_class(model.user_module).__name__, model.options
        )
        self.training = Training(weakref.ref(executor), watch)
        module_weights.wrap(model.user_module, executor, watch)

    @profiling.traced("modelCompilation")
    def run(self, bound: Bound, origin: Origin | None = None, *, for_a_call: bool = False) -> None:
        """Compiles for the arguments of a call.

        Args:
            bound: the arguments.
            origin: where the programs come from, if not from a capture.
            for_a_call: a call follows at once, so that its programs may be interpreted while
                another process compiles.

        Raises:
            poptorch.Error: the model cannot be compiled.
            RuntimeError: another wrapper trains the module.
        """
        model, options = self._model, self._model.options
        started = time.perf_counter()
        self.prepare()
        # Around all of it, not only inside: each end of a pause is followed by collections.
        with (
            cpython.uncollected(),
            self._translated,
            self._resuming.around_compiling(),
            self.recording.compiling(),
        ):
            compiled = self._make(bound, origin, for_a_call=for_a_call)
        if options.connection_type == ConnectionType.Always:
            model.take_device()
        if self.training is not None:
            self.training.watch.target = compiled.record.target
        self._weights.host_changes.begin()
        if compiled.session.received:  # process 0's weights are those of the module now
            self._weights.copyWeightsToHost()
        self.seconds = time.perf_counter() - started
        _export(compiled.session.executable)
        self.recording.compiled()
        self._say(progress.summary(compiled.record))
        if options._show_compilation_progress_bar and progress.Countdown.wanted(compiled.record):
            say = self._announcer(self._say)
            running = compiled.record.running
            compiled.session.add_observer(progress.Countdown(compiled.session, running, say))

    def _say(self, text: str) -> None:
        """Says on a line what runs, where compiling is shown, else in the log."""
        if self._model.options._show_compilation_progress_bar:
            with contextlib.suppress(
                AttributeError, OSError, ValueError
            ):  # closed, or there is none
                tqdm.write(text, file=sys.stderr)
        else:
            logger.info(text)

    def _announcer(self, call: Announce) -> Announce:
        """Return a call of a method that does not keep this object alive."""
        method = weakref.WeakMethod(call)

        def announce(text: str) -> None:
            alive = method()
            if alive is not None:
                alive(text)

        return announce

    def _announce(self, text: str) -> None:
        """Says that other programs run than before, in the report too."""
        self._say(f"abele: {text}")
        waiting.begin_again()
        compiled = self._model.compiled
        if compiled is not None and self.seconds is not None:
            self.recording.changed(text)

    def compilationTime(self) -> datetime.timedelta:
        """Return the seconds of capture, compilation and loading.

        Raises:
            poptorch.Error: not compiled yet, or the progress bar is disabled.
        """
        if not self._model.options._show_compilation_progress_bar:
            raise error("compilationTime() needs options.showCompilationProgressBar(True).")
        if self.seconds is None:
            raise error("You must compile the model before you can get the compilation time.")
        return datetime.timedelta(seconds=self.seconds)

    def prepare(self) -> None:
        """Refuses what cannot be compiled now, and has the module hold what is to be compiled.

        Raises:
            poptorch.Error: inside of a capture; hooks of the optimizer.
            RuntimeError: another wrapper trains the module.
        """
        blocks.refuse_compiling_inside_capture()
        self._late_changes.warn(training=self._model.training)
        compile_traps.warn_of_autocast()
        if self.training is None:
            self._weights.fetch_sources()
            return
        self._wrap_again(self.training)
        self._optimizer.take_loaded_values()
        self._optimizer.refuse_hooks()

    def _wrap_again(self, training: Training) -> None:
        """After ``destroy`` the module is its plain self; training it needs the wrapping back."""
        shared, executor = self._weights.shared, training.executor()
        if not shared.wrapped:
            module_weights.wrap(self._model.user_module, executor, training.watch)
        elif shared.trainer is not executor:
            raise RuntimeError(
                "Model has already been wrapped in 'poptorch.trainingModel' since this wrapper was "
                "destroyed. Use the newer wrapper, or call model.destroy() first."
            )

    def config(self) -> StepConfig:
        """Return how a call consumes its batch, with the per-replica parameters."""
        model = self._model
        entries, replicas = model.per_replica_params, model.config.replicas
        groups = groupings(entries, model.module, replicas)
        return dataclasses.replace(model.config, replica_groups=groups)

    def trial(self, bound: Bound) -> Trial:
        """Capture the programs for these arguments, for inspection.

        Raises:
            poptorch.Error: as for ``prepare``.
            RuntimeError: likewise.
        """
        self.recording.begun()
        self.prepare()
        return Trial(
            module=self._model.module,
            bound=bound,
            config=self.config(),
            rule=self._optimizer.rule,
            options=self._model.options,
        )

    def _make(self, bound: Bound, origin: Origin | None, *, for_a_call: bool) -> CompiledModel:
        model, config = self._model, self.config()
        rule, options = self._optimizer.rule, model.options
        start = Start(options._start_mode)
        if start is Start.TIERED and not for_a_call:
            start = Start.WAIT
        with _stage.applied(model.stages, model.module):
            model.compiled = CompiledModel(
                model.module,
                bound,
                config,
                rule,
                options,
                origin=origin,
                start=start,
                announce=self._announcer(self._announce),
                observers=self.recording.observers,
            )
        offline = model.options.connection_type == ConnectionType.Never
        self._optimizer.state.start(None if offline else model.compiled.session)
        return model.compiled


def _export(executable: Executable) -> None:
    """Write the programs as text to the file that the environment names, if it names one.

    Raises:
        OSError: the file cannot be written.
    """
    path = os.environ.get(_EXPORT)
    if not path:
        return
    if os.environ.get(_BINARY, "0") not in ("", "0"):
        logger.warning("%s: programs have no binary form here; %s gets text.", _BINARY, path)
    write_text(Path(path), "\n".join(program.text() for program in executable.programs))
