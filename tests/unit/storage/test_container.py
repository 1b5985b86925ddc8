"""The file that carries a model: what it keeps, and that damage and foreign files are noticed."""

import errno
import io
import json
import os
import pickle
import zipfile
from pathlib import Path

import pytest
import torch

from abele.errors import CorruptExecutable, SerializationError
from abele.storage.container import Container, write

TENSORS = {
    "t/float": torch.tensor([[1.5, torch.nan], [-torch.inf, -0.0]]),
    "t/half": torch.ones(3, dtype=torch.bfloat16),
    "t/complex": torch.tensor([1 + 2j]).conj(),
    "t/scalar": torch.tensor(7),
    "t/none of it": torch.empty(0, 4, dtype=torch.float64),
    "t/flags": torch.tensor([True, False]),
    "t/turned": torch.arange(6).reshape(2, 3).t(),
    "t/channels last": torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last),
    "t/column": torch.ones(1, 3).t(),
    "t/expanded": torch.arange(3).expand(2, 3),
}


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "a model.poptorch"
    write(path, "test", {"a": [1, None]}, {"code": b"\x00\x01", **TENSORS})
    return path


def read_all(path):
    with Container(path, "test") as result:
        return result.content, result.read("code"), result.tensors("t/")


def test_a_round_trip_keeps_everything(file):
    content, code, tensors = read_all(file)
    assert (content, code) == ({"a": [1, None]}, b"\x00\x01")
    assert [f"t/{name}" for name in tensors] == list(TENSORS)
    for name, value in tensors.items():
        expected = TENSORS[f"t/{name}"]
        assert (value.dtype, value.shape) == (expected.dtype, expected.shape)
        assert value.stride() == expected.stride(), name
        torch.testing.assert_close(value, expected.resolve_conj(), rtol=0, atol=0, equal_nan=True)
    assert torch.signbit(tensors["float"][1, 1])
    tensors["half"].add_(1)  # its memory is its own


def test_it_is_a_plain_zip_without_pickles(file):
    with zipfile.ZipFile(file) as archive:
        assert archive.namelist()[0] == "manifest.json"
        assert json.loads(archive.read("manifest.json"))["kind"] == "test"
        assert {info.compress_type for info in archive.infolist()} == {zipfile.ZIP_STORED}
        for name in archive.namelist():
            with pytest.raises(Exception):  # noqa: B017, PT011 - none of it is a pickle
                pickle.loads(archive.read(name))  # noqa: S301 - it has to fail


def test_a_tensor_without_plain_data_is_refused_by_name(tmp_path):
    for value in (torch.eye(2).to_sparse(), torch.ones(2, device="meta")):
        with pytest.raises(SerializationError, match=r"Tensor odd .* has no plain data"):
            write(tmp_path / "x", "test", {}, {"odd": value})
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("part", [0, 1, 10, 100, 0.3, 0.5, 0.9, 0.99, -1])
def test_a_truncated_file_is_corrupt(file, part):
    data = file.read_bytes()
    file.write_bytes(data[: part if isinstance(part, int) else int(part * len(data))])
    with pytest.raises(CorruptExecutable, match="is damaged or is no file of this kind"):
        read_all(file)


def test_every_flipped_bit_is_noticed_or_harmless(file):
    data, expected = bytearray(file.read_bytes()), read_all(file)
    noticed = 0
    tried = range(0, len(data), 5)  # so that every field is met in one entry or another
    for position in tried:
        data[position] ^= 8
        file.write_bytes(data)
        data[position] ^= 8
        try:
            actual = read_all(file)
        except CorruptExecutable:
            noticed += 1
        else:
            assert actual[:2] == expected[:2]
            for name, value in expected[2].items():
                assert value.dtype == actual[2][name].dtype
                torch.testing.assert_close(value, actual[2][name], rtol=0, atol=0, equal_nan=True)
    assert noticed > 0.5 * len(tried)


def test_a_missing_file_is_no_damaged_file(tmp_path):
    with pytest.raises(FileNotFoundError):
        Container(tmp_path / "none", "test")
    with pytest.raises(IsADirectoryError):
        Container(tmp_path, "test")


class Evil:
    """Would leave a file behind if anything unpickled it."""

    def __init__(self, evidence):
        self.evidence = evidence

    def __reduce__(self):
        return Path.touch, (self.evidence,)


def foreign_files(folder):
    evil = Evil(folder / "executed")
    checkpoint, archive = io.BytesIO(), io.BytesIO()
    torch.save(evil, checkpoint)
    with zipfile.ZipFile(archive, "w") as other:
        other.writestr("manifest.json", '{"format": 1, "kind": "recipes", "byte_order": "little"}')
    yield "a pickle", pickle.dumps(evil)
    yield "a checkpoint", checkpoint.getvalue()
    yield "another zip", archive.getvalue()
    yield "text", b"hello"


@pytest.mark.parametrize("name", ["a pickle", "a checkpoint", "another zip", "text"])
def test_something_else_is_refused_and_nothing_executed(name, tmp_path):
    path = tmp_path / "x"
    path.write_bytes(dict(foreign_files(tmp_path))[name])
    with pytest.raises(CorruptExecutable):
        Container(path, "test")
    assert not (tmp_path / "executed").exists()


def rewritten(file, change, **settings):
    """The file with other members, sound as a zip."""
    with zipfile.ZipFile(file) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    change(members)
    with zipfile.ZipFile(file, "w", **settings) as archive:
        for name, data in members.items():
            archive.writestr(name, data)


def described(name, **changed):
    """A change of what the manifest says of a member."""

    def change(members):
        manifest = json.loads(members["manifest.json"])
        manifest["members"][name].update(changed)
        members["manifest.json"] = json.dumps(manifest)

    return change


@pytest.mark.parametrize(
    ("change", "settings", "words"),
    [
        (lambda m: m.update(more=b"x"), {}, r"not those its manifest lists: \['more'\]"),
        (lambda m: m.update({"../evil.py": b"x"}), {}, "not those its manifest lists"),
        (lambda m: m.pop("code"), {}, r"not those its manifest lists: \['code'\]"),
        (lambda m: m.update(code=b"other"), {}, "checksum of code does not match"),
        (lambda m: None, {"compression": zipfile.ZIP_DEFLATED}, "is compressed"),
        (described("t/half", shape=[4]), {}, "is damaged"),
        *[
            (described("t/turned", strides=strides), {}, "is damaged")
            for strides in ([1, 1000], [-1, 1], [1], ["x", 1])
        ],
    ],
)
def test_a_sound_zip_with_other_members_is_refused(change, settings, words, file, tmp_path):
    rewritten(file, change, **settings)
    with pytest.raises(CorruptExecutable, match=words):
        read_all(file)
    assert os.listdir(tmp_path) == [file.name]


def test_gaps_between_elements_are_not_written(tmp_path):
    gaps = torch.arange(12).reshape(3, 4)[:, ::2]
    write(tmp_path / "file", "test", {}, {"t": gaps})
    with Container(tmp_path / "file", "test") as written:
        assert written.tensor("t").stride() == (2, 1)
        assert written.tensor("t").equal(gaps)


def test_a_crash_while_writing_leaves_the_last_good_file(file, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    before = file.read_bytes()
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        write(file, "test", {}, {"code": b"newer"})
    assert file.read_bytes() == before
    assert os.listdir(file.parent) == [file.name]
