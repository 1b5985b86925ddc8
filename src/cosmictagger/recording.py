"""Records of a run: log, CSV tables, timings, progress bar, TensorBoard files, and run.json."""

import contextlib
import datetime
import json
import logging
import os
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, Protocol, TypeVar

import numpy as np
import torch
from tqdm import tqdm

from abele import systems
from abele.storage import atomic

T = TypeVar("T")
S = TypeVar("S", covariant=True)

LOGGED = (
    *("loss", "Average/Non_Bkg_Accuracy", "Average/mIoU"),
    *("Average/EventLabel", "Average/VertexDetection", "Average/VertexResolution"),
)
"""Metrics shown in the log line of a step."""

LOG = "process.log"
_FORMAT = "%(asctime)s - %(levelname)s - %(message)s"

logger = logging.getLogger("cosmictagger")


class _Terminal(logging.Handler):
    """A log handler that writes above the progress bar; omits step lines where a bar is shown."""

    def __init__(self, steps: bool):
        super().__init__()
        self._left_out = {"file"} if steps else {"file", "step"}

    def emit(self, record: logging.LogRecord) -> None:
        if getattr(record, "kind", None) not in self._left_out:
            tqdm.write(self.format(record), file=sys.stdout)


class _OfAnother(_Terminal):
    """The terminal log handler of other instances than the first: their own warnings only."""

    def __init__(self, index: int):
        super().__init__(steps=False)
        self._left_out |= {"common"}
        self.setLevel(logging.WARNING)
        self.setFormatter(logging.Formatter(_FORMAT.replace(" - %(m", f" - instance {index}: %(m")))


@contextlib.contextmanager
def logging_to(folder: Path, instance: int = 0) -> Iterator[None]:
    """Route the application's log to ``process.log`` in a folder and to the terminal.

    Args:
        folder: made if it is not there.
        instance: index; of others than the first, warnings and errors go to the terminal alone.
    """
    for handler in (handlers := _handlers(folder, instance)):
        logger.addHandler(handler)
    level, logger.propagate = logger.level, False
    logger.setLevel(logging.INFO)
    # Where the disk is full, the other files tell of it, once.
    hook, threading.excepthook = threading.excepthook, _on_error_of_thread
    logging.raiseExceptions = False
    try:
        yield
    finally:
        logging.raiseExceptions, threading.excepthook = True, hook
        logger.setLevel(level)
        logger.propagate = True
        for handler in handlers:
            logger.removeHandler(handler)
            with contextlib.suppress(OSError):
                handler.close()


def _on_error_of_thread(args: Any) -> None:
    """Log a full disk in TensorBoard's thread, which raises it again at the next scalar."""
    if isinstance(args.exc_value, OSError):
        logger.warning(f"The files of TensorBoard are not complete: {args.exc_value}.")
    else:
        threading.__excepthook__(args)


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
    """Log a warning common to all instances once, on the first instance."""
    logger.warning(text, extra={"kind": "common"})


def log_step(saver: str, step: int, metrics: Mapping[str, float]) -> None:
    """Log the metrics of a step in one line."""
    logger.info(step_line(saver, step, metrics), extra={"kind": "step"})


def log_to_file(level: int, text: str, *, exc_info: bool = False) -> None:
    """Log a message to the file only, optionally with traceback."""
    logger.log(level, text, extra={"kind": "file"}, exc_info=exc_info)


def step_line(saver: str, step: int, metrics: Mapping[str, float]) -> str:
    """Format the metrics of a step as a log line.

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


@contextlib.contextmanager
def _naming(path: str | Path) -> Iterator[None]:
    """Have an error of the system name the file, or the folder of files, that was written."""
    try:
        yield
    except OSError as error:
        error.filename = str(path)
        raise


class Table:
    """A CSV file of metrics; rows are appended.

    Args:
        path: the file; a header is written where it is new. None keeps nothing.
    """

    def __init__(self, path: Path | None):
        self._path = path
        self._columns: list[str] | None = None

    def add(self, step: int, metrics: Mapping[str, float]) -> None:
        """Append a row of metrics; metrics without a column are omitted."""
        if self._path is None:
            return
        columns = self._columns or self._columns_in(self._path) or list(metrics)
        lines = []
        if not self._path.exists() or not self._path.stat().st_size:
            lines.append(",".join(["step", *columns]))
        elif self._columns is None and not self._path.read_bytes().endswith(b"\n"):
            lines.append("")  # the last run was killed in the middle of a row
        self._columns = columns
        # A rate of 0.0003 that rises by a hundredth each step has nothing to show in five decimals.
        digits = {"learning_rate": ".8g"}
        values = [f"{metrics[n]:{digits.get(n, '.5f')}}" if n in metrics else "" for n in columns]
        lines.append(",".join([str(step), *values]))
        with _naming(self._path), open(self._path, "a", encoding="utf-8") as file:
            file.write("\n".join(lines) + "\n")

    @staticmethod
    def _columns_in(path: Path) -> list[str] | None:
        with contextlib.suppress(FileNotFoundError), open(path, encoding="utf-8") as file:
            return file.readline().strip().split(",")[1:] or None
        return None


_ROOM = 500  # characters that are left in the record of a run for how it ends


class RunRecord:
    """The record of a run, ``run.json``: program, machine and outcome.

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
        """Add entries and write the record atomically."""
        self.values.update(values)
        self.write()

    def end(self, how: str) -> None:
        """Note how the run ended, and when; in the present file where there is no room for two."""
        try:
            self.update({"ended": how, "finished": _now()})
        except OSError:
            assert self._path is not None  # or nothing had been written
            with open(self._path, "r+", encoding="utf-8") as file:
                file.truncate(file.write(self._text()))

    def write(self) -> None:
        """Write the record of the run to its file."""
        if self._path is not None:
            atomic.write_text(self._path, self._text() + " " * _ROOM)

    def _text(self) -> str:
        return json.dumps(self.values, indent=1, default=str) + "\n"


