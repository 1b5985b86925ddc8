"""Checkpoints: weights are copied back when they are read, and to the device once loaded."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst
from libcst import matchers as m

from abele.port.analysis.batches import argument
from abele.port.analysis.kinds import Kind, Thing
from abele.port.analysis.parts import block_of, calls_of, statement_of
from abele.port.analysis.search import findall
from abele.port.context import Context
from abele.port.edits import keyword
from abele.port.finding import Verdict
from abele.port.routes import NoRouteError
from abele.port.source import Source

CODES = {
    "ABP701": "Weights come back from the device by themselves when they are read.",
    "ABP702": (
        "The state of an optimizer of poptorch.optim comes back by itself; that of one of torch "
        "stays on the device."
    ),
    "ABP703": "A whole model is pickled, with weights that come back by themselves, or read.",
    "ABP704": "Nothing but tensors and numbers is read from a checkpoint, unless it asks for more.",
    "ABP705": "The state of a scaler has no use any longer.",
    "ABP706": "Weights that are loaded are sent to the device.",
    "ABP708": (
        "An optimizer of poptorch.optim loads what one of poptorch.optim has saved, and refuses "
        "the state that one of torch has saved."
    ),
}

_WHOLE = (
    "the plain model is pickled as before, with weights copied back from the device; a "
    "state_dict() could still be loaded after its class has changed"
)
_READ = "a whole model is loaded as before; wrap it to run it as a compiled program"
_OF_TORCH = (
    "the state of an optimizer of torch is on the device until the training model is destroyed; "
    "save training_model.state_dict() or use popdist.checkpoint.Checkpointer"
)
_OF_OTHERS = (
    "poptorch's optimizers refuse a state that an optimizer of torch has saved: {own}; to go on "
    "from a file of the original, load its weights alone, or keep torch.optim.{name}, which a "
    "training model here takes, too, and PopTorch on an IPU does not"
)
_OWN = "what the port saves is loaded"
_NOT_OWN = "this program saves none itself"


def apply(context: Context) -> None:
    """Look at what is saved and loaded."""
    trained = {thing for step in context.steps for thing in step.models}
    for source in context.project.sources:
        for call in findall(source.module, m.Call()):
            assert isinstance(call, cst.Call)
            name = source.imported(call.func)
            if name == "torch.save" and call.args:
                _saved(context, source, call)
            elif name == "torch.load":
                _loaded(context, source, call)
        for call in calls_of(source.module, "state_dict"):
            _state(context, source, call)
        for call in calls_of(source.module, "load_state_dict"):
            assert isinstance(call.func, cst.Attribute)
            models = context.things.of(source, call.func.value, Kind.MODEL) & trained
            _to_device(context, source, call, models)
            _load_state(context, source, call)


def _saved(context: Context, source: Source, call: cst.Call) -> None:
    if context.things.of(source, call.args[0].value, Kind.MODEL):
        context.say(source, call, "ABP703", Verdict.MATCH, _WHOLE)


def _loaded(context: Context, source: Source, call: cst.Call) -> None:
    """Nothing but tensors is read, unless the program asks for more."""
    only = argument(call, "weights_only")
    if only is not None and m.matches(only, m.Name("False")):
        context.say(source, call, "ABP703", Verdict.MATCH, _READ)
    if only is not None:
        return
    safe = keyword("weights_only", "True")
    context.edits(source).give(call, safe)
    reason = (
        "with weights_only=True only tensors and numbers are loaded, and no code of the file runs"
    )
    context.say(source, call, "ABP704", Verdict.MODIFIED, reason)


def _state(context: Context, source: Source, call: cst.Call) -> None:
    """Weights, and state of optimizers, that are read."""
    assert isinstance(call.func, cst.Attribute)
    for thing in context.things.of(source, call.func.value):
        if thing.kind is Kind.MODEL:
            reason = "weights are copied back from the device when they are read"
            context.say(source, call, "ABP701", Verdict.MATCH, reason)
        elif thing in context.training and thing.name.startswith("torch.optim."):
            if _becomes_poptorchs(thing):
                reason = (
                    "the state of poptorch's optimizers is copied back from the device when it "
                    "is read"
                )
                context.say(source, call, "ABP702", Verdict.MATCH, reason)
            else:
                context.say(source, call, "ABP702", Verdict.MANUAL, _OF_TORCH)
        elif thing.kind is Kind.SCALER:
            reason = "the scaler is no longer used; its state stays that of a new one"
            context.say(source, call, "ABP705", Verdict.MATCH, reason)


def _load_state(context: Context, source: Source, call: cst.Call) -> None:
    """State of an optimizer that is loaded, which may be that of a plain program."""
    assert isinstance(call.func, cst.Attribute)
    for thing in context.things.of(source, call.func.value, Kind.OPTIMIZER):
        if thing in context.training and _becomes_poptorchs(thing):
            own = any(
                thing in context.things.of(at, cst.ensure_type(each.func, cst.Attribute).value)
                for at in context.project.sources
                for each in calls_of(at.module, "state_dict")
            )
            name = thing.name.rpartition(".")[2]
            reason = _OF_OTHERS.format(own=_OWN if own else _NOT_OWN, name=name)
            verdict = Verdict.MATCH if own else Verdict.MANUAL
            context.say(source, call, "ABP708", verdict, reason)
            return


def _becomes_poptorchs(optimizer: Thing) -> bool:
    return optimizer.name.rpartition(".")[2] in ("SGD", "Adam", "AdamW", "RMSprop")


def _to_device(context: Context, source: Source, call: cst.Call, models: set[Thing]) -> None:
    """Weights that are loaded after the training model may be on the device are sent there."""
    statement = statement_of(source, call)
    for optimizer in _optimizers(context, models):
        model = context.training[optimizer]
        if optimizer.source is source and optimizer.made in _after(source, statement):
            continue  # it is made later, and takes the weights along
        try:
            name = context.routes.name(model, source, call)
        except NoRouteError as error:
            reason = (
                f"the training model cannot be reached here ({error}): call its "
                "copyWeightsToDevice() after this"
            )
            context.say(source, call, "ABP706", Verdict.MANUAL, reason)
            continue
        there = f"{name}.isCompiled()"
        context.edits(source).after(statement, f"if {there}:\n    {name}.copyWeightsToDevice()")
        reason = "weights that are loaded are copied to the device, if a program is loaded there"
        context.say(source, call, "ABP706", Verdict.MODIFIED, reason)


def _after(source: Source, statement: cst.CSTNode) -> set[cst.CSTNode]:
    """The expressions that are evaluated after a statement, in its block or one around it."""
    later: set[cst.CSTNode] = set()
    for each in (statement, *source.above(statement)):
        if isinstance(each, cst.FunctionDef):
            break
        inside = isinstance(source.parent(each), cst.IndentedBlock | cst.Module)  # no 'elif'
        if inside and isinstance(each, cst.SimpleStatementLine | cst.If | cst.With | cst.Try):
            block = block_of(source, each)
            index = block.index(each) if each in block else len(block)
            for other in block[index + 1 :]:
                later.update(findall(other, m.Call()))
    return later


def _optimizers(context: Context, models: set[Thing]) -> Iterator[Thing]:
    """The optimizer of each training model that has one of some models."""
    seen: set[object] = set()
    for step in context.steps:
        wrapped = context.training.get(step.optimizer)
        if models & step.models.keys() and wrapped is not None and wrapped not in seen:
            seen.add(wrapped)
            yield step.optimizer
