"""Capture of a wrapped model's forward: compile hooks around it, and dtype casts inside it.

A forward that is captured finds itself on a device. Programs halve a model but feed it floats, or
the other way round. Plain PyTorch refuses that in most layers; a device of this programming model
casts (``WeightsFollowActivations``).
"""

import contextlib
import dataclasses
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch.overrides import TorchFunctionMode
from torch.utils.hooks import RemovableHandle

from abele import _torch
from abele.capture import Captured, capture, losses
from abele.program import Role
from abele.step.config import StepConfig
from abele.step.update_rules import UpdateRule
from abele.warn import warn_user
from poptorch._error import error
from poptorch._forward import annotations, structure
from poptorch._forward.arguments import Recorded
from poptorch._forward.blocks import Tracing
from poptorch._forward.cpu_op import CapturedCalls
from poptorch._forward.operators import TensorSlices
from poptorch._forward.running import _OverwriteContextManager, on_ipu, running_on_ipu
from poptorch._logging import logger
from poptorch._wrapper import translate
from poptorch._wrapper.pipelines import may_pipeline
from poptorch.options import Options, _engine

# -- hooks ------------------------------------------------------------------------------------

_before: "OrderedDict[int, Callable[[], None]]" = OrderedDict()
_after: "OrderedDict[int, Callable[[], None]]" = OrderedDict()


def registerPreCompileHook(hook: Callable[[], None]) -> RemovableHandle:
    """Register a hook that is called before each model's forward is captured.

    Args:
        hook: called without arguments, in the order of registration.

    Returns:
        A handle whose ``remove()`` removes the hook.

    Raises:
        RuntimeError: it cannot be called.
    """
    return _register(_before, hook)


def registerPostCompileHook(hook: Callable[[], None]) -> RemovableHandle:
    """Register a hook that is called after each model's forward was captured, also if that failed.

    Args:
        hook: called without arguments, in the order of registration.

    Returns:
        A handle whose ``remove()`` removes the hook.

    Raises:
        RuntimeError: it cannot be called.
    """
    return _register(_after, hook)


def _register(
    hooks: "OrderedDict[int, Callable[[], None]]", hook: Callable[[], None]
) -> RemovableHandle:
    if not callable(hook):
        raise RuntimeError(f"A compile hook must be callable, found {hook!r}.")
    handle = RemovableHandle(hooks)
    hooks[handle.id] = hook
    return handle


@contextlib.contextmanager
def around_capture() -> Iterator[None]:
    """Call the registered pre-compile and post-compile hooks around the block."""
    for hook in tuple(_before.values()):
        hook()
    try:
        yield
    finally:
        for hook in tuple(_after.values()):
            hook()


# -- the capture -------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Traced:
    """The captured programs of a model, with the structure of forward's results."""

    captured: Captured
    outputs: structure.Structure


