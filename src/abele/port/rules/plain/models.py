"""Rules for training and inference models, which become classes of the file.

A program fixed at its first call what a module decides at each call: attributes of the model, the
modes of its parts, and that no result has a graph. The classes keep that, so calls of the models
stay as they are.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import libcst as cst
from libcst import matchers as m

from abele.port.analysis.batches import argument
from abele.port.analysis.flow import names_in
from abele.port.analysis.kinds import Kind, Thing
from abele.port.analysis.parts import StepError, statement_of
from abele.port.analysis.search import findall
from abele.port.context import Context
from abele.port.edits import keyword
from abele.port.finding import Verdict
from abele.port.layout import laid_out
from abele.port.rules.plain.batches import Batches, batches_of
from abele.port.rules.plain.removal import is_alone, manual, remove, without_empty
from abele.port.rules.wrapper import FUNCTIONS
from abele.port.source import Source

CODES = {
    "ABP1101": (
        "A class of the file takes the place of the training model: a call is zero_grad(), the "
        "model, backward() and step()."
    ),
    "ABP1109": "What this training model does in a call is not known.",
    "ABP1111": "A plain module is not compiled or attached to a device; the line is removed.",
    "ABP1112": "A new rate of the optimizer takes effect without setOptimizer().",
    "ABP1113": "The program went on with other values of the optimizer than a plain one would.",
    "ABP1114": "A plain module has no such method: decide by hand what takes its place.",
    "ABP1201": "A class of the file takes the place of the inference model: it has no gradients.",
    "ABP1209": "A call takes several batches, or returns some of its results only.",
}

_INFERENCE = '''class {name}:
    """A model without gradients, with the attributes and modes that a program compiled in."""

    def __init__(self, model):
        self.model, self.compiled = model, copy.copy(model)
        self.modes = None  # of the model's parts

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self.model, name)

    def __call__(self, *args, **kwargs):
        with torch.no_grad():
            return self.run(*args, **kwargs)

    def compile(self, *args, **kwargs):
        if self.modes is None:
            self.modes = {{each: each.training for each in self.compiled.modules()}}

    def destroy(self):
        self.modes = None

    def run(self, *args, **kwargs):
        """Call the model with its parts in the modes of the first call."""
        self.compile()
        present = {{each: each.training for each in self.compiled.modules()}}
        try:
            for each, mode in self.modes.items():
                each.training = mode
            return self.compiled(*args, **kwargs)
        finally:
            for each, mode in present.items():
                each.training = mode
'''
_DETACHED = '''def {name}(value):
    """Results without gradients."""
    if isinstance(value, (tuple, list)):
        return type(value)({name}(each) for each in value)
    return value.detach() if isinstance(value, torch.Tensor) else value
'''
_ONE = '''class {name}({base}):
    """A model of which a call makes one update."""

    def __init__(self, model, optimizer):
        super().__init__(model)
        self.optimizer = optimizer

    def __call__(self, *args, **kwargs):
        self.optimizer.zero_grad()
        results = self.run(*args, **kwargs)
        {loss}.backward()
{limit}        self.optimizer.step()
        return {detached}(results)
'''
_SEVERAL = '''class {name}({base}):
    """A model of which a call makes some updates, each with the mean gradient of some batches."""

    def __init__(self, model, optimizer, iterations=1, parts=1):
        super().__init__(model)
        self.optimizer, self.iterations, self.parts = optimizer, iterations, parts

    def __call__(self, *args, **kwargs):
        """Cut the rows into batches, and return {what}."""
        values = [*args, *kwargs.values()]
        rows, left = divmod(len(values[0]), self.iterations * self.parts)
        if left:
            number = self.iterations * self.parts
            raise ValueError(f"{{len(values[0])}} rows are no {{number}} batches")
        batches = zip(*(each.split(rows) for each in values), strict=True)
        kept = []
        for _ in range(self.iterations):
            self.optimizer.zero_grad()
            for _ in range(self.parts):
                batch = next(batches)
                named = dict(zip(kwargs, batch[len(args) :], strict=True))
                results = self.run(*batch[: len(args)], **named)
                ({loss} / self.parts).backward()
                kept.append({detached}(results))
{limit}            self.optimizer.step()
        return {returned}
'''
_LIMIT = """\
limit = getattr(self.optimizer, "max_grad_norm", None)
if limit is not None:
    updated = {each for group in self.optimizer.param_groups for each in group["params"]}
    gradients = [each for each in self.model.parameters() if each in updated]
    torch.nn.utils.clip_grad_norm_(gradients, limit)
