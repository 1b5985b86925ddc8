"""The progress bar of compilation; in a file or a pipe, one line per stage."""

import importlib.util
import sys
import threading
import time
import warnings
from collections.abc import Sequence
from typing import Any

from tqdm import tqdm

from abele.compilation.build import BuildRecord
from abele.runtime.observers import Observer
from abele.warn import show as show_line

_FORMAT = "{desc}: {percentage:3.0f}%|{bar}| {n:.0f}/{total} [{elapsed}<{remaining}]{postfix}"
_TITLE = "Graph compilation"
_STEPS = 100
# A native compile says nothing while it runs; the bar approaches the end of its stage with this
# time constant, typical of a small model, and never claims to be there before it is.
_TIME_CONSTANT_S = 15.0
_TICK_S = 0.2


class CompilationProgress(Observer):
    """The progress bar of a compilation, as a context manager that observes its stages.

    Args:
        show: nothing is printed otherwise; a bar on a terminal or in a notebook that has
            ``ipywidgets``, else a line for each stage.
        also: further observers of the stages.
    """

    def __init__(self, show: bool, also: Sequence[Observer] = ()):
        self._also = also
        in_notebook = show and _draws_widgets()
        drawn = in_notebook or (show and _is_terminal(sys.stderr))
        self._bar = (_of_notebooks() if in_notebook else tqdm)(
            total=_STEPS, desc=_TITLE, bar_format=_FORMAT, disable=not drawn
        )
        self._lines = show and not drawn
        self._began = time.monotonic()
        self._lock = threading.Lock()
        self._done = threading.Event()
        self._floor, self._since = 0.0, time.monotonic()
        self._ticker = threading.Thread(target=self._tick, daemon=True) if drawn else None
        self._show_plainly = warnings.showwarning

    def __enter__(self) -> "CompilationProgress":
        if self._ticker is not None:
            self._ticker.start()
            warnings.showwarning = self._show_warning
        return self

    def on_stage(self, stage: str, fraction: float) -> None:
        """Show that a compilation stage starts, at a fraction of the whole."""
        for observer in self._also:
            observer.on_stage(stage, fraction)
        with self._lock:
            self._floor, self._since = fraction, time.monotonic()
            self._bar.set_postfix_str(stage, refresh=False)
            self._show(fraction)
            self._write(fraction, stage)

    def _tick(self) -> None:
        while not self._done.wait(_TICK_S):
            with self._lock:
                waited = time.monotonic() - self._since
                share = waited / (waited + _TIME_CONSTANT_S)
                self._show(self._floor + (0.99 - self._floor) * share)

    def _show_warning(self, *warning: Any) -> None:
        """Print a warning on lines of its own instead of behind the progress bar."""
        with tqdm.external_write_mode(file=sys.stderr):
            self._show_plainly(*warning)

    def _show(self, fraction: float) -> None:
        self._bar.n = max(self._bar.n, int(_STEPS * fraction))
        self._bar.refresh()

    def _write(self, fraction: float, what: str) -> None:
        if self._lines:
            took = time.monotonic() - self._began
            show_line(f"{_TITLE}: {fraction:4.0%} {what} [{took:.1f} s]")

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._done.set()
        if self._ticker is not None:
            self._ticker.join()
            warnings.showwarning = self._show_plainly
        if kind is None:
            self._bar.set_postfix_str("", refresh=False)
            self._show(1.0)
            self._write(1.0, "done")
        self._bar.close()


def _of_notebooks() -> type[tqdm]:
    from tqdm import notebook  # loads ipywidgets

    return notebook.tqdm


def _draws_widgets() -> bool:
    """Return whether this process runs a notebook's cells, and widgets can be drawn there."""
    python = sys.modules.get("IPython")
    shell = None if python is None else python.get_ipython()
    has_kernel = shell is not None and "IPKernelApp" in shell.config
    return has_kernel and importlib.util.find_spec("ipywidgets") is not None


def _is_terminal(file: Any) -> bool:
    closed = getattr(file, "closed", False)
    return file is not None and not closed and hasattr(file, "isatty") and file.isatty()


def summary(record: BuildRecord) -> str:
    """Format a line about a build: target, executable hash, and compiled or cached."""
    if record.running.interpreted:
        return f"abele: target {record.target}, {record.running.sentence()}"
    took = sum(record.seconds.values())
    origin = "loaded from the cache" if record.cache == "hit" else "made"
    return (
        f"abele: target {record.target}, executable {record.executable[:12]}, "
        f"{origin} in {took:.1f} s"
    )