class Forward:
    """Captures a model's forward into programs.

    Attributes:
        tracing: the blocks that forward enters.
        host_calls: functions that forward calls on the host, once it has been captured.
        anchors: intermediate tensors to return with the results.
        hidden_paths: files whose lines no message names.
    """

    def __init__(
        self,
        module: torch.nn.Module,
        recorded: Recorded,
        config: StepConfig,
        rule: UpdateRule | None,
        options: Options,
    ):
        self._module, self._recorded = module, recorded
        self.tracing, self.host_calls = Tracing(options), CapturedCalls(module)
        self.anchors = translate.anchors(options)
        self.hidden_paths = translate.hidden_paths(options)
        self._config, self._rule = config, rule

    def trace(self, examples: list[torch.Tensor], *, origins: bool = False) -> Traced:
        """Capture forward for one micro-batch.

        With ``origins`` backward operations record the forward operations they belong to.

        Raises:
            CaptureError: forward cannot be captured.
            poptorch.Error: forward writes a buffer that replicas would have to share.
        """
        config, options = self._config, self.tracing.options
        origins = origins or self._needs_origins()
        recomputes = annotations.recomputes(options, training=config.training)
        outputs: list[structure.Structure] = []

        def forward(flat: list[torch.Tensor]) -> list[torch.Tensor]:
            made, results = call_forward(
                self._recorded, self._module, flat, self.tracing, training=config.training
            )
            outputs[:] = [made]
            return results

        with (
            self.host_calls.capturing(),
            annotations.marking_checkpoints(recomputes),
            losses.marking("poptorch.identity_loss({}, reduction='none')"),
        ):
            captured = capture(
                forward,
                self._module,
                examples,
                config,
                self._rule,
                name_modules=options._module_namescope_enabled,
                hidden_paths=self.hidden_paths,
                anchors=[anchor.tensor for anchor in self.anchors],
                origins=origins,
                given=self._recorded.rebuild(examples),
            )
        if config.replicas > 1 and config.broadcast_buffers:
            self._refuse_written_buffers(captured)
        _warn_scaling(captured, self._rule)
        for value in captured.constants.values():
            warn_user(
                f"Output expected to be on the IPU but is on {value.device.type}: it does not "
                "depend on any input and is returned as a constant.",
                UserWarning,
            )
        return Traced(captured, outputs[0])

    def _needs_origins(self) -> bool:
        """Return whether backward operations must record the forward operations they belong to."""
        options = self.tracing.options
        wanted = _engine.report_wanted(options, self._config.training)
        return may_pipeline(options, self._config) or wanted is not None

    def _refuse_written_buffers(self, captured: Captured) -> None:
        normalisations = {
            name
            for name, child in self._module.named_modules()
            if isinstance(child, torch.nn.modules.batchnorm._BatchNorm)
        }
        for slot in captured.programs[0].inputs:
            owner = slot.name.rpartition(".")[0]
            if slot.role is Role.BUFFER and slot.mutated and owner not in normalisations:
                raise error(
                    "PopTorch does not support broadcasting buffers, and forward writes to buffer "
                    f"{slot.name} in {self._config.replicas} replicas. Call "
                    "options.broadcastBuffers(False) to give each replica its own."
                )


def call_forward(
    recorded: Recorded,
    module: torch.nn.Module,
    flat: Sequence[torch.Tensor],
    tracing: Tracing,
    *,
    training: bool,
) -> tuple[structure.Structure, list[torch.Tensor]]:
    """Run a model's forward on one micro-batch during capture, as on a device."""
    positional, keywords = recorded.rebuild(flat)
    with (
        running_on_ipu(training=training),
        WeightsFollowActivations(),
        tracing.open(),
        on_ipu(),
        TensorSlices(),
        _OverwriteContextManager(),
    ):
        result = module(*positional, **keywords)
    return structure.taken_apart(result)


def _warn_scaling(captured: Captured, rule: UpdateRule | None) -> None:
    if rule is None or rule.automatic_scaling is None:
        return
    slots = captured.programs[0].inputs
    if torch.float16 not in {slot.dtype for slot in slots if slot.name in captured.updated}:
        logger.warning("Automatic loss scaling has no effect: no trained parameter is half.")


# -- activations and weights of different types ------------------------------------------------

_FOLLOWING = frozenset(
    {
        F.linear,
        F.bilinear,
        F.conv1d,
        F.conv2d,
        F.conv3d,
        F.conv_transpose1d,
        F.conv_transpose2d,
        F.conv_transpose3d,
        F.multi_head_attention_forward,
        F.prelu,
        torch.prelu,
    }
)
_NORMALISING = frozenset({F.layer_norm, F.group_norm, F.rms_norm})
# Input, running mean, running variance, weight, bias: the second and third are written.
_WITH_STATISTICS = frozenset({F.batch_norm, F.instance_norm})
_PRODUCTS = ("matmul", "mm", "bmm", "mv", "dot", "addmm", "baddbmm")
_PROMOTING = frozenset(
    {
        *(getattr(owner, name) for owner in (torch, torch.Tensor) for name in _PRODUCTS),
        torch.Tensor.__matmul__,
        torch.einsum,
        F.scaled_dot_product_attention,
        F.binary_cross_entropy,
        F.huber_loss,
        F.smooth_l1_loss,
        F.mse_loss,
        F.l1_loss,
    }
)
_CONCERNED = _FOLLOWING | _NORMALISING | _WITH_STATISTICS | _PROMOTING


