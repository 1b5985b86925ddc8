"""Saving and loading of a wrapped model's file: executable, and optionally model and state."""

import contextlib
import inspect
import json
import os
from collections.abc import Callable, Sequence
from typing import Any

import torch

from abele.compilation import keys, portable_executable
from abele.compilation.build import BuildRecord
from abele.compilation.executable import Executable
from abele.compilation.serialization import first_difference
from abele.program import Program
from abele.runtime import state
from abele.step.config import StepConfig
from abele.storage import container
from abele.storage.container import Container
from poptorch import profiling
from poptorch._error import error
from poptorch._files.saved_file import (
    KIND,
    destination,
    meaning,
    opened,
    options_data,
    state_members,
    version_mismatch,
)
from poptorch._files.stored_forward import forward_data, module_data, stored_forward
from poptorch._forward.arguments import Bound
from poptorch._forward.stored_structure import (
    bound_from,
    recorded_data,
    signature_data,
    structure_data,
    structure_from,
)
from poptorch._logging import logger
from poptorch._optim.state import OptimizerInUse
from poptorch._state.weights import Weights, read_random_state, write_random_state
from poptorch._version import __version__
from poptorch._wrapper.capture import Traced
from poptorch._wrapper.compiled import Origin, WrappedModel

_ADVICE = "Build the wrapper with the model, options and optimizer that were used for the export."


class FromFile:
    """The programs and compiled code of a model in an open file; an ``Origin``.

    With ``retrace`` forward is traced again, and has to give the programs of the file.
    """

    def __init__(self, file: Container, *, retrace: bool):
        self._file, self._retrace = file, retrace
        with meaning(file.path):
            self._content = file.content["executable"]
            self._captured = portable_executable.captured_in(file, self._content)

    def traced(self, trace: Callable[[], Traced]) -> Traced:
        """Return the programs in the file, compared with retraced ones if ``retrace`` is set.

        Raises:
            poptorch.Error: the module's programs differ from those in the file.
        """
        if not self._retrace:
            with meaning(self._file.path):
                return Traced(self._captured, structure_from(self._file.content["outputs"]))
        here = trace()
        names = [list(captured.by_name) for captured in (self._captured, here.captured)]
        if names[0] != names[1]:
            raise _other(self._file, f"programs {names[0]} there, {names[1]} here")
        for there, program in zip(self._captured.programs, here.captured.programs, strict=True):
            different = first_difference(there, program)
            if different is not None:
                raise _other(self._file, different)
        return here

    def built(
        self, programs: Sequence[Program], config: StepConfig, **settings: Any
    ) -> tuple[Executable, BuildRecord]:
        """Return a session of the file's code, recompiled if it does not fit this machine."""
        with meaning(self._file.path):
            return portable_executable.restore(
                self._file, self._content, programs, config, **settings
            )


def check_config(file: Container, config: StepConfig) -> None:
    """Raise an error for options that require programs other than those in the file."""
    here = json.loads(json.dumps(config.compile_fields()))
    with meaning(file.path):
        there = file.content["executable"]["key_parts"]["config"]
        different = keys.differences(there, here)
    if different:
        raise _other(file, "; ".join(different))


def _other(file: Container, what: str) -> Exception:
    return error(f"{file.path} holds the executable of another model: {what}. {_ADVICE}")


#: Compiles a model for a call's arguments, from programs of a file.
Compile = Callable[[Bound, Origin], None]


