"""The object that wrapping returns: calls go through it to the device and back."""

import contextlib
import copy
import dataclasses
import datetime
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
from tqdm import tqdm

from abele.capture import gradient_hooks
from abele.capture.reachable import attributes_of
from abele.collectives import Counts
from abele.compile.build import BuildRecord
from abele.step.update_rules import UpdateRule
from abele.trace.module_state import parameter_names
from poptorch import profiling
from poptorch._compiled import progress, translate
from poptorch._compiled.model import CompiledModel
from poptorch._error import error
from poptorch._files import resuming
from poptorch._files.saving import SavingMixin
from poptorch._forward import tracing
from poptorch._forward.placement import PlacementMember
from poptorch._forward.printing import module_repr
from poptorch._logging import logger
from poptorch._optimizers import reading
from poptorch._optimizers.device_state import DeviceState
from poptorch._report import files
from poptorch._report.pipeline import PipelineMember
from poptorch._state import module_weights, per_replica, random_state
from poptorch._state.copies import WeightCopies
from poptorch._state.locked import locked
from poptorch._state.parameter_proxy import ParameterProxy
from poptorch._state.sources import Sources
from poptorch._values.arguments import Binder, Bound
from poptorch._wrapper import compile_traps
from poptorch._wrapper.attaching import Attaching
from poptorch._wrapper.copying import Copying
from poptorch._wrapper.errors_of_engine import Translated
from poptorch._wrapper.host_training import HostTraining
from poptorch._wrapper.observing import Observing
from poptorch._wrapper.published_names import PublishedNames
from poptorch.enums import ConnectionType
from poptorch.options import Options


