"""A model's forward as graphs in a file: recorded for each mode, and run after loading.

The user's Python class is not in the file. A forward that cannot be recorded in some mode does not
prevent the model from being saved: the file then stores the reason, and running its forward in
that mode, other than by the loaded executor's programs, raises an error with it.
"""

import contextlib
import copy
import dataclasses
import inspect
import json
import logging
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch

from abele.capture import forward_graph
from abele.capture.forward_graph import ForwardGraph
from abele.compilation.serialization import graph_from_text, graph_to_text
from abele.errors import AbeleError, CorruptExecutable
from abele.runtime import host_random
from abele.storage.container import Container
from abele.trace.module_state import named_tensors
from poptorch._error import Error, error
from poptorch._forward import annotations, structure
from poptorch._forward.arguments import Binder, Bound, Recorded
from poptorch._forward.blocks import BLOCK, SEGMENT, Tracing, current
from poptorch._forward.cpu_op import CapturedCalls
from poptorch._forward.running import Asked, is_captured
from poptorch._forward.stored_structure import (
    bound_from,
    recorded_data,
    structure_data,
    structure_from,
)
from poptorch._logging import logger
from poptorch._wrapper.capture import call_forward
from poptorch._wrapper.compiled import CompiledModel, WrappedModel

#: Folders of recorded graphs and of their constants in a file.
GRAPHS, CONSTANTS = "forward", "forward_constants"


@dataclasses.dataclass
class Kept:
    """Deduplicated forward graphs and constants of a file; graphs refer to constants by index."""

    texts: list[tuple[str, dict[str, int]]] = dataclasses.field(default_factory=list)
    constants: list[torch.Tensor] = dataclasses.field(default_factory=list)

    def add(self, graph: torch.fx.GraphModule) -> int:
        """Store a recorded graph unless an equal one is stored; return its number."""
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
        """Return the file members for the stored graphs and constants."""
        graphs = {
            f"{GRAPHS}/{number}.json": json.dumps({"text": text, "constants": constants}).encode()
            for number, (text, constants) in enumerate(self.texts)
        }
        return graphs | {f"{CONSTANTS}/{n}": value for n, value in enumerate(self.constants)}


def forward_data(model: WrappedModel) -> tuple[dict[str, Any], dict[str, Any]]:
    """Record a compiled model's forward in each mode; return manifest values and file members."""
    compiled, module = model.get_compiled(), model.module
    if model.per_replica_params:
        return {"missing": "the model has parameters that differ between replicas"}, {}
    inputs = compiled.micro_batch()
    kept = Kept()
    random = host_random.read()
    with _quietly():
        modes = [_mode(compiled, flags, module, inputs, kept) for flags in _modes(module)]
    host_random.write(random)
    recorded = compiled.inputs.recorded
    positional, keywords = recorded.rebuild(inputs)
    bound = Bound(recorded.names, tuple(positional), keywords, recorded.defaulted)
    return {"arguments": recorded_data(Recorded(bound)), "modes": modes}, kept.members()


@contextlib.contextmanager
def _quietly() -> Iterator[None]:
    """Suppress log messages and warnings of forward inside the block: capture has shown them."""

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
    """Return the ``training`` flag of each module of a model."""
    return [child.training for _, child in module.named_modules(remove_duplicate=False)]


def _modes(module: torch.nn.Module) -> list[list[bool]]:
    """Return the ``training`` flags of all modules for each mode to record a forward in.

    Modes are present, training and evaluation. Modules with a ``train()`` of their own may do more:
    training is then not recorded, nor evaluation unless it clears all flags and changes no weight.
    """
    present = flags_of(module)
    own = any(type(child).train is not torch.nn.Module.train for child in module.modules())
    modes = [present]
    if not own or _evaluates_plainly(module):
        modes.append([False] * len(present))
    if not own:
        modes.append([True] * len(present))
    return [mode for index, mode in enumerate(modes) if mode not in modes[:index]]


def _evaluates_plainly(module: torch.nn.Module) -> bool:
    """Return whether a module's ``eval()`` clears all training flags and changes no weight."""
    try:
        other = copy.deepcopy(module).eval()
        after = other.state_dict()
        same = all(torch.equal(after[name], v) for name, v in module.state_dict().items())
    except Exception:  # noqa: BLE001 - the user's code may fail in any way
        return False
    return same and not any(flags_of(other))


