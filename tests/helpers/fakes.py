"""Stand-ins for a compiling target: everything around a compiler, tested in milliseconds."""

import importlib
import itertools
from collections.abc import Mapping
from typing import Any

import pytest

from abele.errors import CompilerError, TargetError
from abele.program import Program
from abele.targets import Compiled, Lowering, Target
from abele.targets.reference import Interpreter, Reference


def prefer(monkeypatch: pytest.MonkeyPatch, target: Target) -> None:
    """Makes ``target`` the one that is tried first."""
    module = importlib.import_module("abele.compilation.build")
    monkeypatch.setattr(module, "choose_target", lambda: (target, False))


class KeptCode(Interpreter):
    """Keeps a payload that it insists on getting back unchanged."""

    name = "kept code"

    def __init__(self, padding: int = 0):
        self.padding, self.compilations = padding, 0

    def payload(self, program: Program) -> bytes:
        return f"code of {program.fingerprint()}".encode() + bytes(self.padding)

    def compile(self, program: Program) -> Compiled:
        self.compilations += 1
        return Compiled(super().compile(program).run, self.payload(program))

    def load(self, program: Program, payload: bytes) -> Compiled:
        if payload != self.payload(program):
            pytest.fail("a damaged payload reached the target")  # no Exception: none may hide it
        return Compiled(super().compile(program).run, payload)


class Keeping(Reference):
    """Interprets, and keeps payloads."""

    name = "keeping"
    cacheable = True
    code: type[KeptCode] = KeptCode

    def __init__(self, padding: int = 0, **description: Any):
        self.description = description
        self.lowerings: tuple[Lowering, ...] = (self.code(padding),)

    @property
    def compilations(self) -> int:
        (lowering,) = self.lowerings
        assert isinstance(lowering, KeptCode)
        return lowering.compilations

    def describe(self) -> Mapping[str, Any]:
        return {**super().describe(), **self.description}


class _Unreachable(KeptCode):
    def compile(self, program: Program) -> Compiled:
        raise TargetError("unreachable: cannot_compile was not asked")


class Refusing(Keeping):
    """Has no compiler."""

    name = "refusing"
    code = _Unreachable

    def cannot_compile(self, lowerings=None) -> str:
        return "there is no compiler here. Install one."


class _FailingCode(KeptCode):
    def __init__(self, good: int, noise: str):
        super().__init__()
        self._count, self._noise = itertools.count(-good), noise

    def compile(self, program: Program) -> Compiled:
        if next(self._count) >= 0:
            raise CompilerError(f"Program {program.name!r} could not be compiled.", log=self._noise)
        return super().compile(program)


class Failing(Keeping):
    """Has a compiler that fails on the program after ``good`` ones."""

    name = "failing"
    noise = "fatal error: stdio.h not found\n" * 50

    def __init__(self, good: int = 0):
        super().__init__()
        self.lowerings = (_FailingCode(good, self.noise),)
