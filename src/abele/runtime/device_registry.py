"""A registry of the devices that this process uses, as a file for monitoring tools.

Monitoring tools list the processes that hold a device, and must do so without torch and
without asking those processes. So each process keeps a file in a folder of its user while it holds
something: JSON with its PID, when that PID was given out, and what it holds. The kernel says
whether a PID still is the same process, so that a file which a killed process left means nothing.

A file is a courtesy to other people's tools. Nothing here fails a run: where the file cannot be
written, ``Attachment.problem`` says why.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import re
import socket
import sys
import threading
import time
import weakref
from pathlib import Path
from typing import Any

import torch

from abele import systems
from abele.storage import files, temporary

ENVIRONMENT = "ABELE_RUNTIME_DIR"
FORMAT = 1

_NAME = re.compile(r"(\d+)-(\d+)\.(json|part)")
_MOST_BYTES = 64 * 1024
_lock = threading.RLock()  # the garbage collector may end an attachment in the middle of a change
_numbers = itertools.count()
_entries: dict[int, dict[str, Any]] = {}
_writing = False
_known: dict[str, Any] = {}


class Attachment:
    """A model's registration as a user of its device, until ``end`` or its owner's end.

    Args:
        owner: the object whose end ends the registration.
        target: which target runs the model, such as ``cpu``.
        device: the device of the weights.

    Attributes:
        problem: why the file could not be written; None if it was.
    """

    def __init__(self, owner: object, target: str, device: torch.device):
        self._number = next(_numbers)
        entry = {"target": target, "device": str(device), "since": time.time(), **_gpu(device)}
        self.problem = _change(self._number, entry)
        # Also runs when the interpreter exits, which does not delete what is still referred to.
        self._end = weakref.finalize(owner, _give_up, self._number)

    def end(self) -> None:
        """Unregister a model's device; a second time, or in a fork of the process, do nothing."""
        self._end()


def _give_up(number: int) -> None:
    if number in _entries:
        _change(number, None)


def _forget() -> None:
    """Reset a forked child's registry: it uses no devices, and no thread would release the lock."""
    global _lock, _writing
    _lock, _writing = threading.RLock(), False
    _entries.clear()
    _known.clear()


systems.after_fork(_forget)


def folder() -> Path:
    """Return the folder of this process's device registry file.

    ``ABELE_RUNTIME_DIR`` if it is set; else the session's own folder, which the system empties;
    else one with the user's number among temporary files.

    Raises:
        OSError: no folder of temporary files can be written.
    """
    chosen = os.environ.get(ENVIRONMENT)
    if chosen:
        return Path(chosen)
    of_session = os.environ.get("XDG_RUNTIME_DIR")
    if of_session and os.access(of_session, os.W_OK):
        return Path(of_session) / "abele"
    return Path(systems.temporary_folder()) / f"abele-{systems.user()}"


def _gpu(device: torch.device) -> dict[str, str]:
    """Return the UUID of a GPU, which does not depend on CUDA_VISIBLE_DEVICES."""
    if device.type != "cuda":
        return {}
    cuda: Any = torch.cuda
    identifier = str(cuda.get_device_properties(device).uuid)
    return {"uuid": identifier if identifier.startswith("GPU-") else f"GPU-{identifier}"}


def _change(number: int, entry: dict[str, Any] | None) -> str | None:
    """Add or remove a used device and write the registry file; return the error or None."""
    with _lock:
        _entries.pop(number, None)
        if entry is not None:
            _entries[number] = entry
        try:
            _write_all()
        except (OSError, ValueError) as problem:
            return f"Other processes cannot see that this one holds a device: {problem}"
    return None


def _write_all() -> None:
    global _writing
    if _writing:
        return  # called from within the loop below, which sees what has changed
    _writing, written = True, None
    try:
        while written != (entries := list(_entries.values())):
            _write(entries)
            written = entries
    finally:
        _writing = False


def _write(entries: list[dict[str, Any]]) -> None:
    if not _known:
        _known.update(_describe())
        _sweep(Path(_known["path"]).parent)
    path = Path(_known["path"])
    if not entries:
        path.unlink(missing_ok=True)
        return
    files.make_private(path.parent, mode=0o755)
    text = json.dumps({**_known["record"], "held": entries})
    partial = path.with_suffix(".part")
    # Not synchronised with the disk: after a crash of the machine the file would mean nothing.
    partial.write_text(text, encoding="utf-8")
    os.replace(partial, path)


def _sweep(folder: Path) -> None:
    """Delete device registry files of killed processes of this user."""
    with contextlib.suppress(OSError):
        for path in folder.iterdir():
            name = _NAME.fullmatch(path.name)
            if name is not None:
                with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
                    _delete_if_left(path, int(name[1]), int(name[2]))


def _delete_if_left(path: Path, pid: int, started: int) -> None:
    """Delete a registry file if its process has ended, or after a week on another machine."""
    status = path.lstat()
    if status.st_uid != systems.user() or status.st_size > _MOST_BYTES:
        return
    ours = False
    if path.suffix == ".json":
        with files.open_regular(path) as file:
            record = json.loads(file.read())
        ours = (record["boot"], record["namespace"]) == (temporary.boot(), temporary.namespace())
    old = time.time() - status.st_mtime > temporary.ABANDONED_S
    if not temporary.runs(pid, started) if ours else old:
        path.unlink(missing_ok=True)


def _describe() -> dict[str, Any]:
    """Return the path of this process's registry file, and the constant part of its record."""
    pid, started = os.getpid(), temporary.started()
    record = {
        "format": FORMAT,
        "pid": pid,
        "started": started,
        "namespace": temporary.namespace(),
        "boot": temporary.boot(),
        "host": socket.gethostname(),
        "command": [argument[:500] for argument in sys.orig_argv[:20]],
    }
    name = f"{pid}-{started}.json" if started is not None else f"{pid}.json"
    return {"path": str(folder() / name), "record": record}
