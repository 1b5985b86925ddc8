"""Files of a run for people and tools: log, tables, and the record that proves its mode.

    process.log                      every line of the run, with times
    train_metrics.csv, test_, ana_   one row per logged step
    run.json                         configuration, seeds, proof of the mode, hash of the weights

Names, columns and lines are CosmicTagger's, so that its analysis scripts read them. Tables are
appended to, never emptied.
"""

import contextlib
import datetime
import json
import logging
import os
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tqdm import tqdm

from abele.storage import atomic

LOGGED = ("loss", "Average/Non_Bkg_Accuracy", "Average/mIoU")
"""The metrics of a log line."""

LOG = "process.log"
_FORMAT = "%(asctime)s - %(levelname)s - %(message)s"

logger = logging.getLogger("cosmictagger")


class _Terminal(logging.Handler):
    """Writes above a progress bar; leaves step lines out where a bar shows them anyway."""

    def __init__(self, steps: bool):
        super().__init__()
        self._left_out = {"file"} if steps else {"file", "step"}

    def emit(self, record: logging.LogRecord) -> None:
        if getattr(record, "kind", None) not in self._left_out:
            tqdm.write(self.format(record), file=sys.stdout)


class _OfAnother(_Terminal):
    """The terminal of an instance that is not the first: its problems, which nobody else tells."""

    def __init__(self, index: int):
        super().__init__(steps=False)
        self._left_out |= {"common"}
        self.setLevel(logging.WARNING)
        self.setFormatter(logging.Formatter(_FORMAT.replace(" - %(m", f" - instance {index}: %(m")))


@contextlib.contextmanager
def logging_to(folder: Path, instance: int = 0) -> Iterator[None]:
    """Send the application's log to ``process.log`` in a folder and to the terminal.

    Args:
        folder: made if it is not there.
        instance: index; of others than the first, warnings and errors go to the terminal alone.
    """
    for handler in (handlers := _handlers(folder, instance)):
        logger.addHandler(handler)
    level, logger.propagate = logger.level, False
    logger.setLevel(logging.INFO)
    try:
        yield
    finally:
        logger.setLevel(level)
        logger.propagate = True
        for handler in handlers:
            logger.removeHandler(handler)
            handler.close()


def _handlers(folder: Path, instance: int) -> list[logging.Handler]:
    if instance:
        return [_OfAnother(instance)]
    folder.mkdir(parents=True, exist_ok=True)
    # A bar is drawn where standard error is a terminal; elsewhere lines take its place.
    handlers = [
        logging.FileHandler(folder / LOG, encoding="utf-8", errors="backslashreplace"),
        _Terminal(not sys.stderr.isatty()),
    ]
    for handler in handlers:
        handler.setFormatter(logging.Formatter(_FORMAT))
    return handlers


def warn_once(text: str) -> None:
    """Warn of what is the same on all instances: the first one says it."""
    logger.warning(text, extra={"kind": "common"})


def log_step(saver: str, step: int, metrics: Mapping[str, float]) -> None:
    """Log the line of a step."""
    logger.info(step_line(saver, step, metrics), extra={"kind": "step"})


def log_to_file(level: int, text: str, *, exc_info: bool = False) -> None:
    """Log what the terminal gets in another way, with a traceback if there is one to tell."""
    logger.log(level, text, extra={"kind": "file"}, exc_info=exc_info)


def step_line(saver: str, step: int, metrics: Mapping[str, float]) -> str:
    """Return the line of a step.

    Args:
        saver: ``train``, ``test`` or ``ana``.
        step: its number.
        metrics: those of ``LOGGED`` that are there, and ``images_per_second``, ``io_fetch_time``
            and ``step_time`` in seconds, likewise.
    """
    shown = ", ".join(f"{name}: {metrics[name]:.3g}" for name in LOGGED if name in metrics)
    speeds = (
        ("images_per_second", "Img/s"),
        ("io_fetch_time", "IOs"),
        ("step_time", "(Step)(s)"),
    )
    speed = " / ".join(f"{metrics[name]:.3g} {unit}" for name, unit in speeds if name in metrics)
    return f"{saver} Step {step} metrics: {shown}" + (f" ({speed})" if speed else "")


class Table:
    """A CSV file of metrics; rows are added at its end.

    Args:
        path: the file; a header is written where it is new. None keeps nothing.
    """

    def __init__(self, path: Path | None):
        self._path = path
        self._columns: list[str] | None = None

    def add(self, step: int, metrics: Mapping[str, float]) -> None:
        """Add a row; metrics that the table has no column for are left out."""
        if self._path is None:
            return
        columns = self._columns or self._columns_in(self._path) or list(metrics)
        lines = []
        if not self._path.exists() or not self._path.stat().st_size:
            lines.append(",".join(["step", *columns]))
        elif self._columns is None and not self._path.read_bytes().endswith(b"\n"):
            lines.append("")  # the last run was killed in the middle of a row
        self._columns = columns
        values = [_cell(name, metrics[name]) if name in metrics else "" for name in columns]
        lines.append(",".join([str(step), *values]))
        with open(self._path, "a", encoding="utf-8") as file:
            file.write("\n".join(lines) + "\n")

    @staticmethod
    def _columns_in(path: Path) -> list[str] | None:
        with contextlib.suppress(FileNotFoundError), open(path, encoding="utf-8") as file:
            return file.readline().strip().split(",")[1:] or None
        return None


def _cell(name: str, value: float) -> str:
    # A rate of 0.0003 that rises by a hundredth each step has nothing to show in five decimals.
    return f"{value:.8g}" if name == "learning_rate" else f"{value:.5f}"


class RunRecord:
    """``run.json``: what ran, where, and how it ended.

    Args:
        folder: the run's output folder; None keeps the entries in memory alone.
        first: entries known at the start.

    Attributes:
        values: the entries.
        before: those of the launch before, if it has left any.
    """

    def __init__(self, folder: Path | None, first: Mapping[str, Any]):
        self._path = None if folder is None else folder / "run.json"
        self.before = entries_of(self._path)
        self.values = {
            **({"goal": self.before["goal"]} if "goal" in self.before else {}),
            **first,
            "argv": sys.argv[1:],
            "process": os.getpid(),
            "started": _now(),
            "ended": None,
        }
        self.write()

    def update(self, values: Mapping[str, Any]) -> None:
        """Add entries and write the file, at once or not at all."""
        self.values.update(values)
        self.write()

    def end(self, how: str) -> None:
        """Note how the run ended, and when."""
        self.update({"ended": how, "finished": _now()})

    def write(self) -> None:
        """Write the file."""
        if self._path is None:
            return
        atomic.write_text(self._path, json.dumps(self.values, indent=1, default=str) + "\n")


def entries_of(path: Path | None) -> dict[str, Any]:
    """Return the entries of a ``run.json``; none where it is not there or damaged."""
    with contextlib.suppress(OSError, ValueError):
        entries = None if path is None else json.loads(path.read_text(encoding="utf-8"))
        return entries if isinstance(entries, dict) else {}
    return {}


def _now() -> str:
    return datetime.datetime.now().astimezone().isoformat(timespec="seconds")
