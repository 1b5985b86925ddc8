"""Comparison of compiled programs with interpreted ones on one micro-batch.

Compiled ones run on a copy of a session's state, from the same random numbers as interpreted ones,
which write none; the session and the random numbers are afterwards as before. Prints and host calls
are silenced. State whose elements are all equal, such as the zeros that an optimizer begins with,
hides which element is read and whether it is read at all: both read it with elements that differ.

A tensor may differ by the tolerance of compiled programs. Some tensors are nothing but rounding: a
gradient that is zero in exact arithmetic, which Adam turns into a step, or the loss of a batch that
is learnt by heart. They move as far when the weights are rounded otherwise, so that is tried,
several times where once is not enough, and such a tensor may differ by ten times as much as it
moved. Where that does not do, because what is rounded are numbers in between, the interpreted
programs run in float64, and a tensor may differ by ten times the error that they themselves make.
Programs in 16 bits round and overflow where compiled ones do not, and run in float32 instead, as
those do, except for products of bfloat16.
Numbers below the smallest normal one, where momentum of a gradient that stays zero ends, are zero
in compiled code: they may differ by ten times that number.
That compiled programs take longer is found the same way.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import statistics
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import torch

from abele import _torch, arena
from abele.compilation import verdict
from abele.compilation.executable import Executable
from abele.ops.silence import silenced
from abele.passes.of_lowerings.half import computed_in_float32, stored_in_16_bits
from abele.program import Program, Role, Slot, all_nodes, node_argument, returned_nodes, writes
from abele.program.aliasing import last_uses
from abele.runtime.device_state import DeviceState
from abele.targets.base import Run, Take
from abele.targets.interpreter import Interpretation, Types, calls
from abele.targets.reference import Interpreter

_ROUNDINGS = 4  # in units of the type's last digit
_MARGIN = 10.0
# Perturbed runs: a single value may stay unchanged by chance once, not every time.
_TRIALS = 8
# Compiled programs get this many timed runs to be no slower; then this ratio is tolerated.
_TURNS, _SLOWER = 5, 1.05
_PIECE = 2**17  # elements that are compared together
# The magnitude of varied elements in copies of zeros.
_SMALL = 1e-2
_RESULT = "result "  # what names of results begin with
_VARIED = (Role.PARAMETER, Role.BUFFER, Role.OPTIMIZER_STATE, Role.ACCUMULATOR, Role.INPUT)

_HALF = (torch.float16, torch.bfloat16)
_FLOAT64 = Types(dtype=torch.float64)

_Values = dict[str, torch.Tensor]
_Runs = Mapping[str, Run]  # by the names of programs
_Keep = Callable[[str, torch.Tensor], None]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Comparison:
    """Difference between the results of compiled and interpreted programs.

    Attributes:
        problem: the first tensor that differs too much, and by how much; None if all agree.
        compared: number of tensors by role; empty if there is a problem.
        errors: largest error by role, relative to the tensor's norm; empty if there is a problem.
        judged_by: criterion: ``tolerance``, ``rounded weights``, ``float64`` or ``float32``.
    """

    problem: str | None
    compared: Mapping[str, int] = dataclasses.field(default_factory=dict[str, int])
    errors: Mapping[str, float] = dataclasses.field(default_factory=dict[str, float])
    judged_by: str = "tolerance"


class Trial:
    """A repeatable test run of a session's micro-batch and update, on copies of its state.

    Args:
        state: of the session; only copies of it are written.
        inputs: the tensors of a micro-batch of the first replica, by the name of their slots.
        clock: returns the time in seconds.
    """

    def __init__(
        self,
        state: DeviceState,
        inputs: Mapping[str, torch.Tensor],
        clock: Callable[[], float] = time.perf_counter,
    ):
        self._state, self._inputs, self._time = state, inputs, clock
        # What interpreted and compiled programs took where they were compared.
        self._compared_s = 0.0, math.inf
        self._vary = True
        # torch.cuda's generator is another one than the host's; both modules have these names.
        self._generators = torch.cuda if state.device.type == "cuda" else torch
        streams = state.random_state
        self._numbers = self._generators.get_rng_state() if streams is None else streams[0]
        self._nearly_right: list[_Values] = []

    def compare(self, interpreted: Executable, compiled: Executable) -> Comparison:
        """Run compiled and interpreted programs, and compare all results and all written state.

        Compiled programs run first, on the only copy of the state. Interpreted ones read the state
        itself and write nothing: what they compute is compared and freed, tensor by tensor.

        Raises:
            Exception: of the interpreted programs, which cannot compute this micro-batch.
        """
        while True:
            computed, takes, failure = self._computed(compiled)
            try:
                expected, errors, took = self._checked(interpreted, computed)
                break
            except Exception:
                if not self._vary:
                    raise
                # Elements that differ may be refused where equal ones are not.
                self._vary = False
        if failure is not None:
            return Comparison(problem=failure)
        self._compared_s = took, takes
        if not problems_of(expected, [], computed, errors=errors):
            return _agreement(errors, "tolerance")  # nobody has to know how far rounding moves them
        return self._compare_rounding(interpreted, expected, computed, errors)

    def _computed(self, compiled: Executable) -> tuple[_Values, float, str | None]:
        """Run compiled programs on copies; return results, state and run time, or the failure."""
        arena.release()
        try:
            copies = _Copies(vary=self._vary, trusted=False)
            return *self._run(compiled, copies, clock=self._time), None
        except Exception as error:  # noqa: BLE001 - whatever it is, these programs are not usable
            return {}, math.inf, f"compiled programs fail where interpreted ones do not ({error})"
        finally:
            for each in compiled.compiled.values():
                each.release()

    def _checked(
        self, interpreted: Executable, computed: _Values
    ) -> tuple[_Values, dict[str, float], float]:
        """Run interpreted programs; remove state that agrees from ``computed``.

        Returns:
            Results and other state, errors of state, and the run time of the programs alone.
        """
        expected, errors, away = _Values(), dict[str, float](), list[float]()

        def keep(name: str, value: torch.Tensor) -> None:
            began = time.perf_counter()
            if name in computed:
                if problems_of({name: value}, [], computed, errors=errors):
                    expected[name] = value.clone()
                else:
                    del computed[name]
            away.append(time.perf_counter() - began)

        copies = _Copies(vary=self._vary, written=False)
        results, took = self._run(interpreted, copies, clock=self._time, keep=keep)
        in_order = {name: expected[name] for name in computed if name in expected}
        return results | in_order, errors, took - sum(away)

    def clock(self, interpreted: Executable, compiled: Executable) -> None:
        """Time one run of interpreted and of compiled programs that agree, for ``slower``."""
        takes = self._run(compiled, clock=self._time)[1]
        self._compared_s = self._run(interpreted, clock=self._time)[1], takes

    def _compare_rounding(
        self,
        interpreted: Executable,
        expected: _Values,
        computed: _Values,
        errors: dict[str, float],
    ) -> Comparison:
        """Compare results that differ again, with a tolerance for what rounding explains."""
        # Code for GPUs rounds each result, as torch does.
        widened = self._state.device.type == "cpu" and any(map(has_16_bits, interpreted.programs))
        arguments = interpreted, expected, computed, errors
        problems, moved = self._judged_by_rounding(*arguments, trials=1 if widened else _TRIALS)
        if problems and widened:  # a run in float32 takes more memory than one trial
            if self._judged_by_float32(interpreted, computed, errors):
                return _agreement(errors, "float32")
            problems, moved = self._judged_by_rounding(*arguments)
        if not problems:
            return _agreement(errors, "rounded weights")
        exact = self.exact(interpreted)
        if exact is not None:
            problems = problems_of(expected, moved, computed, exact, errors=errors)
            if not problems:
                return _agreement(errors, "float64")
        # Alive, or code that leaves a result unwritten could find nearly right values in their
        # memory at the next attempt.
        self._nearly_right = [expected, *moved]
        return Comparison(problem=next(iter(problems.values())))

    def _judged_by_rounding(
        self,
        interpreted: Executable,
        expected: _Values,
        computed: _Values,
        errors: dict[str, float],
        runs: _Runs | None = None,
        least: float = 0.0,
        trials: int = _TRIALS,
    ) -> tuple[dict[str, str], list[_Values]]:
        """Compare with runs of differently rounded weights, until one of them explains all.

        Returns:
            The tensors that differ too much, in words, and what is compared of each run.
        """
        moved, problems = list[_Values](), dict[str, str]()
        for trial in range(trials):
            try:
                moved.append(self._rounded(interpreted, trial, expected, runs))
            except Exception:  # noqa: BLE001 - the weights are not the user's, so neither is this
                moved.append(expected)
            problems = problems_of(expected, moved, computed, errors=errors, least=least)
            if not problems:
                break
        return problems, moved

    def _rounded(
        self, interpreted: Executable, seed: int, names: Collection[str], runs: _Runs | None
    ) -> _Values:
        """Return results, and new state of some names, with the weights rounded otherwise."""
        if runs is not None:
            return _open(self._run(interpreted, _Copies(seed, vary=self._vary), runs)[0], names)
        arena.release()  # of another such run, whose values are there
        kept, copies = _Values(), _Copies(seed, vary=self._vary, written=False)

        def keep(name: str, value: torch.Tensor) -> None:
            if name in names:
                kept[name] = value.clone()

        return self._run(interpreted, copies, keep=keep)[0] | kept

    def _judged_by_float32(
        self, interpreted: Executable, computed: _Values, errors: dict[str, float]
    ) -> bool:
        """Return whether 16-bit programs agree with their interpretation in float32."""
        runs = {
            each.name: Interpreter().compile(stored_in_16_bits(computed_in_float32(each))).run
            for each in interpreted.programs
        }
        try:
            expected = _open(self._run(interpreted, _Copies(vary=self._vary), runs)[0], computed)
        except Exception:  # noqa: BLE001 - float32 is nothing that the user asked for
            return False
        values = (value.dtype for program in interpreted.programs for value in values_of(program))
        least = max(map(verdict.tolerance, values))
        if not problems_of(expected, [], computed, errors=errors, least=least):
            return True
        arguments = interpreted, expected, computed, errors, runs, least
        return not self._judged_by_rounding(*arguments)[0]

    def slower(self, interpreted: Executable, compiled: Executable) -> str | None:
        """Describe how much slower compiled programs are; None if they are not slower."""
        took, takes = self._compared_s
        if takes <= took:  # at their first run, where the others have run before
            return None
        now, then = list[float](), list[float]()
        # Calls of a session do not prepare constants again, either.
        adopts = self._state.config.adopts
        runs = {n: each.with_state((), adopted=adopts) for n, each in compiled.compiled.items()}
        for _ in range(_TURNS):
            arena.release()  # activations of one at a time: together they are the peak of a process
            then.append(self._second_run_s(compiled, runs))
            for each in compiled.compiled.values():
                each.release()
            now.append(self._second_run_s(interpreted))
            if statistics.median(then) <= statistics.median(now):  # by how much does not matter
                return None
        took, takes = statistics.median(now), statistics.median(then)
        if takes <= _SLOWER * took:
            return None
        return f"a micro-batch takes them {takes * 1e3:.3g} ms, interpreted {took * 1e3:.3g} ms"

    def _second_run_s(self, executable: Executable, runs: _Runs | None = None) -> float:
        """Return the time of a run after another one, which maps its memory, in seconds."""
        self._run(executable, None, runs)
        return self._run(executable, None, runs, clock=self._time)[1]

    def run(self, executable: Executable, *, rounding: int | None = None) -> _Values:
        """Return the results and written state of an executable's programs, by name."""
        return self._run(executable, _Copies(rounding, vary=self._vary))[0]

    def exact(self, interpreted: Executable) -> _Values | None:
        """Return the results and written state of programs in float64, by name.

        Returns:
            None if float64 says nothing about rounding, or cannot be computed.
        """
        if not all(is_yardstick(each) for each in interpreted.programs):
            return None
        runs = {p.name: functools.partial(_run_in_float64, p) for p in interpreted.programs}
        try:
            return self._run(interpreted, _Copies(wide=True, vary=self._vary), runs)[0]
        except Exception:  # noqa: BLE001 - float64 is nothing that the user asked for
            return None

    def _run(
        self,
        executable: Executable,
        copies: _Copies | None = None,
        runs: _Runs | None = None,
        *,
        clock: Callable[[], float] = time.perf_counter,
        keep: _Keep | None = None,
    ) -> tuple[_Values, float]:
        """Run the programs of an executable; return their results and run time without copies.

        Interpreted programs do not write new state if ``keep`` gets it, by its name.
        """
        programs = executable.programs if keep is None else executable.common or executable.programs
        programs = sorted(programs, key=lambda each: each.name == "apply")
        copies = copies or _Copies(vary=self._vary)
        runs = runs or {name: each.run for name, each in executable.compiled.items()}
        if keep is not None:
            given = [(each, self._given(each)) for each in programs]
            takes = [_taking(given[index:], copies, keep) for index in range(len(given))]
            pairs = zip(programs, takes, strict=True)
            runs = {p.name: executable.target.interpreted(p, take)[1] for p, take in pairs}
        outside = self._generators.get_rng_state()
        self._generators.set_rng_state(self._numbers)
        try:
            with silenced(), _torch.without_tf32():
                return self._values_and_time(programs, runs, copies, clock)
        finally:
            self._generators.set_rng_state(outside)

    def _values_and_time(
        self, programs: Sequence[Program], runs: _Runs, copies: _Copies, clock: Callable[[], float]
    ) -> tuple[_Values, float]:
        values: _Values = {}
        passed = dict[str, torch.Tensor]()  # results that a later part of a pipeline takes
        given = [self._given(program) for program in programs]
        for program, arguments in zip(programs, given, strict=True):
            copies.note_written(program, arguments)
        took = 0.0
        for program, tensors in zip(programs, given, strict=True):
            arguments = [
                passed[slot.name] if tensor is None else copies.of(tensor, slot)
                for slot, tensor in zip(program.inputs, tensors, strict=True)
            ]
            written = [
                (slot, argument)
                for slot, argument in zip(program.inputs, arguments, strict=True)
                if slot.mutated and copies.written
            ]
            began = clock()
            outputs = runs[program.name](arguments)
            took += clock() - began
            for slot, value in zip(program.outputs, outputs, strict=True):
                values[f"{_RESULT}{slot.name!r} of {program.name!r}"] = passed[slot.name] = value
            for slot, value in written:
                values[_name(slot)] = value
        return values, took

    def _given(self, program: Program) -> list[torch.Tensor | None]:
        """Return the input tensors of a program; None for results of earlier programs."""
        return [
            self._inputs.get(slot.name) if slot.role is Role.INPUT else argument
            for slot, argument in zip(
                program.inputs, self._state.arguments(program, 0), strict=True
            )
        ]


