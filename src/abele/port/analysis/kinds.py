"""Kinds of objects in a training program: constructors, and calls that return such objects."""

from __future__ import annotations

import dataclasses
import enum

import libcst as cst
from libcst import matchers as m

from abele.port.source import Source, findall


class Kind(enum.Enum):
    """Kinds of tracked objects in a training program, such as model, optimizer and loader."""

    MODEL = "model"
    OPTIMIZER = "optimizer"
    LOADER = "loader"
    LOSS = "loss"
    SCHEDULER = "scheduler"
    DEVICE = "device"
    SCALER = "scaler"
    OBJECT = "object"  # of a class of the program that is no model


@dataclasses.dataclass(frozen=True, eq=False)
class Thing:
    """A model, optimizer, loader or other tracked object, and the call that creates it.

    Attributes:
        source: the file that creates it.
        name: its class, qualified with the module if that is imported.
    """

    kind: Kind
    source: Source
    made: cst.BaseExpression
    name: str


_LOADERS = frozenset(("torch.utils.data.DataLoader", "torch.utils.data.dataloader.DataLoader"))
_NO_OPTIMIZERS = frozenset(("lr_scheduler", "swa_utils"))


def kind_of_class(name: str) -> Kind | None:
    """Return the kind of object that a class, given by its full name, creates, or None."""
    parts = name.split(".")
    last = parts[-1]
    if name.startswith("torch.optim.lr_scheduler.") or name == "torch.optim.swa_utils.SWALR":
        return Kind.SCHEDULER
    if parts[:2] in (["torch", "optim"], ["poptorch", "optim"]) and last[:1].isupper():
        return None if _NO_OPTIMIZERS & set(parts) else Kind.OPTIMIZER
    if name in _LOADERS or name == "poptorch.DataLoader":
        return Kind.LOADER
    if name == "torch.device":
        return Kind.DEVICE
    if last == "GradScaler" and parts[0] == "torch":
        return Kind.SCALER
    if name.startswith("torch.nn.") and last[:1].isupper():
        kind = Kind.LOSS if last.endswith("Loss") else Kind.MODEL
        return None if last in ("Parameter", "Module", "ParameterList", "ParameterDict") else kind
    if name.startswith("torchvision.models."):
        return Kind.MODEL
    return None


def is_scheduler(name: str) -> bool:
    """Return whether a third-party class or function name looks like a learning rate scheduler.

    Args:
        name: full name of a callable that receives an optimizer.
    """
    last = name.rpartition(".")[2].lower()
    return any(word in last for word in ("schedule", "warmup", "anneal")) or last.endswith("lr")


# -- calls and what they return ----------------------------------------------------------------

#: Methods of a model that return the model.
SAME = frozenset(
    (
        *("to", "cuda", "cpu", "train", "eval", "half", "float", "double", "bfloat16"),
        *("requires_grad_", "apply", "share_memory"),
    )
)
#: Functions of a model that return one with the same parameters.
WRAPPERS = frozenset(
    (
        *("torch.compile", "torch.jit.script", "torch.nn.DataParallel"),
        *map("torch.nn.parallel.{}".format, ("DataParallel", "DistributedDataParallel")),
    )
)


def targets_of(node: cst.CSTNode) -> list[cst.BaseExpression]:
    """Return the target expressions of an assignment; empty for other statements."""
    if isinstance(node, cst.Assign):
        return [each.target for each in node.targets]
    return [node.target] if isinstance(node, cst.AugAssign) else []


def innermost(call: cst.Call) -> cst.BaseExpression:
    """Return the innermost call of a method chain, as ``Net()`` in ``Net().to(device)``."""
    while (
        isinstance(call.func, cst.Attribute)
        and call.func.attr.value in SAME
        and isinstance(call.func.value, cst.Call)
    ):
        call = call.func.value
    return call


def copies(source: Source, value: cst.BaseExpression) -> bool:
    """Return whether an expression is a ``copy.copy`` or ``copy.deepcopy`` call."""
    names = ("copy.copy", "copy.deepcopy")
    return isinstance(value, cst.Call) and source.imported(value.func) in names


def goes_through(name: str, call: cst.Call) -> bool:
    """Return whether a call, such as ``enumerate``, iterates over its first argument."""
    builtin = m.Name("enumerate") | m.Name("iter") | m.Name("reversed") | m.Name("list")
    return m.matches(call.func, builtin) or name.startswith(("tqdm.", "itertools."))


def goes_through_all(name: str, call: cst.Call) -> bool:
    """Return whether a call, such as ``zip``, iterates over all of its arguments."""
    return m.matches(call.func, m.Name("zip")) or name in ("itertools.chain", "itertools.product")


def yields(function: cst.FunctionDef) -> bool:
    """Return whether a function is a generator."""
    return bool(findall(function.body, m.Yield()))


def models_updated(call: cst.Call) -> list[cst.BaseExpression]:
    """Return the expressions whose parameters a call of an optimizer class receives."""
    methods = m.Name("parameters") | m.Name("named_parameters")
    calls = findall(
        cst.Tuple([cst.Element(each.value) for each in call.args]),
        m.Call(func=m.Attribute(attr=methods)),
    )
    return [
        each.func.value
        for each in calls
        if isinstance(each, cst.Call) and isinstance(each.func, cst.Attribute)
    ]
