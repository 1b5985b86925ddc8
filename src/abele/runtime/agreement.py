"""Whether compiled programs compute what interpreted ones do: one micro-batch through both.

Both run on copies of a session's state, from the same random numbers; the session and the random
numbers are afterwards as before. A tensor may differ by the tolerance of compiled programs. Some
tensors are nothing but rounding: a gradient that is zero in exact arithmetic, which Adam turns into
a step, or the loss of a batch that is learnt by heart. They move as far when the weights are
rounded otherwise, so that is tried, several times where once is not enough, and such a tensor may
differ by ten times as much as it moved. Where that does not do, because what is rounded are numbers
in between, the interpreted programs run in float64, and a tensor may differ by ten times the error
that they themselves make. Numbers below the smallest normal one, where momentum of a
gradient that stays zero ends, are zero in compiled code: they may differ by ten times that number.
That compiled programs take longer is found the same way.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch

from abele.compile import tolerances
from abele.compile.executable import Executable
from abele.program import Program, Role, all_nodes, has_effect
from abele.runtime import in_float64
from abele.runtime.device_state import DeviceState

_ROUNDINGS = 4  # in units of the type's last digit
_MARGIN = 10.0
# One number may stay where it is by chance, not every time.
_TRIALS = 8
# Compiled programs have so many turns to be no slower; then they may be slower by so much.
_TURNS, _SLOWER = 5, 1.05

_Values = dict[str, torch.Tensor]
_Call = Callable[[Program, list[torch.Tensor]], Sequence[torch.Tensor]]


def has_effects(programs: Sequence[Program]) -> bool:
    """Whether running the programs does more than compute: prints, calls of the host."""
    return any(has_effect(node) for program in programs for node in all_nodes(program.graph))


class Trial:
    """A micro-batch of a session, and an update, that may be run any number of times.

    Args:
        state: of the session; only copies of it are written.
        rows: the inputs of a micro-batch of the first replica.
        clock: the time in seconds.
    """

    def __init__(
        self,
        state: DeviceState,
        rows: Sequence[torch.Tensor],
        clock: Callable[[], float] = time.perf_counter,
    ):
        self._state, self._rows, self._time = state, rows, clock
        # What interpreted and compiled programs took where they were compared.
        self._compared_s = 0.0, math.inf
        streams = state.random_state
        self._numbers = torch.get_rng_state() if streams is None else streams[0]

    def first_difference(self, interpreted: Executable, compiled: Executable) -> str | None:
        """The tensor in which compiled programs differ too much, in words; None if all agree.

        Raises:
            Exception: of the interpreted programs, which cannot compute this micro-batch.
        """
        expected, took = self._run(interpreted, clock=self._time)
        try:
            computed, takes = self._run(compiled, clock=self._time)
        except Exception as error:  # noqa: BLE001 - whatever it is, these programs are not usable
            return f"compiled programs fail where interpreted ones do not ({error})"
        self._compared_s = took, takes
        moved: list[_Values] = []
        problem = first_problem(expected, moved, computed)
        if problem is None:  # nobody has to know how far rounding moves them
            return None
        for trial in range(_TRIALS):
            try:
                moved.append(self.run(interpreted, rounding=trial))
            except Exception:  # noqa: BLE001 - the weights are not the user's, so neither is this
                moved.append(expected)
            problem = first_problem(expected, moved, computed)
            if problem is None:
                return None
        exact = self.exact(interpreted)
        return problem if exact is None else first_problem(expected, moved, computed, exact)

    def slower(self, interpreted: Executable, compiled: Executable) -> str | None:
        """How much slower compiled programs are, in words; None if they are not.

        Args:
            interpreted: what runs now.
            compiled: what would take over; both have been compared.
        """
        took, takes = self._compared_s
        if takes <= took:  # at their first run, where the others have run before
            return None
        now, then = list[float](), list[float]()
        for _ in range(_TURNS):
            now.append(self._run(interpreted, clock=self._time)[1])
            then.append(self._run(compiled, clock=self._time)[1])
            if statistics.median(then) <= statistics.median(now):  # by how much does not matter
                return None
        took, takes = statistics.median(now), statistics.median(then)
        if takes <= _SLOWER * took:
            return None
        return f"a micro-batch takes them {takes * 1e3:.3g} ms, interpreted {took * 1e3:.3g} ms"

    def run(self, executable: Executable, *, rounding: int | None = None) -> _Values:
        """What the programs return and write, by name.

        Args:
            executable: the programs.
            rounding: with weights that are rounded otherwise, each number in another way.
        """
        return self._run(executable, _Copies(rounding))[0]

    def exact(self, interpreted: Executable) -> _Values | None:
        """What programs return and write in float64, by name.

        Args:
            interpreted: the programs.

        Returns:
            None where that says nothing of rounding, or cannot be computed.
        """
        if not all(in_float64.is_yardstick(each) for each in interpreted.programs):
            return None
        try:
            return self._run(interpreted, _Copies(wide=True), in_float64.run)[0]
        except Exception:  # noqa: BLE001 - float64 is nothing that the user asked for
            return None

    def _run(
        self,
        executable: Executable,
        copies: _Copies | None = None,
        call: _Call | None = None,
        *,
        clock: Callable[[], float] = time.perf_counter,
    ) -> tuple[_Values, float]:
        """The same, and what the programs take, without the copies that a trial makes."""

        def compiled(program: Program, arguments: list[torch.Tensor]) -> Sequence[torch.Tensor]:
            return executable.compiled[program.name].run(arguments)

        outside = torch.get_rng_state()
        torch.set_rng_state(self._numbers)
        try:
            programs = sorted(executable.programs, key=lambda each: each.name == "apply")
            return self._values_and_time(programs, call or compiled, copies or _Copies(), clock)
        finally:
            torch.set_rng_state(outside)

    def _values_and_time(
        self,
        programs: Sequence[Program],
        call: _Call,
        copies: _Copies,
        clock: Callable[[], float],
    ) -> tuple[_Values, float]:
        values: _Values = {}
        took = 0.0
        for program in programs:
            arguments = self._state.arguments(program, 0)
            rows = iter(self._rows)
            for position, slot in enumerate(program.inputs):
                value_of_slot = next(rows) if slot.role is Role.INPUT else arguments[position]
                arguments[position] = copies.of(value_of_slot, slot.role)
            written = [
                (slot, argument)
                for slot, argument in zip(program.inputs, arguments, strict=True)
                if slot.mutated
            ]
            began = clock()
            outputs = call(program, arguments)
            took += clock() - began
            for slot, value in zip(program.outputs, outputs, strict=True):
                values[f"result {slot.name!r} of {program.name!r}"] = value
            for slot, value in written:
                values[f"{slot.role.value.replace('_', ' ')} {slot.name!r}"] = value
        return values, took


class _Copies:
    """Copies of tensors, the same one each time.

    Args:
        rounding: weights are rounded otherwise, each number in another way.
        wide: fractions are in float64.
    """

    def __init__(self, rounding: int | None = None, *, wide: bool = False):
        self._wide = wide
        self._noise = None if rounding is None else torch.Generator().manual_seed(rounding)
        self._copies: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

    def of(self, tensor: torch.Tensor, role: Role) -> torch.Tensor:
        if id(tensor) not in self._copies:
            copy = in_float64.copied(tensor) if self._wide else tensor.clone()
            if self._noise is not None and role is Role.PARAMETER and copy.is_floating_point():
                noise = torch.rand(copy.shape, generator=self._noise) * 2 - 1
                copy *= 1 + (_ROUNDINGS * torch.finfo(copy.dtype).eps * noise).to(copy.dtype)
            self._copies[id(tensor)] = tensor, copy  # both: a number is free when its object is
        return self._copies[id(tensor)][1]


def first_problem(
    expected: _Values,
    moved: Sequence[_Values],
    computed: _Values,
    exact: _Values | None = None,
) -> str | None:
    """The first tensor that is too far off, and how far, in words; None if there is none.

    Args:
        expected: what interpreted programs give.
        moved: the same with weights that are rounded otherwise, once or several times.
        computed: what compiled programs give.
        exact: what interpreted programs give in float64.
    """
    for name, value in expected.items():
        truth = None if exact is None else exact[name]
        problem = _difference(value, [each[name] for each in moved], computed[name], truth)
        if problem is not None:
            return f"{name} {problem}"
    return None


def _difference(
    expected: torch.Tensor,
    moved: Sequence[torch.Tensor],
    computed: torch.Tensor,
    exact: torch.Tensor | None,
) -> str | None:
    """How far a tensor is off, in words, if that is too far."""
    if (expected.shape, expected.dtype) != (computed.shape, computed.dtype):
        return f"is {list(computed.shape)} {computed.dtype}"
    tolerance = tolerances.compiled(expected.dtype)
    wanted, got = _plain(expected), _plain(computed)
    others = [_plain(each) for each in moved]
    finite = wanted.isfinite()
    alike = torch.ones_like(finite)  # in all others
    for each in others:
        alike = alike & (finite == each.isfinite())
    if ((finite != got.isfinite()) & alike).any():
        return "is not finite in the same places"
    finite = finite & got.isfinite()
    for each in others:
        finite = finite & each.isfinite()
    norm, far = _norm(wanted[finite]), _norm((got - wanted)[finite])
    if exact is not None and (expected.is_floating_point() or expected.is_complex()):
        truth = _plain(exact)
        others.append(torch.where(truth.isfinite(), truth, wanted))  # what overflows is no rounding
    farthest = max((_norm((each - wanted)[finite]) for each in others), default=0.0)
    if far <= tolerance * norm + _MARGIN * (farthest + _flushed(expected.dtype, wanted.numel())):
        return None
    return f"differs by {far / norm if norm else far:.1e} of its norm, {tolerance:.0e} are allowed"


def _flushed(dtype: torch.dtype, count: int) -> float:
    """The norm of so many numbers that are just too small to be normal ones of float32 or wider.

    Compiled code computes with float32 where a type is narrower, and flushes nothing else.
    """
    wide = dtype in (torch.float64, torch.complex128)
    smallest = torch.finfo(torch.float64 if wide else torch.float32).tiny
    return smallest * count**0.5


def _norm(tensor: torch.Tensor) -> float:
    untyped: Any = tensor
    return untyped.norm().item()


def _plain(tensor: torch.Tensor) -> torch.Tensor:
    """All numbers of a tensor in float64."""
    tensor = torch.view_as_real(tensor) if tensor.is_complex() else tensor
    return tensor.detach().double().flatten()