def _name(slot: Slot) -> str:
    return f"{slot.role.value.replace('_', ' ')} {slot.name!r}"


def _taking(
    given: Sequence[tuple[Program, Sequence[torch.Tensor | None]]], copies: _Copies, keep: _Keep
) -> Take:
    """Return what takes the new state of a program.

    Args:
        given: the program and those that run after it, with the session's tensors.
        copies: get the new state for programs that run after it.
        keep: gets the name of state that no program after it writes, and its value, whose memory
            the program uses again.
    """
    (program, tensors), *after = given

    def take(position: int, value: torch.Tensor) -> torch.Tensor:
        tensor: Any = tensors[position]
        value = value.to(tensor.dtype).expand(tensor.shape)
        if after:
            copies.renew(tensor, value.clone())
        later = (zip(each.inputs, others, strict=True) for each, others in after)
        if not any(t is tensor and slot.mutated for pairs in later for slot, t in pairs):
            keep(_name(program.inputs[position]), value)
        return value

    return take


class _Copies:
    """Cached copies of a session's tensors, optionally perturbed or in float64.

    Args:
        rounding: seed of another rounding of the weights; None for the weights themselves.
        wide: fractions are in float64.
        vary: elements differ in the copies of tensors whose elements are all equal.
        trusted: programs write only what they say; the rest needs no copy.
        written: programs write their state; without that no tensor needs a copy.
    """

    def __init__(
        self,
        rounding: int | None = None,
        *,
        wide: bool = False,
        vary: bool = True,
        trusted: bool = True,
        written: bool = True,
    ):
        self._wide, self._vary, self._trusted, self.written = wide, vary, trusted, written
        self._rounding = rounding
        self._noise: torch.Generator | None = None
        self._copies: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        self._written: set[int] = set()

    def note_written(self, program: Program, arguments: Sequence[torch.Tensor | None]) -> None:
        """Note the tensors that a program may write; only written tensors need a copy."""
        for slot, argument in zip(program.inputs, arguments, strict=True):
            if self.written and (slot.mutated or not self._trusted):
                self._written.add(id(argument))

    def of(self, tensor: torch.Tensor, slot: Slot) -> torch.Tensor:
        """Return the cached copy of a tensor in a slot."""
        if id(tensor) not in self._copies:
            copy = self._copy(tensor, slot.role, seed=len(self._copies))
            self._copies[id(tensor)] = tensor, copy  # both: a number is free when its object is
        return self._copies[id(tensor)][1]

    def renew(self, tensor: torch.Tensor, value: torch.Tensor) -> None:
        """Replace the copy of a tensor."""
        self._copies[id(tensor)] = tensor, value

    def _copy(self, tensor: torch.Tensor, role: Role, seed: int) -> torch.Tensor:
        copy = varied(tensor, role, seed) if self._vary else tensor
        if self._wide:
            return copy.to(_FLOAT64.of(copy.dtype), copy=True)
        # Elements of an expanded tensor share memory, so they stay the same.
        is_weight = role is Role.PARAMETER and copy.is_floating_point() and 0 not in copy.stride()
        rounding = self._rounding if is_weight else None
        if copy is tensor and (rounding is not None or id(tensor) in self._written):
            copy = tensor.clone()
        if rounding is not None:
            self._noise = self._noise or torch.Generator(copy.device).manual_seed(rounding)
            noise = torch.rand(copy.shape, generator=self._noise, device=copy.device) * 2 - 1
            copy *= 1 + (_ROUNDINGS * torch.finfo(copy.dtype).eps * noise).to(copy)
        return copy


