"""State that the parts of a wrapper share: module, signature, compiled model."""

import copy

import torch

from abele.runtime.device_registry import Attachment
from abele.runtime.session import Session
from abele.stage import Plan
from poptorch._compiled import translate
from poptorch._compiled.model import CompiledModel
from poptorch._error import error
from poptorch._forward.arguments import Binder
from poptorch._logging import logger
from poptorch.options import Options


class WrappedModel:
    """A model with its options, and what was compiled for it.

    Args:
        model: what forward runs on.
        user_module: the user's module, which keeps the weights.
        options: of the wrapper, frozen.
        training: whether a call trains.

    Attributes:
        module: a shallow copy of the model, so that attributes that forward sets on ``self`` land
            here and not on the user's object.
        binder: binds the arguments of a call to forward's parameters.
        config: how a call consumes its batch.
        per_replica_params: what the user asked for of parameters that differ between replicas.
        compiled: None before compiling and after destroying.
        attachment: the hold of the device; None while it is not taken.
        stages: compiled instead of the blocks that its modules begin; None for these.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        user_module: torch.nn.Module,
        options: Options,
        *,
        training: bool,
    ):
        self.user_module, self.module = user_module, copy.copy(model)
        self.options, self.training = options, training
        self.binder = Binder(self.module.forward)
        self.per_replica_params: dict[str, tuple] = {}
        self.compiled: CompiledModel | None = None
        self.attachment: Attachment | None = None
        self.stages: Plan | None = None
        self.read_options()

    def read_options(self) -> None:
        """Derive the configuration from the options, which may change before compiling."""
        self.config = translate.to_config(self.options, training=self.training)

    def get_compiled(self) -> CompiledModel:
        """Return the compiled model.

        Raises:
            poptorch.Error: nothing yet, or it has been destroyed.
        """
        if self.compiled is None:
            raise error("Model has not been compiled or has been destroyed.")
        return self.compiled

    @property
    def session(self) -> Session:
        """The session of the compiled model.

        Raises:
            poptorch.Error: not compiled.
        """
        return self.get_compiled().session

    def take_device(self) -> None:
        """Mark the device as held, also for ``gc-monitor``; idempotent."""
        if self.attachment is not None:
            return
        compiled = self.get_compiled()
        self.attachment = Attachment(self, compiled.record.target, compiled.session.device)
        if self.attachment.problem is not None:
            logger.debug(self.attachment.problem)

    def give_device_up(self) -> None:
        """Mark the device as free; idempotent."""
        if self.attachment is not None:
            self.attachment.end()
            self.attachment = None
