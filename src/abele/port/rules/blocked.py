"""Reports lines of a program that cannot become part of a compiled program."""

from __future__ import annotations

import importlib.util
import re
import sys
from collections.abc import Callable, Iterator
from typing import NamedTuple, TypeAlias

import libcst as cst
from libcst import matchers as m

from abele.port.analysis.batches import argument
from abele.port.analysis.flow import reads
from abele.port.analysis.kinds import Kind
from abele.port.analysis.parts import Statement, calls_of, receiver
from abele.port.analysis.steps import Step
from abele.port.context import Context
from abele.port.finding import Verdict
from abele.port.source import Source, findall

_Nodes: TypeAlias = Iterator[cst.CSTNode]


class Reason(NamedTuple):
    """A construct that prevents porting, with the reason.

    Attributes:
        code: code of the findings, such as ``ABP601``.
        verdict: *blocked*, or *manual* if the user can change the line.
        find: yields the syntax nodes of the construct in a file.
        text: the reason, and a remedy.
    """

    code: str
    verdict: Verdict
    find: Callable[[Context, Source], _Nodes]
    text: str


def apply(context: Context) -> None:
    """Report every line that prevents porting."""
    for source in context.project.sources:
        for reason in REASONS:
            for node in reason.find(context, source):
                context.say(source, node, reason.code, reason.verdict, reason.text)
        for forward in _forwards(context, source):
            _say_values(context, source, forward.body)
            _say_random(context, source, forward.body)
        _say_missing(context, source)
    for step in context.steps:
        for statement in step.forward:
            _say_values(context, step.source, statement)
            _say_random(context, step.source, statement)
            _refuse_changing(context, step, statement)


def _say_values(context: Context, source: Source, piece: cst.CSTNode) -> None:
    """Report code of a forward pass that may need the value of a tensor."""
    tests = [each.test for each in findall(piece, m.If() | m.While() | m.IfExp())]
    decides = [each for test in tests for each in findall(test, _REDUCED)]
    for node in (*findall(piece, _READ), *decides):
        context.say(source, node, "ABP605", Verdict.MANUAL, _VALUE)
    for call in findall(piece, m.Call()):
        if source.imported(call.func).endswith(".pack_padded_sequence"):
            context.say(source, call, "ABP605", Verdict.BLOCKED, _PACKED)
        buffer = m.extract(call, _NUMBER_OF_OWN)
        name = source.code(cst.ensure_type(buffer["name"], cst.Name)) if buffer else ""
        if name and re.search(rf"register_buffer\(\s*['\"]{name}['\"]", source.text):
            context.say(source, call, "ABP605", Verdict.BLOCKED, _VALUE)


_NUMBER_OF_OWN = m.Call(
    func=m.Name("int") | m.Name("float") | m.Name("bool"),
    args=[m.Arg(m.Attribute(value=m.Name("self"), attr=m.SaveMatchedNode(m.Name(), "name")))],
)
_PACKED = (
    "how many elements this has depends on the lengths of a batch, and a compiled program has one "
    "shape: give the recurrent layer the padded sequences, and mask what it returns"
)
_READ = m.Call(func=m.Attribute(attr=m.OneOf(*map(m.Name, ("item", "tolist", "numpy")))))
_REDUCED = m.Call(
    func=m.Attribute(attr=m.OneOf(*map(m.Name, ("sum", "mean", "max", "min", "any", "all"))))
)
_VALUE = (
    "this may need the value of a tensor, and a program is compiled before there are values: keep "
    "the tensor here, choose with torch.where, and call item() on what the step returns"
)


def _refuse_changing(context: Context, step: Step, statement: Statement) -> None:
    """Report conditions and sizes that depend on a number that changes during training."""
    tests = [each.test for each in findall(statement, m.If() | m.While() | m.IfExp())]
    for node in (*tests, *findall(statement, m.Slice() | m.Call(func=m.Name("range")))):
        ends = (node.lower, node.upper) if isinstance(node, cst.Slice) else ()
        names = [name for name in reads(node) if name in step.slow]
        moves = bool(ends) and all(end is not None and {*names} <= {*reads(end)} for end in ends)
        if names and not moves:
            text = _CHOICE.format(names=", ".join(names))
            context.say(step.source, node, "ABP605", Verdict.BLOCKED, text)


_CHOICE = (
    "what is computed here, or a size, depends on {names}, which changes during training, and a "
    "compiled program computes one way with one shape: compute both ways, or with the largest "
    "size, and multiply what does not count by 0"
)
_RANDOM = (
    "this random number is drawn once, when the program is compiled, and is the same in all "
    "calls: draw it with torch, as in torch.rand(()), or pass it to the model as a tensor"
)
_SAME = ("random.seed", "random.getstate", "numpy.random.seed", "random.Random")


def _say_random(context: Context, source: Source, piece: cst.CSTNode) -> None:
    """Report random numbers that Python or numpy draws in a forward pass."""
    for call in findall(piece, m.Call()):
        name = source.imported(call.func)
        if name.startswith(("random.", "numpy.random.")) and not name.startswith(_SAME):
            context.say(source, call, "ABP609", Verdict.BLOCKED, _RANDOM)