def varied(tensor: torch.Tensor, role: Role, seed: int) -> torch.Tensor:
    """Return a tensor with varied elements in place of one whose elements are all equal.

    Args:
        tensor: any; returned as it is if two of its elements differ.
        role: of the tensor; hyper-parameters and counters are left alone.
        seed: of the random numbers.
    """
    if role not in _VARIED or not tensor.is_floating_point() or tensor.numel() < 2:
        return tensor
    if 0 in tensor.stride():
        return tensor
    first = tensor[(0,) * tensor.dim()]
    if not first.isfinite() or tensor[(-1,) * tensor.dim()] != first or (tensor != first).any():
        return tensor
    generator = torch.Generator(tensor.device).manual_seed(seed)
    noise = torch.rand(tensor.shape, generator=generator, device=tensor.device).to(tensor)
    # Ones become smaller, because a probability may not exceed one; zeros become positive, because
    # what optimizers begin with may be under a root.
    return first * (1 - 0.1 * noise) if first else _SMALL * (0.5 + noise)


def _agreement(errors: Mapping[str, float], judged_by: str) -> Comparison:
    """Return the comparison result of tensors that all agree, from the error of each."""
    compared, largest = dict[str, int](), dict[str, float]()
    for name, error in sorted(errors.items(), key=lambda each: not each[0].startswith(_RESULT)):
        role = name.partition(" '")[0]
        compared[role] = compared.get(role, 0) + 1
        largest[role] = max(largest.get(role, 0.0), error)
    return Comparison(problem=None, compared=compared, errors=largest, judged_by=judged_by)


