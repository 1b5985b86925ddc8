"""The pictures the examples train on: Fashion-MNIST where it can be had, drawn garments elsewhere.

In: a data directory. Out: a training and a test set with the same ten classes, whichever it was;
one printed line says which and why.
"""

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from data import fashion_mnist
from data.fashion_mnist import CLASSES, DataFileError, FashionMNIST
from data.garments import Garments
from data.in_memory import InMemoryImages, Rows, collate, normalise

__all__ = [
    "CLASSES",
    "SOURCES",
    "DataFileError",
    "Datasets",
    "FashionMNIST",
    "Garments",
    "InMemoryImages",
    "Rows",
    "collate",
    "load",
    "normalise",
]

SOURCES = ("auto", "fashion-mnist", "built-in")
_SILENCE_S = 10.0  # a firewall that swallows packets should not hold up a tutorial for minutes


@dataclass(frozen=True, kw_only=True)
class Datasets:
    """A training and a test set.

    Attributes:
        train: rows of (float32 [1, 28, 28], label).
        test: the same, of pictures that are not in `train`.
        name: where the pictures come from.
        classes: the name of each label.
    """

    train: InMemoryImages
    test: InMemoryImages
    name: str
    classes: tuple[str, ...]


def load(
    root: str | Path,
    source: str = "auto",
    num_train: int | None = None,
    num_test: int | None = None,
) -> Datasets:
    """Load the pictures and says in one line which ones.

    Args:
        root: the data directory.
        source: "fashion-mnist" insists on the real set, "built-in" on the drawn one; "auto" takes
            the real set if its files are there or can be fetched, the drawn one otherwise.
        num_train: the first so many training rows; all by default.
        num_test: the first so many test rows; all by default.

    Raises:
        ValueError: an unknown source or a count below 1.
        FileNotFoundError: "fashion-mnist" was asked for and cannot be had.
        DataFileError: the files are there and damaged.
    """
    if source not in SOURCES:
        raise ValueError(f"source must be one of {', '.join(SOURCES)}; found {source!r}.")
    for name, count in (("num_train", num_train), ("num_test", num_test)):
        if count is not None and count < 1:
            raise ValueError(f"{name} must be at least 1; found {count}.")
    if source == "built-in":
        return _built_in(root, num_train, num_test, "as asked")
    if fashion_mnist.available(root):
        return _real(root, num_train, num_test, f"files in {fashion_mnist.raw_folder(root)}")
    fault = _download(root)
    if fault is None:
        return _real(root, num_train, num_test, "downloaded through torchvision")
    if source == "fashion-mnist":
        raise FileNotFoundError(
            f"Fashion-MNIST is not in {fashion_mnist.raw_folder(root)} and cannot be downloaded "
            f"({fault}). Put the four original idx files there, or use source='built-in'."
        )
    return _built_in(root, num_train, num_test, f"no Fashion-MNIST files, {fault}")


def _real(root: str | Path, num_train: int | None, num_test: int | None, why: str) -> Datasets:
    train = FashionMNIST.read(root, train=True).first(num_train)
    test = FashionMNIST.read(root, train=False).first(num_test)
    return _announce(Datasets(train=train, test=test, name="Fashion-MNIST", classes=CLASSES), why)


def _built_in(root: str | Path, num_train: int | None, num_test: int | None, why: str) -> Datasets:
    train = Garments.load(root, train=True, count=num_train)
    test = Garments.load(root, train=False, count=num_test)
    name = "garments drawn by the program"
    return _announce(Datasets(train=train, test=test, name=name, classes=CLASSES), why)


def _announce(datasets: Datasets, why: str) -> Datasets:
    counts = f"{len(datasets.train)} to train, {len(datasets.test)} to test"
    print(f"Data: {datasets.name}, {counts} ({why}).")
    return datasets


def _download(root: str | Path) -> str | None:
    """Fetch the files through torchvision; return why that failed, None if it did not."""
    try:
        # Beside a torch it was not built for, torchvision fails while it is imported, not always
        # with an ImportError.
        from torchvision.datasets import FashionMNIST as Fetcher
    except (ImportError, RuntimeError, AttributeError, OSError):
        return "torchvision does not import here"
    try:
        with _impatient():
            for train in (True, False):
                Fetcher(str(Path(root).expanduser()), train=train, download=True)
    except (OSError, RuntimeError) as error:
        reason = str(error) or type(error).__name__
        return f"the download failed: {reason.splitlines()[0]}"
    return None if fashion_mnist.available(root) else "the download left no files"


@contextmanager
def _impatient() -> Iterator[None]:
    before = socket.getdefaulttimeout()
    socket.setdefaulttimeout(_SILENCE_S)
    try:
        yield
    finally:
        socket.setdefaulttimeout(before)
