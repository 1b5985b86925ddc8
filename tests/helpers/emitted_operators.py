"""Functions of tensors as emitted code: many of them in one file, compiled at once."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import torch

from abele import _torch, passes
from abele.program import Role
from abele.targets.cpu.emitted import build, lowering
from abele.targets.cpu.emitted.operations import Foreign
from abele.targets.cpu.emitted.run import Runner
from abele.targets.reference import Interpreter
from abele.trace import tracer
from abele.trace.tensor_names import Lookup

_NAMES = "abele_segment_"


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


def _traced(case: Case) -> Any:
    mode = _torch.FakeTensorMode()
    named = [
        tracer.Named(f"x{i}", Role.INPUT, value, case.gradients and value.dtype.is_floating_point)
        for i, value in enumerate(case.inputs)
    ]

    def body(values: tracer.Values) -> tuple[list[torch.Tensor], None]:
        tensors = list(values.of(Role.INPUT).values())
        results = case.function(*tensors)
        results = list(results) if isinstance(results, list | tuple) else [results]
        if case.gradients:
            squares = [(r * r).sum() for r in results if r.dtype.is_floating_point]
            total = torch.stack([each.to(squares[0].dtype) for each in squares]).sum()
            wanted = [t for t in tensors if t.requires_grad]
            gradients = torch.autograd.grad(total, wanted, allow_unused=True)
            results += [each for each in gradients if each is not None]
        return [r.detach() for r in results], None

    return tracer.trace("f", body, named, mode, Lookup())[0]


class Compiled:
    """Cases whose emitted code is compiled together, as far as possible without optimising it."""

    def __init__(self, cases: Mapping[str, Case]):
        self._cases, self._programs, self._plans = cases, {}, {}
        texts, head = [], ""
        for number, (name, case) in enumerate(cases.items()):
            program = passes.run_only(passes.run(_traced(case)), lowering.Emitted.passes)
            plan = lowering.planned_code(program)
            self._programs[name], self._plans[name] = program, (number, plan)
            head, body = plan.source.text.split("using abele::Index;", 1)
            body = body.replace(_NAMES, f"{_NAMES}{number}_")
            texts.append(f"namespace p{number} {{ using abele::Index;{body}\n}}")
        flags = build.FLAGS
        build.FLAGS = tuple("-O1" if flag == "-O3" else flag for flag in flags)
        try:
            self._library = build.loaded(build.compiled("operators", head + "\n".join(texts)))
        finally:
            build.FLAGS = flags

    def calls(self, name: str) -> dict[str, int]:
        """The operators that torch computes, and how often."""
        parts = self._plans[name][1].source.parts
        foreign = (part.node.target for part in parts if isinstance(part, Foreign))
        return dict(Counter(str(target).removeprefix("aten.") for target in foreign))

    def interpreted(self, name: str) -> list[torch.Tensor]:
        """What the interpreter makes of a case."""
        inputs = [each.clone() for each in self._cases[name].inputs]
        return Interpreter().compile(self._programs[name]).run(inputs)

    def run(self, name: str) -> list[torch.Tensor]:
        """What the emitted code makes of it, when it runs for the second time."""
        number, plan = self._plans[name]
        library = _Renamed(self._library, number)
        program = self._programs[name]
        runner = Runner(
            program,
            plan.source,
            library,  # type: ignore[arg-type]
            plan.translation,
            plan.offsets,
            plan.size,
        )
        runner.run([each.clone() for each in self._cases[name].inputs])
        return runner.run([each.clone() for each in self._cases[name].inputs])

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


class _Renamed:
    """A library whose functions have a program's number in their names."""

    def __init__(self, library: Any, number: int):
        self._library, self._number = library, number

    def __getattr__(self, name: str) -> Any:
        return getattr(self._library, name.replace(_NAMES, f"{_NAMES}{self._number}_"))
