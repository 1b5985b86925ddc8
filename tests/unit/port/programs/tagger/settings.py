"""What a run can be told, as ``group.key=value`` on the command line."""

import dataclasses
from enum import Enum


class ComputeMode(Enum):
    CPU = 0
    GPU = 1
    XPU = 3


class ModeKind(Enum):
    train = 0
    inference = 2


class Precision(Enum):
    float32 = 0
    mixed = 1


class OptimizerKind(Enum):
    adam = 0
    rmsprop = 1


@dataclasses.dataclass
class RunSettings:
    compute_mode: ComputeMode = ComputeMode.GPU
    precision: Precision = Precision.float32
    iterations: int = 20
    minibatch_size: int = 2
    aux_iterations: int = 5


@dataclasses.dataclass
class OptimizerSettings:
    name: OptimizerKind = OptimizerKind.adam
    learning_rate: float = 0.003


@dataclasses.dataclass
class ModeSettings:
    name: ModeKind = ModeKind.train
    checkpoint_iteration: int = 10
    optimizer: OptimizerSettings = dataclasses.field(default_factory=OptimizerSettings)


@dataclasses.dataclass
class Settings:
    run: RunSettings = dataclasses.field(default_factory=RunSettings)
    mode: ModeSettings = dataclasses.field(default_factory=ModeSettings)
    output_dir: str = "output"


def read(arguments):
    settings = Settings()
    for argument in arguments:
        path, _, text = argument.partition("=")
        *groups, key = path.split(".")
        group = settings
        for name in groups:
            group = getattr(group, name)
        kind = type(getattr(group, key))
        setattr(group, key, kind[text] if issubclass(kind, Enum) else kind(text))
    return settings
