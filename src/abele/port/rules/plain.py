"""Ports PopTorch programs back to plain PyTorch, as ``abele port --to torch`` does.

``plain_poptorch.py`` defines the part of PopTorch that training and evaluation use, and is written
next to the program. Lines with other names of PopTorch are reported as *manual*.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import libcst as cst
from libcst import matchers as m

from abele.port.context import Context, Rule
from abele.port.finding import Verdict
from abele.port.source import Source, findall

CODES = {
    "ABP1001": "plain_poptorch.py has in plain PyTorch what the program uses of PopTorch.",
    "ABP1002": "The seed of the options becomes torch's seed at the same line.",
    "ABP1909": "Plain PyTorch has no counterpart that is carried: see to it by hand.",
}

_FILE = "plain_poptorch"
_TEXT = Path(__file__).parents[1].joinpath(f"{_FILE}.py").read_text(encoding="utf-8")
_WORDS = frozenset(re.findall(r"\w+", _TEXT))
_MODULES = ("optim", "enums", "options")
_OTHERS = ("popdist", "poptorch_geometric", "horovod")
#: Options, methods of wrappers and values of optimizers that the plain file does not have.
_BY_HAND = frozenset(
    (
        *("enableStochasticRounding", "setAutomaticLossScaling", "anchorTensor", "loadFromFile"),
        *("enableSyntheticData", "from_json", "configureProcessId", "inputReplicaGrouping"),
        *("EveryN", "Sum", "halfFloatCasting", "runningStatisticsAlwaysFloat", "cycleCount"),
        *("compileAndExport", "loadExecutable", "getPerfCounters", "getLatency", "rewrap"),
        *("getHostIpuLatency", "getComputeLatency", "getIpuHostLatency", "getTensorNames"),
        *("getAnchoredTensor", "per_replica_params", "copyOptimizerState", "executable_hash"),
        *("build_record", "pipelineReport", "precisionReport", "resetTimingInfo"),
        *(
            "getDataLocation",
            "compilationTime",
            "isAttachedToDevice",
            "variable_attrs",
            "loss_scaling",
        ),
        *("velocity_scaling", "use_combined_accum", "accum_type", "velocity_accum_type"),
        *("first_order_momentum_accum_type", "second_order_momentum_accum_type"),
        *("bias_correction", "use_tf_variant", "decoupled_weight_decay", "max_weight_norm"),
    )
)
#: Parts of models that draw random numbers.
_DRAWS = re.compile(r"(?i)dropout|bernoulli|rrelu|rand\w*_like|multinomial|gumbel")
_SEED = "numbers that the device drew itself, such as those of dropout, are another stream"
_PLAIN = f"{_FILE}.py, which is written beside the program, has the names of PopTorch that it uses"
_SEVERAL = "write what processes do together with torch.distributed, and start it with torchrun"


def apply(context: Context) -> None:
    """Import ``plain_poptorch`` instead of PopTorch, and report features that it lacks."""
    for source in context.project.sources:
        for node, module in _imports(source):
            for folder in (Path(), Path(source.name).parent):  # a script finds what is beside it
                context.added[(folder / f"{_FILE}.py").as_posix()] = _TEXT
            context.edits(source).change(module, _replaced)
            context.say(source, node, "ABP1001", Verdict.MODIFIED, _PLAIN)
        for node, name in _left(source):
            several = name.split(".")[0] in ("popdist", "horovod")
            reason = (
                f"plain PyTorch has no {name}; {_SEVERAL if several else 'nothing replaces it'}"
            )
            context.say(source, node, "ABP1909", Verdict.MANUAL, reason)
        for node in findall(source.module, m.Attribute(attr=m.Name("randomSeed"))):
            drawn = any(_DRAWS.search(each.text) for each in context.project.sources)
            verdict = Verdict.MANUAL if drawn else Verdict.MODIFIED
            context.say(source, node, "ABP1002", verdict, _SEED)


def _imports(source: Source) -> Iterator[tuple[cst.CSTNode, cst.CSTNode]]:
    """Yield the imports of PopTorch, each with the node that names the module."""
    for node in findall(source.module, m.Import() | m.ImportFrom()):
        for each in node.names if isinstance(node, cst.Import) else (node,):
            name = each.name if isinstance(each, cst.ImportAlias) else each.module
            if name is not None and source.code(name).split(".")[0] == "poptorch":
                yield node, each if isinstance(each, cst.ImportAlias) else name


def _replaced(node: Any) -> Any:
    """Return an import with the module ``poptorch`` replaced by ``plain_poptorch``."""
    if not isinstance(node, cst.ImportAlias):
        return cst.Name(_FILE)
    name = node.asname or cst.AsName(cst.Name("poptorch"))
    return node.with_changes(name=cst.Name(_FILE), asname=name)


def _left(source: Source) -> Iterator[tuple[cst.CSTNode, str]]:
    """Yield uses of PopTorch that ``plain_poptorch`` does not define, with their names."""
    for node in findall(source.module, m.Name() | m.Attribute() | m.SimpleString() | m.Arg()):
        name, word = source.imported(node), ""
        if isinstance(node, cst.Attribute | cst.Arg):
            last = node.attr if isinstance(node, cst.Attribute) else node.keyword
            word = "" if last is None else last.value
        elif isinstance(node, cst.SimpleString) and isinstance(source.parent(node), cst.Index):
            word = str(node.evaluated_value)
        package, *parts = [each for each in name.split(".") if each not in _MODULES]
        unknown = package in _OTHERS or (
            package == "poptorch" and any(each not in _WORDS for each in parts[:1])
        )
        if unknown and not isinstance(source.parent(node), cst.Attribute):
            yield node, name
        elif word in _BY_HAND and not name.endswith("ReductionType.Sum"):
            yield node, word


RULES: Sequence[Rule] = (Rule("Imports of PopTorch", CODES, apply),)
