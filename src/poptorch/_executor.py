"""The object that wrapping returns: calls go through it to the device and back."""

import contextlib
import copy
import datetime
import sys
import time
from typing import Any

import torch
from tqdm import tqdm

from abele.build import BuildRecord
from abele.module_state import ModuleState, parameter_names
from poptorch import _compiled, _optimizer, _translate, _weights
from poptorch._arguments import Binder, Bound
from poptorch._compiled import CompiledModel
from poptorch._error import error
from poptorch._errors_of_engine import translated
from poptorch._logging import logger
from poptorch.enums import ConnectionType
from poptorch.options import Options


class PoplarExecutor:
    """A wrapped model; made by ``trainingModel`` and ``inferenceModel``.

    The first call compiles; from then on there is exactly one executable, and a call with other
    shapes, types or constants is an error. Attributes that are not found here are the model's.

    Attributes:
        per_replica_params: reserved for parameters that differ between replicas.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        options: Options,
        training: bool,
        poptorch_version: str | None,
        optimizer: torch.optim.Optimizer | None = None,
        user_model: torch.nn.Module | None = None,
    ):
        del poptorch_version
        self._user_model = model if user_model is None else user_model
        self._options, self._training = options, training
        # Attributes that forward sets on self land on this copy, not on the user's object.
        self._module = copy.copy(model)
        self._binder = Binder(self._module.forward)
        self._config = _translate.to_config(options, training=training)
        self._compiled: CompiledModel | None = None
        self._attached = False
        self._host_is_stale = False
        self._version = 0  # counts changes of the device's weights
        self._seen_version = -1
        self._compile_seconds: float | None = None
        self._rule = None
        self.per_replica_params: dict[str, Any] = {}
        if training:
            self._rule = self._rule_of(optimizer)
            _weights.wrap(self._user_model, self)

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

    def program_text(self) -> str:
        """The compiled programs as Python, with shapes, types and source lines."""
        programs = self._get_compiled().session.executable.programs
        return "\n".join(program.text() for program in programs)

    def __repr__(self) -> str:
        return repr(self._module)

    def __getattr__(self, attr: str) -> Any:
        if attr.startswith("__") or "_user_model" not in self.__dict__:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {attr!r}")
        return getattr(self._user_model, attr)

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
        """Compiles for these arguments without running; weights do not change."""
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
        compiled = self._compiled
        bound = None
        if compiled is None or kwargs or not compiled.matches(args):
            bound = self._binder.bind(args, kwargs)
        if self._options.connection_type == ConnectionType.Never:
            raise AssertionError(
                "Trying to run a model on an offline device (ConnectionType.Never). "
                "Only compile() is possible; choose another connection type to run."
            )
        if compiled is None:
            compiled = self._compile(bound)
        if not self._attached:
            self.attachToDevice()
        if not self._training:
            self._refresh()
        with translated():
            result = compiled.run_plain(args) if bound is None else compiled.run(bound)
        if self._training:
            self._host_is_stale = True
            self._version += 1
        return result

    def _compile(self, bound: Bound) -> CompiledModel:
        started = time.perf_counter()
        trainer = _weights.owner_of(self._user_model)
        if trainer is not None and trainer is not self:
            trainer.copyWeightsToHostIfNeeded()
        with translated():
            self._compiled = CompiledModel(
                self._module, bound, self._config, self._rule, self._options
            )
        self._seen_version = -1 if trainer is None else trainer._version
        self._attached = self._options.connection_type != ConnectionType.Never
        self._compile_seconds = time.perf_counter() - started
        if self._options._show_compilation_progress_bar:
            tqdm.write(_compiled.summary(self._compiled.record), file=sys.stderr)
        return self._compiled

    def _get_compiled(self) -> CompiledModel:
        if self._compiled is None:
            raise error("Model has not been compiled or has been destroyed.")
        return self._compiled

    def _refresh(self) -> None:
        """Brings an inference model in step with the wrapper that trains the same module."""
        trainer = _weights.owner_of(self._user_model)
        if trainer is not None and trainer._version != self._seen_version:
            trainer.copyWeightsToHostIfNeeded()
            self.copyWeightsToDevice()
            self._seen_version = trainer._version

    # -- weights ---------------------------------------------------------------------------

    def copyWeightsToHost(self) -> None:
        """Copies parameters and buffers from the device into the user's module."""
        session = self._get_compiled().session
        self._host_is_stale = False
        host = ModuleState.of(self._module)
        for name, value in host.params.items():
            value.copy_(session.params[name])
        for name, value in host.buffers.items():
            value.copy_(session.buffers[0][name])

    def copyWeightsToHostIfNeeded(self) -> bool:
        """Does so if the device has newer ones; returns whether it did."""
        if not self._host_is_stale or self._compiled is None:
            return False
        # Cleared first: the copy itself touches the wrapped tensors.
        self._host_is_stale = False
        self.copyWeightsToHost()
        return True

    def copyWeightsToDevice(self) -> None:
        """Copies parameters and buffers of the user's module to the device, as they are."""
        session = self._get_compiled().session
        self._host_is_stale = False
        host = ModuleState.of(self._module)
        session.write_params(host.params)
        session.write_buffers(host.buffers)
        self._version += 1

    def load_state_dict(self, state_dict: dict[str, torch.Tensor], strict: bool = True) -> Any:
        """Loads into the user's module, then sends the weights to the device if attached."""
        result = self._user_model.load_state_dict(state_dict, strict)
        if self.isAttachedToDevice():
            self.copyWeightsToDevice()
        return result

    def setOptimizer(self, optimizer: torch.optim.Optimizer) -> None:
        """Sends the optimizer's present values to the device; call it after every change.

        Raises:
            poptorch.Error: a value that was compiled in has changed.
            AssertionError: unsupported optimizer class.
        """
        rule = self._rule_of(optimizer)
        if self._compiled is not None:
            changed = _optimizer.same_structure(self._rule, rule)
            if changed is not None:
                raise error(
                    "The optimizer is not a valid replacement, because it changes what was "
                    f"compiled in: {changed}. Pass the value to the optimizer's constructor or "
                    "call optimizer.variable_attrs.markAsVariable(...) before compiling."
                )
            for name, value in rule.hyper().items():
                self._compiled.session.set_hyper(name, value)
        self._rule = rule

    def _rule_of(self, optimizer: Any) -> Any:
        return _optimizer.to_update_rule(optimizer, parameter_names(self._module))

    # -- the device ------------------------------------------------------------------------

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
        self._attached = False

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
        self.copyWeightsToDevice()

    def destroy(self) -> None:
        """Brings the weights home, frees executable and device, and unwraps the module."""
        if self._compiled is None:
            return
        if self._training:
            self.copyWeightsToHostIfNeeded()
            _weights.unwrap(self._user_model)
        self._compiled, self._attached, self._compile_seconds = None, False, None

    def __del__(self):
        # Weights that were trained and never read must not be lost with the wrapper.
        # At interpreter exit nobody can read them any more, and torch objects to being used.
        if sys.is_finalizing():
            return
        if getattr(self, "_host_is_stale", False) and self._compiled is not None:
            with contextlib.suppress(Exception):
                self.copyWeightsToHost()
