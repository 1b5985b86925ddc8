"""Execution of a cut program's parts on several micro-batches in parallel."""

from __future__ import annotations

import contextlib
import contextvars
import dataclasses
import functools
import os
import queue
import threading
import weakref
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from abele import processor
from abele.pipeline.cut import Cut, Part, result_name
from abele.program import Role
from abele.targets.base import Run

Tensors = list[torch.Tensor]


@dataclasses.dataclass(frozen=True)
class MicroBatch:
    """The inputs of one micro-batch in a pipeline.

    Attributes:
        replica: index of the replica whose buffers and random stream it uses.
        wanted: whether the pipeline returns its results.
    """

    replica: int
    rows: Sequence[torch.Tensor]
    wanted: bool


@dataclasses.dataclass(frozen=True)
class Timed:
    """Start and end of a pipeline task, as marks of the session's clock."""

    task: Task
    begin: Any
    end: Any


@dataclasses.dataclass
class Passage:
    """The results of one passage of micro-batches through the pipeline.

    Attributes:
        outputs: per micro-batch, the outputs of the whole program, where wanted.
        times: of every task, in the order in which tasks ended.
        most_bytes: per stage, the peak bytes saved for backward.
        most_waiting: per stage, the peak number of micro-batches saved for backward.
    """

    outputs: list[Tensors | None]
    times: list[Timed]
    most_bytes: list[int]
    most_waiting: list[int]


class _Stopped(BaseException):
    """The exception that ends a worker's job because another worker has failed."""


@dataclasses.dataclass(frozen=True)
class _Ready:
    """The call of a part's program, and the positions of its inputs among its arguments."""

    part: Part
    run: Run
    arguments: Sequence[Tensors]  # per replica
    inputs: Sequence[tuple[int, int]]  # position, index of the batch's tensor
    values: Sequence[tuple[int, str]]  # position, name
    stream: Callable[[int], contextlib.AbstractContextManager[None]]


class Pipeline:
    """A runner of the parts of a program in the order of a schedule.

    Args:
        cut: the parts.
        runs: the call of each program, by name.
        arguments: returns a program's argument list for a replica, without the batch.
        stream: opens a replica's stream of random numbers.
        device: where the parts run; on a GPU, all in the caller's stream.
        pool: one worker per stage.
        mark: records a time mark.
    """

    def __init__(
        self,
        cut: Cut,
        runs: Mapping[str, Run],
        arguments: Callable[[Any], Sequence[Tensors]],
        stream: Callable[[int], contextlib.AbstractContextManager[None]],
        device: torch.device,
        pool: WorkerPool,
        mark: Callable[[], Any],
    ):
        self.cut, self.pool, self.mark, self.device = cut, pool, mark, device
        batch = [s.name for s in cut.whole.inputs if s.role is Role.INPUT]
        self.ready: dict[tuple[int, bool], _Ready] = {}
        self.takers: Counter[str] = Counter()
        for part in cut.parts:
            if part.program is None:
                continue
            self.takers.update(part.takes.keys())
            at = [(i, s.name) for i, s in enumerate(part.program.inputs) if s.role is Role.INPUT]
            random = part.program.uses_random
            self.ready[part.stage, part.backward] = _Ready(
                part,
                runs[part.program.name],
                arguments(part.program),
                [(i, batch.index(name)) for i, name in at if name not in part.takes],
                [(i, name) for i, name in at if name in part.takes],
                stream if random else _no_stream,
            )
        # What a stage's backward takes from parts of forward waits for it.
        self.stash = [self._stash(stage) for stage in range(cut.stages)]

    def _stash(self, stage: int) -> set[str]:
        ready = self.ready.get((stage, True))
        if ready is None:
            return set()
        return {name for name, producer in ready.part.takes.items() if producer < self.cut.stages}

    def run(self, micro_batches: Sequence[MicroBatch]) -> Passage:
        """Pass micro-batches through all stages and wait until all have left.

        Raises:
            BaseException: the first that a part raised; nothing runs any more then.
        """
        make = one_forward_one_backward if self.cut.training else forward_only
        order = make(self.cut.stages, len(micro_batches))
        state = _RunState(self, micro_batches)
        self.pool.run([state.job(tasks) for tasks in order], state.stop)
        if state.failure is not None:
            raise state.failure
        return state.passage


