"""The reader of idx files: what it reads, and what it says about damaged ones."""

import gzip
import struct
from pathlib import Path

import numpy as np
import pytest
import torch

from data import DataFileError, FashionMNIST, collate
from data.fashion_mnist import available, raw_folder, read_images, read_labels

COUNT = 6


def idx(array: np.ndarray, magic: int) -> bytes:
    return struct.pack(f">{1 + array.ndim}I", magic, *array.shape) + array.tobytes()


IMAGES = np.arange(COUNT * 784, dtype=np.int64).astype(np.uint8).reshape(COUNT, 28, 28)
LABELS = np.arange(COUNT, dtype=np.uint8)
IMAGE_BYTES, LABEL_BYTES = idx(IMAGES, 0x803), idx(LABELS, 0x801)


@pytest.fixture(params=["plain", "gzipped"])
def root(request, tmp_path: Path) -> Path:
    folder = raw_folder(tmp_path)
    folder.mkdir(parents=True)
    for prefix in ("train", "t10k"):
        for name, content in (("images-idx3", IMAGE_BYTES), ("labels-idx1", LABEL_BYTES)):
            path = folder / f"{prefix}-{name}-ubyte"
            if request.param == "plain":
                path.write_bytes(content)
            else:
                path.with_name(path.name + ".gz").write_bytes(gzip.compress(content))
    return tmp_path


def test_reads_what_was_written(root):
    dataset = FashionMNIST.read(root, train=True)
    assert available(root)
    assert torch.equal(dataset.images, torch.from_numpy(IMAGES))
    assert dataset.labels.dtype == torch.int64
    assert dataset.labels.tolist() == LABELS.tolist()


def test_rows_are_normalised_like_torchvision(root):
    image, label = FashionMNIST.read(root, train=False)[2]
    assert image.shape == (1, 28, 28)
    assert torch.equal(image[0], (torch.from_numpy(IMAGES[2]) / 255 - 0.5) / 0.5)
    assert label == 2


@pytest.mark.parametrize("collate_fn", [None, collate], ids=["torch's collation", "ours"])
def test_a_loader_gives_the_rows_of_single_reads(root, collate_fn):
    dataset = FashionMNIST.read(root, train=True)
    loader = torch.utils.data.DataLoader(dataset, batch_size=4, collate_fn=collate_fn)
    images, labels = next(iter(loader))
    assert torch.equal(images, torch.stack([dataset[row][0] for row in range(4)]))
    assert labels.dtype == torch.int64
    assert labels.tolist() == [0, 1, 2, 3]


def test_missing_files_are_named(tmp_path):
    assert not available(tmp_path)
    with pytest.raises(FileNotFoundError, match=r"needs train-images-idx3-ubyte or .*built-in"):
        FashionMNIST.read(tmp_path, train=True)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (LABEL_BYTES + bytes(20), r"magic number 0x00000803 was expected; found 0x00000801"),
        (IMAGE_BYTES[:-5], r"truncated: its header promises 4704 bytes .*; found 4699"),
        (IMAGE_BYTES + b"!", r"bytes left over: .* 4704 bytes .*; found 4705"),
        (IMAGE_BYTES[:7], r"header of 16 bytes was expected; the file has only 7"),
        (idx(IMAGES.reshape(COUNT, 14, 56), 0x803), r"28 x 28 pixels .* found 14 x 56"),
    ],
    ids=["labels for images", "cut off", "too long", "no header", "other size"],
)
def test_damaged_images_are_described(tmp_path, content, message):
    path = tmp_path / "train-images-idx3-ubyte"
    path.write_bytes(content)
    with pytest.raises(DataFileError, match=message):
        read_images(path)


def test_labels_beyond_nine_are_refused(tmp_path):
    path = tmp_path / "labels"
    path.write_bytes(idx(LABELS + 7, 0x801))
    with pytest.raises(DataFileError, match="labels 0 to 9 were expected; found 12"):
        read_labels(path)


@pytest.mark.parametrize(
    "damage", [lambda b: b[:-20], lambda b: b"not gzip" + b], ids=["cut", "no"]
)
def test_damaged_gzip_is_described(tmp_path, damage):
    path = tmp_path / "train-images-idx3-ubyte.gz"
    path.write_bytes(damage(gzip.compress(IMAGE_BYTES)))
    with pytest.raises(DataFileError, match=r"truncated or no gzip file: .* Delete it"):
        read_images(path)


def test_counts_of_images_and_labels_must_match(root):
    folder = raw_folder(root)
    for path in folder.glob("train-labels*"):
        path.unlink()
    (folder / "train-labels-idx1-ubyte").write_bytes(idx(LABELS[:4], 0x801))
    with pytest.raises(DataFileError, match=r"6 labels were expected, .*; found 4"):
        FashionMNIST.read(root, train=True)
