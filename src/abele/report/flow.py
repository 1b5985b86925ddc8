"""Flow of values between modules in forward, drawn as a graph per module.

Forward is a row of passages: operations that follow each other in one module. Seen from a module,
those that follow each other inside one of its parts are one step, so a graph never has a cycle,
and a module that is called twice is drawn twice.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Sequence

#: Reads of a step that come from the batch or from outside of the module.
OUTSIDE = -1


@dataclasses.dataclass(frozen=True, kw_only=True)
class Read:
    """An input of a passage (a run of operations of one module) from an earlier passage.

    Attributes:
        passage: number of the passage; ``OUTSIDE`` for the batch.
        bytes: of the value.
        type: ``f32[16, 8, 28, 28]``.
    """

    passage: int
    bytes: int
    type: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class Passage:
    """Operations of forward that follow each other in one module; views are none.

    Attributes:
        module: its path, names joined by ``/``; empty outside all.
        operators: names of what they call, in their order, each once.
        count: number of operations.
        reads: values of other passages, each once.
    """

    module: str
    operators: tuple[str, ...]
    count: int
    reads: tuple[Read, ...] = ()


@dataclasses.dataclass(kw_only=True)
class Step:
    """A node of a module's graph.

    Attributes:
        name: the part of the module; empty for operations of the module itself. Of a list of
            modules that are called one by one, the one in it: ``layers/3``.
        operators: as of ``Passage``.
        count: number of operations.
        reads: values by the step that they come from, or by ``OUTSIDE``.
        leaves: somebody outside of the module reads what it makes.
    """

    name: str
    operators: dict[str, None] = dataclasses.field(default_factory=dict[str, None])
    count: int = 0
    reads: dict[int, list[Read]] = dataclasses.field(default_factory=dict[int, list[Read]])
    leaves: bool = False


def steps_of(passages: Sequence[Passage], module: str) -> list[Step]:
    """Return the graph of a module, in the order in which it runs.

    Args:
        passages: of forward.
        module: its path; empty for the whole model.
    """
    prefix = f"{module}/" if module else ""
    steps: list[Step] = []
    step_of: dict[int, int] = {}
    inside: list[set[str]] = []
    for index, passage in enumerate(passages):
        if module and passage.module != module and not passage.module.startswith(prefix):
            for read in passage.reads:
                if read.passage in step_of:
                    steps[step_of[read.passage]].leaves = True
            continue
        name = passage.module.removeprefix(prefix if passage.module != module else module)
        name, _, rest = name.partition("/")
        if not steps or steps[-1].name != name:
            steps.append(Step(name=name))
            inside.append(set())
        inside[-1].add(rest.partition("/")[0])
        step_of[index] = len(steps) - 1
        _add(steps[-1], passage, step_of)
    counts = Counter(step.name for step in steps)
    for step, names in zip(steps, inside, strict=True):
        if counts[step.name] > 1 and len(names) == 1 and all(each.isdigit() for each in names):
            step.name += f"/{min(names)}"
    return steps


def _add(step: Step, passage: Passage, step_of: dict[int, int]) -> None:
    this = max(step_of.values())
    step.count += passage.count
    step.operators |= dict.fromkeys(passage.operators)
    for read in passage.reads:
        source = step_of.get(read.passage, OUTSIDE)
        values = step.reads.setdefault(source, []) if source != this else []
        # One value may be read by several passages of a step.
        if read not in values:
            values.append(read)