def _no_stream(replica: int) -> contextlib.AbstractContextManager[None]:
    del replica
    return contextlib.nullcontext()


class _RunState:
    """The state of an active passage through the pipeline, shared by its workers."""

    def __init__(self, pipeline: Pipeline, micro_batches: Sequence[MicroBatch]):
        self.pipeline, self.micro_batches = pipeline, micro_batches
        self.training = pipeline.cut.training
        self.changed = threading.Condition()
        gpu = pipeline.device.type == "cuda"
        self.stream = torch.cuda.current_stream(pipeline.device) if gpu else None
        self.ended: set[Task] = set()
        self.values: list[dict[str, torch.Tensor]] = [{} for _ in micro_batches]
        self.left = [Counter(pipeline.takers) for _ in micro_batches]
        self.failure: BaseException | None = None
        self.stopped = False
        stages = pipeline.cut.stages
        self.stashed_bytes: list[dict[int, int]] = [{} for _ in range(stages)]
        self.passage = Passage([None] * len(micro_batches), [], [0] * stages, [0] * stages)

    def job(self, tasks: Sequence[Task]) -> Callable[[], None]:
        """Return a worker's job: the tasks of one pipeline stage."""

        def work() -> None:
            try:
                with torch.cuda.stream(self.stream):  # does nothing on the host
                    for task in tasks:
                        self._do(task)
            except _Stopped:
                pass
            except BaseException as error:  # noqa: BLE001 - raised again by the caller
                self._fail(error)

        return work

    def stop(self) -> None:
        """Stop every pipeline worker after its current task."""
        with self.changed:
            self.stopped = True
            self.changed.notify_all()

    def _fail(self, error: BaseException) -> None:
        with self.changed:
            self.failure = self.failure or error
        self.stop()

    def _do(self, task: Task) -> None:
        self._await(task)
        ready = self.pipeline.ready.get((task.stage, task.backward))
        outputs: Tensors = []
        begin = end = None
        if ready is not None:
            micro_batch = self.micro_batches[task.micro_batch]
            arguments = ready.arguments[micro_batch.replica].copy()
            for position, index in ready.inputs:
                arguments[position] = micro_batch.rows[index]
            values = self.values[task.micro_batch]
            for position, name in ready.values:
                arguments[position] = values[name]
            begin = self.pipeline.mark()
            with ready.stream(micro_batch.replica):
                outputs = ready.run(arguments)
            end = self.pipeline.mark()
            del arguments, values
        with self.changed:
            self._leave(task, ready, outputs)
            if ready is not None:
                self.passage.times.append(Timed(task, begin, end))
            self.ended.add(task)
            self.changed.notify_all()

    def _await(self, task: Task) -> None:
        needed = needs(task, self.pipeline.cut.stages, training=self.training)
        with self.changed:
            self.changed.wait_for(lambda: self.stopped or self.ended.issuperset(needed))
            if self.stopped:
                raise _Stopped

    def _leave(self, task: Task, ready: _Ready | None, outputs: Tensors) -> None:
        """Store the outputs of a task and drop values without further readers."""
        values, readers = self.values[task.micro_batch], self.left[task.micro_batch]
        results = result_name if self.micro_batches[task.micro_batch].wanted else None
        if ready is not None:
            for name, value in zip(ready.part.gives, outputs, strict=True):
                if readers[name] or (results and name.startswith("result.")):
                    values[name] = value
            for name in ready.part.takes:
                readers[name] -= 1
                if not readers[name] and not (results and name.startswith("result.")):
                    values.pop(name, None)
        if self.training:
            self._count_stash(task, values)
        if self._is_last(task) and results:
            count = len(self.pipeline.cut.whole.outputs)
            self.passage.outputs[task.micro_batch] = [
                values.pop(results(index)) for index in range(count)
            ]

    def _is_last(self, task: Task) -> bool:
        if self.training:
            return task.backward and task.stage == 0
        return task.stage == self.pipeline.cut.stages - 1

    def _count_stash(self, task: Task, values: Mapping[str, torch.Tensor]) -> None:
        """Count the bytes that a stage saves between a micro-batch's forward and backward."""
        stage = task.stage
        stashed = self.stashed_bytes[stage]
        if task.backward:
            stashed.pop(task.micro_batch, None)
            return
        names = [name for name in self.pipeline.stash[stage] if name in values]
        stashed[task.micro_batch] = sum(values[name].nbytes for name in names)
        passage = self.passage
        passage.most_bytes[stage] = max(passage.most_bytes[stage], sum(stashed.values()))
        passage.most_waiting[stage] = max(passage.most_waiting[stage], len(stashed))


