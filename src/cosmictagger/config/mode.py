"""The keys below ``mode.``: train, inference, evaluate and iotest."""

from dataclasses import dataclass, field
from enum import Enum
from typing import Any


class ModeKind(Enum):
    """What a launch does."""

    train = 0
    iotest = 1
    inference = 2
    evaluate = 3


class OptimizerKind(Enum):
    """The update rule."""

    adam = 0
    rmsprop = 1


class LossBalanceScheme(Enum):
    """How pixels of rare classes count more in the loss."""

    none = 0
    light = 1
    even = 2
    focal = 3


@dataclass
class Optimizer:
    """How weights change.

    Attributes:
        learning_rate: peak of the schedule.
        loss_balance_scheme: none, light, even or focal.
        name: adam or rmsprop.
        gradient_accumulation: micro-batches whose gradients are averaged before one update.
    """

    learning_rate: float = 0.0003
    loss_balance_scheme: LossBalanceScheme = LossBalanceScheme.focal
    name: OptimizerKind = OptimizerKind.adam
    gradient_accumulation: int = 1


@dataclass
class Train:
    """``mode=train``.

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
class Inference:
    """``mode=inference``: every event of ``data.file`` once, in order, with files of results.

    Attributes:
        name: set by mode=.
        start_index: first event.
        no_summary_images: False: TensorBoard images every 25 steps.
        weights_location: folder with checkpoints, or one .ckpt file; default: the run's own;
            random: untrained.
        summary_iteration: TensorBoard scalars every so many steps.
        logging_iteration: log line and CSV row every so many steps.
        optimizer: how weights change.
        displays: event displays to draw.
    """

    name: ModeKind = ModeKind.inference
    start_index: int = 0
    no_summary_images: bool = True
    weights_location: str = ""
    summary_iteration: int = 1
    logging_iteration: int = 1
    optimizer: Optimizer = field(default_factory=Optimizer)
    displays: int = 5


@dataclass
class Evaluate:
    """``mode=evaluate``: as inference, numbers only.

    Attributes:
        name: set by mode=.
        start_index: first event.
        no_summary_images: no effect here.
        weights_location: folder with checkpoints, or one .ckpt file; default: the run's own;
            random: untrained.
        summary_iteration: TensorBoard scalars every so many steps.
        logging_iteration: log line and CSV row every so many steps.
        optimizer: how weights change.
    """

    name: ModeKind = ModeKind.evaluate
    start_index: int = 0
    no_summary_images: bool = True
    weights_location: str = ""
    summary_iteration: int = 1
    logging_iteration: int = 1
    optimizer: Optimizer = field(default_factory=Optimizer)


@dataclass
class IOTest:
    """``mode=iotest``: reads, no network.

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


MODES: dict[str, Any] = {
    "train": Train,
    "inference": Inference,
    "evaluate": Evaluate,
    "iotest": IOTest,
}
