"""Changes that make a model fit, as lines."""

from abele.fit import bytes_text
from poptorch._fit.rungs import Ladder, Stays


def changes(ladder: Ladder) -> list[str]:
    """Lines that say what would make it fit."""
    lines = ["", *_outcome(ladder)]
    for rung in ladder.rungs:
        ratios = [f"{ratio:.2f} times the {name}" for name, ratio in rung.ratios.items()]
        per_step = f", a step has {' and '.join(ratios)}" if ratios else ""
        size = rung.answer.size
        sizes = f"{bytes_text(size.low)} to {bytes_text(size.high)}"
        lines.append(f"  {rung.name}: {bytes_text(rung.saved)} less ({sizes}){per_step}")
        lines += [f"      {line}" for line in rung.lines]
        lines += [f"    Warning: {rung.warning}."] if rung.warning else []
    if ladder.stays is None:
        lines += ["Not offered:", *(f"  {reason}." for reason in ladder.left_out)]
    elif ladder.rungs:
        lines.append(_staying(ladder.stays))
    return lines


def _outcome(ladder: Ladder) -> list[str]:
    if ladder.fits:
        return ["It fits with these changes, which were estimated one after the other:"]
    if ladder.rungs:
        return ["It needs less with these changes, but none of them is sure to make it fit:"]
    if ladder.stays is not None:
        return [_staying(ladder.stays)]
    return ["No change that is offered here makes it need less."]


def _staying(stays: Stays) -> str:
    return (
        "No change that is offered here is sure to make it fit: weights and the optimizer's state "
        f"take {bytes_text(stays.state)} whatever is changed, and the process without the model "
        f"may take {bytes_text(stays.process)}."
    )
