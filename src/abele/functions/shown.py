"""Cards, reports and recordings of compiled functions."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Sequence
from itertools import count
from pathlib import Path

import torch

from abele.errors import ReportError
from abele.functions.compiled import CompiledCall
from abele.program.memory import state_bytes
from abele.report import facts, record, timing
from abele.report.card import Written, card, write
from abele.report.record import Run
from abele.report.recorder import Recorder, Trouble, latest_call
from abele.runtime.observers import CallRecord, Observer
from abele.version import __version__


def card_of(name: str, programs: Sequence[CompiledCall], eager: str | None) -> str:
    """Return a compiled function's card for notebooks, as HTML.

    Args:
        name: name of the function.
        programs: its compiled calls.
        eager: why other calls run as plain PyTorch; None if they do not.
    """
    otherwise = "" if eager is None else f"plain PyTorch, because {eager}"
    if not programs:
        return card(name, [("what runs", otherwise or "plain PyTorch until the second call")])
    most = max(programs, key=lambda each: each.calls)
    sentences = [f"{each.record.running.sentence()}: {each.calls:,} calls" for each in programs]
    several = enumerate(sentences, 1) if len(programs) > 1 else ()
    rows = [
        ("target", ", ".join(sorted({each.record.target for each in programs}))),
        ("what runs", "" if len(programs) > 1 else most.record.running.sentence()),
        *((f"program {number}", said) for number, said in several),
        ("other calls", otherwise),
        ("programs", str(len(programs))),
        ("calls of programs", f"{sum(each.calls for each in programs):,}"),
    ]
    return card(name, rows, most.session.losses.values())


class Recording:
    """The record of a compiled function, and its run's recorder if there is a folder for it.

    Args:
        name: name of the function.
        programs: its compiled calls, the latest one first, as they are at any time.
        folder: folder of the run; None to record nothing.
    """

    def __init__(self, name: str, programs: list[CompiledCall], folder: Path | None):
        self._name, self._programs, self._folder = name, programs, folder
        self._began_ns = time.perf_counter_ns()
        self._recorder: Recorder | None = None
        self._recorded: list[CompiledCall] = []
        self._trouble = Trouble()

    def added(self, program: CompiledCall) -> None:
        """Record the calls of a new program, which is the first of the list."""
        folder = self._folder
        if folder is None:
            return
        with self._trouble:
            self._recorded.append(program)  # in this order, while the list has the latest first
            run = self._run()
            if self._recorder is None:

                def now(run: Run, over: bool) -> Run:
                    return dataclasses.replace(run, build=facts.build(self._programs[0].record))

                self._recorder = Recorder(_free(folder), run, now, trouble=self._trouble)
                self._recorder.built(run, 0)
            else:
                self._recorder.changed(run, f"a program for other calls: {len(self._programs)} now")
            program.session.add_observer(_Calls(self._recorder, program.session.loss))

    def changed(self, what: str) -> None:
        """Record that other programs run, such as compiled ones."""
        if self._recorder is not None:
            with self._trouble:
                self._recorder.changed(self._run(), what)

    def write(self, path: Path, eager: str | None, *, measure: bool) -> Written:
        """Write the report of the function so far; see ``Function.report``."""
        if not self._programs:
            why = f"It runs as plain PyTorch: {eager}" if eager else "Its second call makes one."
            raise ReportError(f"{self._name} has no program to report. {why}")
        run = self._run(measure=measure)
        if self._recorder is None:
            call = self._programs[0].session.last_call
            return write(path, run, latest_call(call, self._began_ns))
        self._recorder.looked(run)
        return write(path, run, self._recorder.read(), of=self._recorder.folder)

    def _run(self, *, measure: bool = False) -> Run:
        """Return the record of all programs; those after the first have numbers."""
        run = Run(
            abele=__version__,
            name=self._name,
            training=any(each.session.config.training for each in self._programs),
            process=facts.process(self._began_ns),
            machine=facts.machine(),
            configuration={},
            build=facts.build(self._programs[0].record),
            state=state_bytes([each.captured.program for each in self._programs]),
        )
        named: list[record.Program] = []
        for number, each in enumerate(self._recorded or self._programs, 1):
            executable = each.session.executable
            run = dataclasses.replace(run, programs=facts.programs(executable, each.record))
            if measure:
                run = timing.timed(run, executable, each.session)
            end = "" if number == 1 else f" {number}"
            named += [dataclasses.replace(p, name=f"{p.name}{end}") for p in run.programs]
        return dataclasses.replace(run, programs=tuple(named))


_folders: set[Path] = set()  # of recordings in this process


def _free(folder: Path) -> Path:
    """Return the folder, or one with a number where another function records in it."""
    names = (folder if n == 1 else folder.with_name(f"{folder.name}_{n}") for n in count(1))
    free = next(each for each in names if each.resolve() not in _folders)
    _folders.add(free.resolve())
    return free


class _Calls(Observer):
    """Records the calls of one program of a function, whose loss is at an index of its own."""

    def __init__(self, recorder: Recorder, loss: int | None):
        self._recorder, self._loss = recorder, loss

    def on_outputs(self, outputs: Sequence[torch.Tensor]) -> None:
        """Pass the loss on as the recorder expects it: the first output."""
        if self._loss is not None:
            self._recorder.on_outputs([outputs[self._loss]])

    def on_call_end(self, call: CallRecord) -> None:
        """Record a call."""
        self._recorder.on_call_end(call)
