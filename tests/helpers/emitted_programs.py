"""Many programs of the lowering `emitted`, each compared with the interpreter."""

import collections
import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import torch

from abele import Program, Role, passes
from abele.compilation import verdict
from abele.program import has_effect, is_view, subgraphs
from abele.step.update_rules import UpdateRule
from abele.targets.base import Run
from abele.targets.cpu.emitted.lowering import Emitted, Plan, planned_code
from abele.targets.reference import Interpreter
from abele.targets.translation.operations import Foreign
from helpers import random_networks, runs
from helpers.emitted_library import together

Tensors = list[torch.Tensor]

# What is zero but for rounding is this small beside what it is a sum of.
_NOISE = 1e-6
# A difference of large numbers is off by some of their last digits.
_EPSILONS = 8 * 2.0**-24


@dataclasses.dataclass
class Case:
    """A program and what it is run with.

    Attributes:
        name: for messages.
        program: before the passes.
        inputs: for its slots.
        magnifies: whether it may make small differences of large numbers, as operators with
            inputs of any size do; these are off by some digits of the large ones.
    """

    name: str
    program: Program
    inputs: Tensors
    magnifies: bool = False


@dataclasses.dataclass
class Outcome:
    """What the interpreter and the emitted code made of a case.

    Attributes:
        name: of the case.
        declined: the lowering does not take the program; there is nothing else then.
        plan: of the code.
        names: of ``expected`` and ``actual``, one by one.
        expected: results and then all slots, from the interpreter.
        actual: the same from the emitted code, which ran twice.
        noise: how far each of ``expected`` moves where inputs are rounded otherwise.
        rounding: what may be off because of it in any tensor of the program.
        rounded: how far each is off if every operation rounds otherwise. That also moves integers:
            the order of numbers that are equal but for that, or their bits.
        again: runs the emitted code once more, with the same inputs.
    """

    name: str
    declined: bool = False
    plan: Plan | None = None
    names: Sequence[str] = ()
    expected: Tensors = dataclasses.field(default_factory=list)
    actual: Tensors = dataclasses.field(default_factory=list)
    noise: Callable[[], list[float]] = list
    rounding: Callable[[], float] = float
    rounded: Callable[[], list[float]] = list
    again: Callable[[], Tensors] = list

    def difference(self) -> str | None:
        """The first tensor that is not what it should be, or None."""
        noise: list[float] | None = None
        for i, (a, b) in enumerate(zip(self.expected, self.actual, strict=True)):
            if a.shape != b.shape or a.dtype is not b.dtype:
                return (
                    f"{self.names[i]} is {b.dtype} {list(b.shape)}, not {a.dtype} {list(a.shape)}"
                )
            off, limit = distance(a, b)
            if off > limit:
                noise = self.noise() if noise is None else noise
                if off <= limit + 30 * noise[i] + self.rounding():
                    continue
                # What an input's last bit does may be lost in the first sum, beside a pole.
                if not off <= limit + 3 * self.rounded()[i]:
                    return f"{self.names[i]} is {off:.3g} off, of {limit:.3g} that are allowed"
        return None

    def foreign(self) -> collections.Counter[str]:
        """How often each operator is left to torch."""
        parts = self.plan.source.parts if self.plan is not None else ()
        return collections.Counter(
            str(part.part_of.target) for part in parts if isinstance(part, Foreign)
        )


def distance(expected: torch.Tensor, actual: torch.Tensor) -> tuple[float, float]:
    """The norm of the difference, infinite where infinities or NaN differ, and what is allowed."""
    a, b = expected.double().flatten(), actual.double().flatten()
    same = torch.where(a.isfinite(), b.isfinite(), (a == b) | (a.isnan() & b.isnan()))
    if not bool(same.all()):
        return float("inf"), 0.0
    usual = a.isfinite()
    off = float((a[usual] - b[usual]).norm())
    exact = not expected.dtype.is_floating_point
    relative = verdict.tolerance(expected.dtype)
    return off, 0.0 if exact else relative * float(a[usual].norm()) + _NOISE


class _Function(torch.nn.Module):
    """A function of tensors as a module; its last arguments are buffers, which it may write."""

    def __init__(self, function: Callable[..., Any], state: Sequence[torch.Tensor]):
        super().__init__()
        self._function = function
        for i, each in enumerate(state):
            self.register_buffer(f"state{i}", each.clone())

    def forward(self, *inputs: torch.Tensor) -> Any:
        return self._function(*inputs, *self.buffers())


def traced(
    name: str,
    function: Callable[..., Any],
    inputs: Sequence[torch.Tensor],
    state: Sequence[torch.Tensor] = (),
) -> Case:
    """A function of inputs and state as a case."""
    module = _Function(function, state)
    (program,) = runs.captured(module, [each.clone() for each in inputs]).programs
    given = iter(inputs)
    slots = [
        next(given) if slot.role is Role.INPUT else module.get_buffer(slot.name)
        for slot in program.inputs
    ]
    return Case(name, program, slots)


def of_network(seed: int) -> list[Case]:
    """Return the programs of a random network's training, with state that they may have."""
    made = random_networks.network(seed)
    rule = runs.rule_for(made.module, made.rule)
    return cases_of(f"network {seed}", made, rule, seed=seed)


def cases_of(
    name: str, made: random_networks.Network, rule: UpdateRule, *, seed: int
) -> list[Case]:
    """Return the programs of a network's training, with random state of the optimizer."""
    programs = runs.captured(made.module, made.batch, rule=rule).programs
    name = f"{name} ({', '.join(made.layers)}; {rule.kind})"
    return [Case(name, each, _state(each, made, seed)) for each in programs]


