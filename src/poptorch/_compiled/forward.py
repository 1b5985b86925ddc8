"""A model's forward as it is captured: it finds itself on a device."""

import dataclasses
from collections.abc import Sequence

import torch

from abele.capture import Captured, capture, losses
from abele.program import Role
from abele.step.config import StepConfig
from abele.step.update_rules import UpdateRule
from abele.warn import warn_user
from poptorch._compiled import translate
from poptorch._compiled.pipelines import may_pipeline
from poptorch._compiled.precision import WeightsFollowActivations
from poptorch._error import error
from poptorch._forward import annotations, structure
from poptorch._forward.arguments import Recorded
from poptorch._forward.blocks import Tracing
from poptorch._forward.cpu_op import CapturedCalls
from poptorch._forward.operators import TensorSlices
from poptorch._forward.running import _OverwriteContextManager, on_ipu, running_on_ipu
from poptorch._logging import logger
from poptorch.options import Options, _engine


@dataclasses.dataclass(frozen=True)
class Traced:
    """Result of a capture.

    Attributes:
        captured: the programs.
        outputs: the structure of forward's results.
    """

    captured: Captured
    outputs: structure.Structure


class Forward:
    """Captures a model's forward.

    Args:
        module: the model.
        recorded: how arguments are passed.
        config: how a call consumes its batch.
        rule: the optimizer, for training.
        options: of the wrapper.

    Attributes:
        module: as given.
        recorded: as given.
        tracing: the blocks that forward enters.
        host_calls: what forward calls on the host, once it has been captured.
        anchors: tensors to keep.
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
        self.module, self.recorded = module, recorded
        self.tracing, self.host_calls = Tracing(options), CapturedCalls(module)
        self.anchors = translate.anchors(options)
        self.hidden_paths = translate.hidden_paths(options)
        self._config, self._rule = config, rule

    def trace(self, examples: list[torch.Tensor], *, origins: bool = False) -> Traced:
        """Capture forward for one micro-batch.

        Args:
            examples: the inputs of the micro-batch.
            origins: operations of backward say which of forward they belong to.

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
                self.recorded, self.module, flat, self.tracing, training=config.training
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
                self.module,
                examples,
                config,
                self._rule,
                name_modules=options._module_namescope_enabled,
                hidden_paths=self.hidden_paths,
                anchors=[anchor.tensor for anchor in self.anchors],
                origins=origins,
                given=self.recorded.rebuild(examples),
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
        """Record the source lines of tensors saved for backward, too."""
        options = self.tracing.options
        wanted = _engine.report_wanted(options, self._config.training)
        return may_pipeline(options, self._config) or wanted is not None

    def _refuse_written_buffers(self, captured: Captured) -> None:
        normalisations = {
            name
            for name, child in self.module.named_modules()
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
    """Run forward during capture, as if on a device.

    Args:
        recorded: how arguments are passed.
        module: the model, or one whose forward takes the same arguments.
        flat: the tensors of one micro-batch.
        tracing: for annotations inside forward.
        training: what it is captured for.

    Returns:
        The structure of the results, and their tensors.
    """
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
