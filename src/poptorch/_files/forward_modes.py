"""Forward for a file: recorded as it stands, as ``train()`` and as ``eval()`` would leave it.

A forward that cannot be recorded in some mode does not keep the model from being saved: the file
then says why, and so does whoever needs that mode after loading.
"""

import contextlib
import copy
import dataclasses
import json
import logging
import warnings
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from abele.capture import forward_graph
from abele.capture.forward_graph import ForwardGraph
from abele.compile.serialization import graph_to_text
from abele.errors import AbeleError
from abele.runtime import host_random
from poptorch._error import Error
from poptorch._forward import annotations
from poptorch._forward.arguments import Bound, Recorded
from poptorch._forward.blocks import Tracing
from poptorch._forward.cpu_op import CapturedCalls
from poptorch._forward.running import Asked
from poptorch._forward.stored_structure import recorded_data, structure_data
from poptorch._forward.structure import taken_apart
from poptorch._logging import logger
from poptorch._wrapper.capture import call_forward
from poptorch._wrapper.compiled import CompiledModel, WrappedModel

#: Where a file has a recorded graph, and where its constants.
GRAPHS, CONSTANTS = "forward", "forward_constants"


@dataclasses.dataclass
class Kept:
    """Graphs and constants of a file, each once; texts have the numbers of their constants."""

    texts: list[tuple[str, dict[str, int]]] = dataclasses.field(default_factory=list)
    constants: list[torch.Tensor] = dataclasses.field(default_factory=list)

    def add(self, graph: torch.fx.GraphModule) -> int:
        """Return the number of a recorded graph."""
        text, constants = graph_to_text(graph)
        entry = (text, {name: self._number(value) for name, value in constants.items()})
        if entry not in self.texts:
            self.texts.append(entry)
        return self.texts.index(entry)

    def _number(self, value: torch.Tensor) -> int:
        for number, other in enumerate(self.constants):
            alike = (value.dtype, value.shape) == (other.dtype, other.shape)
            if alike and torch.equal(value, other):
                return number
        self.constants.append(value)
        return len(self.constants) - 1

    def members(self) -> dict[str, Any]:
        """Return the state that a container stores."""
        graphs = {
            f"{GRAPHS}/{number}.json": json.dumps({"text": text, "constants": constants}).encode()
            for number, (text, constants) in enumerate(self.texts)
        }
        return graphs | {f"{CONSTANTS}/{n}": value for n, value in enumerate(self.constants)}


def forward_data(model: WrappedModel) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return forward of a wrapped, compiled model in each mode: JSON values, and members."""
    compiled, module = model.get_compiled(), model.module
    if model.per_replica_params:
        return {"missing": "the model has parameters that differ between replicas"}, {}
    inputs = compiled.micro_batch()
    kept = Kept()
    modes, after = [], {}
    random = host_random.read()
    with _quietly():
        for name, flags, prepared in _modes(module):
            after[name] = flags
            if flags not in [mode["training"] for mode in modes]:
                modes.append(_mode(compiled, flags, prepared, inputs, kept))
    host_random.write(random)
    recorded = compiled.inputs.recorded
    positional, keywords = recorded.rebuild(inputs)
    bound = Bound(recorded.names, tuple(positional), keywords, recorded.defaulted)
    data = {"arguments": recorded_data(Recorded(bound)), "modes": modes}
    return data | {"train": after["train"], "eval": after["eval"]}, kept.members()


@contextlib.contextmanager
def _quietly() -> Iterator[None]:
    """While open, forward does not say again what it said when it was captured."""

    def nothing(record: logging.LogRecord) -> bool:
        del record
        return False

    logger.addFilter(nothing)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.removeFilter(nothing)


# -- modes -----------------------------------------------------------------------------------


def flags_of(module: torch.nn.Module) -> list[bool]:
    """Return which of a model's modules are in training mode."""
    return [child.training for _, child in module.named_modules(remove_duplicate=False)]


def _modes(module: torch.nn.Module) -> Iterator[tuple[str, list[bool], torch.nn.Module | str]]:
    """Each mode's name, the flags of its modules, and the model to record or why there is none."""
    present = flags_of(module)
    yield "saved", present, module
    overridden = any(type(child).train is not torch.nn.Module.train for child in module.modules())
    for name, training in (("train", True), ("eval", False)):
        if not overridden:
            yield name, [training] * len(present), module
        else:
            yield (name, *_after_own_train(module, training))


