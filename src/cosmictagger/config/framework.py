"""The keys below ``framework.``."""

from dataclasses import dataclass, field
from enum import Enum
from typing import Any


class DistributedMode(Enum):
    """How processes would exchange gradients."""

    DDP = 0
    horovod = 1


@dataclass
class Torch:
    """``framework=torch``.

    Attributes:
        name: set by framework=.
        seed: of the first weights, with deterministic kernels; 0 draws one and says it.
        sparse: a sparse network, where one is available.
        compile: CPU and GPU mode: torch.compile instead of eager.
        distributed_mode: DDP; horovod has no effect.
        environment_variables: put into the environment; add with
            +framework.environment_variables.NAME='value'.
    """

    name: str = "torch"
    seed: int = 0
    sparse: bool = False
    compile: bool = False
    distributed_mode: DistributedMode = DistributedMode.DDP
    environment_variables: dict[str, str] = field(default_factory=dict)


@dataclass
class TensorFlow:
    """``framework=tensorflow``: known so that it can be refused in words.

    Attributes:
        name: refused: this application is PyTorch.
        environment_variables: put into the environment; add with
            +framework.environment_variables.NAME='value'.
    """

    name: str = "tensorflow"
    seed: int = 0
    inter_op_parallelism_threads: int = 2
    intra_op_parallelism_threads: int = 24
    environment_variables: dict[str, str] = field(default_factory=dict)


FRAMEWORKS: dict[str, Any] = {"torch": Torch, "tensorflow": TensorFlow}
