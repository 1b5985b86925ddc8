"""Tracing of a program's activity on the host, enabled by the environment variable PVTI_OPTIONS.

    PVTI_OPTIONS='{"enable": "true", "directory": "traces"}' python train.py

writes ``traces/abele_DATE_PID.json``, which chrome://tracing and ui.perfetto.dev show. Further
keys: ``channels``, those to write, a list or separated by commas (default all), and ``duration``,
seconds after which events are dropped (default "0", never). The variable is read when poptorch is
imported; without it nothing here costs anything. Programs can add channels of their own.

Differs from the original: the file is a Chrome trace, not a database. It has the JSON array form of
the "Trace Event Format" (google/catapult), whose readers accept a list without an end: a process
that is killed leaves a readable file.
"""

import atexit
import contextlib
import functools
import json
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TextIO, TypeVar, cast

from abele.runtime.observers import CallRecord, Observer
from poptorch._logging import logger

__all__ = ["Channel"]

ENVIRONMENT = "PVTI_OPTIONS"
_TRUE = ("true", "1", "on", "yes")
_Method = TypeVar("_Method", bound=Callable[..., Any])


def _named(kind: str, name: str, pid: int, thread: int = 0) -> dict[str, Any]:
    """Return the trace event that names a process or a thread."""
    return {"ph": "M", "name": kind, "pid": pid, "tid": thread, "args": {"name": name}}


class Recorder:
    """The writer of one process's trace event file, for all channels.

    Args:
        directory: folder of the file, which is created with the first event.
        channels: the channels that are written; empty for all.
        duration: seconds after which events are dropped; 0 for never.
    """

    def __init__(self, directory: str = ".", channels: Any = "", duration: float = 0.0):
        self._directory = Path(directory)
        listed = channels.split(",") if isinstance(channels, str) else channels
        self._channels = {name.strip() for name in listed if name.strip()}
        self._last = time.perf_counter_ns() + 1e9 * duration if duration else float("inf")
        self._file: TextIO | None = None
        self._pid = 0
        self._threads: set[int] = set()
        self._lock = threading.RLock()  # a wrapper that is collected meanwhile adds events too

    def wants(self, channel: str) -> bool:
        """Return whether events of a trace channel are written."""
        return not self._channels or channel in self._channels

    def add(self, channel: str, name: str, begin: int) -> None:
        """Write a trace event that began at ``begin`` (ns) and ends now."""
        end = time.perf_counter_ns()
        thread = threading.get_native_id()
        times = {"ts": begin / 1e3, "dur": (end - begin) / 1e3}  # in microseconds
        with self._lock:
            if begin > self._last:
                return
            file = self._of_this_process()
            if thread not in self._threads:
                self._threads.add(thread)
                row = _named("thread_name", threading.current_thread().name, self._pid, thread)
                file.write(f",\n{json.dumps(row)}")
            event = {"ph": "X", "name": name, "cat": channel, "pid": self._pid, "tid": thread}
            file.write(f",\n{json.dumps({**event, 'args': {}, **times})}")

    def _of_this_process(self) -> TextIO:
        # A forked worker inherits the file of its parent and must not write to it.
        if self._file is None or self._pid != os.getpid():
            self._pid, self._threads = os.getpid(), set()
            path = self._directory / f"abele_{time.strftime('%Y%m%d_%H%M%S')}_{self._pid}.json"
            path.parent.mkdir(parents=True, exist_ok=True)
            program = _named("process_name", Path(sys.argv[0]).name or "python", self._pid)
            file = path.open("w", encoding="utf-8")
            file.write(f"[\n{json.dumps(program)}")
            self._file = file
        return self._file

    def close(self) -> None:
        """Close the trace file of this process; later events are dropped."""
        with self._lock:
            self._last = 0
            if self._file is not None and self._pid == os.getpid():
                self._file.write("\n]\n")
                self._file.close()
                self._file = None


