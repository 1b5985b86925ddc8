"""What a target has to offer."""

from __future__ import annotations

import abc
from collections.abc import Callable, Mapping
from typing import Any

import torch

from abele.program import Program

# Takes the tensors of the program's input slots, updates the mutated ones in place and returns
# the outputs. The list is the callee's to clear.
Run = Callable[[list[torch.Tensor]], list[torch.Tensor]]


class Compiled:
    """A program that can be called, and the bytes it can be restored from.

    Attributes:
        run: the call.
        payload: contents of the executable for this program; empty if the target keeps none.
    """

    def __init__(self, run: Run, payload: bytes = b""):
        self.run = run
        self.payload = payload

    def released(self) -> Run:
        """The same call, made so that other threads of Python run meanwhile."""
        return self.run


class Target(abc.ABC):
    """A way to run programs.

    Attributes:
        name: as in ``ABELE_TARGET``.
        passes: lowering passes that run after the common pipeline.
        cacheable: its executables are worth keeping on disk.
    """

    name: str
    passes: tuple[Callable[[Program], Program], ...] = ()
    cacheable: bool = False

    def unavailable(self) -> str | None:
        """Why programs cannot run here, or ``None`` if they can."""
        return None

    def cannot_compile(self) -> str | None:
        """Why programs cannot be compiled here (they may still be loaded), or ``None``."""
        return self.unavailable()

    def lowering(self, program: Program) -> tuple[Callable[[Program], Program], ...]:
        """The lowering passes for one program."""
        del program
        return self.passes

    def why_scheduled(self, program: Program) -> str | None:
        """Why a program is run operator by operator and not compiled, if so."""
        del program
        return None

    @abc.abstractmethod
    def device(self) -> torch.device:
        """Where a program's tensors live."""

    @abc.abstractmethod
    def describe(self) -> Mapping[str, Any]:
        """Everything about this machine that decides whether an executable can run here."""

    @abc.abstractmethod
    def compile(self, program: Program) -> Compiled:
        """Makes ``program`` runnable.

        Raises:
            CompilerError: the compiler behind the target failed.
        """

    def load(self, program: Program, payload: bytes) -> Compiled:
        """Restores what ``compile`` returned, without a compiler."""
        del payload
        return self.compile(program)