def entries_of(path: Path | None) -> dict[str, Any]:
    """Return the entries of a ``run.json``; empty if it is missing or damaged."""
    with contextlib.suppress(OSError, ValueError):
        entries = None if path is None else json.loads(path.read_text(encoding="utf-8"))
        return entries if isinstance(entries, dict) else {}
    return {}


def _now() -> str:
    return datetime.datetime.now().astimezone().isoformat(timespec="seconds")


PARTS = (
    *("train", "val", "io", "forward", "backward", "checkpoint"),
    *("loss", "summary", "log", "optimizer", "metrics"),
)
"""Parts of an iteration, as CosmicTagger's profile files name them.

In CPU mode ``train`` is the sum of forward, loss, backward, optimizer and of moving data. Compiled
modes run them as one program and a GPU runs them asynchronously, so there they stay zero.
"""

_US = "timedelta64[us]"
_RECORD = np.dtype(
    [("i", "i4"), ("start", "datetime64[us]"), ("iteration", _US), *((p, _US) for p in PARTS)]
)
_TIMED = ("iteration", *PARTS)
_OF_A_STEP = ("forward", "loss", "backward", "optimizer")


class Timings:
    """Wall-clock times of the iterations of a run and their parts."""

    def __init__(self):
        self._rows: list[np.ndarray] = []
        self._row = np.zeros((), _RECORD)
        self._started = 0.0

    @contextlib.contextmanager
    def iteration(self, index: int) -> Iterator[None]:
        """Time an iteration; recorded only if it ends without an error."""
        self._row = np.zeros((), _RECORD)
        self._row["i"] = index
        self._row["start"] = np.datetime64(time.time_ns() // 1000, "us")
        self._started = time.perf_counter()
        yield
        self._row["iteration"] = _microseconds(time.perf_counter() - self._started)
        self._rows.append(self._row)
        self._row = np.zeros((), _RECORD)  # what follows, like a last checkpoint, is of none

    @contextlib.contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Time a part of the current iteration; repeated parts add up."""
        started = time.perf_counter()
        yield
        self.add(name, time.perf_counter() - started)

    def add(self, name: str, seconds: float) -> None:
        """Add seconds measured elsewhere to a part of the current iteration."""
        self._row[name] += _microseconds(seconds)

    def seconds(self, name: str) -> float:
        """Return the seconds so far in a part of the current iteration."""
        return float(self._row[name] / np.timedelta64(1, "s"))

    @property
    def iterations(self) -> list[float]:
        """Seconds of each recorded iteration."""
        return [float(row["iteration"] / np.timedelta64(1, "s")) for row in self._rows]

    def split(self) -> dict[str, float]:
        """Return mean seconds of an iteration and its parts, without the first if possible.

        Returns:
            ``iteration`` and those of ``PARTS`` that took any time.
        """
        rows = np.array(self._rows[1:] or self._rows, _RECORD)
        if not len(rows):
            return {}
        means = {name: float(rows[name].astype(np.int64).mean() / 1e6) for name in _TIMED}
        return {name: seconds for name, seconds in means.items() if seconds > 0}

    def save(self, folder: Path, instance: int = 0) -> Path:
        """Write ``profiling_info_rank_0.npy``: a structured array, one row per iteration."""
        path = folder / f"profiling_info_rank_{instance}.npy"
        rows = np.array(self._rows, _RECORD)
        with atomic.replacing(path) as file:
            np.save(file, rows, allow_pickle=False)
        return path


def _microseconds(seconds: float) -> np.timedelta64:
    return np.timedelta64(round(seconds * 1e6), "us")


def throughput(iterations: list[float], images: float) -> dict[str, float]:
    """Return images per second, excluding the first iterations (compilation, warm-up).

    Returns:
        By name: ``all``, ``except_first``, ``except_first_two``, and ``last_40`` of longer runs.
    """
    parts = {"all": iterations, **{name: times for name, _, times in _without_first(iterations)}}
    return {n: images * len(times) / sum(times) for n, times in parts.items() if sum(times) > 0}


def _without_first(iterations: list[float]) -> list[tuple[str, str, list[float]]]:
    """Return (name, text, times) of the ranges of iterations in the throughput report."""
    parts = [
        ("except_first", "except first iteration", iterations[1:]),
        ("except_first_two", "except first two iterations", iterations[2:]),
    ]
    if len(iterations) > 40:
        parts.append(("last_40", "last 40 iterations", iterations[-40:]))
    return parts


def split_line(split: Mapping[str, float]) -> str:
    """Format the mean times of an iteration's parts (of ``Timings.split``) in one line."""
    others = [name for name in PARTS if name not in ("io", "train", *_OF_A_STEP)]

    def said(*names: str) -> str:
        return ", ".join(f"{name} {split[name]:.3g}" for name in names if name in split)

    step = said(*_OF_A_STEP)
    if "train" in split:
        step = said("train") + (f" ({step})" if step else "")
    parts = ", ".join(part for part in (said("io"), step, said(*others)) if part)
    return f"Mean seconds of an iteration: {split['iteration']:.3g}: {parts}"


def closing_lines(iterations: list[float], images: float) -> list[str]:
    """Return the throughput lines at the end of a run, as CosmicTagger's analysis parses them."""
    rates = throughput(iterations, images)
    lines = [f"Total time to batch_process: {sum(iterations):.4f}"]
    for name, words, times in _without_first(iterations):
        if name in rates:
            lines.append(
                f"Total time to batch process {words}: {sum(times):.4f}, "
                f"throughput: {rates[name]:.4f}"
            )
    times, busy = sorted(iterations[2:]), systems.load() > (os.cpu_count() or 1) + 1
    if busy and len(times) > 9 and times[-1] > 100 * times[0] and torch.get_num_threads() > 1:
        lines.append(
            f"Steps took {times[0]:.2g} to {times[-1]:.2g} s: their threads wait for each other "
            "where other programs keep the cores busy. OMP_NUM_THREADS=1 in the environment helps."
        )
    return lines


class Bar:
    """A progress bar with loss, mIoU and images per second; a context manager.

    Args:
        total: steps of this launch.
        label: the mode.
        file: where it is drawn; default standard error, and only if that is a terminal.
        shown: False draws nothing: another instance does.
    """

    def __init__(
        self, total: int | None, label: str, file: IO[str] | None = None, *, shown: bool = True
    ):
        self._bar: Any = tqdm(
            total=total,
            desc=label,
            unit="step",
            file=file,
            disable=not shown or (None if file is None else False),
            dynamic_ncols=True,
        )

    def __enter__(self) -> "Bar":
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.close()

    def step(self, metrics: Mapping[str, float]) -> None:
        """Advance the bar by a step and show its metrics."""
        shown = {
            "loss": ("loss", ".3f"),
            "Average/mIoU": ("mIoU", ".3f"),
            "images_per_second": ("images/s", ".2f"),
        }
        texts = {n: format(metrics[k], how) for k, (n, how) in shown.items() if k in metrics}
        if texts:
            self._bar.set_postfix(texts, refresh=False)
        self._bar.update()


_SILENCE = 5.0  # seconds


class _Sized(Protocol[S]):
    def __iter__(self) -> Iterator[S]: ...
    def __len__(self) -> int: ...


def progress(items: _Sized[T], label: str) -> Iterator[T]:
    """Yield items behind a progress bar; where there is no terminal, say every five seconds.

    Args:
        items: what takes long.
        label: what is done with them, such as ``Drawing events``.
    """
    said = time.monotonic()
    for number, item in enumerate(tqdm(items, label, disable=None)):
        if time.monotonic() - said > _SILENCE and not sys.stderr.isatty():
            said = time.monotonic()
            text = f"{label}: {number} of {len(items)}"
            logger.info(text) if logger.handlers else print(text, file=sys.stderr, flush=True)
        yield item


IMAGES_EVERY = 25
"""Steps between two TensorBoard images."""


class Summaries:
    """A TensorBoard writer of metrics and images of a run.

    Args:
        folder: of its files.
        step: steps from this one on that earlier files hold are of a run that was cut off, and
            are not shown.
        on: False writes nothing.
    """

    def __init__(self, folder: Path, step: int, on: bool = True):
        self._writer: Any = None
        if on:
            # Takes seconds, so only where it is wanted.
            from torch.utils.tensorboard import SummaryWriter

            self._writer = SummaryWriter(str(folder), purge_step=step or None)

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        """Write one TensorBoard scalar per name."""
        if self._writer is not None:
            with _naming(self._writer.log_dir):
                for name, value in values.items():
                    self._writer.add_scalar(name, value, step)

    def images(self, step: int, logits: Sequence[torch.Tensor], label: torch.Tensor) -> None:
        """Write TensorBoard images of prediction and label of the first event, per plane.

        Args:
            step: its number.
            logits: three of [B, 3, H, W].
            label: int64 [B, 3, H, W].
        """
        if self._writer is None:
            return
        for plane, scores in enumerate(logits):
            predicted = scores[0].float().argmax(0)
            for name, classes in (("prediction", predicted), ("label", label[0, plane])):
                grey = (classes.float() / 2)[None].cpu()
                self._writer.add_image(f"{name}/plane_{plane}", grey, step)

    def close(self) -> None:
        """Flush buffered TensorBoard data and close."""
        if self._writer is not None:
            self._writer.close()
