"""Other code for programs whose compiled code did not agree with the interpreter."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping

from abele.compile.compiling import lowered_by
from abele.compile.executable import ChosenLowering, Executable
from abele.errors import CompilerError
from abele.program import Program
from abele.targets.base import Compiled, Lowering
from abele.targets.candidates import considered

Remedy = tuple[str, Callable[[], Executable]]
_Code = tuple[Program, Compiled]  # a program after the passes of its lowering, and its code


def remedies(made: Executable) -> Iterator[Remedy]:
    """Yield other ways to make an executable's code, the most similar one first.

    Args:
        made: code that computes something else than its programs say.

    Yields:
        What is done, in words, and a function that does it. It raises ``CompilerError`` where that
        cannot be done.
    """
    lowerings = {program.name: made.lowering(program.name) for program in made.common}
    if any(each.compiles for each in lowerings.values()):
        yield "compiled again without vectorizers", lambda: _conservative(made, lowerings)
    for lowering in made.target.lowerings:
        if lowering.trusted or lowering in lowerings.values():
            continue
        name = lowering.name
        yield f"lowered by {name!r} instead", lambda by=lowering: _by(made, by)


def interpreted(made: Executable) -> Executable:
    """Return an executable's programs as the interpreter runs them on the same device."""
    by = ChosenLowering(name=made.target.lowerings[-1].name, reason="compiled code was refused")
    runs = {program.name: made.target.interpreted(program) for program in made.common}
    return _with(
        made,
        {name: (program, Compiled(run)) for name, (program, run) in runs.items()},
        dict.fromkeys(runs, by),
    )


def _conservative(made: Executable, lowerings: dict[str, Lowering]) -> Executable:
    code = dict[str, _Code]()
    for program in made.common:
        lowering, lowered = lowerings[program.name], made.lowered(program.name)
        again = lowering.compile_conservatively(lowered)
        code[program.name] = lowered, again or made.compiled[program.name]
    if all(each is made.compiled[name] for name, (_, each) in code.items()):
        raise CompilerError("there are no other flags to compile with")
    chosen = {
        name: ChosenLowering(name=each.name, reason="compiled without vectorizers")
        for name, each in lowerings.items()
    }
    return _with(made, code, chosen)


def _by(made: Executable, lowering: Lowering) -> Executable:
    code = dict[str, _Code]()
    for program in made.common:
        problem = lowering.why_not(considered(made.target, program))
        if problem is not None:
            raise CompilerError(f"{lowering.name!r} cannot run program {program.name!r}: {problem}")
        lowered = lowered_by(made.target, program, lowering.name)
        code[program.name] = lowered, lowering.compile(lowered)
    chosen = ChosenLowering(name=lowering.name, reason="code of the first choice was refused")
    return _with(made, code, dict.fromkeys(code, chosen))


def _with(
    made: Executable, code: Mapping[str, _Code], chosen: Mapping[str, ChosenLowering]
) -> Executable:
    """Return the executable with other code; its key stays, since that is of the programs."""
    names = {name: each.name for name, each in chosen.items()}
    return dataclasses.replace(
        made,
        key_parts={**made.key_parts, "lowerings": names},
        programs=tuple(code[program.name][0] for program in made.common),
        compiled={name: compiled for name, (_, compiled) in code.items()},
        chosen=dict(chosen),
        later=None,
        planned=frozenset(),
        verdict=None,
    )
