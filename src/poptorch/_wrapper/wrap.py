"""Wrapping a module for training or inference, and loading a wrapped model from a file."""

import os
from collections.abc import Callable
from typing import Any

import torch

from abele.errors import CaptureError
from abele.runtime import state
from abele.storage.container import Container
from abele.trace.module_state import ModuleState, refuse_without_shapes
from poptorch import processes
from poptorch._error import error
from poptorch._files.saved_file import (
    InvalidFile,
    meaning,
    opened,
    options_from,
    rule_in,
    state_in,
    version_mismatch,
)
from poptorch._files.stored_forward import forward_in, module_from
from poptorch._forward.stored_structure import signature_from
from poptorch._state import module_weights
from poptorch._wrapper import translate
from poptorch._wrapper.executor import PoplarExecutor
from poptorch.enums import ConnectionType, OutputMode
from poptorch.optim import SGD
from poptorch.options import Options


def trainingModel(
    model: torch.nn.Module | PoplarExecutor,
    options: Options | None = None,
    optimizer: torch.optim.Optimizer | None = None,
) -> PoplarExecutor:
    """Wrap a model so that a call runs forward, loss, backward and update as one program.

    Args:
        model: computes its loss inside ``forward``; wrapped in place.
        options: frozen here and copied; default ``Options()``.
        optimizer: of ``poptorch.optim``, or of ``torch.optim`` where its class has a rule; default
            ``poptorch.optim.SGD(model.parameters(), lr=0.01)``.

    Returns:
        A callable with the arguments and results of the model.

    Raises:
        RuntimeError: the model is wrapped for training already.
        AssertionError: the optimizer is of an unsupported class.
        poptorch.Error: options of another class, or options that cannot be honoured; with several
            processes also if they cannot connect. Likewise TorchScript submodules, and lazy modules
            that have not been called.
    """
    module = _module_of(model)
    if module_weights.shared_by(module).wrapped:
        raise RuntimeError(
            "Model has already been wrapped in 'poptorch.trainingModel'. "
            "Call model.destroy() on the model to unwrap before wrapping again."
        )
    try:
        refuse_without_shapes(module)
    except CaptureError as problem:
        raise error(str(problem)) from problem
    options = _settled(options, OutputMode.Final, training=True)
    if optimizer is None:
        # As a group, because torch refuses a bare list that is empty.
        optimizer = SGD([{"params": list(module.parameters())}], lr=0.01)
    return PoplarExecutor(module, options, True, None, optimizer=optimizer, user_model=module)


def inferenceModel(
    model: torch.nn.Module | PoplarExecutor, options: Options | None = None
) -> PoplarExecutor:
    """Wrap a model so that a call runs its forward as one program.

    Args:
        model: a module or an executor; a module that is being trained stays in step with it.
        options: frozen here and copied; default ``Options()``.

    Returns:
        A callable with the arguments and results of the model.

    Raises:
        poptorch.Error: options of another class, gradient accumulation, or options that cannot be
            honoured.
    """
    options = _settled(options, OutputMode.All, training=False)
    accumulation = options.Training.gradient_accumulation
    if accumulation != 1:
        raise error(
            f"You must set Training.gradientAccumulation to 1 for an inference model, found "
            f"{accumulation}. Use deviceIterations to run several batches in one call."
        )
    module = _module_of(model)
    return PoplarExecutor(module, options, False, None, user_model=module)


def _module_of(model: torch.nn.Module | PoplarExecutor) -> torch.nn.Module:
    module = model.model if isinstance(model, PoplarExecutor) else model
    if not isinstance(module, torch.nn.Module):
        raise error(
            f"Invalid type: 'model' is of type {type(module).__name__}, expected torch.nn.Module."
        )
    if isinstance(module, torch.jit.ScriptModule):
        raise error(
            "Invalid type: 'model' is a TorchScript module, whose forward cannot be captured. Wrap "
            "the torch.nn.Module it was made from."
        )
    return module


def _settled(options: Options | None, mode: OutputMode, *, training: bool) -> Options:
    """Freeze the options and return a frozen copy with its output mode resolved."""
    if options is None:
        options = Options()
    if not isinstance(options, Options):
        raise error(
            f"Invalid type: 'options' is of type {type(options).__name__}, expected "
            "poptorch.Options."
        )
    options._freeze()
    copied = options.clone()
    if copied.defaultOutputMode():
        copied.outputMode(mode)
    translate.check_supported(copied, training=training)
    if training:
        processes.connect(copied)
    copied._freeze()
    return copied


# -- files -------------------------------------------------------------------------------------


