"""The executor: the object returned for a wrapped model, whose calls run on the device."""

import contextlib
import datetime
import functools
import os
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, Self, TypeVar

import torch

from abele import cpython
from abele.report.card import Written
from abele.step.update_rules import UpdateRule
from abele.storage.container import Container
from poptorch import profiling
from poptorch._error import error
from poptorch._files.resuming import Resuming
from poptorch._files.saved_file import destination
from poptorch._files.saving import ModelFiles
from poptorch._forward import blocks
from poptorch._forward.arguments import Bound
from poptorch._forward.blocks import module_repr
from poptorch._forward.structure import leaves
from poptorch._logging import logger
from poptorch._optim.state import OptimizerInUse
from poptorch._state import module_weights
from poptorch._state.module_weights import ParameterProxy
from poptorch._state.weights import Weights, read_random_state, write_random_state
from poptorch._wrapper.compiled import CompiledModel, WrappedModel
from poptorch._wrapper.compiling import Compiling
from poptorch._wrapper.errors import Translated
from poptorch._wrapper.fitting import Estimates
from poptorch._wrapper.observing import Inspection
from poptorch.enums import ConnectionType
from poptorch.options import Options

P = ParamSpec("P")
R = TypeVar("R")


def of_part(
    part: str, method: Callable[Concatenate[Any, P], R]
) -> Callable[Concatenate[Any, P], R]:
    """Return a method that forwards to a part of the wrapper while holding the wrapper's lock."""

    def member(self: Any, *args: Any, **kwargs: Any) -> Any:
        return getattr(getattr(self, part), method.__name__)(*args, **kwargs)

    return locked(functools.wraps(method)(member))


def locked(method: Callable[Concatenate[Any, P], R]) -> Callable[Concatenate[Any, P], R]:
    """Decorate a method to hold its wrapper's lock, ``self._lock``, while it runs."""

    @functools.wraps(method)
    def alone(self: Any, *args: P.args, **kwargs: P.kwargs) -> R:
        with self._lock:
            return method(self, *args, **kwargs)

    return alone


