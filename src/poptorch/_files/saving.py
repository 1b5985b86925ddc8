"""What an executor does with files: export, save and load its executable."""

import functools
import inspect
import os
from typing import TYPE_CHECKING, Any, cast

import torch

from abele.compile import portable_executable
from abele.runtime import state
from abele.step import replica_groups
from abele.storage import container
from abele.storage.container import Container
from abele.trace.module_state import ModuleState
from poptorch._error import error
from poptorch._files.forward_modes import forward_data
from poptorch._files.from_file import FromFile, check_config
from poptorch._files.restored import module_data, stored_forward
from poptorch._files.saved_file import (
    KIND,
    destination,
    meaning,
    opened,
    state_in,
    state_members,
    version_mismatch,
)
from poptorch._files.stored_options import options_data
from poptorch._logging import logger
from poptorch._state import per_replica, random_state
from poptorch._state.locked import locked
from poptorch._values.stored_structure import (
    bound_from,
    recorded_data,
    signature_data,
    structure_data,
)
from poptorch._version import __version__

if TYPE_CHECKING:
    from poptorch._wrapper.executor import PoplarExecutor


class SavingMixin:
    """The members of an executor that write and read files."""

    @locked
    def compileAndExport(
        self,
        filename: str | os.PathLike[str],
        *args: Any,
        export_model: bool = True,
        **kwargs: Any,
    ) -> None:
        """Compiles for these arguments without running, then saves; works without a device.

        Args:
            filename: as for ``save``.
            args: as for the model's forward; every tensor brings the rows of a whole call.
            export_model: as for ``save``.
            kwargs: likewise arguments of forward.

        Raises:
            AssertionError: a component of the path is a file.
            poptorch.Error: the model cannot be compiled, or not be stored.
        """
        destination(filename)  # before compiling, which takes long
        _executor(self).compile(*args, **kwargs)
        self.save(filename, export_model)

    @locked
    def save(
        self,
        filename: str | os.PathLike[str],
        export_model: bool = True,
        save_rng_state: bool = True,
    ) -> None:
        """Writes the executable, and with it the model as it is now, to a file.

        The file appears when it is complete; until then one of that name stays as it is. It holds
        compiled code: load only files you trust.

        Differs from the original: nothing in the file is pickled. Weights, buffers, optimizer state
        and the optimizer's values are stored, and forward in training and in evaluation mode as a
        graph of operators; the Python class of the model and the optimizer object are not.
        Arguments and results may hold numbers, strings, dtypes and None beside tensors; other
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
        executor = _executor(self)
        executor._get_compiled()
        path = destination(filename)
        with executor._translated:
            content, members = _contents(executor, export_model, save_rng_state)
            container.write(path, KIND, content, members)

    @locked
    def loadExecutable(self, filename: str | os.PathLike[str]) -> None:
        """Takes the compiled code out of a file in place of compiling.

        Forward is traced again with the arguments of the export; it has to give the programs of the
        file. Weights and random numbers stay those of this wrapper. Code that does not fit this
        machine is compiled again, with a warning.

        Args:
            filename: what ``compileAndExport`` or ``save`` wrote, with or without the model.

        Raises:
            poptorch.Error: compiled already; a damaged file; one of another version; one of another
                model, options or optimizer, naming what differs.
        """
        executor = _executor(self)
        if executor.isCompiled():
            raise error(
                "loadExecutable() was called on a wrapper that is compiled already. Call "
                "destroy() first, or load into a new wrapper."
            )
        with opened(filename) as file:
            mismatch = version_mismatch(file)
            if mismatch:
                raise error(mismatch)
            _check_interface(executor, file)
            restore_executable(executor, file, retrace=True)


def _executor(mixin: SavingMixin) -> "PoplarExecutor":
    return cast("PoplarExecutor", mixin)


def restore_executable(executor: "PoplarExecutor", file: Container, *, retrace: bool) -> None:
    """Compiles from a file.

    Args:
        executor: not compiled yet.
        file: the open file.
        retrace: trace forward again and insist on the programs of the file; otherwise these are
            used, and a call may bring another number of device iterations than there.
    """
    here = executor._config.device_iterations
    with meaning(file.path):
        there = file.content["device_iterations"]
        bound = bound_from(file.content["arguments"], here / there)
    if retrace and here != there:
        raise error(
            f"{file.path} was exported with deviceIterations {there}, this wrapper has {here}. "
            "Use the options of the export."
        )
    check_config(file, executor._config)
    executor._compile(bound, functools.partial(FromFile, file=file, retrace=retrace))


def restore_state(executor: "PoplarExecutor", file: Container) -> None:
    """Continues from the state in a file with a model."""
    session = executor._get_compiled().session
    with executor._translated:
        state.put(session, state_in(file))
    numbers = file.content["rng_state"]
    if numbers is None:
        return
    if file.content["device"] == session.device.type:
        random_state.write(session, numbers)
    else:
        logger.warning(
            "%s was saved on device type %s: its random numbers do not continue on %s.",
            file.path,
            file.content["device"],
            session.device.type,
        )


def _contents(
    executor: "PoplarExecutor", export_model: bool, save_rng_state: bool
) -> tuple[dict[str, Any], dict[str, Any]]:
    compiled = executor._get_compiled()
    session = compiled.session
    described, members = portable_executable.pack(compiled.captured, session.executable)
    content = {
        "version": __version__,
        "training": executor._training,
        "device": session.device.type,
        "device_iterations": executor._config.device_iterations,
        "options": options_data(executor._options),
        "signature": signature_data(inspect.signature(executor._module.forward)),
        "arguments": recorded_data(compiled.recorded),
        "outputs": structure_data(compiled.outputs, "result"),
        "executable": described,
        "per_replica_params": {
            name: [int(kind), int(size), int(mode)]
            for name, (kind, size, mode) in executor.per_replica_params.items()
        },
        "rng_state": random_state.read(session) if save_rng_state else None,
        "model": None,
    }
    if export_model:
        names, tensors = state_members(_present_state(executor))
        rule = executor._rule
        content["model"] = {
            **module_data(executor._module),
            "state": names,
            "rule": None if rule is None else portable_executable.rule_data(rule),
        }
        content["forward"], graphs = _forward(executor)
        members |= tensors | graphs
    return content, members


def _forward(executor: "PoplarExecutor") -> tuple[dict[str, Any], dict[str, Any]]:
    """Forward in each mode: recorded, or as the file had it that the model came from."""
    known = stored_forward(executor._module)
    if known is not None:
        return dict(known.data), known.kept.members()
    return forward_data(executor)


def _present_state(executor: "PoplarExecutor") -> dict[str, torch.Tensor]:
    """What the next call would start from."""
    session = executor._get_compiled().session
    if not executor._training:
        executor._refresh()
    else:
        executor._send_loaded_state()
    present = state.tensors_of(session)
    if executor.isAttachedToDevice():
        return present
    # The device is taken again at the next call, and then gets what the host has changed.
    groups = session.config.replica_groups
    host = replica_groups.split(ModuleState.of(executor._module).params, groups)
    for name, value in replica_groups.joined_all(host, groups).items():
        present[f"{state.PARAMS}/{name}"] = value
    for name, value in per_replica.changed_buffers(session, executor._module).items():
        for replica in range(len(session.buffers)):
            present[f"{state.BUFFERS}/{replica}/{name}"] = value
    return present


def _check_interface(executor: "PoplarExecutor", file: Container) -> None:
    with meaning(file.path):
        there = [name for name, *_ in file.content["signature"]]
        training = file.content["training"]
    if training is not executor._training:
        kinds = {True: "training", False: "inference"}
        raise error(
            f"{file.path} holds a model for {kinds[training]}, this wrapper is for "
            f"{kinds[executor._training]}. Wrap the model with poptorch.{kinds[training]}Model."
        )
    here = list(inspect.signature(executor._module.forward).parameters)
    if here != there:
        raise error(
            f"{file.path} holds the executable of another model: forward takes "
            f"({', '.join(there)}) there, ({', '.join(here)}) here."
        )