def problems_of(
    expected: _Values,
    moved: Sequence[_Values],
    computed: _Values,
    exact: _Values | None = None,
    *,
    errors: dict[str, float] | None = None,
    least: float = 0.0,
) -> dict[str, str]:
    """Return what is wrong with each tensor that has too large an error, by name.

    Args:
        expected: results of interpreted programs.
        moved: results with differently rounded weights, one or several times.
        computed: results of compiled programs, as all others at least of those names.
        exact: results of interpreted programs in float64.
        errors: receives the error of each tensor that agrees, relative to its norm.
        least: smallest tolerance, of 16-bit programs, whose results in float32 are as exact.
    """
    problems = dict[str, str]()
    for name, value in expected.items():
        truth = None if exact is None else exact[name]
        others = [each[name] for each in moved]
        problem, error = _difference(value, others, computed[name], truth, least)
        if errors is not None:
            errors[name] = error
        if problem is not None:
            problems[name] = f"{name} {problem}"
    return problems


def _open(values: _Values, names: Collection[str]) -> _Values:
    """Return the values of these names, and the results, of which memory keeps no other copy."""
    return {n: v for n, v in values.items() if n in names or n.startswith(_RESULT)}


def _difference(
    expected: torch.Tensor,
    moved: Sequence[torch.Tensor],
    computed: torch.Tensor,
    exact: torch.Tensor | None,
    least: float,
) -> tuple[str | None, float]:
    """Return the error of a tensor, as text if it is too large, and as a ratio."""
    if (expected.shape, expected.dtype) != (computed.shape, computed.dtype):
        return f"is {list(computed.shape)} {computed.dtype}", math.inf
    if torch.equal(expected, computed):
        return None, 0.0
    tolerance = max(least, verdict.tolerance(expected.dtype))
    is_number = expected.is_floating_point() or expected.is_complex()
    truth = [exact] if exact is not None and is_number else []
    every: list[Any] = [each.reshape(-1) for each in (expected, computed, *moved, *truth)]
    pieces = zip(*(each.split(_PIECE) for each in every), strict=True)
    norms = [_norms(*map(flat, each), moved=len(moved)) for each in pieces]
    if [] in norms:
        return "is not finite in the same places", math.inf
    norm, far, *away = map(math.hypot, *norms)
    error = far / norm if norm else far
    farthest = max(away, default=0.0) + _flushed(expected)
    if far <= tolerance * norm + _MARGIN * farthest:
        return None, error
    allowed = f"of its norm, {tolerance:.0e} are allowed" if norm else "from zero"
    return f"differs by {error:.1e} {allowed}", error