def _say_missing(context: Context, source: Source) -> None:
    """Report imports of modules that are not available, unless inside a ``try``."""
    for node in findall(source.module, m.Import() | m.ImportFrom()):
        if source.enclosing(node, cst.Try) is not None:
            continue
        names = (
            [source.code(each.name) for each in node.names] if isinstance(node, cst.Import) else []
        )
        if isinstance(node, cst.ImportFrom) and node.module is not None:
            names = ["." * len(node.relative) + source.code(node.module)]
        for name in names:
            top = name if name.startswith(".") else name.split(".")[0]
            known = context.project.has(source, top) or top in sys.modules
            if not known and (top.startswith(".") or importlib.util.find_spec(top) is None):
                context.say(source, node, "ABP601", Verdict.MATCH, _MISSING.format(name))


_MISSING = (
    "the module {} is not here, and what it defines is not followed: put its file beside the "
    "program, or install it, and port again"
)


def _forwards(context: Context, source: Source) -> list[cst.FunctionDef]:
    """Return the ``forward`` methods of a file's modules, and the file's functions they call."""
    found = [each for step in context.steps for each in step.helpers]
    for _, function in context.project.functions():
        cls = context.project.source(function).enclosing(function, cst.ClassDef)
        if function.name.value == "forward" and cls is not None and context.project.is_module(cls):
            found.append(function)
    for each in found:
        at = context.project.source(each)
        called = (context.things.function(at, call) for call in findall(each.body, m.Call()))
        found += [inner for inner in called if inner not in (None, *found)]
    return [each for each in found if context.project.source(each) is source]


def _named(*names: str) -> Callable[[Context, Source], _Nodes]:
    """Return a function that yields calls of imported functions; ``"name."`` matches a prefix."""

    def find(context: Context, source: Source) -> _Nodes:
        del context
        for call in findall(source.module, m.Call()):
            name = source.imported(call.func)
            if any(name == each or (each[-1] == "." and name.startswith(each)) for each in names):
                yield call

    return find


def _methods(*names: str) -> Callable[[Context, Source], _Nodes]:
    """Return a function that yields calls of methods of these names, on any object."""

    def find(context: Context, source: Source) -> _Nodes:
        del context
        for name in names:
            for call in calls_of(source.module, name):
                if not source.imported(call.func):
                    yield call

    return find


def _sparse(context: Context, source: Source) -> _Nodes:
    """Yield calls that create sparse tensors or sparse gradients."""
    del context
    for call in findall(source.module, m.Call()):
        name = source.imported(call.func)
        last = name.rpartition(".")[2]
        if name.startswith("torch.sparse") or name == "torch.spmm" or last == "SparseAdam":
            yield call
        elif last in ("Embedding", "EmbeddingBag", "embedding", "embedding_bag"):
            sparse = argument(call, "sparse")
            if sparse is not None and not m.matches(sparse, m.Name("False")):
                yield call
        elif not name and m.matches(
            call.func, m.Attribute(attr=m.OneOf(*map(m.Name, _SPARSE_METHODS)))
        ):
            yield call


_SPARSE_METHODS = ("to_sparse", "to_sparse_coo", "to_sparse_csr", "sparse_mask", "sparse_resize_")


def _shared(context: Context, source: Source) -> _Nodes:
    """Yield calls of ``share_memory`` of models, whose weights several processes update."""
    for call in calls_of(source.module, "share_memory"):
        if context.things.of(source, receiver(call), Kind.MODEL):
            yield call


REASONS: tuple[Reason, ...] = (
    Reason(
        "ABP602",
        Verdict.BLOCKED,
        _sparse,
        "a compiled program has dense tensors only: write this product or gradient with dense ones",
    ),
    Reason(
        "ABP604",
        Verdict.BLOCKED,
        _named("torch.autograd.grad", "torch.autograd.backward", "torch.autograd.functional."),
        "a compiled program computes gradients of one loss, by its backward(), and no "
        "others: add what needs them to that loss if you can",
    ),
    Reason(
        "ABP606",
        Verdict.BLOCKED,
        _shared,
        "several processes update shared weights without waiting for each other, and a compiled "
        "program has its weights on its device: use replicas instead",
    ),
    Reason(
        "ABP607",
        Verdict.BLOCKED,
        _named("gym.make", "gymnasium.make", "gym.vector.make", "gymnasium.make_vec"),
        "the next input depends on what the model has just answered, and how many steps an "
        "update takes is not known before: a loop with an environment is not one compiled "
        "program",
    ),
    Reason(
        "ABP608",
        Verdict.MANUAL,
        _methods(
            *("register_hook", "register_backward_hook", "register_full_backward_hook"),
            *("register_full_backward_pre_hook", "register_post_accumulate_grad_hook"),
            *("register_step_pre_hook", "register_step_post_hook"),
        ),
        "a hook of an inner module or parameter that returns a gradient becomes part of the "
        "compiled program; whatever else a hook does happens once, when it is compiled, and "
        "hooks of the whole model, of updates or of finished gradients raise an error: check "
        "what this one does",
    ),
)

CODES = {
    "ABP601": "A module that is imported is not here: what it defines is not followed.",
    **{each.code: f"{each.text[0].upper()}{each.text[1:]}." for each in REASONS},
    "ABP605": "The forward pass needs the values of tensors, or of numbers that change.",
    "ABP609": "A random number of Python or numpy in forward is drawn once, for all calls.",
}
