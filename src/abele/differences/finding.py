"""Finds the operation, pass or generated code at which two settings of a program diverge.

Interpreted settings run in lockstep. Single operations of compiled code cannot be observed, so the
program is first interpreted after each pass. If all passes are right, prefixes of the program are
compiled; the last operation of the shortest wrong prefix is the cause.
"""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from abele import passes
from abele.differences.answer import (
    Answer,
    Blamed,
    Result,
    Spread,
    Worst,
    error,
    operation,
    place,
    result,
    spread,
)
from abele.differences.subject import PLAIN, TRUTH, Setting, Subject
from abele.errors import DifferenceError
from abele.program import (
    Program,
    Role,
    Slot,
    is_getitem,
    is_view,
    node_argument,
    returned_nodes,
    writes,
)
from abele.program.aliasing import erase_dead_nodes, last_uses, own_outputs
from abele.program.cut import draws
from abele.targets import Lowering, Target, interpreter
from abele.targets.candidates import candidates, considered
from abele.targets.interpreter import Interpretation, Node, all_values, measured

Say = Callable[[str], None]
Values = Mapping[str, torch.Tensor]


def why_different(
    subject: Subject, settings: tuple[Setting, Setting], say: Say = lambda text: None
) -> Answer:
    """Run a program in two settings and find the first operation that diverges.

    Args:
        subject: the program and its inputs.
        settings: the two settings.
        say: called with a description of each long step.

    Raises:
        DifferenceError: one of the settings cannot run the program.
        CompilerError: a compiler failed.
    """
    if all(each.target is None for each in settings):
        return _interpreted(subject, settings)
    return _compiled(subject, settings, say)


def _interpreted(subject: Subject, settings: tuple[Setting, Setting]) -> Answer:
    say_of = max(settings, key=lambda each: each.tolerance)
    both = Lockstep(subject.program, subject, settings)
    return Answer(
        names=(settings[0].name, settings[1].name),
        results=both.results(),
        blamed=both.blamed(f"type {say_of.name}"),
        worst=tuple(both.worst),
        notes=tuple(_notes(both)),
    )


def _compiled(subject: Subject, settings: tuple[Setting, Setting], say: Say) -> Answer:
    """Compare each of two settings with the interpreter, and combine the results."""
    parts: list[tuple[tuple[Result, ...], Blamed | None]] = []
    notes: list[str] = []
    worst: tuple[Worst, ...] = ()
    for each in settings:
        if each.target is not None:
            results, blamed, how = _Search(subject, each, say).run()
            parts.append((results, blamed))
            notes.append(f"{each.name} runs the program through {how}")
            if blamed is None and any(result.parted for result in results):
                notes.append(f"only the whole program of {each.name} shows it, no beginning of it")
        else:
            both = Lockstep(subject.program, subject, (PLAIN, each))
            parts.append((both.results(), both.blamed(f"type {each.name}")))
            worst = tuple(both.worst) if each.dtype is not None else worst
            notes += _notes(both)
    (first, blamed_first), (second, blamed_second) = parts
    blamed = _turned(blamed_first) if blamed_first is not None else blamed_second
    return Answer(
        names=(settings[0].name, settings[1].name),
        results=_joined(first, second),
        blamed=blamed,
        worst=worst,
        notes=tuple(notes),
    )


def _joined(first: tuple[Result, ...], second: tuple[Result, ...]) -> tuple[Result, ...]:
    """Combine the errors of two settings that were each compared with the interpreter."""
    others = {each.name: each for each in second}
    return tuple(
        Result(
            name=each.name,
            errors=(each.errors[1], others[each.name].errors[1]),
            parted=each.parted or others[each.name].parted,
            only_rounding=each.only_rounding,
        )
        for each in first
        if each.name in others
    )


def _turned(blamed: Blamed) -> Blamed:
    """Swap the errors of the interpreter and of the setting compared with it."""
    plain, mine = blamed.operation.errors
    operation = dataclasses.replace(blamed.operation, errors=(mine, plain))
    return dataclasses.replace(blamed, operation=operation)


def _notes(both: Lockstep) -> list[str]:
    notes = [
        f"{name} is first not finite at {place(made)}" for name, made in both.not_finite.items()
    ]
    if both.rounded:
        operators = ", ".join(both.rounded)
        notes.append(f"computed in float32 and rounded, for want of kernels: {operators}")
    return notes


