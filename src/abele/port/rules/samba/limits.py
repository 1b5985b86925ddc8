"""Refuses what a session does not do: several processes, several programs, accumulation."""

from __future__ import annotations

import libcst as cst
from libcst import matchers as m

from abele.port.analysis.batches import argument
from abele.port.analysis.kinds import Kind
from abele.port.analysis.parts import statement_of
from abele.port.analysis.search import findall
from abele.port.context import Context
from abele.port.finding import Verdict

CODES = {
    "ABP2001": (
        "Several processes are started by mpirun, each with its share of the data and "
        "data_parallel in session.run: they are ported by hand."
    ),
    "ABP2002": "A session runs one program; a second training step needs a session of its own.",
    "ABP2003": "A run updates with the gradients of its batch; they are not added up over several.",
    "ABP2004": "The session takes rates, momentum and weight decay along, and nothing else.",
}

_PROCESSES = frozenset(("init_process_group", "DistributedDataParallel", "DataParallel"))
_BETAS = frozenset(("OneCycleLR", "CyclicLR"))


def apply(context: Context) -> None:
    """Name the lines that stand in the way."""
    for source in context.project.sources:
        for call in findall(source.module, m.Call()):
            assert isinstance(call, cst.Call)
            if source.imported(call.func).rpartition(".")[2] in _PROCESSES:
                context.say(source, call, "ABP2001", Verdict.BLOCKED, _by_hand("processes"))
        for node in findall(source.module, m.Attribute(attr=m.Name("param_groups"))):
            assert isinstance(node, cst.Attribute)
            text = source.code(statement_of(source, node))
            if context.things.of(source, node.value, Kind.OPTIMIZER) and "betas" in text:
                context.say(source, node, "ABP2004", Verdict.BLOCKED, _by_hand("betas"))
    for thing in context.things.all(Kind.SCHEDULER):
        made = thing.made
        if thing.name.rpartition(".")[2] in _BETAS and isinstance(made, cst.Call):
            cycled = argument(made, "cycle_momentum")
            if cycled is None or not m.matches(cycled, m.Name("False")):
                context.say(thing.source, made, "ABP2004", Verdict.BLOCKED, _by_hand("scheduler"))
    for step in context.steps[1:]:
        context.say(step.source, step.backward, "ABP2002", Verdict.BLOCKED, _by_hand("programs"))
    for step in context.steps:
        if step.gradients.every is not None:
            reason = _by_hand("accumulation")
            context.say(step.source, step.backward, "ABP2003", Verdict.BLOCKED, reason)


def _by_hand(what: str) -> str:
    return {
        "processes": "mpirun starts the processes, and session.run has data_parallel: by hand",
        "programs": "a session runs one program; port the steps as programs of their own",
        "accumulation": "a run updates with the gradients of its batch; use a larger batch",
        "betas": "betas are part of the program, and a run does not change them",
        "scheduler": "it also changes momentum or betas; with cycle_momentum=False it is ported",
    }[what]
