"""Where two settings part: both interpreted, or compiled ones beside the interpreter."""

from __future__ import annotations

import dataclasses

from abele.differences import text
from abele.differences.answer import Answer, Blamed, Result, Worst
from abele.differences.compiled import Beside, Say, beside
from abele.differences.lockstep import Lockstep
from abele.differences.settings import PLAIN, Setting
from abele.differences.subject import Subject


def why_different(
    subject: Subject, settings: tuple[Setting, Setting], say: Say = lambda text: None
) -> Answer:
    """Run a program in two ways, and say where they part.

    Args:
        subject: the program and its inputs.
        settings: the two ways.
        say: told in words what is done next, where that takes long.

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
    """Each setting beside the interpreter, whose results they have in common."""
    parts: list[tuple[tuple[Result, ...], Blamed | None]] = []
    notes: list[str] = []
    worst: tuple[Worst, ...] = ()
    for each in settings:
        if each.target is not None:
            made: Beside = beside(subject, each, say)
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
    """Results of two settings that were each compared with the interpreter."""
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
    """What the first setting is blamed for: its errors come first, then the interpreter's."""
    plain, mine = blamed.operation.errors
    operation = dataclasses.replace(blamed.operation, errors=(mine, plain))
    return dataclasses.replace(blamed, operation=operation)


def _notes(both: Lockstep) -> list[str]:
    notes = [
        f"{name} is first not finite at {text.place(made)}"
        for name, made in both.not_finite.items()
    ]
    if both.rounded:
        operators = ", ".join(both.rounded)
        notes.append(f"computed in float32 and rounded, for want of kernels: {operators}")
    return notes