"""
_JOINED = "torch.cat([each.reshape(1) if each.dim() == 0 else each for each in {}])"
_DEFAULT = "torch.optim.SGD({}.parameters(), lr=0.01)"  # of poptorch.trainingModel
_HOW = "; mark it with poptorch.identity_loss where forward returns it"
MARK = "poptorch.identity_loss"
#: Methods of a wrapper without effect on a plain module.
_GONE = frozenset(
    (
        *("attachToDevice", "detachFromDevice", "copyWeightsToHost", "copyWeightsToDevice"),
        *("copyWeightsToHostIfNeeded", "copyNamedBuffersToDevice"),
    )
)
METHODS = _GONE | frozenset(
    (
        *("setOptimizer", "isCompiled", "isAttachedToDevice", "compileAndExport"),
        *("loadExecutable", "cycleCount", "getPerfCounters", "getLatency", "getHostIpuLatency"),
        *("getComputeLatency", "getIpuHostLatency", "getTensorNames", "getAnchoredTensor"),
        *("per_replica_params", "rng_state", "copyOptimizerState", "executable_hash"),
        *("build_record", "pipelineReport", "rewrap", "precisionReport", "resetTimingInfo"),
        *("target", "exchanges", "placement", "getDataLocation", "compilationTime"),
    )
)
_KINDS = (Kind.TRAINING, Kind.INFERENCE)


def apply(context: Context) -> None:
    """Replace wrappers by classes of their files, and remove calls about the device."""
    for source in context.project.sources:
        for call in findall(source.module, m.Call()):
            name = source.imported(call.func)
            try:
                if name == "poptorch.trainingModel":
                    _training(context, source, call)
                elif name == "poptorch.inferenceModel":
                    _inference(context, source, call)
            except StepError as error:
                context.once.add(("wrapped", source))
                code = "ABP1109" if name.endswith("trainingModel") else "ABP1209"
                manual(context, source, call, code, error.reason)
    for source in context.project.sources:
        for node in findall(source.module, m.Attribute(attr=m.OneOf(*map(m.Name, METHODS)))):
            if any(each.kind in _KINDS for each in context.things.of(source, node.value)):
                _member(context, source, node)
    if context.things.all(Kind.TRAINING):
        _name_untold(context)


# -- wrappers -------------------------------------------------------------------------------------


def _inference(context: Context, source: Source, call: cst.Call) -> None:
    factors = batches_of(context, source, call, 1).factors
    if [each for each in factors if each != "1"]:
        reason = (
            f"a call takes {' x '.join(factors)} batches at once; a result without rows, such as a "
            "loss, would be one value for all"
        )
        raise StepError(call, reason)
    _replace(context, source, call, _base(context, source), [])
    reason = "the model, without gradients, in the modes of its first call"
    context.say(source, call, "ABP1201", Verdict.MODIFIED, reason)


def _training(context: Context, source: Source, call: cst.Call) -> None:
    place, count = _loss_of(context, source, call)
    batches = batches_of(context, source, call, 1)
    optimizer, model = argument(call, "optimizer", 2), argument(call, "model", 0)
    if optimizer is None and not isinstance(model, cst.Name | cst.Attribute):
        raise StepError(call, "give it an optimizer, or its model a name")
    more: list[cst.Arg] = []
    if optimizer is None and model is not None:
        more.append(cst.Arg(cst.parse_expression(_DEFAULT.format(source.code(model)))))
    for name in ("iterations", "parts"):
        number: str = getattr(batches, name)
        more += [keyword(name, number)] if number != "1" else []
    name = _class_of(context, source, place, count, batches)
    _replace(context, source, call, name, more)
    reason = "a call of this class is one of the training model: gradients and update"
    context.say(source, call, "ABP1101", Verdict.MODIFIED, reason)


def _replace(
    context: Context, source: Source, call: cst.Call, name: str, more: Sequence[cst.Arg]
) -> None:
    """Call a class with the model of a wrapper, and more arguments."""
    place = next(
        (i for i, e in enumerate(call.args) if e.keyword is None or e.keyword.value == "model"),
        None,
    )
    if place is None or any(each.star for each in call.args):
        raise StepError(call, "its arguments are not seen: give model, options and optimizer")
    optimizer = argument(call, "optimizer", 2)
    context.treated |= {call.func}
    context.treated |= {
        e for i, e in enumerate(call.args) if i != place and e.value is not optimizer
    }
    used = [place, *(i for i, each in enumerate(call.args) if each.value is optimizer)]

    def change(node: cst.Call) -> cst.Call:
        given = [*(cst.Arg(node.args[index].value) for index in used), *more]
        return laid_out(node.with_changes(func=cst.Name(name)), given)

    context.edits(source).change(call, change)


def _base(context: Context, source: Source) -> str:
    """Define the class of inference models in a file once, and return its name."""
    context.edits(source).need("import copy")
    return _defined(context, source, "InferenceModel", _INFERENCE)


def _class_of(context: Context, source: Source, place: int, count: int, batches: Batches) -> str:
    """Define a class of training models in a file, and return its name."""
    loss = "results" if count == 1 else f"results[{place}]"
    several = bool(batches.factors)
    indent = " " * (12 if several else 8)
    limited = any("max_grad_norm" in each.text for each in context.project.sources)
    columns = f"tuple({_JOINED.format('column')} for column in zip(*kept, strict=True))"
    returned = _JOINED.format("kept") if count == 1 else columns
    return _defined(
        context, source, "TrainingModel", _SEVERAL if several else _ONE,
        base=_base(context, source),
        detached=_defined(context, source, "detached", _DETACHED),
        loss=loss,
        limit="".join(f"{indent}{line}\n" for line in _LIMIT.splitlines()) if limited else "",
        returned=returned if batches.returns_all else "kept[-1]",
        what="the results of each batch" if batches.returns_all else "the results of the last",
    )  # fmt: skip


def _defined(context: Context, source: Source, wanted: str, text: str, **parts: str) -> str:
    """Define something in a file, unless it is there, and return its name."""
    name, number = context.name(source, wanted), 2
    while True:
        written = text.format(name=name, **parts)
        known = context.functions.setdefault((source, name), written)
        if known == written:
            break
        name, number = context.name(source, f"{wanted}{number}"), number + 1
    if (source, name) not in context.once:
        context.once.add((source, name))
        context.edits(source).need("import torch")
        context.edits(source).define(written)
    return name


# -- losses ---------------------------------------------------------------------------------------


def _loss_of(context: Context, source: Source, call: cst.Call) -> tuple[int, int]:
    """Return the index of the loss among the results of a model, and their number.

    Raises:
        StepError: forward is not in these files, or does not tell.
    """
    model = argument(call, "model", 0)
    things = set[Thing]() if model is None else context.things.of(source, model, Kind.MODEL)
    answers = {_of_forward(context, each, call) for each in things}
    if len(answers) != 1:
        raise StepError(call, f"which result of its model is the loss is not known{_HOW}")
    return answers.pop()


def _of_forward(context: Context, model: Thing, node: cst.CSTNode) -> tuple[int, int]:
    made = model.made
    cls = context.project.class_of(model.source, made.func) if isinstance(made, cst.Call) else None
    forward = None if cls is None else context.project.method(cls, "forward")
    if forward is None:
        raise StepError(node, f"the forward of {model.name or 'its model'} is not in these files")
    source = context.project.source(forward)
    results = [*_results(source, forward)]
    values: dict[str, list[cst.BaseExpression]] = {}
    for assign in findall(forward.body, m.Assign() | m.AugAssign()):
        for target in assign.targets if isinstance(assign, cst.Assign) else [assign]:
            for name in names_in(target.target):
                value = assign.value if isinstance(assign, cst.Assign) else cst.Ellipsis()
                values.setdefault(name, []).append(value)
    answers: set[tuple[int, int]] = set()
    for marked in (True, False):
        answers = answers or {
            (place, len(each))
            for each in results
            for place, value in enumerate(each)
            if _is_loss(context, source, value, values, marked)
        }
    if not answers and all(len(each) == 1 and _is_called(each[0], values) for each in results):
        return 0, 1  # of a function or module that is not followed
    if len(answers) != 1:
        raise StepError(node, f"which result of forward is the loss is not known{_HOW}")
    return answers.pop()


def _results(source: Source, forward: cst.FunctionDef) -> Iterator[Sequence[cst.BaseExpression]]:
    """Yield the values of each ``return`` of a function."""
    for node in findall(forward.body, m.Return()):
        if source.enclosing(node, cst.FunctionDef) is forward and node.value is not None:
            value = node.value
            either = [value.body, value.orelse] if isinstance(value, cst.IfExp) else [value]
            for each in either:
                yield [e.value for e in each.elements] if isinstance(each, cst.Tuple) else [each]


def _is_called(node: cst.BaseExpression, values: dict[str, list[cst.BaseExpression]]) -> bool:
    """Return whether an expression is what a call returns."""
    if isinstance(node, cst.Name):
        mine = values.get(node.value, [])
        return bool(mine) and all(isinstance(each, cst.Call) for each in mine)
    return isinstance(node, cst.Call)


def _is_loss(
    context: Context,
    source: Source,
    node: cst.BaseExpression,
    values: dict[str, list[cst.BaseExpression]],
    marked: bool,
) -> bool:
    """Return whether an expression is a loss: a marked one, or what a loss of torch returns."""
    if isinstance(node, cst.Name):
        others = {name: each for name, each in values.items() if name != node.value}
        mine = values.get(node.value, [])[-1 if marked else 0 :]
        # Arithmetic of a loss that is not marked is not what the program has trained.
        return bool(mine) and all(_is_loss(context, source, e, others, marked) for e in mine)
    if not isinstance(node, cst.Call):
        return False
    name = source.imported(node.func)
    if marked:
        return name == MARK
    of_torch = name.startswith("torch.nn.functional.") and name.rpartition(".")[2] in FUNCTIONS
    made = source.imported(node.func.func) if isinstance(node.func, cst.Call) else ""
    is_class = made.startswith("torch.nn.") and made.endswith("Loss")
    return of_torch or is_class or bool(context.things.of(source, node.func, Kind.LOSS))


# -- members of wrappers --------------------------------------------------------------------------


def _member(context: Context, source: Source, node: cst.Attribute) -> None:
    name, call = node.attr.value, source.parent(node)
    alone, code, verdict = is_alone(source, call), "ABP1111", Verdict.MODIFIED
    if name == "isCompiled" and isinstance(call, cst.Call):
        context.treated.add(call)
        context.edits(source).replace(call, "True")
        around = source.parent(call)
        if isinstance(around, cst.If):
            context.edits(source).change(around, without_empty)
        reason = "a plain module runs without being compiled"
    elif name == "setOptimizer" and alone and _is_same(context, source, call):
        remove(context, source, statement_of(source, node))
        code, reason = "ABP1112", "each update reads the present values of the optimizer"
    elif name in _GONE and alone:
        remove(context, source, statement_of(source, node))
        reason = f"a plain module needs no {name}"
    elif name == "setOptimizer":
        code, verdict = "ABP1113", Verdict.MANUAL
        reason = "write the new values into the param_groups of the optimizer that the model has"
    else:
        code, verdict, reason = "ABP1114", Verdict.MANUAL, f"a plain module has no {name}"
    if verdict is Verdict.MANUAL:
        manual(context, source, node, code, reason)
    else:
        context.say(source, node, code, verdict, reason)


def _is_same(context: Context, source: Source, call: Any) -> bool:
    """Return whether ``setOptimizer`` is given the optimizer that the model has."""
    value = call.args[0].value if call.args else None
    if not isinstance(value, cst.Name | cst.Attribute):
        return False
    trained = {
        optimizer
        for each in context.things.of(source, call.func.value, Kind.TRAINING)
        if isinstance(each.made, cst.Call)
        for given in [argument(each.made, "optimizer", 2)]
        if given is not None
        for optimizer in context.things.of(each.source, given, Kind.OPTIMIZER)
    }
    new = context.things.of(source, value, Kind.OPTIMIZER)
    return bool(new) and new <= trained


# -- what the program did not see -----------------------------------------------------------------

_UNTOLD = (
    "no setOptimizer() follows in this program, which went on with its first values; the plain "
    "optimizer takes the new ones in its next update"
)


def _name_untold(context: Context) -> None:
    """Name new values of optimizers in a program that never calls ``setOptimizer``."""
    if any("setOptimizer(" in source.text for source in context.project.sources):
        return
    for source in context.project.sources:
        for node in findall(source.module, m.Attribute()):
            above = [*source.above(node)]
            changed = any(isinstance(each, cst.AssignTarget | cst.AugAssign) for each in above)
            looped = isinstance(above[0], cst.For) and above[0].iter is node
            if node.attr.value == "step":
                steps = context.things.of(source, node.value, Kind.SCHEDULER)
            else:
                steps = node.attr.value == "param_groups" and (changed or looped)
            if steps:
                manual(context, source, node, "ABP1113", _UNTOLD)