def _flushed(tensor: torch.Tensor) -> float:
    """Return the norm of as many numbers just below the smallest normal one, of float32 or wider.

    Compiled code computes with float32 where a type is narrower, and flushes nothing else.
    """
    wide = tensor.dtype in (torch.float64, torch.complex128)
    smallest = torch.finfo(torch.float64 if wide else torch.float32).tiny
    return smallest * (tensor.numel() * (1 + tensor.is_complex())) ** 0.5


def _norms(
    wanted: torch.Tensor, got: torch.Tensor, *others: torch.Tensor, moved: int
) -> list[float]:
    """Return the norms of a vector and of its differences from others, where all are finite.

    An empty list if ``got`` is not finite in the same places as all of the first ``moved`` others.
    Where further ones overflow, which is no rounding, they count as equal.
    """
    finite = wanted.isfinite()
    both, alike = finite & got.isfinite(), torch.ones_like(finite)
    for each in others[:moved]:
        alike, both = alike & (finite == each.isfinite()), both & each.isfinite()
    if ((finite != got.isfinite()) & alike).any():
        return []
    exact = [torch.where(each.isfinite(), each, wanted) for each in others[moved:]]
    away = [each - wanted for each in (got, *others[:moved], *exact)]
    return [norm_of(torch.where(both, each, 0.0)) for each in (wanted, *away)]