class PoplarExecutor(
    Attaching,
    Copying,
    Observing,
    PipelineMember,
    PlacementMember,
    PublishedNames,
    SavingMixin,
    WeightCopies,
):
    """A wrapped model; made by ``trainingModel`` and ``inferenceModel``.

    The first call compiles; from then on there is exactly one executable, and a call with other
    shapes, types or constants is an error. Attributes that are not found here are the model's.

    Attributes:
        per_replica_params: parameters that differ between groups of replicas: (group type,
            replicas per group, retrieval mode) by name; fill it before the first call.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        options: Options,
        training: bool,
        poptorch_version: str | None,
        optimizer: torch.optim.Optimizer | UpdateRule | None = None,
        user_model: torch.nn.Module | None = None,
    ):
        del poptorch_version
        self._user_model = model if user_model is None else user_model
        self._options, self._training = options, training
        self._translated = Translated(options.log_dir)
        # Attributes that forward sets on self land on this copy, not on the user's object.
        self._module = copy.copy(model)
        self._at_wrapping = dict(attributes_of(self._user_model))
        # A module made by torch.compile keeps its mode in the module inside, not in an attribute.
        self._was_training = self._user_model.training
        self._modes_at_wrapping = compile_traps.modes_of(self._user_model)
        self._binder = Binder(self._module.forward)
        self._config = translate.to_config(options, training=training)
        self._compiled: CompiledModel | None = None
        self._host_is_stale = False
        self._shared = module_weights.shared_by(self._user_model)
        self._lock: Any = module_weights.lock_of(self._user_model)
        self._sources = Sources(self._user_model)
        self._compile_seconds: float | None = None
        self._watch = reading.AttributeWatch(relaxed=options._relax_optimizer_checks)
        self._rule: UpdateRule | None = None
        self._optimizer_state = DeviceState()
        self._waiting: resuming.Waiting | None = None  # state to begin with
        self._told: dict[str, float] | None = None  # the values set last, if not the rule's
        self.per_replica_params: dict[str, tuple] = {}
        if training:
            # A model that comes out of a file brings the rule of an optimizer that is not there.
            if isinstance(optimizer, UpdateRule):
                self._rule = optimizer
            else:
                self._use(optimizer)
            name = type(self._user_model).__name__
            self._host_training = HostTraining(self, name, options)
            module_weights.wrap(self._user_model, self)
        profiling.trace_executor(self, training)

    # -- what a user reads -----------------------------------------------------------------

    @property
    def model(self) -> torch.nn.Module:
        """The user's module."""
        return self._user_model

    @property
    def options(self) -> Options:
        """The frozen copy of the options this wrapper was made with."""
        return self._options

    @property
    def target(self) -> str | None:
        """Which target runs the model (``cpu``, ``cuda``, ``reference``); None before compiling."""
        return None if self._compiled is None else self._compiled.record.target

    @property
    def executable_hash(self) -> str | None:
        """Hash of the executable in use; None before compiling."""
        return None if self._compiled is None else self._compiled.record.executable

    @property
    def build_record(self) -> BuildRecord | None:
        """How the executable was made: target, fallback, cache and times; None before compiling."""
        return None if self._compiled is None else self._compiled.record

    @property
    def exchanges(self) -> Counts:
        """What updates have exchanged with other processes: calls, bytes and seconds in them.

        An addition of this project. Counted since compiling; zero in a process that trains by
        itself. Bytes are of the tensors that were added up, seconds include waiting for others.
        """
        exchange = None if self._compiled is None else self._compiled.session.exchange
        return Counts() if exchange is None else dataclasses.replace(exchange.counts)

    def program_text(self) -> str:
        """The compiled programs as Python, with shapes, types and source lines.

        An addition of this project.

        Raises:
            poptorch.Error: not compiled.
        """
        programs = self._get_compiled().session.executable.programs
        return "\n".join(program.text() for program in programs)

    def __repr__(self) -> str:
        return module_repr(self._module)

    def __getattr__(self, attr: str) -> Any:
        if attr.startswith("__") or "_user_model" not in self.__dict__:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {attr!r}")
        value = getattr(self._user_model, attr)
        if isinstance(value, torch.nn.Parameter):
            return ParameterProxy(self, attr, value)
        if self._training:
            self._host_training.note_method(attr)
        return value

    def isCompiled(self) -> bool:
        """Whether an executable exists."""
        return self._compiled is not None

    def isAttachedToDevice(self) -> bool:
        """Whether the executable and its weights are on the device."""
        return self._compiled is not None and self._attached

    def compilationTime(self) -> datetime.timedelta:
        """How long compiling took, capture and loading included.

        Raises:
            poptorch.Error: not compiled yet, or the progress bar is disabled.
        """
        if not self._options._show_compilation_progress_bar:
            raise error("compilationTime() needs options.showCompilationProgressBar(True).")
        if self._compile_seconds is None:
            raise error("You must compile the model before you can get the compilation time.")
        return datetime.timedelta(seconds=self._compile_seconds)

    # -- compiling and running -------------------------------------------------------------

    def compile(self, *args: Any, **kwargs: Any) -> None:
        """Compiles for these arguments without running; weights do not change.

        Args:
            args: as for the model's forward; every tensor brings the rows of a whole call.
            kwargs: likewise.

        Raises:
            AssertionError: the rows do not divide, or arguments do not fit forward.
            poptorch.Error: the model cannot be compiled.
        """
        with self._lock:
            if self.isCompiled():
                logger.warning("Call to compile() ignored: the model is already compiled.")
                return
            self._compile(self._binder.bind(args, kwargs))

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Runs the program on one combined batch; compiles first if needed.

        Args:
            args: as for the model's forward; every tensor brings the rows of the whole call.
            kwargs: likewise.

        Returns:
            The model's results in the same containers, as detached host tensors.

        Raises:
            AssertionError: the rows do not divide, or the connection type is Never.
            poptorch.Error: arguments unlike the first call's, or a model that cannot be compiled.
        """
        with self._lock:
            compiled = self._compiled if self._attachment is not None else None
            # The plain case is checked first and costs least: see benchmarks of the call overhead.
            plain = compiled is not None and not kwargs and compiled.matches(args)
            if compiled is None or not plain:
                tracing.refuse_nested_call()
                bound = self._binder.bind(args, kwargs)
                compiled = compiled or self._made_ready(bound)
            if not self._training:
                self._refresh()
            elif self._optimizer_state.pending or self._optimizer_state.reread:
                self._send_loaded_state()
            with self._translated:
                try:
                    result = compiled.run_plain(args) if plain else compiled.run(bound)
                except BaseException:
                    if self._training and compiled.was_stopped:  # after some updates, perhaps
                        self._weights_changed()
                    raise
            if self._training:
                self._weights_changed()
            return result

    def _weights_changed(self) -> None:
        self._host_is_stale = self._optimizer_state.stale = True
        self._shared.version += 1

    def _made_ready(self, bound: Bound) -> CompiledModel:
        """Compiles if that has not been done, and takes the device."""
        if self._options.connection_type == ConnectionType.Never:
            raise AssertionError(
                "Trying to run a model on an offline device (ConnectionType.Never). "
                "Only compile() is possible; choose another connection type to run."
            )
        compiled = self._compiled
        if compiled is None:
            compiled = self._compile(bound)
        if not self._attached:
            self.attachToDevice()
        return compiled

    def _compile(
        self, bound: Bound, make: Callable[..., CompiledModel] = CompiledModel
    ) -> CompiledModel:
        tracing.refuse_compiling_inside_capture()
        compile_traps.warn_of_late_changes(self._user_model, self._at_wrapping)
        compile_traps.warn_of_late_mode(
            self._user_model,
            self._modes_at_wrapping,
            self._was_training,
            training=self._training,
        )
        compile_traps.warn_of_autocast()
        started = time.perf_counter()
        if self._training:
            self._wrap_again()
            self._take_loaded_values()
            self._refuse_hooks()
        else:
            self._sources.fetch()
        groups = per_replica.groupings(self.per_replica_params, self._module, self._config.replicas)
        config = dataclasses.replace(self._config, replica_groups=groups)
        with self._translated, resuming.around_compiling(self):
            compiled = make(self._module, bound, config, self._rule, self._options)
            self._compiled = compiled
            offline = self._options.connection_type == ConnectionType.Never
            self._optimizer_state.start(None if offline else compiled.session)
        self._attached = self._options.connection_type == ConnectionType.Always
        if self._training:
            self._host_training.target = compiled.record.target
        if compiled.session.received:  # process 0's weights are those of the module now
            self.copyWeightsToHost()
        self._compile_seconds = time.perf_counter() - started
        files.write_reports(compiled, self._options, self._compile_seconds)
        if self._options._show_compilation_progress_bar:
            tqdm.write(progress.summary(compiled.record), file=sys.stderr)
        return compiled

    def _wrap_again(self) -> None:
        """After ``destroy`` the module is its plain self; training it needs the wrapping back."""
        if not self._shared.wrapped:
            module_weights.wrap(self._user_model, self)
        elif self._shared.trainer is not self:
            raise RuntimeError(
                "Model has already been wrapped in 'poptorch.trainingModel' since this wrapper was "
                "destroyed. Use the newer wrapper, or call model.destroy() first."
            )

    def _get_compiled(self) -> CompiledModel:
        if self._compiled is None:
            raise error("Model has not been compiled or has been destroyed.")
        return self._compiled

    def _refresh(self) -> None:
        """Brings an inference model in step with the wrappers that train its module or parts."""
        if self._sources.fetch():
            self.copyWeightsToDevice()

    # -- the optimizer ---------------------------------------------------------------------

    @locked
    def setOptimizer(self, optimizer: torch.optim.Optimizer) -> None:
        """Sends the optimizer's present values to the device; call it after every change.

        Args:
            optimizer: the one in use, or another of the same class and number of groups, whose
                state it brings along.

        Raises:
            poptorch.Error: a value that was compiled in has changed.
            AssertionError: unsupported optimizer class.
            ValueError: half accumulators are asked for after compiling without them.
        """
        self._use(optimizer)

    def _use(self, optimizer: Any) -> None:
        reading.choose_reduction(
            self._options, optimizer, self._rule if self.isCompiled() else None
        )
        if not self.isCompiled():
            self._config = translate.to_config(self._options, training=True)
        self._rule = self._rule_of(optimizer)
        if self._waiting is not None:
            self._waiting.told = True
        self._optimizer_state.use(optimizer, self._rule, parameter_names(self._module))
        self._refuse_hooks()

    def _refuse_hooks(self) -> None:
        optimizer = self._optimizer_state.in_use
        refused = None if optimizer is None else gradient_hooks.refused_around_step(optimizer)
        if refused is not None:
            raise error(refused)

    def _take_loaded_values(self) -> None:
        """The groups of a loaded state dictionary count without another setOptimizer."""
        if self._optimizer_state.reread:
            self._use(self._optimizer_state.in_use)

    def _send_loaded_state(self) -> None:
        """What was loaded on the host goes to the device, if there is any."""
        if self._optimizer_state.reread:
            self._take_loaded_values()
            rule = self._rule
            if rule is not None and rule.automatic_scaling is not None:
                # The device has moved on from the scale that the rule has been told.
                self._get_compiled().session.set_hyper("loss_scaling", rule.loss_scaling)
        if self._optimizer_state.pending:
            self._optimizer_state.write()

    def _rule_of(self, optimizer: Any) -> UpdateRule:
        names = parameter_names(self._module)
        rule = reading.to_update_rule(optimizer, names, warn=self._rule is None)
        rule = translate.with_automatic_scaling(rule, optimizer, self._options)
        self._watch.look(optimizer)
        # The device steps, unseen by torch's schedulers, which would warn of a missing step().
        optimizer._opt_called = True
        if self._rule is None or self._compiled is None:
            return rule
        rule = reading.replacement(self._rule, rule)
        before = self._rule.hyper() if self._told is None else self._told
        self._told = None
        for name, value in rule.hyper().items():
            if value != before[name]:
                self._compiled.session.set_hyper(name, value)
        return rule

    @property
    def rng_state(self) -> list[int]:
        """The seed and the state of the random numbers; may be set to continue from it.

        Raises:
            poptorch.Error: not compiled.
        """
        return random_state.read(self._get_compiled().session)

    @rng_state.setter
    def rng_state(self, numbers: list[int]) -> None:
        random_state.write(self._get_compiled().session, numbers)

    # -- the device ------------------------------------------------------------------------

    @locked
    def detachFromDevice(self) -> None:
        """Gives up the device and brings the weights home; the executable is kept.

        Raises:
            poptorch.Error: not compiled, or detached already.
        """
        self._get_compiled()
        if not self._attached:
            raise error("Device is not attached")
        if self._training:
            self.copyWeightsToHostIfNeeded()
            self._optimizer_state.fetch()
        self._attached = False

    @locked
    def attachToDevice(self) -> None:
        """Takes the device again and sends the weights; a call does so by itself.

        Raises:
            AssertionError: the connection type is Never.
            poptorch.Error: not compiled, or attached already.
        """
        self._get_compiled()
        if self._options.connection_type == ConnectionType.Never:
            raise AssertionError("Trying to attach to an offline device (ConnectionType.Never).")
        if self._attached:
            raise error("Device is already attached")
        self._attached = True
        session = self._get_compiled().session
        self._host_is_stale = False
        per_replica.copy_buffers_to_replicas(session, self._module)
        self._send_parameters(session)

    @locked
    def destroy(self) -> None:
        """Brings the weights home, frees executable and device, and unwraps the module."""
        if self._compiled is None:
            return
        if self._training:
            self.copyWeightsToHostIfNeeded()
            module_weights.unwrap(self._user_model)
        self._optimizer_state.stop()
        self._compiled.session.close()
        self._compiled, self._attached, self._compile_seconds = None, False, None

    def __del__(self):
        # Weights that were trained and never read must not be lost with the wrapper, nor what the
        # optimizer has accumulated for the next one.
        # At interpreter exit nobody can read them any more, and torch objects to being used.
        if sys.is_finalizing():
            return
        # Nobody else has it, and the collector may run in a thread that holds other locks.
        self._lock = contextlib.nullcontext()
        if getattr(self, "_host_is_stale", False):
            with contextlib.suppress(Exception):
                self.copyWeightsToHost()
        with contextlib.suppress(Exception):
            self._optimizer_state.stop()
