"""The keys below ``run.``: what one launch does and on which device.

Names, members and numbers are those of the published application, so that its command lines work.
"""

from dataclasses import dataclass
from enum import Enum

from omegaconf import MISSING


class ComputeMode(Enum):
    """Where the network runs. The numbers are those of the published ports."""

    CPU = 0
    GPU = 1
    DPCPP = 2
    XPU = 3
    HPU = 4
    IPU = 5
    RDU = 6


class Precision(Enum):
    """In which number format the network computes."""

    float32 = 0
    mixed = 1
    bfloat16 = 2
    float16 = 3


@dataclass
class Run:
    """One launch.

    Attributes:
        id: name of this run and of its output folder; has to be given.
        compute_mode: CPU, GPU, IPU or RDU, or 0, 1, 5, 6; null: GPU where CUDA is present, else
            CPU.
        iterations: steps of this launch; a resumed run makes that many more. null: 500; in
            inference and evaluate: every event once.
        aux_iterations: validate on the aux file every so many steps; 0: never.
        minibatch_size: images per micro-batch; in IPU mode, with synthetic data and in inference of
            each replica or process, else of all processes together.
        num_replicas: IPU mode: copies of the network that share each update; under poprun it
            decides.
        precision: float32, mixed, bfloat16 or float16.
        profile: write a Chrome trace of every step to profiles/; in IPU mode also time each
            operator once the run is over, for the page in compute/.
        saver: write TensorBoard files.
        distributed: CPU and GPU mode: the processes of torchrun, mpirun or Slurm share the run.
        horovod_num_groups: no effect: processes are connected by torch.distributed.
        broadcast_buffers: with distributed: all use the statistics of the first process.
    """

    id: str = MISSING
    compute_mode: ComputeMode | None = None
    iterations: int | None = None
    aux_iterations: int = 10
    minibatch_size: int = 2
    num_replicas: int = 1
    precision: Precision = Precision.float32
    profile: bool = False
    saver: bool = True
    distributed: bool = False
    horovod_num_groups: int = 0
    broadcast_buffers: bool = True
