"""A switch of compute modes: one more member, and a branch for it wherever it differs from CPU."""

from __future__ import annotations

import libcst as cst
from libcst import matchers as m

from abele.port.analysis.batches import argument
from abele.port.analysis.kinds import Kind, Thing
from abele.port.analysis.search import findall
from abele.port.context import Context
from abele.port.finding import Verdict
from abele.port.modes import siblings
from abele.port.modes.context import ModeContext
from abele.port.modes.edits import ModeEdits
from abele.port.source import Source

CODES = {
    "ABP900": "The program has a mode for IPUs already. It stays as it is.",
    "ABP901": "The enumeration of compute modes has one more member.",
    "ABP902": "What only the new mode needs is imported if it is installed.",
    "ABP903": (
        "A function that calls the model takes a program as one more argument. What it does "
        "before the model stays on the host, what it does from there on is the program's."
    ),
    "ABP904": "The loss of a validation is what its program has returned.",
    "ABP905": "Where CPU is compared or listed, the new mode goes with it.",
    "ABP906": "What another mode does stays; the new one takes the way of CPU.",
    "ABP907": "A move to the device of the mode stays. That of the new mode is the host.",
    "ABP908": "The model's forward stays: a module around it computes the loss.",
    "ABP909": "Which mode a run is in is not known where a branch is needed.",
    "ABP910": "A decorator of Hydra stays.",
}

_STAYS = (
    "this stays for the other modes; the new one takes the way of CPU and waits for nothing, "
    "because a call of a program returns with its results"
)
_LISTED = "the new mode computes on the host what is outside of programs, as CPU does"
_FORWARD = (
    "forward stays, and returns what it did: the module around the model computes the loss and "
    "marks it with identity_loss"
)
_GUARDED = "poptorch and popdist are imported if they are installed; the other modes need neither"
_HYDRA = "this stays; Hydra before 1.2 has no version_base"


def apply(context: Context) -> None:
    """Say what becomes of the switch; the changes of all rules are branches by then."""
    for source in context.project.sources:
        for call in findall(source.module, m.Call()):
            assert isinstance(call, cst.Call)
            if source.imported(call.func) == "hydra.main" and argument(call, "version_base"):
                context.say(source, call, "ABP910", Verdict.MATCH, _HYDRA)
    if isinstance(context, ModeContext):
        _member(context)
        for source in context.whole.sources:
            _conditions(context, source)
        for source in context.project.sources:
            _imports(context, source)
        _forwards(context)


def _member(context: ModeContext) -> None:
    switch = context.modes
    reason = f"the enumeration gets one more mode, {switch.new}"
    context.say(switch.source, switch.cls, "ABP901", Verdict.MODIFIED, reason)


def _conditions(context: ModeContext, source: Source) -> None:
    """Conditions that ask for a mode: those that know CPU know the new one, too."""
    changed = list(siblings.places(source, context.modes))
    for node in changed:
        context.say(source, node, "ABP905", Verdict.MODIFIED, _LISTED)
    inside = {each for node in changed for each in findall(node, m.Comparison())}
    for node in findall(source.module, m.Comparison()):
        assert isinstance(node, cst.Comparison)
        if node not in inside and context.modes.decided(source, node) is not None:
            context.say(source, node, "ABP906", Verdict.MATCH, _STAYS)


def _imports(context: ModeContext, source: Source) -> None:
    edits = context.edits(source)
    assert isinstance(edits, ModeEdits)
    first = next(iter(findall(source.module, m.Import() | m.ImportFrom())), source.module)
    if edits.guarded():
        context.say(source, first, "ABP902", Verdict.MODIFIED, _GUARDED)


def _forwards(context: ModeContext) -> None:
    """The forward of each model that is trained with a loss of its own."""
    for step in context.steps:
        for thing in _updated(context, step.optimizer):
            called = thing.made.func if isinstance(thing.made, cst.Call) else None
            cls = None if called is None else context.project.class_of(thing.source, called)
            forward = None if cls is None else context.project.method(cls, "forward")
            if forward is not None:
                at = context.project.source(forward)
                context.say(at, forward, "ABP908", Verdict.MATCH, _FORWARD)


def _updated(context: ModeContext, optimizer: Thing) -> set[Thing]:
    """The models that an optimizer updates; an update by hand has the model itself for one."""
    if optimizer.kind is Kind.MODEL:
        return {optimizer}
    return context.things.updated(optimizer, Kind.MODEL)
