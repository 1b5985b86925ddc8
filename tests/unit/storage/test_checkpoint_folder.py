"""Only wrong bytes are damage: what cannot be read or is of another kind stays where it is."""

import errno
import io
import os
from pathlib import Path

import pytest
import torch

from abele.errors import SerializationError
from abele.storage import state_file
from abele.storage.checkpoint_folder import CheckpointFolder

#: What the system says of a file or a folder, and never because of wrong bytes.
ERRORS = ("EIO", "ESTALE", "EACCES", "EPERM", "ENOMEM", "EMFILE", "EINVAL", "ETIMEDOUT", "ENOENT")


def require(content):
    if "step" not in content:
        raise ValueError("it is of another kind")


@pytest.fixture
def kept(tmp_path):
    folder = CheckpointFolder(tmp_path, "step", 2, require)
    for step in (1, 2):
        folder.write(step, {"step": step, "weights": torch.arange(2000.0)})
    return folder


class Failing(io.RawIOBase):
    """A file whose disk fails after some bytes."""

    def __init__(self, handle, whole, number):
        self._handle, self._left, self._number = handle, whole, number

    def readable(self):
        return True

    def readinto(self, buffer):
        if not self._left:
            raise OSError(self._number, os.strerror(self._number))
        data = os.read(self._handle, min(self._left, len(buffer)))
        self._left -= len(data)
        buffer[: len(data)] = data
        return len(data)

    def close(self):
        if not self.closed:
            os.close(self._handle)
        super().close()


def fail(monkeypatch, moment, number):
    """Lets opening or reading files named ``*.ckpt`` fail."""
    real = os.open

    def opened(path, *arguments, **settings):
        if moment == "open" and str(path).endswith(".ckpt"):
            raise OSError(number, os.strerror(number), str(path))
        return real(path, *arguments, **settings)

    monkeypatch.setattr(os, "open", opened)
    if moment != "open":
        whole = {"first read": 0, "later read": 500}[moment]
        monkeypatch.setattr(
            os, "fdopen", lambda handle, _: io.BufferedReader(Failing(handle, whole, number), 100)
        )


@pytest.mark.parametrize("moment", ["open", "first read", "later read"])
@pytest.mark.parametrize("name", ERRORS)
def test_an_error_of_the_system_is_no_damage(kept, monkeypatch, name, moment):
    number = getattr(errno, name)
    fail(monkeypatch, moment, number)
    with pytest.raises(SerializationError, match=r"step-2\.ckpt cannot be read: .*It may be whole"):
        kept.newest_whole(path for _, path in kept.entries())
    with pytest.raises(OSError, match=os.strerror(number)) as raised:
        state_file.read(kept.folder / "step-2.ckpt")
    assert raised.value.errno == number
    assert sorted(os.listdir(kept.folder)) == ["step-1.ckpt", "step-2.ckpt"]


@pytest.mark.parametrize("name", [name for name in ERRORS if name != "ENOENT"])
def test_a_folder_that_cannot_be_listed_is_not_an_empty_one(kept, monkeypatch, name):
    def failing(path):
        raise OSError(getattr(errno, name), name, str(path))

    monkeypatch.setattr(os, "listdir", failing)
    with pytest.raises(SerializationError, match=f"checkpoints in .* cannot be read: .*{name}"):
        kept.latest()


def test_a_folder_that_is_a_file_is_not_an_empty_one(tmp_path):
    (tmp_path / "file").write_text("")
    for folder in (tmp_path / "file", tmp_path / "file" / "inside"):
        with pytest.raises(SerializationError, match="Not a directory"):
            CheckpointFolder(folder, "step", 2, require).latest()
    assert CheckpointFolder(tmp_path / "none", "step", 2, require).latest() is None


def test_a_pipe_and_a_folder_in_place_of_a_file_are_refused(kept):
    os.mkfifo(kept.folder / "step-4.ckpt")
    (kept.folder / "step-3.ckpt").mkdir()
    for name in ("step-4.ckpt", "step-3.ckpt"):
        with pytest.raises(SerializationError, match="no ordinary file"):
            kept.read(kept.folder / name)


def test_a_sound_file_of_another_kind_is_refused(kept):
    torch.save({"weights": 1}, kept.folder / "step-3.ckpt")
    with pytest.raises(SerializationError, match=r"step-3.*it is of another kind.*move the file"):
        kept.newest_whole(path for _, path in kept.entries())


def test_too_little_memory_is_no_damage(kept, monkeypatch):
    def full(*_, **__):
        raise MemoryError("no room")

    monkeypatch.setattr(torch, "load", full)
    with pytest.raises(SerializationError, match=r"step-2.*cannot be read: no room"):
        kept.newest_whole(path for _, path in kept.entries())


@pytest.mark.parametrize("moment", ["fsync", "replace", "write"])
@pytest.mark.parametrize("name", ["ENOSPC", "EDQUOT", "EXDEV", "EIO", "EROFS", "EACCES", "EFBIG"])
def test_what_cannot_be_written_leaves_the_files_before(kept, monkeypatch, name, moment):
    def failing(*_):
        raise OSError(getattr(errno, name), name)

    if moment == "write":
        monkeypatch.setattr(torch, "save", failing)
    else:
        monkeypatch.setattr(os, moment, failing)
    with pytest.raises(SerializationError, match=rf"step-3.*written: .*{name}.*latest one is .*-2"):
        kept.write(3, {"step": 3})
    assert sorted(os.listdir(kept.folder)) == ["step-1.ckpt", "step-2.ckpt"]
    assert kept.read(kept.folder / "step-2.ckpt").content["step"] == 2


def test_a_disk_that_is_really_full_leaves_the_files_before(kept, monkeypatch):
    real = open
    monkeypatch.setattr(
        "builtins.open", lambda path, mode: real("/dev/full" if "part" in str(path) else path, "wb")
    )
    with pytest.raises(SerializationError, match=r"step-3.*No space left on device"):
        kept.write(3, {"step": 3, "weights": torch.ones(100_000)})
    monkeypatch.undo()
    assert sorted(os.listdir(kept.folder)) == ["step-1.ckpt", "step-2.ckpt"]


@pytest.mark.parametrize("name", ["EXDEV", "EACCES", "EROFS"])
def test_a_damaged_file_that_cannot_be_renamed_stops_the_run(kept, monkeypatch, name):
    def failing(*_):
        raise OSError(getattr(errno, name), name)

    monkeypatch.setattr(os, "replace", failing)
    with pytest.raises(SerializationError, match=rf"step-2.*cannot be renamed: .*{name}"):
        kept.set_aside([kept.folder / "step-2.ckpt"])


def test_folders_that_are_all_set_aside_are_not_empty(kept):
    kept.set_aside(path for _, path in kept.entries())
    with pytest.raises(SerializationError, match=r"set aside: step-1.ckpt.damaged, step-2.*delete"):
        kept.latest()
    for path in Path(kept.folder).iterdir():
        path.unlink()
    assert kept.latest() is None
