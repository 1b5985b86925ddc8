"""Compilation of a wrapped model, with the checks and warnings before it."""

import contextlib
import dataclasses
import os
import sys
import time
from pathlib import Path
from typing import Any

from tqdm import tqdm

from abele import cpython
from abele.compilation.executable import Executable
from abele.compilation.start import Start
from abele.step.config import StepConfig
from abele.storage.atomic import write_text
from poptorch import profiling
from poptorch._data import waiting
from poptorch._files.resuming import Resuming
from poptorch._fit import Trial
from poptorch._forward import blocks
from poptorch._forward.arguments import Bound
from poptorch._logging import logger
from poptorch._optim.state import OptimizerInUse
from poptorch._report import Recording, weakly
from poptorch._state import module_weights
from poptorch._state.weights import Weights, groupings
from poptorch._wrapper import progress, traps
from poptorch._wrapper.compiled import CompiledModel, Origin, WrappedModel
from poptorch._wrapper.errors import Translated
from poptorch.enums import ConnectionType

_EXPORT = "POPTORCH_EXPORT_PROTO_FILE"
_BINARY = "POPTORCH_EXPORT_PROTO_AS_BINARY"


class Compiling:
    """Compiles the model of one wrapper.

    Attributes:
        watch: observer of training steps on the host; None for inference.
        seconds: duration of compilation; None before.
        recording: writes the report, if the options ask for one.
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
        self._late_changes = traps.LateChanges(model.user_module)
        self.watch: traps.HostTraining | None = None
        self.seconds: float | None = None
        self.recording = Recording(model, optimizer)

    def wrap(self, executor: Any) -> None:
        """Bind the user's module to its executor for training."""
        module = self._model.user_module
        name = module_weights.user_class(module).__name__
        self.watch = traps.HostTraining(executor, name, self._model.options)
        module_weights.wrap(module, executor, self.watch)

    @profiling.traced("modelCompilation")
    def run(self, bound: Bound, origin: Origin | None = None, *, for_a_call: bool = False) -> None:
        """Compile the model for the arguments of a call.

        Args:
            bound: the arguments.
            origin: file to take the programs from, if not from a capture.
            for_a_call: a call follows immediately, so that its programs may be interpreted while
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
        if self.watch is not None:
            self.watch.target = compiled.record.target
        self._weights.host_changes.begin()
        if compiled.session.received:  # process 0's weights are those of the module now
            self._weights.copyWeightsToHost()
        self.seconds = time.perf_counter() - started
        _export(compiled.session.executable)
        self.recording.compiled()
        self._say(progress.summary(compiled.record))

    def _say(self, text: str) -> None:
        """Print a line about the running programs if progress is shown, else log it."""
        if self._model.options._show_compilation_progress_bar:
            # Standard error may be closed, or missing.
            with contextlib.suppress(AttributeError, OSError, ValueError):
                tqdm.write(text, file=sys.stderr)
        else:
            logger.info(text)

    def _announce(self, text: str) -> None:
        """Announce and record that a call now runs other programs, such as compiled ones."""
        self._say(f"abele: {text}")
        waiting.begin_again()
        if self._model.compiled is not None and self.seconds is not None:
            self.recording.compiled(change=text)

    def prepare(self) -> None:
        """Check that the model can be compiled now, and update its weights from other wrappers.

        Raises:
            poptorch.Error: inside of a capture; hooks of the optimizer.
            RuntimeError: another wrapper trains the module.
        """
        blocks.refuse_compiling_inside_capture()
        self._late_changes.warn(training=self._model.training)
        traps.warn_of_autocast()
        if self.watch is None:
            self._weights.fetch_sources()
            return
        # After ``destroy`` the module is its plain self; training it needs the wrapping back.
        shared, executor = self._weights.shared, self.watch.executor()
        if not shared.wrapped:
            module_weights.wrap(self._model.user_module, executor, self.watch)
        elif shared.trainer is not executor:
            raise RuntimeError(
                "Model has already been wrapped in 'poptorch.trainingModel' since this wrapper was "
                "destroyed. Use the newer wrapper, or call model.destroy() first."
            )
        self._optimizer.take_loaded_values()
        self._optimizer.refuse_hooks()

    def config(self) -> StepConfig:
        """Return the step configuration, with the replica groups of per-replica parameters."""
        model = self._model
        entries, replicas = model.per_replica_params, model.config.replicas
        groups = groupings(entries, model.module, replicas)
        return dataclasses.replace(model.config, replica_groups=groups)

    def trial(self, bound: Bound) -> Trial:
        """Return the model with a call's arguments, to be captured for an estimate or stages.

        Raises:
            poptorch.Error, RuntimeError: as for ``prepare``.
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
        model, options = self._model, self._model.options
        start = Start(options._start_mode)
        if start is Start.TIERED and not for_a_call:
            start = Start.WAIT
        model.compiled = CompiledModel(
            model.module,
            bound,
            self.config(),
            self._optimizer.rule,
            options,
            origin=origin,
            start=start,
            announce=weakly(self._announce),
            observers=self.recording.observers,
        )
        offline = options.connection_type == ConnectionType.Never
        self._optimizer.start(None if offline else model.compiled.session)
        return model.compiled


def _export(executable: Executable) -> None:
    """Write the programs as text to the file of POPTORCH_EXPORT_PROTO_FILE, if it is set.

    Raises:
        OSError: the file cannot be written.
    """
    path = os.environ.get(_EXPORT)
    if not path:
        return
    if os.environ.get(_BINARY, "0") not in ("", "0"):
        logger.warning("%s: programs have no binary form here; %s gets text.", _BINARY, path)
    write_text(Path(path), "\n".join(program.text() for program in executable.programs))