class _Search:
    """Compares a compiled setting with the interpreter, and searches for the first divergence."""

    def __init__(self, subject: Subject, setting: Setting, say: Say):
        assert setting.target is not None
        self._subject, self._setting, self._say = subject, setting, say
        self._target: Target = setting.target
        self._tolerance = setting.tolerance

    def run(self) -> tuple[tuple[Result, ...], Blamed | None, str]:
        """Compare results of both, and search for the cause if they diverge.

        Returns:
            Errors of the results, the interpreter's first; the first operation that diverges, None
            if none is found; and the lowering with its reason.
        """
        versions, lowering, why = self._versions()
        self._say(f"compiling the program through {lowering.name}")
        truth, plain = self._values(versions[0], TRUTH), self._values(versions[0], PLAIN)
        compiled = self._compiled(versions[-1], lowering)
        wanted = results_of(versions[0])
        spreads = {
            name: spread(truth[node.name], plain[node.name], compiled[name])
            for name, node in wanted.items()
            if node.name in truth and name in compiled
        }
        results = tuple(result(name, each, self._tolerance) for name, each in spreads.items())
        blamed = None
        if any(each.parted for each in results):
            blamed = self._of_passes(versions, truth) or self._of_code(versions[-1], lowering)
        return results, blamed, f"{lowering.name}: {why}"

    # -- passes ------------------------------------------------------------------------------

    def _versions(self) -> tuple[list[Program], Lowering, str]:
        """Return the program before and after each pass, its lowering and the reason for it."""
        versions: list[Program] = []
        with passes.watched(versions.append):
            program = passes.run(self._subject.program)
        if self._setting.lowering is None:
            lowering, why = candidates(self._target, program, measured=False)[0]
        else:
            lowering, why = self._setting.lowering, "it was asked for"
            problem = lowering.why_not(considered(self._target, program))
            if problem is not None:
                raise DifferenceError(
                    f"Lowering {lowering.name!r} cannot run program {program.name!r}: {problem}"
                )
        with passes.watched(versions.append):
            passes.run_only(program, lowering.passes)
        return versions, lowering, why

    def _of_passes(self, versions: Sequence[Program], truth: Values) -> Blamed | None:
        """Find the first compiler pass after which the interpreter's results diverge."""
        before = self._values(versions[0], PLAIN)
        if not self._results_part(versions[0], before, versions[-1], truth):
            return None
        previous = versions[0]
        for version in versions[1:]:
            if version.history == previous.history:
                continue
            by = version.history[-1].by
            self._say(f"interpreting the program after pass {by}")
            after = self._values(version, PLAIN)
            if self._results_part(versions[0], before, version, truth, after):
                values = self._values(previous, PLAIN)
                return self._first_of_pass(previous, version, (truth, values, after), by)
            previous = version
        return None

    def _results_part(
        self,
        first: Program,
        before: Values,
        version: Program,
        truth: Values,
        after: Values | None = None,
    ) -> bool:
        after = self._values(version, PLAIN) if after is None else after
        names, others = results_of(first), results_of(version)
        for name in names.keys() & others.keys():
            mine, other = names[name].name, others[name].name
            if mine not in truth or other not in after:
                continue
            if spread(truth[mine], before[mine], after[other]).parted(self._tolerance):
                return True
        return False

    def _first_of_pass(
        self,
        previous: Program,
        version: Program,
        values: tuple[Values, Values, Values],
        by: str,
    ) -> Blamed | None:
        truth, before, after = values
        known = {node.name for node in previous.graph.graph.nodes}
        nodes = [node for node in version.graph.graph.nodes if measured(node)]
        made = [node.name for node in nodes if node.name not in known]
        for node in nodes:
            name = node.name
            if name not in before or before[name].shape != after[name].shape:
                continue
            each = spread(truth.get(name, before[name]), before[name], after[name])
            if each.parted(self._tolerance):
                new = f" It made {', '.join(made[:4])}." if made else ""
                return self._blamed(node, each, f"pass {by}", f"Before that pass it is right.{new}")
        return None

    # -- code --------------------------------------------------------------------------------

    def _of_code(self, program: Program, lowering: Lowering) -> Blamed | None:
        """Find by bisection the first operation that diverges when compiled."""
        truth, plain = self._values(program, TRUTH), self._values(program, PLAIN)
        nodes = operations(program)
        right, wrong = 0, len(nodes)
        seen = self._first_of_code(program, lowering, wrong, truth, plain)
        if seen is None:
            return None
        while wrong - right > 1:
            middle = (right + wrong) // 2
            self._say(f"compiling the first {middle} of {len(nodes)} operations")
            parted = self._first_of_code(program, lowering, middle, truth, plain)
            if parted is None:
                right = middle
            else:
                wrong, seen = middle, parted
        name, each = seen
        node = next(node for node in program.graph.graph.nodes if node.name == name)
        return self._blamed(
            node, each, f"code of lowering {lowering.name}",
            "The operations before it are right when compiled, and it is right when interpreted.",
        )  # fmt: skip

    def _first_of_code(
        self, program: Program, lowering: Lowering, count: int, truth: Values, plain: Values
    ) -> tuple[str, Spread] | None:
        """Return the first wrong value of a compiled prefix of a program, or None."""
        made, names = prefix(program, count)
        if not names:
            return None
        compiled = list(self._compiled(made, lowering).values())
        for name, value in zip(names, compiled, strict=True):
            each = spread(truth[name], plain[name], value)
            if each.parted(self._tolerance):
                return name, each
        return None

    # -- running -----------------------------------------------------------------------------

    def _values(self, program: Program, setting: Setting) -> dict[str, torch.Tensor]:
        subject = self._subject
        return all_values(program, self._arguments(program), setting, subject.random_state)

    def _arguments(self, program: Program) -> list[torch.Tensor]:
        subject = self._subject
        by_slot = {
            (slot.role, slot.name): argument
            for slot, argument in zip(subject.program.inputs, subject.arguments, strict=True)
        }
        return [by_slot[slot.role, slot.name].clone() for slot in program.inputs]

    def _compiled(self, program: Program, lowering: Lowering) -> dict[str, torch.Tensor]:
        """Run compiled code and return its outputs and written state, by role and name."""
        device = self._target.device()
        arguments = [each.to(device) for each in self._arguments(program)]
        written = {
            (slot.role, slot.name): argument
            for slot, argument in zip(program.inputs, arguments, strict=True)
            if slot.mutated
        }
        run = lowering.compile(program).run
        outside = torch.get_rng_state()
        torch.set_rng_state(self._subject.random_state)
        try:
            outputs = run(arguments)
        finally:
            torch.set_rng_state(outside)
        slots = [(slot.role, slot.name) for slot in program.outputs]
        values = dict(zip(slots, outputs, strict=True)) | written
        return {
            f"{role.value.replace('_', ' ')} {name!r}": value.cpu()
            for (role, name), value in values.items()
        }

    def _blamed(self, node: torch.fx.Node, each: Spread, by: str, why: str) -> Blamed:
        errors = each.relative(each.first), each.relative(each.second)
        return Blamed(operation=operation(node, errors), by=by, why=why, elements=each.elements)


