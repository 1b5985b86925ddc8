"""Candidate lowerings of a program: one by rule, or several to be timed.

``ABELE_LOWERING`` overrides this for targets that have several: ``rules`` (by rule, without
timing), one name, or several names separated by commas, which are timed.
"""

from __future__ import annotations

import functools
import hashlib
import os
import weakref
from pathlib import Path
from typing import Any

import torch

from abele.errors import TargetError
from abele.program import Program, all_nodes, has_effect, users_operator
from abele.targets.base import Lowering, Target

ENVIRONMENT = "ABELE_LOWERING"
RULES = "rules"

# By the graph of the program as it was.
_considered: weakref.WeakKeyDictionary[torch.fx.GraphModule, Program]
_considered = weakref.WeakKeyDictionary()


def considered(target: Target, program: Program) -> Program:
    """Return the program as lowerings judge it: after passes shared by all lowerings.

    Args:
        target: the target with the lowerings.
        program: after the common pipeline; must not be edited afterwards.
    """
    if len(target.lowerings) == 1:
        return program
    if program.graph not in _considered:
        apart = functools.reduce(lambda each, change: change(each), target.apart, program)
        if apart is program:
            return program
        _considered[program.graph] = apart
    return _considered[program.graph]


def candidates(
    target: Target, program: Program, *, measured: bool = True
) -> list[tuple[Lowering, str]]:
    """Return candidate lowerings with reasons; the first is default, others need to be faster.

    Args:
        target: the target that runs the program.
        program: after the common pipeline.
        measured: timing is possible, so several may be returned.

    Raises:
        TargetError: the environment asks for a lowering that does not exist or cannot run it.
    """
    asked = os.environ.get(ENVIRONMENT, "")
    if len(target.lowerings) == 1:
        return [target.choose(program)]
    program = considered(target, program)
    if asked == RULES:
        return [target.choose(program)]
    unmeasured = _why_not_measured(target, program) if measured else "it runs in several processes"
    if asked:
        ways = [_asked(target, program, name.strip()) for name in asked.split(",")]
        if unmeasured is None or len(ways) == 1:
            return ways
        return [(ways[0][0], f"the first that {ENVIRONMENT} names, unmeasured: {unmeasured}")]
    lowering, reason = target.choose(program)
    if lowering.certain or unmeasured is not None:
        return [(lowering, reason)]
    others = (
        each for each in target.lowerings if each is not lowering and each.also_measure(program)
    )
    ways = [(lowering, reason), *((each, "it is measured beside") for each in others)]
    return _possible(target, ways)


def _possible(target: Target, ways: list[tuple[Lowering, str]]) -> list[tuple[Lowering, str]]:
    """Drop lowerings that need a compiler if there is none and others remain."""
    if target.cannot_compile([each.name for each, _ in ways]) is None:
        return ways
    rest = [way for way in ways if not way[0].compiles]
    return rest if target.cannot_compile([each.name for each, _ in rest]) is None else ways


def decided_by(target: Target, *, measured: bool) -> dict[str, Any]:
    """Return all settings, besides the program, that the choice of lowering depends on.

    Args:
        target: the target that runs the program.
        measured: as for ``candidates``.
    """
    if len(target.lowerings) == 1 and not target.lowerings[0].passes:
        return {}
    asked = os.environ.get(ENVIRONMENT, "")
    return {
        "asked": asked,
        "measured": measured,
        "sources": _fingerprint(),
        # Torch promotes a number beside integers to it, also where code is written.
        "default_dtype": str(torch.get_default_dtype()).removeprefix("torch."),
    }


#: Folders and files of this package that look at programs or change them between capture and code,
#: with those that they import.
DECIDING = (
    *("_torch", "arena", "kernels", "ops", "passes", "program", "targets", "trace"),
    *("containers.py", "processor.py"),
)


@functools.cache
def _fingerprint() -> str:
    """Return a hash of the source files that the choice of lowering depends on."""
    digest, package = hashlib.sha256(), Path(__file__).parents[1]
    for part in DECIDING:
        path = package / part
        for source in sorted(path.rglob("*.py")) if path.is_dir() else [path]:
            digest.update(f"\0{source.relative_to(package)}\0".encode() + source.read_bytes())
    return digest.hexdigest()[:16]


def _why_not_measured(target: Target, program: Program) -> str | None:
    """Return why candidate lowerings of a program are not timed, or None if they are."""
    if not target.measures:
        return f"programs are not timed on target {target.name!r}"
    # It may run only when the user runs it; of a user's operator, nobody else knows.
    if users_operator(program) is not None or any(map(has_effect, all_nodes(program.graph))):
        return "it may do more than compute"
    return None


def _asked(target: Target, program: Program, name: str) -> tuple[Lowering, str]:
    names = [each.name for each in target.lowerings]
    if name not in names:
        raise TargetError(
            f"{ENVIRONMENT}={os.environ[ENVIRONMENT]!r} was found, but {name!r} is no lowering of "
            f"target {target.name!r}. Set it to {', '.join(names)}, several of them with commas "
            f"between, or {RULES}; or leave it unset."
        )
    lowering = target.lowering(name)
    problem = lowering.why_not(program)
    if problem is not None:
        raise TargetError(
            f"{ENVIRONMENT}={os.environ[ENVIRONMENT]!r} was asked for, but {name!r} cannot run "
            f"program {program.name!r}: {problem}. Leave it unset to let abele choose."
        )
    return lowering, f"asked for by {ENVIRONMENT}"
