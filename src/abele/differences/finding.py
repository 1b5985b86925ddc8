"""Comparison of two settings: which operation, pass or generated code makes them diverge.

Interpreted settings run in lockstep. Single operations of compiled code cannot be observed, so each
pass is interpreted first, on the full graph. If all passes are right, prefixes of the program are
compiled as programs of their own; the shortest prefix that is wrong ends with the operation.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence

import torch

from abele import passes
from abele.differences.answer import (
    Answer,
    Blamed,
    Result,
    Spread,
    Worst,
    operation,
    place,
    result,
    spread,
)
from abele.differences.lockstep import Lockstep, results_of
from abele.differences.subject import PLAIN, TRUTH, Setting, Subject
from abele.errors import DifferenceError
from abele.program import Program, Role, Slot, is_getitem, writes
from abele.program.aliasing import erase_dead_nodes, own_outputs
from abele.targets import Lowering, Target
from abele.targets.candidates import candidates, considered
from abele.targets.interpreter import all_values, measured

Node = torch.fx.Node
Say = Callable[[str], None]
Values = Mapping[str, torch.Tensor]


def why_different(
    subject: Subject, settings: tuple[Setting, Setting], say: Say = lambda text: None
) -> Answer:
    """Run a program in two settings and find where they diverge.

    Args:
        subject: the program and its inputs.
        settings: the two settings.
        say: called with a description of each long step.

    Raises:
        DifferenceError: one of them cannot run the program.
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
    """Compare each setting with the interpreter, and join the results."""
    parts: list[tuple[tuple[Result, ...], Blamed | None]] = []
    notes: list[str] = []
    worst: tuple[Worst, ...] = ()
    for each in settings:
        if each.target is not None:
            made = _Search(subject, each, say).run()
            parts.append((made.results, made.blamed))
            notes.append(f"{each.name} runs the program through {made.lowering}: {made.why}")
            if made.blamed is None and any(result.parted for result in made.results):
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
    """Join the errors of two settings that were each compared with the interpreter."""
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
    """Swap the errors so that the first setting's come first, then the interpreter's."""
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


@dataclasses.dataclass(frozen=True, kw_only=True)
class Found:
    """The comparison of a compiled setting with the interpreter.

    Attributes:
        results: errors of the results; the interpreter's errors come first.
        blamed: first operation that diverges; None if none does, or only the full graph.
        lowering: name of the lowering.
        why: reason for this lowering.
    """

    results: tuple[Result, ...]
    blamed: Blamed | None
    lowering: str
    why: str


class _Search:
    """Compares a compiled setting with the interpreter, and searches for the first divergence."""

    def __init__(self, subject: Subject, setting: Setting, say: Say):
        assert setting.target is not None
        self._subject, self._setting, self._say = subject, setting, say
        self._target: Target = setting.target
        self._tolerance = setting.tolerance

    def run(self) -> Found:
        """Compare results, and search for the cause if they diverge."""
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
        return Found(results=results, blamed=blamed, lowering=lowering.name, why=why)

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
        """Find the first pass after which the interpreter's results diverge."""
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
        """Find the last operation of the shortest prefix whose code is wrong, by bisection."""
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
        """Return the first wrong value of a compiled prefix, or None."""
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
        """Return results and written state of compiled code, by role and name."""
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
        return {_named(role, name): value.cpu() for (role, name), value in values.items()}

    def _blamed(self, node: torch.fx.Node, each: Spread, by: str, why: str) -> Blamed:
        errors = each.relative(each.first), each.relative(each.second)
        return Blamed(operation=operation(node, errors), by=by, why=why, elements=each.elements)


def _named(role: Role, name: str) -> str:
    return f"{role.value.replace('_', ' ')} {name!r}"


# -- prefixes --------------------------------------------------------------------------------------


def operations(program: Program) -> list[Node]:
    """Return the nodes that a prefix may end with."""
    nodes = program.graph.graph.nodes
    return [n for n in nodes if n.op == "call_function" and not is_getitem(n) and not writes(n)]


def prefix(program: Program, count: int) -> tuple[Program, tuple[str, ...]]:
    """Return the program of the first ``count`` operations.

    Returns:
        The prefix, which returns every value that the remainder or the caller needs and writes
        nothing; and the names of these values' nodes.
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
    """Return whether a node's value is a non-empty tensor that is read outside the prefix."""
    value = node.meta.get("val")
    if node.op != "call_function" or not isinstance(value, torch.Tensor) or not value.numel():
        return False
    return not node.users or any(user not in copies for user in node.users)


def _slot(node: Node) -> Slot:
    value = node.meta["val"]
    shape = tuple(value.shape)
    return Slot(name=node.name, role=Role.OUTPUT, shape=shape, dtype=value.dtype)
