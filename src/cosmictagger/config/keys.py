"""The keys of a configuration below ``run.``, ``mode.``, ``data.`` and ``framework.``."""

from dataclasses import dataclass, field
from enum import Enum
from typing import Any


class ComputeMode(Enum):
    """The device that runs the network (CPU, GPU, IPU, RDU), numbered as in published ports."""

    CPU = 0
    GPU = 1
    IPU = 5
    RDU = 6


class Precision(Enum):
    """The floating-point precision of the network."""

    float32 = 0
    mixed = 1
    bfloat16 = 2
    float16 = 3


@dataclass
class Run:
    """The settings of a run: id, device, iterations, batch size, precision, distribution.

    Attributes:
        id: name of this run and of its output folder; has to be given.
        compute_mode: CPU, GPU, IPU or RDU, or 0, 1, 5, 6; null: GPU where CUDA is present, else
            CPU.
        iterations: steps of this launch; a resumed run makes that many more. null: 500; in
            inference: every event once.
        epochs: in place of iterations: passes over the events to train on, of the whole run; a
            resumed run makes the rest. Each ends with a validation on the whole aux file.
        aux_iterations: validate on a batch of the aux file every so many steps; 0: never.
        minibatch_size: images per micro-batch; in IPU mode, with synthetic data and in inference of
            each replica or process, else of all processes together.
        num_replicas: IPU mode: copies of the network that share each update; under poprun it
            decides.
        precision: float32, mixed, bfloat16 or float16.
        profile: write a Chrome trace of every step to profiles/; in IPU mode also time each
            operator once the run is over, for the page in compute/.
        saver: write TensorBoard files.
        executable_cache: IPU mode: folder of compiled programs for later runs, which then start
            within seconds; false: none. Default ~/.cache/cosmictagger/executables, kept below 2 GB.
        distributed: CPU and GPU mode: the processes of torchrun, mpirun or Slurm share the run.
        horovod_num_groups: no effect: processes are connected by torch.distributed.
        broadcast_buffers: with distributed: all use the statistics of the first process.
    """

    id: str = ""
    compute_mode: ComputeMode | None = None
    iterations: int | None = None
    epochs: int | None = None
    aux_iterations: int = 10
    minibatch_size: int = 2
    num_replicas: int = 1
    precision: Precision = Precision.float32
    profile: bool = False
    saver: bool = True
    executable_cache: str = ""
    distributed: bool = False
    horovod_num_groups: int = 0
    broadcast_buffers: bool = True


class ModeKind(Enum):
    """The mode of a run: training, inference or I/O test."""

    train = 0
    iotest = 1
    inference = 2


class OptimizerKind(Enum):
    """The optimizer of training, numbered as in version 2.1."""

    adam = 0
    rmsprop = 1
    sgd = 2
    adagrad = 3
    adadelta = 4
    lamb = 6


class LossBalanceScheme(Enum):
    """The weighting scheme of rare classes in the loss."""

    none = 0
    light = 1
    even = 2
    focal = 3


class ScheduleKind(Enum):
    """The learning rate as a function of the step."""

    default = 0
    flat = 1
    one_cycle = 2
    standard = 3


@dataclass
class LearningRates:
    """The settings of the learning rate's schedule.

    Attributes:
        name: default: warm-up of one epoch, flat until the 21st, then decay; flat; one_cycle: up,
            down and decay within run.epochs; standard: warm-up, flat, and decay at the end of
            run.epochs (of 25 epochs with run.iterations).
        min_learning_rate: one_cycle: the rate at its start and before its decay.
        decay_floor: one_cycle, standard: the rate that the decay ends with, and of steps after it.
        decay_epochs: one_cycle, standard: epochs of decay at the end.
    """

    name: ScheduleKind = ScheduleKind.default
    min_learning_rate: float = 1e-5
    decay_floor: float = 1e-5
    decay_epochs: float = 5.0


@dataclass
class Optimizer:
    """The settings of the optimizer: learning rate, loss weighting, gradient accumulation.

    Attributes:
        learning_rate: the highest one, of every schedule.
        loss_balance_scheme: none, light, even or focal.
        name: adam, rmsprop, sgd, adagrad, adadelta or lamb.
        gradient_accumulation: micro-batches whose gradients are averaged before one update.
        weight_decay: share of each weight that is added to its gradient (lamb: to its update).
        lr_schedule: of the learning rate.
    """

    learning_rate: float = 0.0003
    loss_balance_scheme: LossBalanceScheme = LossBalanceScheme.focal
    name: OptimizerKind = OptimizerKind.adam
    gradient_accumulation: int = 1
    weight_decay: float = 0.0
    lr_schedule: LearningRates = field(default_factory=LearningRates)