def recorder_from(text: str | None) -> Recorder | None:
    """Create the trace recorder that PVTI_OPTIONS configures; None if tracing is off.

    Text that cannot be read turns tracing on with defaults, as in the original, and warns.
    """
    if not text:
        return None
    try:
        options = json.loads(text)
        if not isinstance(options, dict):
            raise ValueError("it is not an object")
        if str(options.get("enable", "false")).lower() not in _TRUE:
            return None
        return Recorder(
            str(options.get("directory", ".")),
            options.get("channels", ""),
            float(options.get("duration", 0)),
        )
    except ValueError as problem:
        logger.warning(
            '%s=%r cannot be read (%s); tracing with defaults. Give JSON such as {"enable": "true"'
            ', "directory": "traces"}, or unset it.',
            ENVIRONMENT,
            text,
            problem,
        )
        return Recorder()


_recorder = recorder_from(os.environ.get(ENVIRONMENT))
if _recorder is not None:
    atexit.register(_recorder.close)


class _Calls(Observer):
    """An observer that records each call of a session as a trace event."""

    def __init__(self, recorder: Recorder, channel: str):
        self._recorder, self._channel = recorder, channel

    def on_call_end(self, call: CallRecord) -> None:
        """Record a call, including a failed one, as a trace event."""
        self._recorder.add(self._channel, "modelExecution", call.began_ns)


class Channel:
    """A named source of trace events; does nothing unless PVTI_OPTIONS was set at import.

    Args:
        name: name that its events are grouped under.
    """

    def __init__(self, name: str):
        self._name = name
        self._recorder = _recorder if _recorder is not None and _recorder.wants(name) else None

    def instrument(self, obj: Any, *methods: str) -> Any:
        """Record every call of the named methods of an object as a trace event.

        Args:
            obj: the object; changed in place.
            methods: names of its methods.

        Returns:
            The object.

        Raises:
            AttributeError: the object has no such method.
        """
        if self._recorder is not None:
            for name in methods:
                event = f"{type(obj).__name__}.{name}"
                setattr(obj, name, self._with_event(getattr(obj, name), event))
        return obj

    def _with_event(self, function: Any, event: str) -> Any:
        @functools.wraps(function)
        def traced(*args: Any, **kwargs: Any) -> Any:
            with self.tracepoint(event):
                return function(*args, **kwargs)

        return traced

    def tracepoint(self, name: str) -> contextlib.AbstractContextManager[None]:
        """Record the execution of a ``with`` block as a trace event."""
        return contextlib.nullcontext() if self._recorder is None else self._open(name)

    @contextlib.contextmanager
    def _open(self, name: str) -> Iterator[None]:
        begin = time.perf_counter_ns()
        try:
            yield
        finally:
            assert self._recorder is not None
            self._recorder.add(self._name, name, begin)

    def _iterate(self, batches: Iterator[Any], event: str) -> Iterator[Any]:
        """Return an iterator that records the wait for each item as a trace event."""
        return batches if self._recorder is None else self._traced_items(batches, event)

    def _traced_items(self, batches: Iterator[Any], event: str) -> Iterator[Any]:
        while True:
            with self.tracepoint(event):
                try:
                    batch = next(batches)
                except StopIteration:
                    return
            yield batch


TRAINING = Channel("poptorch.trainingModel")
INFERENCE = Channel("poptorch.inferenceModel")
DATALOADER = Channel("poptorch.DataLoader")


def channel_of(training: bool) -> Channel:
    """Return the trace channel of training or inference models."""
    return TRAINING if training else INFERENCE


def call_observers(training: bool) -> tuple[Observer, ...]:
    """Return the observers that trace a session's calls; none unless the channel is written."""
    channel = channel_of(training)
    return () if channel._recorder is None else (_Calls(channel._recorder, channel._name),)


def traced(event: str, model: str = "_model") -> Callable[[_Method], _Method]:
    """Decorate a method to make its calls trace events; ``model`` names the model's attribute."""

    def decorate(method: _Method) -> _Method:
        @functools.wraps(method)
        def with_event(self: Any, *args: Any, **kwargs: Any) -> Any:
            with channel_of(getattr(self, model).training).tracepoint(event):
                return method(self, *args, **kwargs)

        return cast("_Method", with_event)

    return decorate
