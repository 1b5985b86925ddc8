"""Temporary files: what killed processes leave is deleted, and nothing else."""

import itertools
import os
import signal
import stat
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from abele.storage import files, temporary
from helpers.warm_python import python


def name(pid, since, machine=None, rest="x"):
    return f"abele-{machine or temporary.this_machine()}-{pid}-{since}-{rest}"


def test_a_folder_is_there_for_a_moment(tmp_path):
    with temporary.folder(tmp_path) as path:
        assert os.path.basename(path).startswith(temporary.prefix())
        temporary.sweep(tmp_path)
        assert os.path.isdir(path)
    assert os.listdir(tmp_path) == []


def test_only_what_has_no_living_process_is_deleted(tmp_path):
    own = temporary.started()
    kept = [
        name(os.getpid(), own),
        name(os.getpid(), 0),
        name(99999999, 5, machine="01234567"),
        "abele-somebody",
        "abele-12345678",
    ]
    left = [name(99999999, 5), name(os.getpid(), own - 1), name(99999999, 6, rest="dataset-y")]
    for each in (*kept, *left[:-1]):
        (tmp_path / each).mkdir()
        (tmp_path / each / "program.pt2").write_text("")
    (tmp_path / left[-1]).write_text("")
    temporary.sweep(tmp_path)
    assert sorted(os.listdir(tmp_path)) == sorted(kept)


def test_files_of_another_machine_go_when_they_are_old(tmp_path):
    path = tmp_path / name(1, 5, machine="01234567")
    path.mkdir()
    os.utime(path, (0, time.time() - temporary.ABANDONED_S - 60))
    temporary.sweep(tmp_path)
    assert not path.exists()


def test_a_link_is_deleted_and_not_what_it_leads_to(tmp_path):
    target = tmp_path / "precious"
    target.mkdir()
    (target / "file").write_text("")
    (tmp_path / name(99999999, 5)).symlink_to(target)
    temporary.sweep(tmp_path)
    assert os.listdir(tmp_path) == ["precious"]
    assert os.listdir(target) == ["file"]


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give files away")
def test_what_belongs_to_somebody_else_stays(tmp_path):
    path = tmp_path / name(99999999, 5)
    path.write_text("")
    os.chown(path, 12345, 12345)
    temporary.sweep(tmp_path)
    assert path.exists()
    folder = tmp_path / "folder"
    folder.mkdir(mode=0o700)
    os.chown(folder, 12345, 12345)
    with pytest.raises(OSError, match="folder is not a folder of this user's own"):
        files.make_private(folder)


def test_a_killed_process_leaves_nothing_for_ever(tmp_path):
    code = (
        "import os\n"
        "from abele.storage import temporary\n"
        "with temporary.folder():\n os.kill(os.getpid(), 9)"
    )
    variables = {**os.environ, "TMPDIR": str(tmp_path), "PYTHONPATH": os.pathsep.join(sys.path)}
    ended = subprocess.run([python(), "-c", code], env=variables, check=False)
    assert ended.returncode == -signal.SIGKILL
    assert len(list(tmp_path.glob("abele-*"))) == 1
    temporary.sweep(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_is_not_there_is_no_trouble(tmp_path):
    temporary.sweep(tmp_path / "nowhere")
    with pytest.raises(FileNotFoundError), temporary.folder(tmp_path / "nowhere"):
        pass


def test_nothing_but_ordinary_files_is_read(tmp_path):
    (tmp_path / "file").write_bytes(b"x")
    (tmp_path / "link").symlink_to(tmp_path / "file")
    with files.open_regular(tmp_path / "link") as file:
        assert file.read() == b"x"
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "device").symlink_to("/dev/zero")
    (tmp_path / "folder").mkdir()
    for path in ("pipe", "device", "folder"):
        with pytest.raises(OSError, match=f"no ordinary file: .*{path}"):
            files.open_regular(tmp_path / path)


def test_a_private_folder_is_made_or_checked(tmp_path):
    path = tmp_path / "a" / "b"
    files.make_private(path)
    files.make_private(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o700
    path.chmod(0o777)
    with pytest.raises(OSError, match="b can be written by other users"):
        files.make_private(path)
    (tmp_path / "link").symlink_to(path)
    with pytest.raises(OSError, match="link is not a folder of this user's own"):
        files.make_private(tmp_path / "link")


def test_the_system_says_which_processes_run():
    assert temporary.runs(os.getpid(), temporary.started())
    assert temporary.runs(os.getpid(), temporary.started() + 40)  # what qemu says of itself
    assert not temporary.runs(os.getpid(), 1)
    child = subprocess.Popen([sys.executable, "-c", ""])
    since = temporary.started(child.pid)
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert not temporary.runs(child.pid, since)  # a process that ended, of which nobody took note
    child.wait()


def test_a_process_names_one_start_time_where_each_thread_sees_its_own(monkeypatch, tmp_path):
    """As under qemu-user: a folder of one thread is not deleted by another."""
    ticks = itertools.count(temporary.started() or 0)
    monkeypatch.setattr(temporary, "_start", lambda _: next(ticks))
    temporary._own_start.cache_clear()
    with temporary.folder(tmp_path) as path:
        temporary.sweep(tmp_path)
        assert os.path.isdir(path)
        assert os.path.basename(path).startswith(temporary.prefix())


def test_temporary_files_are_where_the_system_says(monkeypatch, tmp_path):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with temporary.folder() as path:
        assert Path(path).parent == tmp_path