class PoplarExecutor(Inspection, Estimates):
    """A model wrapped by ``trainingModel`` or ``inferenceModel``; a call runs it on the device.

    The first call compiles; from then on there is exactly one executable, and a call with other
    shapes, types or constants is an error. Attributes that are not found here are the model's.
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
        module = model if user_model is None else user_model
        self._wrapped = WrappedModel(model, module, options, training=training)
        # A model from a file has the rule of an optimizer whose object is not there.
        rule = optimizer if isinstance(optimizer, UpdateRule) else None
        self._optimizer = OptimizerInUse(self._wrapped, rule)
        self._weights = Weights(self._wrapped, self._optimizer)
        self._translated = Translated(options.log_dir)
        parts = (self._wrapped, self._optimizer, self._weights)
        self._resuming = Resuming(*parts)
        self._compiling = Compiling(*parts, self._resuming, self._translated)
        self._files = ModelFiles(*parts, self._compiling.run, self._translated)
        self._lock: Any = module_weights.lock_of(module)
        if training:
            if rule is None:
                self._optimizer.use(optimizer)
            self._compiling.wrap(self)

    # -- what a user reads -----------------------------------------------------------------

    @property
    def model(self) -> torch.nn.Module:
        """The user's module that this executor wraps."""
        return self._wrapped.user_module

    @property
    def options(self) -> Options:
        """The wrapper's frozen copy of its options."""
        return self._wrapped.options

    @property
    def per_replica_params(self) -> dict[str, tuple]:
        """Parameters that differ between groups of replicas; fill it before the first call.

        By name: (group type, replicas per group, retrieval mode).
        """
        return self._wrapped.per_replica_params

    @per_replica_params.setter
    def per_replica_params(self, entries: dict[str, tuple]) -> None:
        self._wrapped.per_replica_params = entries

    def __repr__(self) -> str:
        return module_repr(self._wrapped.module)

    def __getattr__(self, attr: str) -> Any:
        if attr.startswith("__") or "_wrapped" not in self.__dict__:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {attr!r}")
        value = getattr(self._wrapped.user_module, attr)
        if isinstance(value, torch.nn.Parameter):
            return ParameterProxy(self, attr, value)
        if self._compiling.watch is not None:
            self._compiling.watch.note_method(attr)
        return value

    def __copy__(self) -> Self:
        other = object.__new__(type(self))
        other.__dict__.update(self.__dict__)
        return other

    def __reduce_ex__(self, protocol: Any) -> tuple[Callable, tuple]:
        del protocol
        # A copy has the newest weights and is not compiled. State travels with optimizers of
        # ``poptorch.optim``; those of ``torch.optim`` have none on the host.
        model = self._wrapped
        chosen = self._optimizer.optimizer or self._optimizer.rule
        parts = (model.user_module, model.options, model.training, chosen)
        return _wrapped_again, (type(self), parts, model.per_replica_params)

    @property
    def _user_model(self) -> torch.nn.Module:
        """The user's module, by the name that published pipelines read to find its class."""
        return self._wrapped.user_module

    @property
    def _options(self) -> Options:
        """The wrapper's frozen options, by the name that published trainers read."""
        return self._wrapped.options

    @property
    def _executable(self) -> CompiledModel | None:
        """The compiled model; None before compiling and after ``destroy``.

        Training loops ask ``if model._executable`` before they attach to the device.
        """
        return self._wrapped.compiled

    @property
    def _executable_inputs(self) -> types.SimpleNamespace | None:
        """The first call's inputs without data, as ``args``; None if nothing is compiled.

        In the program's order. Pipelines compare the batch size with the next call's, and destroy
        the executable if it differs.
        """
        if self._wrapped.compiled is None:
            return None
        recorded = self._wrapped.compiled.inputs.recorded
        structures = [*recorded.positional, *recorded.keywords.values()]
        inputs = [leaf for structure in structures for leaf in leaves(structure)]
        empty = [torch.empty(leaf.shape, dtype=leaf.dtype, device="meta") for leaf in inputs]
        return types.SimpleNamespace(args=empty)

    def isCompiled(self) -> bool:
        """Return whether the model has been compiled."""
        return self._wrapped.compiled is not None

    def isAttachedToDevice(self) -> bool:
        """Return whether the executable and its weights are on the device."""
        return self._wrapped.attachment is not None

    # -- compiling and running -------------------------------------------------------------

    @profiling.traced("compile", "_wrapped")
    def compile(self, *args: Any, **kwargs: Any) -> None:
        """Compile the model for arguments of a call without running it; weights do not change.

        Args:
            args: as for the model's forward; every tensor has the batch of a whole call.
            kwargs: keyword arguments of forward.

        Raises:
            AssertionError: the rows do not divide, or arguments do not fit forward.
            poptorch.Error: the model cannot be compiled.
        """
        with self._lock:
            if self.isCompiled():
                logger.warning("Call to compile() ignored: the model is already compiled.")
                return
            bound = self._wrapped.binder.bind(args, kwargs)
            self._answer_if_asked(bound)
            self._compiling.run(bound)

    def compilationTime(self) -> datetime.timedelta:
        """Return the total duration of capture, compilation and loading.

        Raises:
            poptorch.Error: not compiled yet, or the progress bar is disabled.
        """
        if not self.options._show_compilation_progress_bar:
            raise error("compilationTime() needs options.showCompilationProgressBar(True).")
        if self._compiling.seconds is None:
            raise error("You must compile the model before you can get the compilation time.")
        return datetime.timedelta(seconds=self._compiling.seconds)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the wrapped model on a combined batch; compile it first if needed.

        Args:
            args: as for the model's forward; every tensor has the batch of the whole call.
            kwargs: keyword arguments of forward.

        Returns:
            The model's results in the same containers, as detached host tensors.

        Raises:
            AssertionError: the rows do not divide, or the connection type is Never.
            poptorch.Error: arguments unlike the first call's, or a model that cannot be compiled.
        """
        with self._lock:
            wrapped = self._wrapped
            compiled = wrapped.compiled if wrapped.attachment is not None else None
            # The plain case is checked first and costs least: see benchmarks of the call overhead.
            if compiled is not None and not kwargs and compiled.inputs.matches(args):
                return self._run(compiled, args)
            blocks.refuse_nested_call()
            bound = wrapped.binder.bind(args, kwargs)
            if compiled is not None:
                return self._run(compiled, bound)
            # The first step does not wait for what a capture leaves behind to be collected.
            with cpython.uncollected():
                return self._run(self._made_ready(bound), bound)

    def _run(self, compiled: CompiledModel, given: Bound | tuple[Any, ...]) -> Any:
        """Run the compiled model on bound arguments, or on tensors like the first call's."""
        training = self._wrapped.training
        weights = self._weights
        if not training:
            weights.refresh()
            weights.host_changes.look_at_one()
        else:
            if not weights.host_is_stale:
                weights.host_changes.look_after_touch()
            if self._optimizer.pending or self._optimizer.reread:
                self._optimizer.send_loaded_state()
            self._optimizer.warn_of_unsent_rate()
        # No context around the call, which would cost at each of them.
        try:
            result = compiled.run(given) if isinstance(given, Bound) else compiled.run_plain(given)
        except BaseException:
            if training and compiled.session.was_stopped:  # after some updates, perhaps
                weights.mark_changed()
            with self._translated:
                raise
        if training:
            weights.mark_changed()
        return result

    def _made_ready(self, bound: Bound) -> CompiledModel:
        """Return the compiled model on its device; compile and attach first if needed."""
        if not self.isCompiled():
            self._answer_if_asked(bound)
        if self.options.connection_type == ConnectionType.Never:
            raise AssertionError(
                "Trying to run a model on an offline device (ConnectionType.Never). "
                "Only compile() is possible; choose another connection type to run."
            )
        if not self.isCompiled():
            self._compiling.run(bound, for_a_call=True)
        if not self.isAttachedToDevice():
            self.attachToDevice()
        return self._wrapped.get_compiled()

    @profiling.traced("setOptimizer", "_wrapped")
    @locked
    def setOptimizer(self, optimizer: torch.optim.Optimizer) -> None:
        """Send the optimizer's hyper-parameters to the device; call it after every change.

        Args:
            optimizer: the one in use, or another of the same class and number of groups, whose
                state is sent too.

        Raises:
            poptorch.Error: a value that was compiled in has changed.
            AssertionError: unsupported optimizer class.
            ValueError: half accumulators are requested after compiling without them.
        """
        self._optimizer.use(optimizer)

    @property
    def rng_state(self) -> list[int]:
        """The random seed and generator states as integers; set them to continue from there.

        Raises:
            poptorch.Error: not compiled.
        """
        return read_random_state(self._wrapped.session)

    @rng_state.setter
    def rng_state(self, numbers: list[int]) -> None:
        write_random_state(self._wrapped.session, numbers)

    # -- the device ------------------------------------------------------------------------

    @locked
    def detachFromDevice(self) -> None:
        """Release the device, after copying weights to the host; keep the executable.

        Raises:
            poptorch.Error: not compiled, or detached already.
        """
        self._wrapped.get_compiled()
        if not self.isAttachedToDevice():
            raise error("Device is not attached")
        if self._wrapped.training:
            self.copyWeightsToHostIfNeeded()
            self._optimizer.fetch()
        self._wrapped.give_device_up()

    @locked
    def attachToDevice(self) -> None:
        """Acquire a released device again and send the weights; a call does so by itself.

        Raises:
            AssertionError: the connection type is Never.
            poptorch.Error: not compiled, or attached already.
        """
        self._wrapped.get_compiled()
        if self.options.connection_type == ConnectionType.Never:
            raise AssertionError("Trying to attach to an offline device (ConnectionType.Never).")
        if self.isAttachedToDevice():
            raise error("Device is already attached")
        self._wrapped.take_device()
        self._weights.send_to_device_again()

    @profiling.traced("destroy", "_wrapped")
    @locked
    def destroy(self) -> None:
        """Copy the weights to the host, free executable and device, and unwrap the module."""
        wrapped, compiled = self._wrapped, self._wrapped.compiled
        if compiled is None:
            return
        if wrapped.training:
            self.copyWeightsToHostIfNeeded()
            module_weights.unwrap(wrapped.user_module)
        self._optimizer.stop()
        self._compiling.recording.end("ended: the wrapper was destroyed")
        compiled.session.close()
        wrapped.give_device_up()
        wrapped.compiled, self._compiling.seconds = None, None

    # -- weights ---------------------------------------------------------------------------

    copyWeightsToHost = of_part("_weights", Weights.copyWeightsToHost)
    copyWeightsToDevice = of_part("_weights", Weights.copyWeightsToDevice)
    copyNamedBuffersToDevice = of_part("_weights", Weights.copyNamedBuffersToDevice)
    load_state_dict = of_part("_weights", Weights.load_state_dict)

    def copyWeightsToHostIfNeeded(self) -> bool:
        """Copy weights to the host if the device has newer ones.

        Returns:
            Whether it did; False if nothing is compiled.
        """
        if not self._weights.host_is_stale:
            return False
        with self._lock:
            return self._weights.copy_to_host_if_stale(self.copyWeightsToHost)

    # -- files -----------------------------------------------------------------------------

    @profiling.traced("compileAndExport", "_wrapped")
    @locked
    def compileAndExport(
        self,
        filename: str | os.PathLike[str],
        *args: Any,
        export_model: bool = True,
        **kwargs: Any,
    ) -> None:
        """Compile the model without running it and save it to a file; works without a device.

        Args:
            filename: as for ``save``.
            args: as for the model's forward; every tensor has the batch of a whole call.
            export_model: as for ``save``.
            kwargs: keyword arguments of forward.

        Raises:
            AssertionError: a component of the path is a file.
            poptorch.Error: the model cannot be compiled, or not be stored.
        """
        destination(filename)  # before compiling, which takes long
        self.compile(*args, **kwargs)
        self.save(filename, export_model)

    save = of_part("_files", ModelFiles.save)
    loadExecutable = of_part("_files", ModelFiles.loadExecutable)

    def _restore(self, file: Container, values: dict[str, torch.Tensor]) -> None:
        """Restore executable, state and random numbers from an open file and its ``state_in``."""
        self._files.restore_executable(file, retrace=False)
        self._files.restore_state(file, values)

    # -- report and end --------------------------------------------------------------------

    @locked
    def report(self, path: str | os.PathLike[str], *, measure: bool = False) -> Written:
        """Write the HTML report of this run so far: programs, memory and times.

        An addition of this project. ``options.enableProfiling(FOLDER)`` writes one by itself, and
        knows of every call; without it, only of the latest one.

        Args:
            path: a file whose name ends with ``.html`` gets the page; else a folder gets the page,
                ``run.json`` and ``journal.jsonl``.
            measure: time each kernel first: the programs run for a few seconds, on copies of the
                state and made-up inputs. Generated code is compiled once more for that.

        Returns:
            The path of the page, which a notebook shows.

        Raises:
            poptorch.Error: not compiled.
            OSError: a file cannot be written.
        """
        self._wrapped.get_compiled()
        return self._compiling.recording.write(Path(path), measure=measure)

    def __del__(self):
        # Weights that were trained and never read must not be lost with the wrapper, nor what the
        # optimizer has accumulated for the next one.
        # At interpreter exit nobody can read them any more, and torch objects to being used.
        if sys.is_finalizing():
            return
        # No lock: no other thread has this object, and the collector may run in a thread that
        # holds other locks.
        weights, optimizer = (self.__dict__.get(name) for name in ("_weights", "_optimizer"))
        if weights is not None and weights.host_is_stale:
            with contextlib.suppress(Exception):
                weights.copyWeightsToHost()
        if optimizer is not None:
            with contextlib.suppress(Exception):
                optimizer.stop()
        compiling = self.__dict__.get("_compiling")
        if compiling is not None:
            with contextlib.suppress(Exception):
                compiling.recording.end("ended: its wrapper was deleted")


def _wrapped_again(cls: type, parts: tuple, per_replica_params: dict) -> Any:
    """Create a wrapper from copied model, options and optimizer, for ``copy`` and ``pickle``."""
    model, options, training, optimizer = parts
    options._freeze()
    executor = cls(model, options, training, None, optimizer=optimizer, user_model=model)
    executor.per_replica_params = per_replica_params
    return executor
