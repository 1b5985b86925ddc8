"""System interfaces of the gc tools: kernel files, the GPU driver's library, process folders."""

import importlib
import os
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

RUNTIME_FOLDER = "ABELE_RUNTIME_DIR"
ON_LINUX = sys.platform.startswith("linux")
NOT_LINUX = "The gc tools read the folders /proc and /sys of Linux, and this is another system."


class UnsupportedSystemError(OSError):
    """The operating system has no folders that describe devices and processes."""


@dataclass
class System:
    """System interfaces of a machine, or of a file tree that imitates it in tests.

    Attributes:
        proc: where processes are, ``/proc``.
        sys: where devices are, ``/sys``.
        nvml: the module ``pynvml``, not initialised; None asks for no GPU.
        registries: folders in which processes say what they hold; found by themselves if None.
        notes: why something is missing, for those who ask with ``-v``.
    """

    proc: Path = Path("/proc")
    sys: Path = Path("/sys")
    nvml: Any = None
    registries: list[Path] | None = None
    notes: list[str] = field(default_factory=list)

    @classmethod
    def here(cls) -> Self:
        """Return the ``System`` of this machine.

        Raises:
            UnsupportedSystemError: it does not run Linux.
        """
        if not ON_LINUX:
            raise UnsupportedSystemError(NOT_LINUX)
        system = cls()
        try:
            system.nvml = importlib.import_module("pynvml")
        except ImportError:
            system.note("No GPU is listed: pip install nvidia-ml-py to ask its driver.")
        return system

    def note(self, text: str) -> None:
        """Record why a device value is missing, once per reason."""
        if text not in self.notes:
            self.notes.append(text)

    def text(self, path: Path) -> str | None:
        """Read a kernel file; None if it is missing or not readable."""
        try:
            return path.read_text(encoding="utf-8", errors="replace").strip()
        except PermissionError:
            self.note(f"{path} is not for this user.")
        except OSError:
            pass
        return None

    def number(self, path: Path, scale: float = 1.0) -> float | None:
        """Read a number from a kernel file, times ``scale``; None if there is none."""
        text = self.text(path)
        try:
            return None if text is None else float(text) * scale
        except ValueError:
            return None

    def folders(self) -> Iterator[Path]:
        """Return the existing folders of all users' records of device use."""
        seen = set()
        for path in _usual() if self.registries is None else self.registries:
            if path not in seen and self._is_folder(path):
                seen.add(path)
                yield path

    def _is_folder(self, path: Path) -> bool:
        try:
            return path.is_dir() and not path.is_symlink()
        except OSError:
            self.note(f"{path} is not for this user.")
            return False


def _usual() -> Iterator[Path]:
    chosen = os.environ.get(RUNTIME_FOLDER)
    if chosen:
        yield Path(chosen)
    of_session = os.environ.get("XDG_RUNTIME_DIR")
    if of_session:
        yield Path(of_session) / "abele"
    yield from (path / "abele" for path in _entries(Path("/run/user")))
    # What tempfile looks at, without the milliseconds that importing it takes. A batch system may
    # give every job its own folder for temporary files, so the common one is looked into as well.
    named = [os.environ.get(name) for name in ("TMPDIR", "TEMP", "TMP")]
    for temporary in dict.fromkeys(Path(name) for name in (*named, "/tmp") if name):
        yield from (path for path in _entries(temporary) if path.name.startswith("abele-"))


def _entries(folder: Path) -> Iterable[Path]:
    try:
        return sorted(folder.iterdir())
    except OSError:
        return []
