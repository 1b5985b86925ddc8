"""Target-independent graph passes, in order.

A pass is a function from ``Program`` to ``Program`` that keeps what the program computes, bit for
bit. ``run`` verifies each result and stamps it with the pass's name and time. The lowering that a
target chooses of the result then applies passes of its own, which may change rounding.

A pass that replaces a value by another must not make a result of the program share memory with an
input, a constant or another result (``program.aliasing.aliases_of_calls`` says what shares), nor
let a write read a slot that an earlier write has changed. The payload of a NaN may change.
"""

from __future__ import annotations

import contextlib
import contextvars
import time
from collections.abc import Callable, Sequence

from abele.contexts import held
from abele.errors import ProgramError
from abele.passes._edit import one_after_the_other
from abele.passes.cleanup import common_subexpressions, dead_code, effects_in_order, identities
from abele.passes.recomputation import recomputation
from abele.program import Program, Stamp

Pass = Callable[[Program], Program]
#: Observer of passes: called before the first pass and after each, with the pass's stamp.
Watch = Callable[[Program], None]

_WATCHES: contextvars.ContextVar[tuple[Watch, ...]] = contextvars.ContextVar("watches", default=())

PIPELINE: tuple[Pass, ...] = (
    identities,  # detach, copies of equal layout and double transposes say nothing
    common_subexpressions,  # each hyper-parameter is converted once, not once per parameter
    dead_code,  # nodes that the two passes above left without readers
    effects_in_order,  # orders the prints and host calls that remain
    recomputation,  # last: merging equal nodes would undo it
)


def watched(watch: Watch) -> contextlib.AbstractContextManager[None]:
    """Call ``watch`` with each program before and after a pass of this thread, in a context."""
    return held(_WATCHES, (*_WATCHES.get(), watch))


def are_watched() -> bool:
    """Return whether an observer watches the passes of this thread."""
    return bool(_WATCHES.get())


def run(program: Program, extra: Sequence[Pass] = ()) -> Program:
    """Apply the passes of ``PIPELINE``, then those of ``extra``.

    Raises:
        ProgramError: a pass broke the program; names it and those that ran before.
    """
    return run_only(program, (*PIPELINE, *extra))


def run_only(program: Program, order: Sequence[Pass]) -> Program:
    """Apply the passes of ``order`` only.

    Raises:
        ProgramError: as for ``run``.
    """
    with one_after_the_other():
        return _run(program, order)


def _run(program: Program, order: Sequence[Pass]) -> Program:
    done = [stamp.by for stamp in program.history]
    _tell(program)
    for each in order:
        started = time.perf_counter()
        try:
            after = each(program)
            if after is not program:  # else it was verified
                program = after.verify()
        except ProgramError as error:
            raise ProgramError(
                f"Pass {each.__name__!r} broke program {program.name!r} after {done}: {error}"
            ) from error
        stamp = Stamp(
            by=each.__name__,
            seconds=time.perf_counter() - started,
            nodes=len(program.graph.graph.nodes),
        )
        program = program.replace(history=(*program.history, stamp))
        _tell(program)
        done.append(each.__name__)
    return program


def _tell(program: Program) -> None:
    for watch in _WATCHES.get():
        watch(program)
