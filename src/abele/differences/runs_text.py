"""How two runs differ, as people read it: a paragraph each for what is compared."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from abele.differences.losses import Losses, Pair
from abele.differences.program_texts import Operation, Parted
from abele.differences.runs import RunsAnswer
from abele.report import words
from abele.report.difference import Difference

_ROWS = 8
_DIGITS = 12  # of a fingerprint


def text(answer: RunsAnswer) -> str:
    """The whole answer."""
    first, second = answer.names
    said = f"{first} and {second} {'differ' if answer.status else 'are the same'}."
    parts = [
        said,
        *_listed("Optimizer", answer.optimizer),
        *_listed("Options", answer.options),
        *_programs(answer),
        *_listed("Kernels", answer.kernels),
        *_listed("Target and versions", answer.machine),
        *_losses(answer.losses),
    ]
    if answer.reasons:
        parts += ["Nothing that the records have differs, but losses do. What may be why:"]
        parts += [f"  {each}" for each in answer.reasons]
    return "\n".join([*parts, *(f"Note: {note}" for note in answer.notes)])


def _listed(title: str, differing: Sequence[Difference]) -> Iterator[str]:
    if not differing:
        yield f"{title}: no difference."
        return
    yield f"{title}: {words.count(len(differing), 'difference')}."
    for each in differing[:_ROWS]:
        yield f"  {each.what}: {each.first} and {each.second}"
    if len(differing) > _ROWS:
        yield f"  ... and {len(differing) - _ROWS} more"


def _programs(answer: RunsAnswer) -> Iterator[str]:
    if not answer.programs and not answer.only:
        yield "Programs: no difference."
        return
    for each in answer.only:
        yield f"Programs: {each.first} and {each.second}."
    for each in answer.programs:
        yield from _parted(each)
    if answer.operators:
        yield "  How often operators are called:"
        for each in answer.operators[:_ROWS]:
            yield f"    {each.what}: {each.first} and {each.second}"
        if len(answer.operators) > _ROWS:
            yield f"    ... and {len(answer.operators) - _ROWS} more"


def _parted(program: Parted) -> Iterator[str]:
    prints = [each[:_DIGITS] for each in program.fingerprints if each]
    said = f", fingerprints {prints[0]} and {prints[1]}" if len(prints) == 2 else ""
    yield f"Programs: {program.name} differs{said}.{_made_by(program.by)}"
    for name, first, second in program.slots[:_ROWS]:
        yield f"  {name}: {first or 'not there'} and {second or 'not there'}"
    if len(program.slots) > _ROWS:
        yield f"  ... and {len(program.slots) - _ROWS} more"
    first, second = program.operations
    if first or second:
        yield "  The first operation that differs:"
        yield f"    first: {_operation(first)}"
        yield f"    second: {_operation(second)}"
    elif program.constants:
        yield f"  Its operations are the same. Values of constants: {', '.join(program.constants)}."
    elif not program.slots:
        yield "  Its operations are the same as far as the records keep their text."


def _made_by(by: str) -> str:
    if by == "capture":
        return " They differ as captured: by the model, its loss, optimizer, inputs or options."
    return f" Both were captured alike; {by} made them differ." if by else ""


def _operation(made: Operation | None) -> str:
    if made is None:
        return "none: the program ends before it"
    where = [made.phase and f"in {made.phase}", made.line]
    return ", ".join([made.text, *filter(None, where)])


def _losses(losses: Losses) -> Iterator[str]:
    if losses.updates[0] != losses.updates[1]:
        noun = "Updates" if losses.training else "Batches"
        yield f"{noun}: {losses.updates[0]} and {losses.updates[1]}."
    if not losses.compared:
        yield f"Losses: nothing to compare, {_missing(losses)}."
        return
    if losses.first is None:
        yield f"Losses: the same bit for bit, all {losses.compared} that both records have."
        yield from _not_finite(losses)
    else:
        yield f"Losses: they part at {_pair(losses.first)}.{_before(losses, losses.first)}"
        yield f"  {_largest(losses)}"
        yield from _not_finite(losses)
    calls = [made // each for made, each in zip(losses.updates, losses.a_call, strict=True)]
    if losses.compared < min(calls):
        yield (
            f"  Of {calls[0]} and {calls[1]} calls, {losses.compared} have a loss in both records; "
            "the others are not compared."
        )


def _not_finite(losses: Losses) -> Iterator[str]:
    """Says where both are the same because both are no numbers any more."""
    pair = losses.not_finite
    if pair is not None:
        place = "from" if losses.stays else "at"
        yield f"  Both are not finite {place} update {pair.update}: {pair.instead[0]}."


def _missing(losses: Losses) -> str:
    without = [not each for each in losses.known]
    if all(without):
        return "neither record has losses"
    if any(without):
        return f"the {'first' if without[0] else 'second'} record has no losses"
    return "the records have no loss of the same update"


def _before(losses: Losses, first: Pair) -> str:
    if losses.before + max(losses.a_call) < first.update:
        since = f"update {losses.before}" if losses.before else "the beginning"
        return f" Since {since} records have no loss of the same update, so it may be before that."
    if not losses.before:
        return ""
    return f" Those up to update {losses.before} are the same bit for bit."


def _largest(losses: Losses) -> str:
    assert losses.first is not None
    said = f"From there {losses.parted} of {losses.compared} differ"
    if losses.largest is None:
        return f"{said}, and none of these is finite in both runs."
    return (
        f"{said}, by at most {losses.largest.distance:.1e} of the larger, at "
        f"{_pair(losses.largest)}."
    )


def _pair(pair: Pair) -> str:
    values = [
        instead or "one that is not finite" if each is None else repr(each)
        for each, instead in zip((pair.first, pair.second), pair.instead, strict=True)
    ]
    return f"update {pair.update}: {values[0]} and {values[1]}"
