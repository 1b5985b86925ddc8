"""Wrapping a module for training or for inference."""

import torch

from abele.errors import CaptureError
from abele.trace.module_state import refuse_without_shapes
from poptorch import processes
from poptorch._compiled import translate
from poptorch._error import error
from poptorch._state import module_weights
from poptorch._wrapper.executor import PoplarExecutor
from poptorch.enums import OutputMode
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
    """Freeze the options and return a frozen copy with an output mode chosen."""
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