class ModelFiles:
    """Saves and loads the files of a wrapped model."""

    def __init__(
        self,
        model: WrappedModel,
        optimizer: OptimizerInUse,
        weights: Weights,
        compile_: Compile,
        translated: contextlib.AbstractContextManager[None],
    ):
        self._model, self._optimizer, self._weights = model, optimizer, weights
        self._compile, self._translated = compile_, translated

    @profiling.traced("saveExecutableToFile")
    def save(
        self,
        filename: str | os.PathLike[str],
        export_model: bool = True,
        save_rng_state: bool = True,
    ) -> None:
        """Write the executable and the model's current state to a file.

        The file appears when it is complete; until then one of that name stays as it is. It holds
        compiled code: load only files you trust.

        Differs from the original: nothing in the file is pickled. Weights, buffers, optimizer state
        and the optimizer's values are stored, and forward in training and in evaluation mode as a
        graph of operators; the Python class of the model and the optimizer object are not.
        Arguments and results may hold tensors, numbers, strings, dtypes and None; other
        Python objects are refused.

        Args:
            filename: where to; folders are made, in a folder it is ``model.poptorch``.
            export_model: also what ``poptorch.load`` needs to run it without the model's source;
                otherwise the file is for ``loadExecutable``.
            save_rng_state: also the state of the random numbers.

        Raises:
            AssertionError: a component of the path is a file.
            poptorch.Error: not compiled, or something that cannot be stored; names it.
            OSError: the disk is full or the folder not writable; nothing is left behind.
        """
        self._model.get_compiled()
        path = destination(filename)
        with self._translated:
            content, members = self._contents(save_rng_state=save_rng_state)
            if export_model:
                self._add_model(content, members)
            container.write(path, KIND, content, members)

    @profiling.traced("loadExecutable")
    def loadExecutable(self, filename: str | os.PathLike[str]) -> None:
        """Load compiled code from a file instead of compiling.

        Forward is traced again with the arguments of the export; it has to give the programs of the
        file. Weights and random numbers stay those of this wrapper. Code that does not fit this
        machine is compiled again, with a warning.

        Args:
            filename: what ``compileAndExport`` or ``save`` wrote, with or without the model.

        Raises:
            poptorch.Error: compiled already; a damaged file; one of another version; one of another
                model, options or optimizer, naming what differs.
        """
        if self._model.compiled is not None:
            raise error(
                "loadExecutable() was called on a wrapper that is compiled already. Call "
                "destroy() first, or load into a new wrapper."
            )
        with opened(filename) as file:
            mismatch = version_mismatch(file)
            if mismatch:
                raise error(mismatch)
            self._check_interface(file)
            self.restore_executable(file, retrace=True)

    def restore_executable(self, file: Container, *, retrace: bool) -> None:
        """Restore the executable from an open file, tracing forward again if ``retrace``."""
        here = self._model.config.device_iterations
        with meaning(file.path):
            there = file.content["device_iterations"]
            bound = bound_from(file.content["arguments"], here / there)
        if retrace and here != there:
            raise error(
                f"{file.path} was exported with deviceIterations {there}, this wrapper has {here}. "
                "Use the options of the export."
            )
        check_config(file, self._model.config)
        self._compile(bound, FromFile(file, retrace=retrace))

    def restore_state(self, file: Container, values: dict[str, torch.Tensor]) -> None:
        """Restore weights, optimizer state and random numbers of a file and its ``state_in``."""
        session = self._model.session
        with self._translated:
            state.put(session, values)
        with meaning(file.path):
            numbers = file.content["rng_state"]
            if numbers is None:
                return
            continues = file.content["device"] == session.device.type
            if continues:
                write_random_state(session, numbers)
        if not continues:
            logger.warning(
                "%s was saved on device type %s: its random numbers do not continue on %s.",
                file.path,
                file.content["device"],
                session.device.type,
            )

    def _contents(self, *, save_rng_state: bool) -> tuple[dict[str, Any], dict[str, Any]]:
        model, compiled = self._model, self._model.get_compiled()
        session = compiled.session
        made = session.lasting_executable()
        described, members = portable_executable.pack(compiled.captured, made)
        content = {
            "version": __version__,
            "training": model.training,
            "device": session.device.type,
            "device_iterations": model.config.device_iterations,
            "options": options_data(model.options),
            "signature": signature_data(inspect.signature(model.module.forward)),
            "arguments": recorded_data(compiled.inputs.recorded),
            "outputs": structure_data(compiled.outputs, "result"),
            "executable": described,
            "per_replica_params": {
                name: [int(kind), int(size), int(mode)]
                for name, (kind, size, mode) in model.per_replica_params.items()
            },
            "rng_state": read_random_state(session) if save_rng_state else None,
            "model": None,
        }
        return content, members

    def _add_model(self, content: dict[str, Any], members: dict[str, Any]) -> None:
        """Add to the file's contents what a model needs to run without its Python source."""
        names, tensors = state_members(self._weights.present_state())
        rule = self._optimizer.rule
        content["model"] = {
            **module_data(self._model.module),
            "state": names,
            "rule": None if rule is None else portable_executable.rule_data(rule),
        }
        content["forward"], graphs = self._forward()
        members |= tensors | graphs

    def _forward(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return a model's forward recorded in each mode, or as in the file it was loaded from."""
        known = stored_forward(self._model.module)
        if known is not None:
            return dict(known.data), known.kept.members()
        return forward_data(self._model)

    def _check_interface(self, file: Container) -> None:
        model = self._model
        with meaning(file.path):
            there = [name for name, *_ in file.content["signature"]]
            training = file.content["training"]
        if training is not model.training:
            kinds = {True: "training", False: "inference"}
            raise error(
                f"{file.path} holds a model for {kinds[training]}, this wrapper is for "
                f"{kinds[model.training]}. Wrap the model with poptorch.{kinds[training]}Model."
            )
        here = list(inspect.signature(model.module.forward).parameters)
        if here != there:
            raise error(
                f"{file.path} holds the executable of another model: forward takes "
                f"({', '.join(there)}) there, ({', '.join(here)}) here."
            )
