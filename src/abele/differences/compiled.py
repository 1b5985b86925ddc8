"""A compiled setting beside the interpreter: which pass changed a result, or which code does.

Single operations of compiled code cannot be seen. So each pass is interpreted first, on the whole
program; if all are right, prefixes of the program are compiled as programs of their own, and the
shortest that is wrong tells the operation.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence

import torch

from abele import passes
from abele.differences.answer import Blamed, Result, operation, result
from abele.differences.lockstep import results_of
from abele.differences.prefix import operations, prefix
from abele.differences.settings import PLAIN, TRUTH, Setting
from abele.differences.spread import Spread, spread
from abele.differences.subject import Subject
from abele.errors import DifferenceError
from abele.program import Program, Role
from abele.targets import Lowering, Target
from abele.targets.candidates import candidates, considered
from abele.targets.interpretation import all_values, measured

Say = Callable[[str], None]
Values = Mapping[str, torch.Tensor]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Beside:
    """A compiled setting beside the interpreter.

    Attributes:
        results: of the program; the interpreter's errors come first.
        blamed: where they part; None if they do not, or if nothing smaller than the whole shows it.
        lowering: what compiled it.
        why: it was this one.
    """

    results: tuple[Result, ...]
    blamed: Blamed | None
    lowering: str
    why: str


def beside(subject: Subject, setting: Setting, say: Say) -> Beside:
    """Compare a compiled setting with the interpreter.

    Args:
        subject: what is run.
        setting: has a target.
        say: told in words what is done next.

    Raises:
        DifferenceError: the lowering cannot run the program.
        CompilerError: the compiler failed.
    """
    return _Beside(subject, setting, say).run()


class _Beside:
    def __init__(self, subject: Subject, setting: Setting, say: Say):
        assert setting.target is not None
        self._subject, self._setting, self._say = subject, setting, say
        self._target: Target = setting.target
        self._tolerance = setting.tolerance

    def run(self) -> Beside:
        """Compare results; where they part, find what is to blame."""
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
        return Beside(results=results, blamed=blamed, lowering=lowering.name, why=why)

    # -- passes ------------------------------------------------------------------------------

    def _versions(self) -> tuple[list[Program], Lowering, str]:
        """The program as captured and after each pass; what lowers it, and why."""
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
        """The first pass after which the interpreter's results are others."""
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
        """The last operation of the shortest prefix whose code is wrong."""
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
        """The first value of a compiled prefix that is wrong."""
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
        """Results and written state of compiled code, by role and name."""
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