@dataclasses.dataclass(frozen=True, order=True)
class Task:
    """A task of a pipeline: one stage's forward or backward on one micro-batch.

    Attributes:
        stage: index of the stage, from 0.
        micro_batch: index of the micro-batch, from 0.
        backward: whether it is a backward task.
    """

    stage: int
    micro_batch: int
    backward: bool = False


Order = list[list[Task]]

#: Micro-batches that may wait between two stages in inference.
AHEAD = 2


def one_forward_one_backward(stages: int, micro_batches: int) -> Order:
    """Return each pipeline stage's task order of a 1F1B schedule, for training."""
    order: Order = []
    for stage in range(stages):
        ahead = min(stages - stage - 1, micro_batches)
        forward = [Task(stage, k) for k in range(micro_batches)]
        backward = [Task(stage, k, backward=True) for k in range(micro_batches)]
        tasks = forward[:ahead]
        for pair in zip(forward[ahead:], backward, strict=False):
            tasks += pair
        order.append([*tasks, *backward[micro_batches - ahead :]])
    return order


def forward_only(stages: int, micro_batches: int) -> Order:
    """Return each pipeline stage's task order for inference."""
    return [[Task(stage, k) for k in range(micro_batches)] for stage in range(stages)]


def needs(task: Task, stages: int, *, training: bool) -> list[Task]:
    """Return the tasks of other pipeline stages on which a task depends."""
    stage, k = task.stage, task.micro_batch
    if task.backward:
        return [Task(stage + 1, k, backward=True)] if stage + 1 < stages else []
    tasks = [Task(stage - 1, k)] if stage else []
    if not training and stage + 1 < stages and k >= AHEAD:
        # Otherwise a fast stage would fill the memory in front of a slow one.
        tasks.append(Task(stage + 1, k - AHEAD))
    return tasks


def ideal_bubble(stages: int, micro_batches: int) -> float:
    """Return the idle share of stages of equal speed: (p-1) / (m+p-1)."""
    return (stages - 1) / (micro_batches + stages - 1)


def finished(
    order: Order, seconds: Callable[[Task], float], *, training: bool
) -> dict[Task, float]:
    """Compute the end time of each pipeline task, with one processor per stage.

    Args:
        order: the tasks of each stage.
        seconds: returns the duration of a task.
        training: as for ``needs``.

    Raises:
        ValueError: stages would wait for each other for ever.
    """
    ends: dict[Task, float] = {}
    free = [0.0] * len(order)
    left: list[Sequence[Task]] = [list(tasks) for tasks in order]
    while any(left):
        moved = False
        for stage, tasks in enumerate(left):
            if not tasks:
                continue
            wanted = needs(tasks[0], len(order), training=training)
            if all(task in ends for task in wanted):
                begin = max([free[stage], *(ends[task] for task in wanted)])
                ends[tasks[0]] = free[stage] = begin + seconds(tasks[0])
                left[stage], moved = tasks[1:], True
        if not moved:
            raise ValueError(f"Stages wait for each other: {[tasks[:1] for tasks in left]}.")
    return ends


Job = Callable[[], None]
#: torch's number of threads for new threads exists once per process.
_thread_count_lock = threading.Lock()


