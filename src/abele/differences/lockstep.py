"""Lockstep run of two interpreted settings and float64, operation by operation."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from abele.differences.answer import (
    Blamed,
    Result,
    Spread,
    Worst,
    error,
    operation,
    result,
    spread,
)
from abele.differences.subject import PLAIN, TRUTH, Setting, Subject
from abele.program import Program, is_view, node_argument, returned_nodes, writes
from abele.program.aliasing import last_uses
from abele.program.cut import draws
from abele.targets import interpreter
from abele.targets.interpreter import Interpretation, Node

_WORST = 8
aten = torch.ops.aten
_MOVES = (aten._to_copy.default, aten.copy.default, aten.clone.default, operator.getitem)


class Lockstep:
    """Runs a program in two interpreted settings and in float64.

    Args:
        program: the subject's program or one that computes the same.
        subject: inputs of the program.
        settings: the two settings.

    Attributes:
        first: the first node at which the settings diverge, or None.
        spreads: spreads of results and written state, by node.
        worst: operations by descending error from float64's operands.
        rounded: operators computed in other types than a setting's.
        not_finite: first operation of a setting that is not finite although float64's is.
    """

    def __init__(self, program: Program, subject: Subject, settings: tuple[Setting, Setting]):
        self._program, self._settings = program, settings
        each_setting = (TRUTH, *settings, PLAIN)
        self._runs = [Interpretation(program, subject.fresh(), each) for each in each_setting]
        self.tolerance = max(each.tolerance for each in settings)
        self.first: Node | None = None
        self.first_spread: Spread | None = None
        self.first_alone: tuple[float, float] | None = None
        self._of_rounded_operands = 0.0
        self.not_finite: dict[str, Worst] = {}
        self.spreads: dict[Node, Spread] = {}
        self.worst: list[Worst] = []
        outside = torch.get_rng_state()
        torch.set_rng_state(subject.random_state)
        try:
            self._run()
        finally:
            torch.set_rng_state(outside)
        self.rounded = sorted({each for run in self._runs[1:] for each in run.rounded})

    def _run(self) -> None:
        nodes = interpreter.calls(self._program)
        last = last_uses([(node, *node.all_input_nodes) for node in nodes])
        kept = set(results_of(self._program).values())
        for node, unused in zip(nodes, last, strict=True):
            alone = self._compute(node)
            if interpreter.measured(node):
                self._measure(node, alone, keep=node in kept)
            for value in unused:
                if value not in kept:
                    for run in self._runs:
                        run.values.pop(value, None)

    def _compute(self, node: Node) -> tuple[float, float] | None:
        """Compute a node in all settings, and return its errors from float64's operands, if any."""
        alone = self._alone(node)
        before = torch.get_rng_state() if draws(node) else None
        for run in self._runs:
            if before is not None:
                torch.set_rng_state(before)
            run.compute(node)
        truth = self._runs[0].values[node]
        if not alone or not isinstance(truth, torch.Tensor):
            return None
        errors = error(truth, alone[0]), error(truth, alone[1])
        self._rank(node, errors)
        return errors

    def _alone(self, node: Node) -> list[Any]:
        """Return both settings' results from float64's operands; none for copies and views."""
        moves = is_view(node) or node.target in _MOVES or not node.all_input_nodes
        if not interpreter.measured(node) or moves or draws(node):
            return []
        values = self._runs[0].values
        return [run.computed(node, values) for run in self._runs[1:3]]

    def _rank(self, node: Node, alone: tuple[float, float]) -> None:
        """Keep the operations with the largest errors, one per operator and line."""
        truth = self._runs[0].values[node]
        first, second = (error(truth, run.values[node]) for run in self._runs[1:3])
        made = operation(node, (first, second), alone)
        alike = [each for each in self.worst if _kind(each) == _kind(made)]
        if alike and _alone_error(alike[0]) >= _alone_error(made):
            return
        self.worst = [each for each in self.worst if each not in alike] + [made]
        self.worst.sort(key=lambda each: -_alone_error(each))
        del self.worst[_WORST:]

    def _measure(self, node: Node, alone: tuple[float, float] | None, *, keep: bool) -> None:
        values = [run.values[node] for run in self._runs]
        if not all(isinstance(each, torch.Tensor) for each in values):
            return
        self._note_not_finite(node, values[0], values[1:3])
        if not keep and self.first is not None:
            return
        measured = spread(*values)
        if keep:
            self.spreads[node] = measured
        if self.first is None and measured.parted(self.tolerance):
            self.first, self.first_spread, self.first_alone = node, measured, alone
            self._of_rounded_operands = self._conditioning(node)

    def _note_not_finite(
        self, node: Node, truth: torch.Tensor, values: Sequence[torch.Tensor]
    ) -> None:
        """Record the first operation of a setting that is not finite although float64's is."""
        for setting, value in zip(self._settings, values, strict=True):
            known = setting.name in self.not_finite or bool(value.isfinite().all())
            if not known and bool(truth.isfinite().all()):
                self.not_finite[setting.name] = operation(node, (0.0, 0.0))

    def _conditioning(self, node: Node) -> float:
        """Return the error of a float64 result from operands rounded to the coarser type."""
        setting = max(self._settings, key=lambda each: each.tolerance)
        truth = self._runs[0]
        if draws(node):
            return 0.0
        rounded = {
            each: interpreter.rounded(truth.values[each], each, setting)
            for each in node.all_input_nodes
        }
        return error(truth.values[node], truth.computed(node, rounded))

    def results(self) -> tuple[Result, ...]:
        """Return the errors of results and written state."""
        named = results_of(self._program).items()
        return tuple(
            result(name, self.spreads[node], self.tolerance)
            for name, node in named
            if node in self.spreads
        )

    def blamed(self, by: str) -> Blamed | None:
        """Return the first operation at which the settings diverge, or None."""
        if self.first is None or self.first_spread is None:
            return None
        measured = self.first_spread
        errors = measured.relative(measured.first), measured.relative(measured.second)
        alone = self.first_alone
        return Blamed(
            operation=operation(self.first, errors, alone),
            by=by,
            why=self._why(self.first, measured, alone),
            elements=measured.elements,
        )

    def _why(self, node: Node, measured: Spread, alone: tuple[float, float] | None) -> str:
        value: Any = node.meta.get("val")
        if not value.is_floating_point() and not value.is_complex():
            return "It decides by its operands, which differ by rounding: some lie on the boundary."
        if measured.apart == float("inf"):
            return "One is not finite where the other is: too large for its type, or divided by 0."
        if alone is not None and max(alone) <= self.tolerance:
            return (
                "From float64's operands it is right: rounding of the operations before adds up "
                "here, is magnified, or decides which elements pass."
            )
        if self._of_rounded_operands > self.tolerance:
            return "It magnifies the rounding of its operands, as a difference of equal ones does."
        return "It is off by itself, also from float64's operands."


def _kind(made: Worst) -> tuple[str, str, str, str]:
    return made.operator, made.phase, made.module, made.line


def _alone_error(made: Worst) -> float:
    return max(made.alone or (0.0,))


def results_of(program: Program) -> Mapping[str, Node]:
    """Return the nodes of results and of written state, by role and name."""
    nodes: dict[str, Node] = {}
    for slot, node in zip(program.outputs, returned_nodes(program.graph), strict=True):
        nodes[f"{slot.role.value.replace('_', ' ')} {slot.name!r}"] = node
    slots = dict(zip(program.placeholders(), program.inputs, strict=True))
    for node in program.graph.graph.nodes:
        if writes(node):
            slot = slots[node_argument(node, 0)]
            nodes[f"{slot.role.value.replace('_', ' ')} {slot.name!r}"] = node_argument(node, 1)
    return nodes