@dataclass
class Train:
    """Settings of ``mode=train``.

    Attributes:
        name: set by mode=.
        no_summary_images: False: TensorBoard images every 25 steps.
        weights_location: folder with checkpoints, or one .ckpt file to go on from; default: the
            run's own, if any.
        checkpoint_iteration: checkpoint every so many steps, and at the end.
        summary_iteration: TensorBoard scalars every so many steps.
        logging_iteration: log line and CSV row every so many steps.
        quantization_aware: refused: not available.
        optimizer: how weights change.
    """

    name: ModeKind = ModeKind.train
    no_summary_images: bool = True
    weights_location: str = ""
    checkpoint_iteration: int = 500
    summary_iteration: int = 1
    logging_iteration: int = 1
    quantization_aware: bool = False
    optimizer: Optimizer = field(default_factory=Optimizer)


@dataclass
class IOTest:
    """Settings of ``mode=iotest``, which reads events without a network.

    Attributes:
        name: set by mode=.
        start_index: first event.
        no_summary_images: no effect here.
        weights_location: no effect here.
    """

    name: ModeKind = ModeKind.iotest
    start_index: int = 0
    no_summary_images: bool = True
    weights_location: str = ""


@dataclass
class Inference(IOTest):
    """Settings of ``mode=inference``: label every event of ``data.file`` once, in order.

    Attributes:
        no_summary_images: no effect here.
        weights_location: folder with checkpoints, or one .ckpt file; default: the run's own;
            random: untrained.
        summary_iteration: TensorBoard scalars every so many steps.
        logging_iteration: log line and CSV row every so many steps.
        optimizer: how weights change.
        displays: event displays to draw.
    """

    name: ModeKind = ModeKind.inference
    summary_iteration: int = 1
    logging_iteration: int = 1
    optimizer: Optimizer = field(default_factory=Optimizer)
    displays: int = 5


MODES: dict[str, Any] = {
    "train": Train,
    "inference": Inference,
    "iotest": IOTest,
}


class DataFormat(Enum):
    """Memory layout of convolutions; the network's results do not depend on it."""

    channels_last = 0
    channels_first = 1


class RandomMode(Enum):
    """The order of the events in training."""

    random_blocks = 0
    serial_access = 1


class DataKind(Enum):
    """The source of events: synthetic, real or generated."""

    real = 0
    synthetic = 1
    generated = 2


@dataclass
class Synthetic:
    """Settings of ``data=synthetic``: uniform random images, for measuring speed.

    Attributes:
        name: set by data=.
        synthetic: set by data=.
        downsample: power of two by which images shrink: 0 leaves 1280 x 2048, 1 640 x 1024.
        data_format: layout in memory of convolutions in CPU and GPU mode.
        img_transform: images become ln(image + 1).
        seed: of the random images; 0 or less draws one and says which.
        version: 1: synthetic images have 1280 x 2048 pixels; 2: 1408 x 2048. Files have their size.
        random_mode: random_blocks: training shuffles the events of each epoch; serial_access: it
            reads them in order.
    """

    name: DataKind = DataKind.synthetic
    synthetic: bool = True
    downsample: int = 1
    data_format: DataFormat = DataFormat.channels_last
    img_transform: bool = False
    seed: int = 0
    version: int = 1
    random_mode: RandomMode = RandomMode.random_blocks


@dataclass
class Real(Synthetic):
    """Settings of ``data=real``: larcv3 HDF5 files.

    Attributes:
        seed: order of events; 0 or less draws one and says which.
        data_directory: folder of the files.
        file: events to train on, or to label.
        aux_file: events to validate on; empty: none.
        image: producer of the images.
        label: producer of the labels; empty: there are none, which inference can do with.
    """

    name: DataKind = DataKind.real
    synthetic: bool = False
    data_directory: str = "/data/datasets/SBND/cosmic_tagging_1/"
    file: str = "cosmic_tagging_train.h5"
    aux_file: str = "cosmic_tagging_test.h5"
    image: str = "sbndwire"
    label: str = "sbnd_cosmicseg"


@dataclass
class Generated(Synthetic):
    """Settings of ``data=generated``: simulated events, generated once and cached; the default.

    Attributes:
        seed: order of events; 0 or less draws one and says which.
        events: events to train on.
        aux_events: other events: to validate on, and those of inference; 0: none.
        generator_seed: of the events themselves.
        cosmic_only: share of events without a neutrino, for network.classification.
        rows: height of an image before it shrinks.
        columns: width, likewise.
        folder: where they are kept; default ~/.cache/cosmictagger.
    """

    name: DataKind = DataKind.generated
    synthetic: bool = False
    downsample: int = 3
    img_transform: bool = True
    events: int = 64
    aux_events: int = 16
    generator_seed: int = 1
    cosmic_only: float = 0.0
    rows: int = 1280
    columns: int = 2048
    folder: str = ""


DATA: dict[str, Any] = {"real": Real, "synthetic": Synthetic, "generated": Generated}


class DistributedMode(Enum):
    """The library that exchanges gradients."""

    DDP = 0
    horovod = 1


@dataclass
class Torch:
    """Settings of ``framework=torch``.

    Attributes:
        name: set by framework=.
        seed: of the first weights, with deterministic kernels; 0 or less draws one and says it.
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


FRAMEWORKS: dict[str, Any] = {"torch": Torch}