def load(
    filename: str | os.PathLike[str],
    edit_opts_fn: Callable[[Options], None] | None = None,
    *,
    model: torch.nn.Module | None = None,
) -> PoplarExecutor:
    """Load a wrapped model from a file of ``save`` or ``compileAndExport``.

    It runs immediately, without tracing. A training wrapper resumes exactly where it was saved:
    weights, buffers, optimizer state, step counts and random numbers; for a model without
    ``randomSeed`` these are torch's own, whose state is set here. Code that does not fit this
    machine is compiled again from the programs in the file, with a warning. Nothing is unpickled,
    but compiled code is loaded: load only files you trust.

    Differs from the original: the file holds no Python class and no optimizer object. ``.model`` of
    the result is a ``RestoredModule`` with parameters and buffers under their names, which runs
    forward as the file has it; to change the learning rate, pass ``setOptimizer`` a new optimizer
    of the same kind over its parameters, or hand in an instance of the class with ``model=``.

    Args:
        filename: the file.
        edit_opts_fn: may change the options before they are used, but not so that other programs
            are needed; the number of device iterations and the output mode may change.
        model: an instance of the exported class, which gets the weights and becomes ``.model``.

    Returns:
        A wrapper that is compiled.

    Raises:
        AssertionError: a damaged file, one of another version, or one without a model.
        poptorch.Error: options that need other programs, a ``model`` with other tensors, or an
            operator that is not known here.
    """
    with opened(filename) as file:
        mismatch = version_mismatch(file)
        if mismatch:
            raise AssertionError(mismatch)
        if file.content.get("model") is None:
            raise AssertionError(
                f"{filename} is a valid file but was exported with export_model=False. Wrap the "
                f"model again and call its loadExecutable({str(filename)!r})."
            )
        with meaning(filename):
            options = options_from(file.content["options"])
        if options.connection_type == ConnectionType.Never:  # compiled for an absent device
            options.connectionType(ConnectionType.Always)
            options.deleteIfExists("ipu_version")
        if edit_opts_fn is not None:
            edit_opts_fn(options)
        return _executor(file, options, model)


def importPoptorchMetadataFromFile(filename: str | os.PathLike[str]) -> dict[str, Any]:
    """Return an exported file's metadata, such as version and programs, without loading it.

    Differs from the original: a dictionary comes back in place of pickled bytes.

    Args:
        filename: what ``save`` or ``compileAndExport`` wrote.

    Returns:
        ``version``, ``training``, ``has_model``, ``device`` and the names of the ``programs``.

    Raises:
        poptorch.Error: the file holds no such metadata.
    """
    try:
        with opened(filename) as file, meaning(filename):
            content = file.content
            return {
                "version": content["version"],
                "training": content["training"],
                "has_model": content["model"] is not None,
                "device": content["device"],
                "programs": list(content["executable"]["programs"]),
            }
    except InvalidFile as problem:
        raise error(f"No PopTorch metadata could be read: {problem.message}") from problem


def _executor(file: Container, options: Options, model: torch.nn.Module | None) -> PoplarExecutor:
    with meaning(file.path):
        training, rule, values = file.content["training"], rule_in(file), state_in(file)
        params = state.of_kind(values, state.PARAMS)
        buffers = state.of_kind(values, f"{state.BUFFERS}/0")
        named = {name for group in (rule.groups if rule else ()) for name in group.params}
        if not named.issubset(params):
            raise ValueError(f"the optimizer has parameters that are missing: {named - {*params}}")
        groups = {name: tuple(entry) for name, entry in file.content["per_replica_params"].items()}
    translate.check_supported(options, training=training)
    options._freeze()
    if model is None:
        with meaning(file.path):
            signature = signature_from(file.content["signature"])
            forward = forward_in(file)
            model = module_from(file.content["model"], params, buffers, signature, forward)
    else:
        _fill(model, params, buffers)
    made = PoplarExecutor(model, options, training, None, optimizer=rule, user_model=model)
    made.per_replica_params.update(groups)
    try:
        made._restore(file, values)
    except BaseException:
        if training:
            module_weights.unwrap(model)
        raise
    return made


def _fill(
    model: torch.nn.Module, params: dict[str, torch.Tensor], buffers: dict[str, torch.Tensor]
) -> None:
    """Copy the weights of a saved model into the user's module."""
    if not isinstance(model, torch.nn.Module):
        raise error(f"load(model=...) takes a torch.nn.Module, found a {type(model).__name__}.")
    if module_weights.shared_by(model).wrapped:
        raise RuntimeError(
            "Model has already been wrapped in 'poptorch.trainingModel'. Call model.destroy() on "
            "the model, or pass a new instance to load."
        )
    host = ModuleState.of(model)
    for kind, present, stored in (
        ("parameters", host.params, params),
        ("buffers", host.buffers, buffers),
    ):
        _check_same(kind, present, stored)
    with torch.no_grad():
        for name, value in {**host.params, **host.buffers}.items():
            value.copy_((params if name in params else buffers)[name])


def _check_same(kind: str, present: Any, stored: dict[str, torch.Tensor]) -> None:
    here = {name: (list(value.shape), value.dtype) for name, value in present.items()}
    there = {name: (list(value.shape), value.dtype) for name, value in stored.items()}
    unlike = [name for name in {**there, **here} if here.get(name) != there.get(name)]
    if unlike:
        name = unlike[0]
        raise error(
            f"The model passed to load has other {kind} than the file: {', '.join(unlike[:8])}; "
            f"{name} is {there.get(name, 'missing')} there, {here.get(name, 'missing')} here. Pass "
            "an instance made like the exported one."
        )
