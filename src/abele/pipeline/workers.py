"""Threads that stay: one for each stage of a pipeline, with its share of the cores.

Compiled code and torch's operators let other threads run, so threads compute at the same time and
share memory, and what a stage hands to the next is not copied.
"""

from __future__ import annotations

import contextvars
import os
import queue
import threading
import weakref
from collections.abc import Callable, Sequence

import torch

from abele import processor

Job = Callable[[], None]

# What a worker is handed: a job, what it sees, whom to tell and the worker's number; None ends it.
_Order = tuple[contextvars.Context, Job, "_Done", int]
_Inbox = queue.SimpleQueue[_Order | None]
#: torch's number of threads for new threads exists once per process.
_thread_count_lock = threading.Lock()


def share_of_cores(workers: int) -> int:
    """Return torch's threads for each of ``workers``; together at most the cores, if possible."""
    return max(1, min(torch.get_num_threads(), processor.cores() // workers))


class WorkerPool:
    """Workers that end with this object, or at ``close``.

    Args:
        size: how many.
        threads: of torch, for each.
    """

    def __init__(self, size: int, threads: int):
        self.size, self.threads = size, threads
        self._running = threading.Lock()
        self._started_by = 0
        self._threads: list[threading.Thread] = []
        self._inboxes: list[_Inbox] = []
        self._finalizer: weakref.finalize[[Sequence[_Inbox]], WorkerPool] | None = None

    def run(self, jobs: Sequence[Job], stop: Callable[[], None]) -> None:
        """Run one job per worker and wait until all are done.

        Args:
            jobs: one per worker; each sees the context variables of the caller.
            stop: has jobs under way end soon; called if the caller is interrupted.

        Raises:
            BaseException: the first that a job ended with.
        """
        with self._running:
            if self._started_by != os.getpid():  # a forked child has none of them
                self._start()
            done = _Done(len(jobs))
            contexts = [contextvars.copy_context() for _ in jobs]
            errors = done.wait(lambda: self._hand_out(jobs, contexts, done), stop)
        if errors:
            raise errors[0]

    def _hand_out(
        self, jobs: Sequence[Job], contexts: list[contextvars.Context], done: _Done
    ) -> None:
        # An interruption may come at any place; what is handed out twice has been stopped by then.
        while contexts:
            index = len(contexts) - 1
            self._inboxes[index].put((contexts[index], jobs[index], done, index))
            contexts.pop()

    def close(self) -> None:
        """End the workers; the next ``run`` starts others."""
        with self._running:
            threads, self._threads, self._started_by = self._threads, [], 0
            if self._finalizer is not None:
                self._finalizer()
            for thread in threads:
                thread.join()

    def _start(self) -> None:
        self._inboxes = [queue.SimpleQueue() for _ in range(self.size)]
        self._threads = [
            _started(f"abele-stage-{index}", inbox, self.threads)
            for index, inbox in enumerate(self._inboxes)
        ]
        self._finalizer = weakref.finalize(self, _stop, self._inboxes)
        self._started_by = os.getpid()


class _Done:
    """The ends of all jobs, and their errors."""

    def __init__(self, jobs: int):
        self._left = set(range(jobs))
        self._errors: list[BaseException] = []
        self._all = threading.Event()

    def one(self, index: int, error: BaseException | None) -> None:
        """Record the end of one job."""
        if error is not None:
            self._errors.append(error)
        self._left.discard(index)
        if not self._left:
            self._all.set()

    def wait(self, begin: Callable[[], None], stop: Callable[[], None]) -> list[BaseException]:
        """Wait for all jobs and return their errors, the caller's interruption first.

        Args:
            begin: hands out the jobs; does what is left to do if it is called again.
            stop: has jobs end soon.
        """
        interrupted: list[BaseException] = []
        while not self._all.is_set():
            try:
                begin()
                # Now and then: a signal that another thread received is handled in this one.
                self._all.wait(0.2)
            except BaseException as problem:  # noqa: BLE001 - returned to be raised
                # Nothing may run on behind the caller's back, so this waits for the jobs.
                interrupted.append(problem)
                stop()
        return interrupted + self._errors


def _started(name: str, inbox: _Inbox, threads: int) -> threading.Thread:
    """Start a worker with its own number of torch's threads; the caller's number stays.

    torch keeps one number per thread, which a thread takes over when it first asks for it, and
    setting it sets the one that new threads take.
    """
    ready = threading.Event()
    # A daemon: an interpreter that ends does not wait for threads that wait.
    worker = threading.Thread(target=_work, args=(inbox, ready), name=name, daemon=True)
    with _thread_count_lock:
        before = torch.get_num_threads()
        torch.set_num_threads(threads)
        try:
            worker.start()
            ready.wait()
        finally:
            torch.set_num_threads(before)
    return worker


def _stop(inboxes: Sequence[_Inbox]) -> None:
    for inbox in inboxes:
        inbox.put(None)


def _work(inbox: _Inbox, ready: threading.Event) -> None:
    torch.get_num_threads()
    ready.set()
    while (order := inbox.get()) is not None:
        context, job, done, index = order
        error = None
        try:
            context.run(job)
        except BaseException as problem:  # noqa: BLE001 - raised again by the caller
            error = problem
        # Nothing of a job may be kept alive by a worker that waits.
        del order, context, job
        done.one(index, error)
        del error, done, index