def share_of_cores(workers: int) -> int:
    """Return the torch threads per pipeline worker; together at most the cores, if possible."""
    return max(1, min(torch.get_num_threads(), processor.cores() // workers))


#: Calls of a thread; None ends it.
_Inbox = queue.SimpleQueue[Job | None]


class _Threads:
    """Threads that run the calls of one inbox each.

    Those of ``concurrent.futures`` are left locked where the caller is interrupted between two
    lines of it, and both sides wait for ever. A ``SimpleQueue`` is whole after any interruption.
    """

    def __init__(self, size: int):
        self._inboxes = [_Inbox() for _ in range(size)]
        self._threads = [
            threading.Thread(target=_serve, args=(inbox,), name=f"abele-stage_{i}", daemon=True)
            for i, inbox in enumerate(self._inboxes)
        ]
        self._end = weakref.finalize(self, _dismiss, self._inboxes)

    def start(self) -> None:
        """Start the threads, and initialise torch's number of threads in each."""
        for thread in self._threads:
            thread.start()
        self.run([_initialise] * len(self._threads), lambda: None)

    def run(self, jobs: Sequence[Job], stop: Callable[[], None]) -> None:
        """Run a job in each thread; see ``WorkerPool.run``."""
        ended, woken = list[BaseException | None](), queue.SimpleQueue[None]()
        calls = [_in_context(functools.partial(_finish, [job], ended, woken)) for job in jobs]
        given, interruptions = 0, list[BaseException]()
        while len(ended) < len(calls):
            try:
                while given < len(calls):
                    self._inboxes[given].put(calls[given])
                    given += 1
                # Now and then: a signal that another thread received is handled in this one.
                woken.get(timeout=0.2)
            except queue.Empty:
                pass
            except BaseException as problem:  # noqa: BLE001 - raised below
                # Nothing may run on behind the caller's back, so this waits for the jobs.
                interruptions.append(problem)
                stop()
        for error in filter(None, [*interruptions, *ended]):
            raise error

    def close(self) -> None:
        """End the threads, and wait for that."""
        self._end()
        for thread in self._threads:
            thread.join()


def _in_context(job: Job) -> Job:
    """Return a job that sees the context variables of the caller."""
    context = contextvars.copy_context()
    return lambda: context.run(job)


def _serve(inbox: _Inbox) -> None:
    """Run the calls of an inbox until it holds None."""
    while True:
        call = inbox.get()
        if call is None:
            return
        call()
        del call  # nothing that it holds is to live until the next one


def _finish(
    once: list[Job], ended: list[BaseException | None], woken: queue.SimpleQueue[None]
) -> None:
    """Run a job, unless an interrupted caller gave it before; append how it ended, and wake."""
    if not once:
        return
    error: BaseException | None = None
    try:
        once.pop()()
    except BaseException as problem:  # noqa: BLE001 - raised by who waits
        error = problem
    ended.append(error)
    woken.put(None)


def _initialise() -> None:
    torch.get_num_threads()


def _dismiss(inboxes: Sequence[_Inbox]) -> None:
    for inbox in inboxes:
        inbox.put(None)


class WorkerPool:
    """A pool of worker threads for pipeline stages.

    Args:
        size: number of workers.
        threads: torch's number of threads in each worker.
    """

    def __init__(self, size: int, threads: int):
        self.size, self.threads = size, threads
        self._running = threading.RLock()
        self._started_by = 0
        self._pool: _Threads | None = None

    def run(self, jobs: Sequence[Job], stop: Callable[[], None]) -> None:
        """Run one job per worker and wait until all are done.

        Args:
            jobs: one per worker; each sees the context variables of the caller.
            stop: makes active jobs end soon; called if the caller is interrupted.

        Raises:
            BaseException: the caller's interruption, or the first that a job ended with.
        """
        try:
            self._running.acquire()
            self._started().run(jobs, stop)
        finally:
            # Python 3.14 may interrupt ``with`` after it has acquired and before its block.
            with contextlib.suppress(RuntimeError):  # interrupted before it was acquired
                self._running.release()

    def close(self) -> None:
        """End the worker threads; the next ``run`` starts new threads."""
        with self._running:
            pool, self._pool = self._pool, None
            if pool is not None and self._started_by == os.getpid():
                pool.close()

    def _started(self) -> _Threads:
        """Start the worker threads, each with its own number of torch's threads.

        torch's number of threads is per thread, initialised from a default at the first use, and
        setting it sets that default, too. The caller's number stays.
        """
        if self._pool is not None and self._started_by == os.getpid():
            return self._pool
        # A forked child has none of its parent's workers.
        pool = _Threads(self.size)
        with _thread_count_lock:
            before = torch.get_num_threads()
            torch.set_num_threads(self.threads)
            try:
                pool.start()
            finally:
                torch.set_num_threads(before)
        self._pool, self._started_by = pool, os.getpid()
        return pool