def _after_own_train(
    module: torch.nn.Module, training: bool
) -> tuple[list[bool], torch.nn.Module | str]:
    """Return a copy of the model after its own ``train()``; the user's is unchanged."""
    flags = [training] * len(flags_of(module))
    try:
        other = copy.deepcopy(module)
        before = {name: value.clone() for name, value in other.state_dict().items()}
        other.train(training)
        flags = flags_of(other)
        same = all(torch.equal(before[name], v) for name, v in other.state_dict().items())
    except Exception as problem:  # noqa: BLE001 - the user's code may fail in any way
        return flags, f"train({training}) of a copy of the model failed: {_said(problem)}"
    return flags, other if same else f"the model's own train({training}) changes its weights"


@contextlib.contextmanager
def _training(module: torch.nn.Module, flags: Sequence[bool]) -> Iterator[None]:
    """While open, the modules are in these modes; nothing of theirs is called."""
    children = [child for _, child in module.named_modules(remove_duplicate=False)]
    before = [child.training for child in children]
    try:
        for child, flag in zip(children, flags, strict=True):
            child.training = flag
        yield
    finally:
        for child, flag in zip(children, before, strict=True):
            child.training = flag


# -- one mode --------------------------------------------------------------------------------


def _mode(
    compiled: CompiledModel,
    flags: list[bool],
    module: torch.nn.Module | str,
    inputs: list[torch.Tensor],
    kept: Kept,
) -> dict[str, Any]:
    """Forward as wrappers capture it and, if it asks where it runs, as the host runs it."""
    if isinstance(module, str):
        return {"training": flags, "device": {"missing": module}, "host": None}
    with _training(module, flags):
        entry, asks = _entry(compiled, module, inputs, kept, wrapped=True)
        host = _entry(compiled, module, inputs, kept, wrapped=False)[0] if asks else None
    return {"training": flags, "device": entry, "host": host}


def _entry(
    compiled: CompiledModel,
    module: torch.nn.Module,
    inputs: list[torch.Tensor],
    kept: Kept,
    *,
    wrapped: bool,
) -> tuple[dict[str, Any], bool]:
    run = Recording(compiled, module, wrapped)
    try:
        made = run.record(inputs, compiled.forward.hidden_paths)
        entry = {
            "graph": kept.add(made.graph),
            "outputs": structure_data(run.outputs, "result"),
            "without_gradient": made.without_gradient,
            "blocks": run.blocks,
        }
    except Exception as problem:  # noqa: BLE001 - the user's code may fail in any way
        entry = {"missing": _said(problem)}
    return entry, run.asked


def _said(problem: Exception) -> str:
    if isinstance(problem, Error):
        return problem.message
    return (
        str(problem) if isinstance(problem, AbeleError) else f"{type(problem).__name__}: {problem}"
    )


class Recording:
    """A recorded graph of a forward.

    Attributes:
        outputs: the structure of the results.
        asked: whether forward asked where it runs.
        blocks: devices that were given at blocks, by name.
    """

    def __init__(self, compiled: CompiledModel, module: torch.nn.Module, wrapped: bool):
        self._compiled, self._module, self._wrapped = compiled, module, wrapped
        self.outputs: Any = None
        self.asked = False
        self.blocks: dict[str, int | None] = {}

    def record(self, inputs: list[torch.Tensor], hidden_paths: Sequence[str]) -> ForwardGraph:
        """Run forward once, without data."""
        wrapped = self._wrapped
        calls = CapturedCalls(self._module).capturing() if wrapped else contextlib.nullcontext()
        call = self._on_device if wrapped else self._on_host
        with Asked() as question, calls, annotations.marking_checkpoints(wrapped):
            try:
                return forward_graph.record(call, self._module, inputs, hidden_paths=hidden_paths)
            finally:
                self.asked = question.any

    def _on_device(self, flat: list[torch.Tensor]) -> list[torch.Tensor]:
        tracing = Tracing(self._compiled.forward.tracing.options)
        self.outputs, results = call_forward(
            self._compiled.inputs.recorded, self._module, flat, tracing, training=False
        )
        self.blocks = tracing.devices
        return results

    def _on_host(self, flat: list[torch.Tensor]) -> list[torch.Tensor]:
        positional, keywords = self._compiled.inputs.recorded.rebuild(flat)
        self.outputs, results = taken_apart(self._module(*positional, **keywords))
        return results
