"""The keys below ``data.``: which events, and at what resolution."""

from dataclasses import dataclass
from enum import Enum
from typing import Any


class DataFormat(Enum):
    """Order of the axes; the network's results do not depend on it."""

    channels_last = 0
    channels_first = 1


class DataKind(Enum):
    """Where events come from."""

    real = 0
    synthetic = 1
    generated = 2


@dataclass
class Real:
    """``data=real``: larcv3 HDF5 files.

    Attributes:
        name: set by data=.
        synthetic: set by data=.
        downsample: power of two by which images shrink: 0 leaves 1280 x 2048, 1 640 x 1024.
        data_format: layout in memory of convolutions in CPU and GPU mode.
        img_transform: images become ln(image + 1).
        seed: order of events; 0 draws one and says which.
        data_directory: folder of the files.
        file: events to train on, or to label.
        aux_file: events to validate on; empty: none.
        image: producer of the images.
        label: producer of the labels; empty: there are none, which inference can do with.
    """

    name: DataKind = DataKind.real
    synthetic: bool = False
    downsample: int = 1
    data_format: DataFormat = DataFormat.channels_last
    img_transform: bool = False
    seed: int = 0
    data_directory: str = "/data/datasets/SBND/cosmic_tagging_1/"
    file: str = "cosmic_tagging_train.h5"
    aux_file: str = "cosmic_tagging_test.h5"
    image: str = "sbndwire"
    label: str = "sbnd_cosmicseg"


@dataclass
class Synthetic:
    """``data=synthetic``: uniform random images, for measuring speed.

    Attributes:
        name: set by data=.
        synthetic: set by data=.
        downsample: power of two by which images shrink: 0 leaves 1280 x 2048, 1 640 x 1024.
        data_format: layout in memory of convolutions in CPU and GPU mode.
        img_transform: images become ln(image + 1).
        seed: of the random images; 0 draws one and says which.
    """

    name: DataKind = DataKind.synthetic
    synthetic: bool = True
    downsample: int = 1
    data_format: DataFormat = DataFormat.channels_last
    img_transform: bool = False
    seed: int = 0


@dataclass
class Generated:
    """``data=generated``: events of the built-in generator, made once and kept; the default.

    Attributes:
        name: set by data=.
        synthetic: set by data=.
        downsample: power of two by which images shrink: 0 leaves 1280 x 2048, 1 640 x 1024.
        data_format: layout in memory of convolutions in CPU and GPU mode.
        img_transform: images become ln(image + 1).
        seed: order of events; 0 draws one and says which.
        events: events to train on.
        aux_events: other events: to validate on, and those of inference and evaluate; 0: none.
        generator_seed: of the events themselves.
        rows: height of an image before it shrinks.
        columns: width, likewise.
        folder: where they are kept; default ~/.cache/cosmictagger.
    """

    name: DataKind = DataKind.generated
    synthetic: bool = False
    downsample: int = 3
    data_format: DataFormat = DataFormat.channels_last
    img_transform: bool = True
    seed: int = 0
    events: int = 64
    aux_events: int = 16
    generator_seed: int = 1
    rows: int = 1280
    columns: int = 2048
    folder: str = ""


DATA: dict[str, Any] = {"real": Real, "synthetic": Synthetic, "generated": Generated}
