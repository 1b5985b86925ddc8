"""Which pictures the examples get, and the line that says so."""

import struct
import sys
import types

import pytest

import data
from data.fashion_mnist import raw_folder


@pytest.fixture(autouse=True)
def no_torchvision(monkeypatch):
    monkeypatch.setitem(sys.modules, "torchvision", None)
    monkeypatch.setitem(sys.modules, "torchvision.datasets", None)


def write_real_files(root, count=12):
    folder = raw_folder(root)
    folder.mkdir(parents=True, exist_ok=True)
    for prefix in ("train", "t10k"):
        images = struct.pack(">4I", 0x803, count, 28, 28) + bytes(count * 784)
        (folder / f"{prefix}-images-idx3-ubyte").write_bytes(images)
        labels = struct.pack(">2I", 0x801, count) + bytes(count)
        (folder / f"{prefix}-labels-idx1-ubyte").write_bytes(labels)


def test_built_in_as_asked(tmp_path, capsys):
    datasets = data.load(tmp_path, "built-in", num_train=30, num_test=20)
    assert (len(datasets.train), len(datasets.test)) == (30, 20)
    assert datasets.classes == data.CLASSES
    line = "Data: garments drawn by the program, 30 to train, 20 to test (as asked).\n"
    assert capsys.readouterr().out == line


def test_auto_takes_the_real_files(tmp_path, capsys):
    write_real_files(tmp_path)
    datasets = data.load(tmp_path, num_train=8)
    assert datasets.name == "Fashion-MNIST"
    assert (len(datasets.train), len(datasets.test)) == (8, 12)
    assert "Data: Fashion-MNIST, 8 to train, 12 to test (files in " in capsys.readouterr().out


def test_auto_falls_back_and_says_why(tmp_path, capsys):
    data.load(tmp_path, num_train=10, num_test=10)
    output = capsys.readouterr().out
    assert "(no Fashion-MNIST files, torchvision does not import here)" in output
    assert output.count("\n") == 1


def fake_torchvision(monkeypatch, fetch):
    module = types.ModuleType("torchvision.datasets")
    module.FashionMNIST = fetch
    monkeypatch.setitem(sys.modules, "torchvision", types.ModuleType("torchvision"))
    monkeypatch.setitem(sys.modules, "torchvision.datasets", module)


def test_auto_downloads_where_torchvision_can(tmp_path, capsys, monkeypatch):
    fake_torchvision(monkeypatch, lambda root, train, download: write_real_files(root))
    assert data.load(tmp_path).name == "Fashion-MNIST"
    assert "downloaded through torchvision" in capsys.readouterr().out


def test_a_failed_download_is_one_quiet_reason(tmp_path, capsys, monkeypatch):
    def fail(root, train, download):
        raise OSError("no route to host\nsecond line")

    fake_torchvision(monkeypatch, fail)
    assert data.load(tmp_path, num_train=10, num_test=10).name.startswith("garments")
    assert "the download failed: no route to host)" in capsys.readouterr().out


def test_insisting_on_the_real_set_fails_clearly(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"cannot be downloaded \(torchvision does not"):
        data.load(tmp_path, "fashion-mnist")


def test_damaged_real_files_are_not_passed_over(tmp_path):
    write_real_files(tmp_path)
    (raw_folder(tmp_path) / "t10k-labels-idx1-ubyte").write_bytes(b"")
    with pytest.raises(data.DataFileError, match="t10k-labels-idx1-ubyte: a header of 8 bytes"):
        data.load(tmp_path)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"source": "mnist"}, "one of auto, fashion-mnist, built-in; found 'mnist'"),
        ({"num_train": 0}, "num_train must be at least 1; found 0"),
    ],
    ids=["source", "count"],
)
def test_wrong_arguments_are_refused(tmp_path, arguments, message):
    with pytest.raises(ValueError, match=message):
        data.load(tmp_path, **arguments)