@contextlib.contextmanager
def _training(module: torch.nn.Module, flags: Sequence[bool]) -> Iterator[None]:
    """Set the modules' ``training`` flags inside the block, without calling ``train()``."""
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
    module: torch.nn.Module,
    inputs: list[torch.Tensor],
    kept: Kept,
) -> dict[str, Any]:
    """Record a forward for one mode; if it depends on the device, for device and for host."""
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
    """The recording of a model's forward as a graph.

    Attributes:
        outputs: the structure of the results.
        asked: whether forward queried its device.
        blocks: devices passed to blocks, by block name.
    """

    def __init__(self, compiled: CompiledModel, module: torch.nn.Module, wrapped: bool):
        self._compiled, self._module, self._wrapped = compiled, module, wrapped
        self.outputs: Any = None
        self.asked = False
        self.blocks: dict[str, int | None] = {}

    def record(self, inputs: list[torch.Tensor], hidden_paths: Sequence[str]) -> ForwardGraph:
        """Record a graph by running forward once on tensors without data."""
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
        self.outputs, results = structure.taken_apart(self._module(*positional, **keywords))
        return results


# -- a loaded model --------------------------------------------------------------------------

_INSTEAD = "Pass an instance of the model's class: poptorch.load(..., model=YourModel())."


class StoredForward:
    """A model's forward loaded from a file: manifest values, graphs and constants."""

    def __init__(self, data: Mapping[str, Any], kept: Kept):
        self.data, self.kept = data, kept
        self._decode()

    def _decode(self) -> None:
        constants = self.kept.constants
        self._graphs = [
            graph_from_text(text, {name: constants[number] for name, number in named.items()})
            for text, named in self.kept.texts
        ]
        if "missing" not in self.data:
            self.recorded = Recorded(bound_from(self.data["arguments"]))
            entries = _entries(self.data)
            self._outputs = {id(each): structure_from(each["outputs"]) for each in entries}
            # Made here: in a capture zeros would be operations of the program.
            self._unread = {id(each): self._zeros_for(each) for each in entries}

    def _zeros_for(self, entry: Mapping[str, Any]) -> dict[str, Any]:
        recorded = self.recorded
        specs = [*zip(recorded.names, recorded.positional, strict=True), *recorded.keywords.items()]
        count = sum(1 for _, spec in specs for _ in structure.leaves(spec))
        places = list(self.graph(entry).graph.graph.find_nodes(op="placeholder"))
        rest = places[len(places) - count :]  # behind the state
        result: dict[str, Any] = {}
        for name, spec in specs:
            leaves = list(structure.leaves(spec))
            own, rest = rest[: len(leaves)], rest[len(leaves) :]
            if leaves and not any(place.users for place in own):
                zeros = (torch.zeros(leaf.shape, dtype=leaf.dtype) for leaf in leaves)
                result[name] = structure.rebuild(spec, zeros)
        return result

    def __getstate__(self) -> dict[str, Any]:
        return {"data": self.data, "kept": self.kept}  # operators are no part of a pickle

    def __setstate__(self, content: dict[str, Any]) -> None:
        self.data, self.kept = content["data"], content["kept"]
        self._decode()

    def entry(self, flags: Sequence[bool], *, captured: bool) -> Mapping[str, Any]:
        """Return the manifest entry of the recorded graph for the modules' ``training`` flags.

        Raises:
            poptorch.Error: no graph was recorded for these flags.
        """
        if "missing" in self.data:
            raise _unavailable(self.data["missing"])
        modes = self.data["modes"]
        suited = [mode for mode in modes if mode["training"] == list(flags)]
        kinds = [(mode["device"], mode["host"]) for mode in modes]
        if not suited and len(modes) > 1 and kinds.count(kinds[0]) == len(kinds):
            suited = modes  # in no mode forward is another
        if not suited:
            raise error(
                f"This model came from a file that has its forward {_named(self.data)}. Now "
                f"{sum(flags)} of its {len(flags)} modules are in training mode. Call train() or "
                f"eval() of the whole model. {_INSTEAD}"
            )
        entry = suited[0]["device"]
        if not captured and suited[0]["host"] is not None:
            entry = suited[0]["host"]
        if "missing" in entry:
            raise _unavailable(entry["missing"])
        return entry

    def graph(self, entry: Mapping[str, Any]) -> ForwardGraph:
        """Return the recorded graph of a manifest entry."""
        return ForwardGraph(self._graphs[entry["graph"]], entry["without_gradient"])

    def unread(self, entry: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return zeros for the arguments of forward that a recorded graph does not read."""
        return self._unread[id(entry)]

    def result(self, entry: Mapping[str, Any], tensors: Sequence[torch.Tensor]) -> Any:
        """Pack the result tensors of a recorded graph into the containers that forward returned."""
        return structure.rebuild(self._outputs[id(entry)], iter(tensors))


def _entries(data: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the manifest entries of all recorded forward graphs, for device and host."""
    both = [mode[place] for mode in data.get("modes", ()) for place in ("device", "host")]
    return [entry for entry in both if entry is not None and "missing" not in entry]


def _named(data: Mapping[str, Any]) -> str:
    counts = {sum(mode["training"]) for mode in data["modes"]}
    return f"with {' or '.join(map(str, sorted(counts)))} modules in training mode"


def _unavailable(reason: str) -> Exception:
    return error(
        "This model came from a file without its Python class, and its forward could not be "
        f"stored: {reason} Only the executor that poptorch.load returned can run it. {_INSTEAD}"
    )


def forward_in(file: Container) -> StoredForward:
    """Read the recorded forward of a model from a file."""
    data = file.content["forward"]
    kept = Kept()
    constants = {int(number): v for number, v in file.tensors(f"{CONSTANTS}/").items()}
    kept.constants = [constants[number] for number in range(len(constants))]
    for number in sorted({entry["graph"] for entry in _entries(data)}):
        name = f"{GRAPHS}/{number}.json"
        if number != len(kept.texts) or name not in file.names:
            raise CorruptExecutable(f"{file.path}: {name}, a graph of forward, is missing.")
        content = json.loads(file.text(name))
        kept.texts.append((content["text"], content["constants"]))
    return StoredForward(data, kept)


# -- calling ---------------------------------------------------------------------------------


class RestoredForward:
    """The ``forward`` of a loaded model: runs recorded graphs under the user's signature."""

    def __init__(self, root: torch.nn.Module, signature: inspect.Signature, stored: StoredForward):
        self._root, self.stored = root, stored
        self._kinds = _kinds(root)
        self.__signature__ = signature

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        captured = is_captured()
        entry = self.stored.entry(flags_of(self._root), captured=captured)
        graph = self.stored.graph(entry)
        tensors = [*self._state(), *self._inputs(entry, args, kwargs)]
        if graph.without_gradient and torch.is_grad_enabled():
            _refuse_gradient(graph.without_gradient, tensors)
        tracing = current()
        marks_of = dict if tracing is None else _marks_of(tracing, entry["blocks"])
        results = forward_graph.run(graph, tensors, marks_of)
        return self.stored.result(entry, results)

    def _state(self) -> list[torch.Tensor]:
        there, here = self._kinds, _kinds(self._root)
        unlike = [name for name in {**there, **here} if there.get(name) != here.get(name)]
        if unlike:
            name = unlike[0]
            raise error(
                "Parameters or buffers of a model that came from a file were added, removed, "
                f"untied or converted: {name} is {here.get(name, 'missing')}, and was "
                f"{there.get(name, 'missing')}. Its forward is stored for those it had. Change "
                f"their values only. {_INSTEAD}"
            )
        return [value for _, value in named_tensors(self._root)]

    def _inputs(
        self, entry: Mapping[str, Any], args: Sequence[Any], kwargs: dict[str, Any]
    ) -> list[torch.Tensor]:
        recorded = self.stored.recorded
        bound = _completed(Binder(self).bind(args, kwargs), recorded, self.stored.unread(entry))
        try:
            recorded.check(bound)
        except Error as problem:
            raise error(
                f"{problem.message.removesuffix(structure.ADVICE)}This model came from a file, "
                "which has its forward for arguments like those of one micro-batch of the saved "
                "wrapper. Pass such arguments, or an instance of the model's class to load: "
                "poptorch.load(..., model=YourModel())."
            ) from None
        return list(recorded.tensors(bound))


def _completed(bound: Bound, recorded: Recorded, unread: Mapping[str, Any]) -> Bound:
    """Replace arguments that are None by zeros where the recorded graph does not read them."""
    positional = tuple(
        unread.get(name) if value is None else value
        for name, value in zip(bound.names, bound.positional, strict=True)
    )
    keywords = dict(bound.keywords)
    for name in recorded.keywords:
        if name in unread and keywords.get(name) is None:
            keywords[name] = unread[name]
    return dataclasses.replace(bound, positional=positional, keywords=keywords)


def _kinds(root: torch.nn.Module) -> dict[str, Any]:
    return {name: (list(value.shape), value.dtype) for name, value in named_tensors(root)}


def _refuse_gradient(reason: str, tensors: Sequence[torch.Tensor]) -> None:
    if any(value.requires_grad for value in tensors):
        raise error(
            f"No gradients can pass through this model, which came from a file: {reason}, and "
            "what Python code does to gradients is not in the file. Run it under "
            "torch.no_grad() or in an inferenceModel; if the file was saved for training, the "
            f"executor that poptorch.load returned trains it. {_INSTEAD}"
        )


def _marks_of(
    tracing: Tracing, devices: Mapping[str, int | None]
) -> Callable[[Mapping[str, Any]], dict[str, Any]]:
    """Return a function that marks operations with their block's placement in this wrapper."""
    latest: list[Any] = [None, {}]

    def marks_of(recorded: Mapping[str, Any]) -> dict[str, Any]:
        marks = {key: value for key, value in recorded.items() if key != SEGMENT}
        block = marks.get(BLOCK)
        if not isinstance(block, tuple):
            return marks
        if block != latest[0]:
            latest[:] = block, tracing.placed(block[0], devices.get(block[0]))[1]
        return {**marks, **latest[1]}

    return marks_of


class RestoredModule(torch.nn.Module):
    """A module tree loaded from a file, without the user's classes.

    A tree of modules that holds parameters and buffers under the names they had, so that
    ``state_dict()``, ``parameters()`` and ``named_buffers()`` work, tied tensors stay tied, and the
    user's own class takes the state with ``load_state_dict``. Called, it runs forward as the file
    has it, in training or evaluation mode and with gradients, on the host or in another wrapper.
    Only the whole tree has a forward; arguments have the shapes of one micro-batch.
    """

    def __init__(self, kind: str = "Module"):
        super().__init__()
        self._restored_kind = kind

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Raise an error: submodules of a loaded model have no forward, only its root does.

        Raises:
            poptorch.Error: always; says what to do instead.
        """
        del args, kwargs
        raise error(
            f"This {self._restored_kind} is a part of a model that came from a file without its "
            "Python class, and only the whole model can be called. Call the model that it is a "
            "part of, or pass poptorch.load(..., model=YourModel())."
        )

    def _get_name(self) -> str:
        return f"{type(self).__name__}:{self._restored_kind}"


def module_data(module: torch.nn.Module) -> dict[str, Any]:
    """Return a module tree as JSON, with class names, parameter and buffer names, and ties."""
    owners: dict[int, str] = {}
    data: dict[str, Any] = {"modules": [], "parameters": [], "buffers": []}
    for path, child in module.named_modules(remove_duplicate=False):
        kind = getattr(child, "_restored_kind", type(child).__name__)
        data["modules"].append([path, kind, child.training])
        for name, key, value in _tensors_of(path, child, "_parameters"):
            first = owners.setdefault(id(value), name)
            data["parameters"].append([path, key, first, value.requires_grad])
        for name, key, value in _tensors_of(path, child, "_buffers"):
            first = owners.setdefault(id(value), name)
            persistent = key not in child._non_persistent_buffers_set
            data["buffers"].append([path, key, first, persistent])
    return data


def _tensors_of(path: str, module: torch.nn.Module, kind: str) -> Iterator[tuple[str, str, Any]]:
    # Through __dict__: wrapped modules intercept attribute reads to fetch weights.
    for key, value in module.__dict__[kind].items():
        if value is not None:
            yield f"{path}.{key}" if path else key, key, value


def module_from(
    data: dict[str, Any],
    params: dict[str, torch.Tensor],
    buffers: dict[str, torch.Tensor],
    signature: inspect.Signature,
    forward: StoredForward,
) -> RestoredModule:
    """Build the module tree of ``module_data``; tied tensors are stored under their first name."""
    root, *others = data["modules"]
    tree = {"": RestoredModule(root[1])}
    for path, kind, _ in others:
        parent, _, key = path.rpartition(".")
        tree[path] = RestoredModule(kind)
        tree[parent].add_module(key, tree[path])
    trained: dict[str, torch.nn.Parameter] = {}
    for path, key, first, requires_grad in data["parameters"]:
        if first not in trained:
            trained[first] = torch.nn.Parameter(params[first], requires_grad=requires_grad)
        tree[path].register_parameter(key, trained[first])
    for path, key, first, persistent in data["buffers"]:
        tree[path].register_buffer(key, buffers[first], persistent=persistent)
    for path, _, training in data["modules"]:
        tree[path].training = training
    tree[""].forward = RestoredForward(tree[""], signature, forward)
    return tree[""]


def stored_forward(module: torch.nn.Module) -> StoredForward | None:
    """Return the recorded forward of a module loaded from a file, else None."""
    forward = module.__dict__.get("forward")
    return forward.stored if isinstance(forward, RestoredForward) else None