def norm_of(tensor: torch.Tensor) -> float:
    """Return the 2-norm of all elements of a tensor."""
    untyped: Any = torch.linalg
    return untyped.vector_norm(tensor).item()


def flat(tensor: torch.Tensor) -> torch.Tensor:
    """Flatten a tensor to a float64 vector; complex elements become pairs."""
    tensor = torch.view_as_real(tensor) if tensor.is_complex() else tensor
    return tensor.detach().double().flatten()


def is_yardstick(program: Program) -> bool:
    """Return whether float64 results differ from a program's own by rounding alone.

    Numbers that overflow in half precision do not in float64, so an update would be made there that
    the program leaves out.
    """
    return not has_16_bits(program)


def has_16_bits(program: Program) -> bool:
    """Return whether a value of a program has 16 bits, so that it may overflow."""
    return any(value.dtype in _HALF for value in values_of(program))


def values_of(program: Program) -> list[torch.Tensor]:
    """Return the fake tensors of a program's nodes, without several results of one node."""
    values = (node.meta.get("val") for node in all_nodes(program.graph))
    return [each for each in values if isinstance(each, torch.Tensor)]


def _run_in_float64(program: Program, arguments: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Run a program in float64, with torch's random numbers; arguments are written in place."""
    graph = program.graph.graph
    writing = [node for node in graph.nodes if writes(node)]
    returned = returned_nodes(program.graph)
    kept = {*returned, *(node_argument(node, 1) for node in writing)}
    places = dict(zip(program.placeholders(), arguments, strict=True))
    run = Interpretation(program, arguments, _FLOAT64)
    nodes = calls(program)
    last = last_uses([(node, *node.all_input_nodes) for node in nodes])
    with torch.no_grad():
        for node, unused in zip(nodes, last, strict=True):
            run.compute(node)
            for value in unused:
                if value not in kept:
                    run.values.pop(value, None)
        for node in writing:
            places[node_argument(node, 0)].copy_(run.values[node_argument(node, 1)])
    return [run.values[node] for node in returned]