class WeightsFollowActivations(TorchFunctionMode):
    """A mode that casts operands of mixed dtypes, for instance weights to the activations' dtype.

    1. Weights follow activations in dense, convolution, attention and PReLU layers: the result has
       the type of the input.
    2. Normalisations compute with float32 parameters as they are; half ones are widened to the
       input.
    3. Products of two activations and losses promote like element-wise operations: half with float
       gives float.

    Recurrent layers are not among them: torch checks their types before anything can be cast.
    """

    def __init__(self):
        super().__init__()
        self._warned = False

    def __torch_function__(self, func: Callable, types: Any, args: Any = (), kwargs: Any = None):
        """Call ``func``, with operands of mixed dtypes cast where a rule applies."""
        kwargs = kwargs or {}
        if func not in _CONCERNED or _are_alike((args, kwargs)):
            return func(*args, **kwargs)
        if func in _WITH_STATISTICS:
            return _with_statistics(func, *args, **kwargs)
        first = args[0] if args else kwargs.get("input")
        if func in _FOLLOWING:
            self._warn_of_wide_inputs(first, (args, kwargs))
            kind, kept = first.dtype, None
        else:
            kind, kept = _widest((args, kwargs)), first if func in _NORMALISING else None
        args, kwargs = _cast_all((args, kwargs), kind, but=kept)
        return func(*args, **kwargs)

    def _warn_of_wide_inputs(self, like: torch.Tensor, values: Any) -> None:
        """Warn once that a layer with bfloat16 weights and float32 inputs computes in float32."""
        with _torch.without_torch_function_modes():
            kinds = {value.dtype for value in _floating(values)}
            is_wide = like.dtype is torch.float32 and torch.bfloat16 in kinds
        if is_wide and not self._warned:
            self._warned = True
            warn_user(
                "A layer with bfloat16 weights gets a float32 activation and computes in float32: "
                "weights follow activations, as in PopTorch. To compute in bfloat16, pass "
                "x.bfloat16().",
                UserWarning,
            )


def _with_statistics(
    func: Callable,
    input: torch.Tensor,
    running_mean: torch.Tensor | None = None,
    running_var: torch.Tensor | None = None,
    *args: Any,
    **kwargs: Any,
) -> torch.Tensor:
    """Compute a normalisation in the widest dtype and keep the dtype of its running statistics."""
    statistics = (running_mean, running_var)
    others = (statistics, args, kwargs)
    kind = _widest((input, others))
    if all(value.dtype == kind for value in _floating(others)):
        return func(input, *statistics, *args, **kwargs)
    wide = _cast_all(statistics, kind)
    args, kwargs = _cast_all((args, kwargs), kind)
    result = func(input, *wide, *args, **kwargs)
    names = ("training", "use_input_stats")  # after weight and bias, where it is not named
    flags = [kwargs[name] for name in names if name in kwargs] or [*args[2:3]]
    for value, new in zip(statistics, wide, strict=True):
        if value is not None and new is not value and all(flags):
            value.copy_(new)
    return result


def _are_alike(values: Any) -> bool:
    """Return whether all floating tensors in nested arguments have the same dtype."""
    # Each property that the modes below see costs as much as an operator that is traced again.
    with _torch.without_torch_function_modes():
        return len({value.dtype for value in _floating(values)}) < 2


def _floating(values: Any) -> Iterator[torch.Tensor]:
    if isinstance(values, torch.Tensor):
        if values.is_floating_point():
            yield values
    elif isinstance(values, dict):
        yield from _floating(list(values.values()))
    elif isinstance(values, list | tuple):
        for value in values:
            yield from _floating(value)


def _widest(values: Any) -> torch.dtype | None:
    """Return the dtype to which all floating tensors in nested values promote; None without any."""
    widest = None
    for value in _floating(values):
        kind = value.dtype
        # Asked only where they differ: each call of torch is traced.
        widest = kind if widest in (None, kind) else torch.promote_types(widest, kind)
    return widest


def _cast_all(values: Any, kind: torch.dtype | None, but: torch.Tensor | None = None) -> Any:
    """Cast all floating tensors in nested values to a dtype, except the tensor ``but``."""
    if isinstance(values, torch.Tensor):
        wanted = kind is not None and kind.is_floating_point and values.is_floating_point()
        return values.to(kind) if wanted and values is not but else values
    if isinstance(values, dict):
        return {name: _cast_all(value, kind, but) for name, value in values.items()}
    if isinstance(values, list | tuple):
        return type(values)(_cast_all(value, kind, but) for value in values)
    return values
