"""Training in several processes: connecting, comparing settings, and errors."""

import functools
import weakref
from collections.abc import Callable, Sequence, Sized
from typing import Any

from abele import collectives
from abele.capture import Captured
from abele.collectives import Collective
from abele.compile import start
from abele.step.config import StepConfig
from abele.step.update_rules import UpdateRule

# Each process may choose for itself which results it looks at.
_OWN_CHOICE = {"output_mode", "output_period"}

_epoch_of: Any = None


def collective_of(config: StepConfig) -> Collective | None:
    """Return what connects the processes of a training program; None for the only one."""
    return collectives.connected() if config.training and config.processes > 1 else None


def gather_of(config: StepConfig) -> Callable[[str], list[str]] | None:
    """Return what tells all processes of a training program how each of them starts."""
    collective = collective_of(config)
    return None if collective is None else functools.partial(collective.gather, "how steps start")


def note_epoch(loader: Any) -> None:
    """Remember the loader that was begun last: its batches are those of the next step."""
    global _epoch_of
    _epoch_of = weakref.ref(loader)


def agree(
    captured: Captured, config: StepConfig, rule: UpdateRule | None, examples: Sequence[Any]
) -> None:
    """With other processes: all have the same before anybody compiles for a long time.

    Raises:
        DisagreementError: names what differs.
    """
    collective = collective_of(config)
    if collective is not None:
        collective.agree("the model and its options", facts(captured, config, rule, examples))


def facts(
    captured: Captured, config: StepConfig, rule: UpdateRule | None, examples: Sequence[Any]
) -> dict[str, str]:
    """Return what must be the same in all processes, by the name under which it is told apart."""
    values = {
        name: str(value)
        for name, value in vars(config).items()
        if name not in _OWN_CHOICE and name != "replica_groups"
    }
    for index, example in enumerate(examples):
        values[f"shape of input {index}"] = f"{list(example.shape)} {example.dtype}"
    for name, value in (rule.hyper() if rule is not None else {}).items():
        values[f"optimizer's {name}"] = repr(value)
    values[start.SWAP_AT] = str(start.swap_at())
    values["batches per epoch"] = _batches()
    for program in captured.programs:
        values[f"program {program.name!r}"] = program.fingerprint()[:16]
    return values


def _batches() -> str:
    loader = None if _epoch_of is None else _epoch_of()
    if not isinstance(loader, Sized):
        return "unknown"
    try:
        return str(len(loader))
    except (TypeError, NotImplementedError):  # an iterable data set
        return "unknown"