# -- prefixes --------------------------------------------------------------------------------------


def operations(program: Program) -> list[Node]:
    """Return the graph nodes at which a prefix of a program may end."""
    nodes = program.graph.graph.nodes
    return [n for n in nodes if n.op == "call_function" and not is_getitem(n) and not writes(n)]


def prefix(program: Program, count: int) -> tuple[Program, tuple[str, ...]]:
    """Return a program of the first ``count`` operations of another program.

    Returns:
        The prefix, which returns every value that is read outside of it and writes nothing; and
        the names of these values' nodes.
    """
    inside = set(operations(program)[:count])
    graph, copies = torch.fx.Graph(), dict[Node, Node]()
    slots = dict(zip(program.placeholders(), program.inputs, strict=True))
    inputs: list[Slot] = []
    for node in program.graph.graph.nodes:
        picked = is_getitem(node) and node.all_input_nodes[0] in inside
        read = node.op == "placeholder" and any(user in inside for user in node.users)
        if read:
            inputs.append(dataclasses.replace(slots[node], mutated=False))
        if read or picked or node in inside or node.op == "get_attr":
            copies[node] = graph.node_copy(node, copies.__getitem__)
    returned = [node for node in copies if _is_needed(node, copies)]
    graph.output([copies[node] for node in returned])
    module = torch.fx.GraphModule(program.graph, graph)
    erase_dead_nodes(module)
    own_outputs(module)
    outputs = tuple(_slot(node) for node in returned)
    made = program.replace(graph=module, inputs=tuple(inputs), outputs=outputs, checks=())
    return made.verify(), tuple(node.name for node in returned)


def _is_needed(node: Node, copies: dict[Node, Node]) -> bool:
    """Return whether a node's value is a non-empty tensor read outside a program's prefix."""
    value = node.meta.get("val")
    if node.op != "call_function" or not isinstance(value, torch.Tensor) or not value.numel():
        return False
    return not node.users or any(user not in copies for user in node.users)


def _slot(node: Node) -> Slot:
    value = node.meta["val"]
    shape = tuple(value.shape)
    return Slot(name=node.name, role=Role.OUTPUT, shape=shape, dtype=value.dtype)


_WORST = 8
aten = torch.ops.aten
_MOVES = (aten._to_copy.default, aten.copy.default, aten.clone.default, operator.getitem)


class Lockstep:
    """A run of a program in two interpreted settings and in float64, node by node.

    Args:
        program: the subject's program, or an equivalent one.
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
        """Compute a node in all settings; return its errors from float64's operands, if any."""
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
        """Compute a node in both settings from float64's operands; empty for copies and views."""
        moves = is_view(node) or node.target in _MOVES or not node.all_input_nodes
        if not interpreter.measured(node) or moves or draws(node):
            return []
        values = self._runs[0].values
        return [run.computed(node, values) for run in self._runs[1:3]]

    def _rank(self, node: Node, alone: tuple[float, float]) -> None:
        """Update the list of operations with the largest errors, one per operator and line."""
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
        """Record a setting's first operation that is not finite, unlike float64's."""
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
        """Return the errors of the program's outputs and written state."""
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
    """Return the nodes of a program's outputs and written state, by role and name."""
    nodes: dict[str, Node] = {}
    for slot, node in zip(program.outputs, returned_nodes(program.graph), strict=True):
        nodes[f"{slot.role.value.replace('_', ' ')} {slot.name!r}"] = node
    slots = dict(zip(program.placeholders(), program.inputs, strict=True))
    for node in program.graph.graph.nodes:
        if writes(node):
            slot = slots[node_argument(node, 0)]
            nodes[f"{slot.role.value.replace('_', ' ')} {slot.name!r}"] = node_argument(node, 1)
    return nodes