def _state(program: Program, made: random_networks.Network, seed: int) -> Tensors:
    generator = torch.Generator().manual_seed(seed)
    batch = iter(made.batch)
    weights = dict(made.module.named_parameters())
    result: Tensors = []
    for slot in program.inputs:
        if slot.role is Role.INPUT:
            result.append(next(batch))
        elif slot.role is Role.PARAMETER:
            result.append(weights[slot.name].detach())
        elif slot.dtype.is_floating_point:  # variances and steps are not negative
            values = torch.rand(slot.shape, generator=generator, dtype=torch.float64) + 0.05
            result.append(values.to(slot.dtype))
        else:
            result.append(torch.ones(slot.shape, dtype=slot.dtype))
    return result


def outcomes(cases: Sequence[Case], threads: int = 1) -> list[Outcome]:
    """Compile the cases together and run each.

    Args:
        cases: each with its inputs.
        threads: that run each.
    """
    results = [Outcome(case.name) for case in cases]
    programs = [passes.run_only(passes.run(case.program), Emitted.passes) for case in cases]
    for program, outcome in zip(programs, results, strict=True):
        outcome.declined = _has_effects_or_branches(program)
        if not outcome.declined:
            outcome.plan = planned_code(program)
    planned = [
        (case, program, outcome)
        for case, program, outcome in zip(cases, programs, results, strict=True)
        if outcome.plan is not None
    ]
    plans = [each.plan for each in results if each.plan]
    calls = together([each[1] for each in planned], plans)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        for (case, program, outcome), call in zip(planned, calls, strict=True):
            _run(case, program, outcome, call)
    finally:
        torch.set_num_threads(before)
    return results


def _has_effects_or_branches(program: Program) -> bool:
    """Whether the lowering cannot run it; others it may leave because they would not gain."""
    nodes = program.graph.graph.nodes
    return any(True for _ in subgraphs(program.graph)) or any(map(has_effect, nodes))


def _run(case: Case, program: Program, outcome: Outcome, run: Run) -> None:
    run(_copies(case.inputs))  # leaves what must not matter in the arena
    outcome.names = [slot.name for slot in (*program.outputs, *program.inputs)]
    outcome.expected = ran(Interpreter().compile(program).run, case.inputs)
    outcome.actual = ran(run, case.inputs)
    outcome.again = lambda: ran(run, case.inputs)

    def noise() -> list[float]:
        return _noise(Interpreter().compile(program).run, case.inputs, outcome.expected)

    def rounded() -> list[float]:
        return _noise(_Rounding(program.graph).ran, case.inputs, outcome.expected)

    outcome.noise, outcome.rounded = noise, rounded
    if case.magnifies:
        outcome.rounding = lambda: _EPSILONS * _largest(program, case.inputs)


class _Largest(torch.fx.Interpreter):
    """Notes the largest number that a graph computes."""

    largest = 0.0

    def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
        # As interpreted: torch lays some results out otherwise than it says without data.
        target = torch.reshape if target is torch.ops.aten.view.default else target
        return super().call_function(target, args, kwargs)

    def run_node(self, n: torch.fx.Node) -> Any:
        value = super().run_node(n)
        if isinstance(value, torch.Tensor) and value.dtype.is_floating_point and value.numel():
            finite = value.double()[value.isfinite()].abs()
            self.largest = max(self.largest, float(finite.max()) if finite.numel() else 0.0)
        return value


class _Rounding(torch.fx.Interpreter):
    """Rounds what each operation computes a second time."""

    def ran(self, inputs: Tensors) -> Tensors:
        with torch.no_grad():
            return list(self.run(*inputs))

    def run_node(self, n: torch.fx.Node) -> Any:
        value = super().run_node(n)
        if n.op != "call_function" or is_view(n) or not isinstance(value, torch.Tensor):
            return value
        if value.dtype not in (torch.float32, torch.float64):
            return value
        return value * (1 + 6e-8 * torch.randn_like(value))


def _largest(program: Program, inputs: Tensors) -> float:
    interpreter = _Largest(program.graph)
    with torch.no_grad():
        interpreter.run(*_copies(inputs))
    return interpreter.largest


def _copies(inputs: Tensors) -> Tensors:
    """Of their layouts, too."""
    return [
        torch.empty_strided(each.shape, each.stride(), dtype=each.dtype).copy_(each)
        if 0 not in each.stride()
        else each
        for each in inputs
    ]


def ran(run: Callable[[Tensors], Tensors], inputs: Tensors) -> Tensors:
    """The results of a program and then all its slots; ``inputs`` stay as they are."""
    slots = _copies(inputs)
    results = run(list(slots))
    return [*(each.clone() for each in results), *slots]


def _noise(run: Callable[[Tensors], Tensors], inputs: Tensors, expected: Tensors) -> list[float]:
    most = [0.0] * len(expected)
    for seed in range(4):
        generator = torch.Generator().manual_seed(seed)
        rounded = [
            each * (1 + 6e-8 * torch.randn(each.shape, generator=generator, dtype=each.dtype))
            if each.dtype.is_floating_point
            else each
            for each in inputs
        ]
        moved = [distance(a, b)[0] for a, b in zip(expected, ran(run, rounded), strict=True)]
        most = [max(pair) for pair in zip(most, moved, strict=True)]
    return most
