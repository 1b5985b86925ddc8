"""Fashion-MNIST from its original files, gzipped or not, as torchvision lays them out.

In: `<root>/FashionMNIST/raw/train-images-idx3-ubyte[.gz]` and its three companions.
Out: a dataset in memory. A damaged file is named, with what was found and what to do.
"""

import gzip
import struct
import zlib
from pathlib import Path

import torch
from torch import Tensor

from data.in_memory import InMemoryImages

CLASSES = (
    "T-shirt",
    "Trouser",
    "Pullover",
    "Dress",
    "Coat",
    "Sandal",
    "Shirt",
    "Sneaker",
    "Bag",
    "Ankle boot",
)
SIDE = 28  # pixels

# An idx file starts with two zero bytes, a type code (8: unsigned byte) and the number of axes.
_IMAGES_MAGIC = 0x00000803
_LABELS_MAGIC = 0x00000801
_REMEDY = "Delete it and fetch the original file again, or use source='built-in'."


class DataFileError(ValueError):
    """A data file does not hold what its name promises."""


def raw_folder(root: str | Path) -> Path:
    """Return the folder under `root` that holds the four files."""
    return Path(root).expanduser() / "FashionMNIST" / "raw"


def find(root: str | Path, name: str) -> Path | None:
    """Return the file called `name`, plain or with `.gz`; None if there is neither."""
    plain = raw_folder(root) / name
    candidates = (plain, plain.with_name(name + ".gz"))
    return next((path for path in candidates if path.is_file()), None)


def available(root: str | Path) -> bool:
    """Return whether all four files of the set are there."""
    names = (name for train in (True, False) for name in _names(train))
    return all(find(root, name) is not None for name in names)


def read_images(path: Path) -> Tensor:
    """Read an idx file of pictures.

    Returns:
        uint8 [N, 28, 28].

    Raises:
        DataFileError: the file is damaged or holds something else.
    """
    (count, height, width), body = _read(path, _IMAGES_MAGIC, 3)
    if (height, width) != (SIDE, SIDE):
        raise DataFileError(
            f"{path}: pictures of {SIDE} x {SIDE} pixels were expected; found "
            f"{height} x {width}. {_REMEDY}"
        )
    return body.view(count, SIDE, SIDE)


def read_labels(path: Path) -> Tensor:
    """Read an idx file of labels.

    Returns:
        int64 [N], each 0 to 9.

    Raises:
        DataFileError: the file is damaged or holds something else.
    """
    _, body = _read(path, _LABELS_MAGIC, 1)
    if len(body) and int(body.max()) >= len(CLASSES):
        raise DataFileError(
            f"{path}: labels 0 to {len(CLASSES) - 1} were expected; found {int(body.max())}. "
            f"{_REMEDY}"
        )
    return body.to(torch.int64)


class FashionMNIST(InMemoryImages):
    """The training (60,000 rows) or the test set (10,000 rows)."""

    @classmethod
    def read(cls, root: str | Path, *, train: bool) -> "FashionMNIST":
        """Read one of the two sets from the files under `root`.

        Raises:
            FileNotFoundError: a file is missing.
            DataFileError: a file is damaged, or pictures and labels do not match in number.
        """
        images_path, labels_path = (_require(root, name) for name in _names(train))
        images, labels = read_images(images_path), read_labels(labels_path)
        if len(images) != len(labels):
            raise DataFileError(
                f"{labels_path}: {len(images)} labels were expected, one for each picture of "
                f"{images_path.name}; found {len(labels)}. {_REMEDY}"
            )
        return cls(images, labels)


def _names(train: bool) -> tuple[str, str]:
    prefix = "train" if train else "t10k"
    return f"{prefix}-images-idx3-ubyte", f"{prefix}-labels-idx1-ubyte"


def _require(root: str | Path, name: str) -> Path:
    path = find(root, name)
    if path is None:
        raise FileNotFoundError(
            f"Fashion-MNIST needs {name} or {name}.gz in {raw_folder(root)}; neither is there. "
            "Put the four original files into that folder, or use source='built-in'."
        )
    return path


def _read(path: Path, magic: int, axes: int) -> tuple[tuple[int, ...], Tensor]:
    """Return the sizes in the header and all bytes after it, as uint8 [product of the sizes]."""
    content = _bytes(path)
    header_bytes = 4 * (1 + axes)
    if len(content) < header_bytes:
        raise DataFileError(
            f"{path}: a header of {header_bytes} bytes was expected; the file has only "
            f"{len(content)}. {_REMEDY}"
        )
    actual_magic, *sizes = struct.unpack(f">{1 + axes}I", content[:header_bytes])
    if actual_magic != magic:
        raise DataFileError(
            f"{path}: an idx file with magic number {magic:#010x} was expected; found "
            f"{actual_magic:#010x}. {_REMEDY}"
        )
    body = torch.frombuffer(bytearray(content), dtype=torch.uint8)[header_bytes:]
    promised = torch.Size(sizes).numel()
    if len(body) != promised:
        fault = "is truncated" if len(body) < promised else "has bytes left over"
        raise DataFileError(
            f"{path} {fault}: its header promises {promised} bytes ({' x '.join(map(str, sizes))})"
            f"; found {len(body)}. {_REMEDY}"
        )
    return tuple(sizes), body


def _bytes(path: Path) -> bytes:
    if path.suffix != ".gz":
        return path.read_bytes()
    try:
        with gzip.open(path) as stream:
            return stream.read()
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise DataFileError(f"{path} is truncated or no gzip file: {error}. {_REMEDY}") from error
