"""Functions of tensors as emitted code: many of them in one file, compiled at once."""

import dataclasses
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest
import torch

from abele import _torch, passes
from abele.program import Program, Role
from abele.targets.cpu.emitted.lowering import Emitted, planned_code
from abele.targets.reference import Interpreter
from abele.targets.translation.operations import Foreign
from abele.trace import tracer
from abele.trace.tensor_names import Lookup
from helpers.emitted_library import together


@dataclasses.dataclass(frozen=True)
class Case:
    """A function, and what it is called with.

    Attributes:
        function: returns a tensor or several.
        inputs: floating ones of these require gradients if ``gradients``.
        gradients: also compute the gradients of the sum of squares of all floating results.
        calls: operators that torch is to compute, and how often.
        rtol, atol: how far results may be from the interpreter's.
        signed_zeros: a zero has the sign of the interpreter's.
        same_for_threads: any number of threads gives the same bits.
    """

    function: Callable[..., Any]
    inputs: tuple[torch.Tensor, ...]
    gradients: bool = False
    calls: Mapping[str, int] = dataclasses.field(default_factory=dict)
    rtol: float = 1e-5
    atol: float = 1e-5
    signed_zeros: bool = True
    same_for_threads: bool = True


def program_of(
    function: Callable[..., Any], inputs: Sequence[torch.Tensor], *, gradients: bool
) -> Program:
    """A function of tensors as a program; see ``Case``."""
    mode = _torch.FakeTensorMode()
    named = [
        tracer.Named(f"x{i}", Role.INPUT, value, gradients and value.dtype.is_floating_point)
        for i, value in enumerate(inputs)
    ]

    def body(values: tracer.Values) -> tuple[list[torch.Tensor], None]:
        tensors = list(values.of(Role.INPUT).values())
        results = function(*tensors)
        results = list(results) if isinstance(results, list | tuple) else [results]
        if gradients:
            squares = [(r * r).sum() for r in results if r.dtype.is_floating_point]
            total = torch.stack([each.to(squares[0].dtype) for each in squares]).sum()
            wanted = [t for t in tensors if t.requires_grad]
            gradients_of_all = torch.autograd.grad(total, wanted, allow_unused=True)
            results += [each for each in gradients_of_all if each is not None]
        return [r.detach() for r in results], None

    return tracer.trace("f", body, named, mode, Lookup())[0]


class Compiled:
    """Cases whose emitted code is compiled together, as far as possible without optimising it."""

    def __init__(self, cases: Mapping[str, Case]):
        self._cases = cases
        self._programs = {name: _lowered(case) for name, case in cases.items()}
        self._plans = {name: planned_code(each) for name, each in self._programs.items()}
        runs = together(list(self._programs.values()), list(self._plans.values()))
        self._runs = dict(zip(cases, runs, strict=True))

    def calls(self, name: str) -> dict[str, int]:
        """The operators that torch computes, and how often."""
        parts = self._plans[name].source.parts
        foreign = (part.part_of.target for part in parts if isinstance(part, Foreign))
        return dict(Counter(str(target).removeprefix("aten.") for target in foreign))

    def text(self, name: str) -> str:
        """The code of a case."""
        return self._plans[name].source.text

    def interpreted(self, name: str) -> list[torch.Tensor]:
        """What the interpreter makes of a case."""
        inputs = [each.clone() for each in self._cases[name].inputs]
        return Interpreter().compile(self._programs[name]).run(inputs)

    def run(self, name: str) -> list[torch.Tensor]:
        """What the emitted code makes of it, when it runs for the second time."""
        run, inputs = self._runs[name], self._cases[name].inputs
        run([each.clone() for each in inputs])
        return run([each.clone() for each in inputs])

    def agree(self, name: str) -> None:
        """Compare a case with the interpreter, and one thread with two, bit by bit.

        Raises:
            AssertionError: they differ, or other operators than stated are called from Python.
        """
        case, before = self._cases[name], torch.get_num_threads()
        assert self.calls(name) == dict(case.calls), self.calls(name)
        results = {}
        try:
            for threads in (1, 2):
                torch.set_num_threads(threads)
                results[threads] = self.run(name)
        finally:
            torch.set_num_threads(before)
        for ours, wanted in zip(results[1], self.interpreted(name), strict=True):
            torch.testing.assert_close(ours, wanted, rtol=case.rtol, atol=case.atol, equal_nan=True)
            if ours.dtype.is_floating_point and case.signed_zeros:
                both_zero = (ours == 0) & (wanted == 0)
                assert torch.equal(ours.signbit()[both_zero], wanted.signbit()[both_zero]), "-0"
        for one, two in zip(results[1], results[2], strict=True):
            rtol, atol = (0, 0) if case.same_for_threads else (case.rtol, case.atol)
            torch.testing.assert_close(one, two, rtol=rtol, atol=atol, equal_nan=True)


def _lowered(case: Case) -> Program:
    program = program_of(case.function, case.inputs, gradients=case.gradients)
    return passes.run_only(passes.run(program), Emitted.passes)


@pytest.mark.compiler
def test_as_the_interpreter(compiled: Compiled, case: str) -> None:
    """Compare each of a module's ``CASES`` with the interpreter."""
    compiled.agree(case)


@pytest.mark.compiler
def test_not_less_accurate_than_torch(
    compiled: Compiled, accurate: str, request: pytest.FixtureRequest
) -> None:
    """Compare the errors of some cases, a module's ``ACCURATE``, with those of torch."""
    case = request.module.CASES[accurate]
    wide = [each.double() if each.dtype.is_floating_point else each for each in case.inputs]
    exact = case.function(*wide)
    exact = exact if isinstance(exact, tuple) else [exact]
    results = zip(compiled.run(accurate), compiled.interpreted(accurate), exact, strict=False)
    for ours, theirs, true in results:
        rounding = true.abs().max() * getattr(request.module, "ROUNDING", 2**-23)
        assert (ours - true).abs().max() <= (theirs - true).abs().max() + rounding
