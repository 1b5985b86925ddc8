"""Random forwards of all types: plain PyTorch, the interpreter and code of the target `cpu`."""

from __future__ import annotations

import collections
import dataclasses
import warnings
from collections.abc import Iterable, Sequence
from typing import Any

import torch

from abele import Program, Role, StepConfig, build, get_target, passes
from abele.errors import CaptureError
from abele.targets.cpu.op_by_op.lowering import OpByOp
from abele.trace.module_state import ModuleState
from helpers import emitted_programs, random_types, runs
from helpers.emitted_programs import Case, Outcome, Tensors
from helpers.random_types import Typed, copies

CALLS, THREADS = 2, 3
LENGTH = 24


def is_training(seed: int) -> bool:
    """Whether the program of a seed trains."""
    return seed % 3 == 0


def source(seed: int) -> str:
    """The forward of a seed, the same for the same seed."""
    return random_types.program(seed, LENGTH, training=is_training(seed))


class TypedAgreement:
    """Random programs of all types, and what became of them.

    Attributes:
        counts: programs by what became of them.
        types: of the values that are computed in interpreted programs, and how often.
        refused: programs that no program can be made of, and why.
        wrong: programs that differ, and how.
    """

    def __init__(self):
        self.counts: collections.Counter[str] = collections.Counter()
        self.types: collections.Counter[str] = collections.Counter()
        self.refused: dict[int, str] = {}
        self.wrong: dict[int, str] = {}

    def run(self, seeds: Iterable[int], *, compiled: bool = True) -> None:
        """Try a program of each seed.

        Args:
            seeds: of the programs.
            compiled: also by code, which is compiled as one file.
        """
        cases: dict[int, Case] = {}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of operators that torch is about to remove
            for seed in seeds:
                self.counts["tried"] += 1
                case = self._interpreted(seed)
                if case is not None:
                    cases[seed] = case
            if compiled:
                self._compiled(cases)

    def data(self) -> dict[str, Any]:
        """All of it, for JSON."""
        return {
            "programs": dict(self.counts.most_common()),
            "types": dict(self.types.most_common()),
            "refused": {str(seed): why for seed, why in self.refused.items()},
            "wrong": {str(seed): how for seed, how in self.wrong.items()},
        }

    def add(self, data: dict[str, Any]) -> None:
        """Count what ``data`` has of others, too."""
        self.counts.update(data["programs"])
        self.types.update(data["types"])
        self.refused.update({int(seed): why for seed, why in data["refused"].items()})
        self.wrong.update({int(seed): how for seed, how in data["wrong"].items()})

    def _interpreted(self, seed: int) -> Case | None:
        """The program of a seed, if it is one that gives the bits of plain PyTorch."""
        try:
            case, difference = interpreted(seed)
        except CaptureError as error:
            self.counts["refused"] += 1
            self.refused[seed] = str(error).split("\n")[0][:200]
            return None
        self.counts["interpreted"] += 1
        self.types.update(_types(case.program))
        if difference is not None:
            self.counts["wrong"] += 1
            self.wrong[seed] = f"reference: {difference}"
            return None
        return case

    def _compiled(self, cases: dict[int, Case]) -> None:
        outcomes = emitted_programs.outcomes(list(cases.values()))
        for (seed, case), outcome in zip(cases.items(), outcomes, strict=True):
            self.counts["compiled"] += outcome.plan is not None
            difference = compiled_difference(case, outcome)
            if difference is not None:
                self.counts["wrong"] += 1
                self.wrong[seed] = difference


def interpreted(seed: int) -> tuple[Case, str | None]:
    """The program of a seed as a case, and where the interpreter gives other bits than PyTorch.

    Raises:
        CaptureError: it is refused.
    """
    training = is_training(seed)
    batches = [random_types.batch(seed, number) for number in range(CALLS)]
    text = source(seed)
    plain, model = (Typed(text, len(random_types.INPUTS)) for _ in range(2))
    expected = _plainly(plain, [copies(each) for each in batches], training=training)
    rule = runs.rule_for(model, "sgd") if training else None
    config = StepConfig(training=training)
    programs = runs.captured(model, copies(batches[0]), config, rule).programs
    slots = _slots(programs[0], model, batches[0])
    case = Case(f"typed {seed}", programs[0], slots, magnifies=True)
    executable, _ = build(programs, config, target=get_target("reference"))
    session = runs.session_of(executable, model, config, rule)
    actual = runs.run(session, [copies(each) for each in batches])
    try:
        runs.assert_same_bits(actual, expected)
    except AssertionError as error:
        return case, " ".join(str(error).split())[:300]
    return case, None


def _types(program: Program) -> list[str]:
    values = [node.meta.get("val") for node in program.graph.graph.nodes if node.users]
    return [str(value.dtype) for value in values if isinstance(value, torch.Tensor)]


def _plainly(model: Typed, batches: Sequence[Tensors], *, training: bool) -> runs.Trained:
    if training:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
        return runs.run_eagerly(model, optimizer, batches)
    with torch.no_grad():
        outputs = [[each.clone() for each in model(*batch)] for batch in batches]
    state = ModuleState.of(model)
    return runs.Trained(outputs, dict(state.params), dict(state.buffers))


def _slots(program: Program, model: Typed, batch: Tensors) -> Tensors:
    """What the slots of a program hold before its first call."""
    given, state = iter(batch), dict(model.state_dict(keep_vars=False))
    return [
        next(given)
        if slot.role is Role.INPUT
        else state[slot.name].clone()
        if slot.name in state
        else torch.zeros(slot.shape, dtype=slot.dtype)
        for slot in program.inputs
    ]


def compiled_difference(case: Case, outcome: Outcome) -> str | None:
    """Where code differs from the interpreter, or from itself with more threads; or None."""
    if outcome.plan is None:
        return None
    difference = outcome.difference()
    if difference is not None:
        return f"emitted: {difference}"
    for name, one, several in zip(outcome.names, outcome.actual, _threaded(outcome), strict=True):
        if not same_bits(one, several):
            return f"emitted: {name} has other bits with {THREADS} threads"
    program = passes.run_only(passes.run(case.program), OpByOp.passes)
    actual = emitted_programs.ran(OpByOp().compile(program).run, case.inputs)
    difference = dataclasses.replace(outcome, actual=actual).difference()
    return None if difference is None else f"op_by_op: {difference}"


def _threaded(outcome: Outcome) -> Tensors:
    before = torch.get_num_threads()
    torch.set_num_threads(THREADS)
    try:
        return outcome.again()
    finally:
        torch.set_num_threads(before)


def same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether two tensors are equal, NaN where the other has NaN."""
    if a.shape != b.shape or a.dtype is not b.dtype:
        return False
    if not a.dtype.is_floating_point:
        return torch.equal(a, b)
    return bool(((a == b) | (a.isnan() & b.isnan())).all())
