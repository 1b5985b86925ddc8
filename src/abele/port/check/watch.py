"""Watch the training updates of a script, and record them as JSON lines in a file.

Records by ``kind``:

- ``model``: ``model``, its number in the order of first updates; ``name``; ``tensors``, by name the
  ``shape``, the ``kind``, and the ``digest`` before the first update; again where the model has
  grown;
- ``update``: ``model``; ``digests`` by name; ``losses``, ``inputs``, the user's ``line``, and
  ``alone``, unless its call made several updates;
- ``note``: ``text``, something that was changed so that both scripts can be compared;
- ``end``: ``error``, the traceback of a script that failed, or null; and ``ended``, unless the
  script was stopped.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hashlib
import json
import weakref
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from typing import Any, TypeVar

import torch
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from abele.capture.losses import autograd_functions
from abele.runtime.observers import CallRecord, Observer
from abele.runtime.session import Session, of_new_sessions
from abele.step.batching import MicroStep
from abele.storage.values import raw_bytes
from abele.warn import user_line

PARAMETER, BUFFER = "parameter", "buffer"
LEFT_OUT = "of every epoch are left out"  # ends a note; the comparison has those of the port alone
_MOST_LOSSES = 4096
_Value = TypeVar("_Value")


class Enough(BaseException):
    """An exception that ends a script after enough updates; ``except Exception`` passes it on."""


class Record:
    """A file to which a watched script appends its training updates as JSON lines.

    Attributes:
        steps: number of updates after which the script ends.
        save: file for the tensors after the last update; empty for none.
        models: number of models so far.
        updates: number of updates so far.
    """

    def __init__(self, path: str):
        self._path = path
        self._notes: set[str] = set()
        self.steps = 1
        self.save = ""
        self.models = self.updates = 0

    def add(self, kind: str, **content: Any) -> None:
        """Write a record of the watched script as a JSON line."""
        with open(self._path, "a", encoding="utf-8") as file:
            file.write(json.dumps({"kind": kind, **content}) + "\n")

    def note(self, text: str) -> None:
        """Append a note to the record, unless it is already there."""
        if text not in self._notes:
            self._notes.add(text)
            self.add("note", text=text)

    def model(
        self, number: int, name: str, tensors: Mapping[str, torch.Tensor], kinds: Mapping[str, str]
    ) -> None:
        """Append a model's tensors to the record: shapes, kinds and digests."""
        is_new = number == self.models
        facts = {
            name: {
                "shape": list(value.shape),
                "kind": kinds[name],
                # Buffers may have changed in forward.
                "digest": digest(value) if is_new and kinds[name] == PARAMETER else "",
            }
            for name, value in tensors.items()
        }
        self.add("model", model=number, name=name, tensors=facts)
        self.models += is_new

    def digests(self, tensors: Mapping[str, torch.Tensor]) -> dict[str, str]:
        """Count one more update and return the digests of tensors; save those of the last."""
        self.updates += 1
        if self.save and self.updates == self.steps:
            torch.save({name: value.detach().clone() for name, value in tensors.items()}, self.save)
        return {name: digest(tensor) for name, tensor in tensors.items()}

    def end_step(self) -> None:
        """End the script if all requested updates were made.

        Raises:
            Enough: all updates were made.
        """
        if self.updates >= self.steps:
            raise Enough


def digest(tensor: torch.Tensor) -> str:
    """Return a hash of a tensor's dtype and values, independent of its shape."""
    plain = tensor.detach()
    if plain.layout is not torch.strided:
        plain = plain.to_dense()
    return f"{plain.dtype} {hashlib.sha256(raw_bytes(plain)).hexdigest()[:24]}"


def numbers(loss: torch.Tensor) -> list[float]:
    """Return the values of a loss tensor in double precision, which is exact for float32."""
    values: Any = loss.detach().double().flatten()[:_MOST_LOSSES]
    return values.tolist()


# -- plain scripts ---------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True, kw_only=True)
class Backward:
    """A recorded call of ``backward``, with its losses and the modules that ran before it.

    Attributes:
        losses: values of the differentiated losses.
        leaves: leaf tensors that receive gradients.
        roots: modules that were called since the previous call of ``backward``.
        inputs: digests of the inputs of these modules.
        line: the user's line that made the call.
    """

    losses: tuple[float, ...]
    leaves: tuple[torch.Tensor, ...]
    roots: tuple[torch.nn.Module, ...]
    inputs: tuple[str, ...]
    line: str


class Trained:
    """A model of a plain PyTorch script: the modules whose losses an optimizer minimizes.

    Args:
        number: index of the model in the order of first updates.

    Attributes:
        tensors: parameters and buffers by name.
        kinds: ``PARAMETER`` or ``BUFFER`` by name.
        roots: outermost modules that were called.
    """

    def __init__(self, number: int):
        self.number = number
        self.tensors: dict[str, torch.Tensor] = {}
        self.kinds: dict[str, str] = {}
        self.roots: list[torch.nn.Module] = []

    def add(self, calls: Sequence[Backward]) -> bool:
        """Add the modules of ``backward`` calls to a model; return whether a tensor is new."""
        before = len(self.tensors)
        known = set(map(id, self.tensors.values()))
        for root in unique(root for call in calls for root in call.roots):
            if any(each is root for each in self.roots):
                continue
            self.roots.append(root)
            count = len(self.roots)
            prefix = f"{type(root).__name__}{count}." if count > 1 else ""
            named = [(*each, PARAMETER) for each in root.named_parameters()]
            for name, tensor, kind in [*named, *((*each, BUFFER) for each in root.named_buffers())]:
                if id(tensor) not in known:
                    self.tensors[prefix + name], self.kinds[prefix + name] = tensor, kind
                    known.add(id(tensor))
        # Later, inputs that are differentiated by would be among the leaves.
        reached = [] if before else unique(leaf for call in calls for leaf in call.leaves)
        for number, leaf in enumerate(each for each in reached if id(each) not in known):
            self.tensors[f"tensor{number}"], self.kinds[f"tensor{number}"] = leaf, PARAMETER
        return len(self.tensors) > before

    def name(self, updated: Sequence[torch.Tensor]) -> str:
        """Return the class names of a model's modules that contain the updated tensors."""
        wanted = set(map(id, updated))
        named = [each for each in self.roots if wanted & set(map(id, each.parameters()))]
        return ", ".join(type(root).__name__ for root in named or self.roots)


def unique(values: Iterable[_Value]) -> list[_Value]:
    """Return objects without duplicates, in order."""
    return list({id(value): value for value in values}.values())


def taking_part(
    called: Sequence[torch.nn.Module], reached: Sequence[torch.Tensor]
) -> list[torch.nn.Module]:
    """Return the called modules from which a loss may have been computed.

    Modules are left out if they have trainable parameters of which none is a leaf of the loss.
    """
    wanted = set(map(id, reached))
    roots = unique(called)
    parts = [
        root
        for root in roots
        if wanted & set(map(id, root.parameters()))
        or not any(each.requires_grad for each in root.parameters())
    ]
    return parts or roots


def leaves(losses: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Return the leaf tensors of the autograd graph of losses, in graph order."""
    functions = autograd_functions(reversed(losses))
    return [each.variable for each in functions if hasattr(each, "variable")]


class Original:
    """Records the updates of a plain PyTorch script by hooks and by patching torch."""

    def __init__(self, record: Record):
        self._record = record
        self._models: list[Trained] = []
        # By optimizer: the line that made it, and its model.
        self._made: weakref.WeakKeyDictionary[Any, str] = weakref.WeakKeyDictionary()
        self._trained: weakref.WeakKeyDictionary[Any, Trained] = weakref.WeakKeyDictionary()
        self._roots: list[torch.nn.Module] = []
        self._depth = 0
        self._inputs: list[str] = []
        self._waiting: list[Backward] = []  # for an update
        self._used: list[Backward] = []  # by the present update

    @contextlib.contextmanager
    def watching(self) -> Generator[None]:
        """Install hooks that record the script's updates, while the context is open."""
        handles: list[Any] = [
            register_module_forward_pre_hook(self._enter),
            register_module_forward_hook(self._leave, always_call=True),
            register_optimizer_step_pre_hook(self._before_update),
            register_optimizer_step_post_hook(self._after_update),
        ]
        optimizer = wrapped(torch.optim.Optimizer, "__init__", self._made_optimizer)
        backward = wrapped(torch.autograd, "backward", self._before_backward)
        try:
            with optimizer, backward:
                yield
        finally:
            for handle in handles:
                handle.remove()

    def finish(self) -> None:
        """Add a note for each optimizer that made no update."""
        compared = {id(each) for model in self._models for each in model.tensors.values()}
        for optimizer, line in self._made.items():
            tensors = set(map(id, of_optimizer(optimizer)))
            if optimizer not in self._trained and tensors and not tensors & compared:
                self._record.note(f"the optimizer of {line} made no update in these steps")

    def _made_optimizer(self, optimizer: Any, *args: Any, **kwargs: Any) -> None:
        del args, kwargs
        self._made[optimizer] = user_line()

    def _enter(self, module: torch.nn.Module, args: Any) -> None:
        self._depth += 1
        has_parameters = next(module.parameters(), None) is not None
        if self._depth == 1 and torch.is_grad_enabled() and has_parameters:
            self._roots.append(module)
            self._inputs += [digest(each) for each in args if isinstance(each, torch.Tensor)]

    def _leave(self, module: torch.nn.Module, args: Any, result: Any) -> None:
        del module, args, result
        self._depth = max(0, self._depth - 1)

    def _before_backward(self, tensors: Any, *args: Any, **kwargs: Any) -> None:
        del args, kwargs
        losses: list[torch.Tensor] = [tensors] if isinstance(tensors, torch.Tensor) else [*tensors]
        reached = leaves(losses)
        call = Backward(
            losses=tuple(number for loss in losses for number in numbers(loss)),
            leaves=tuple(reached),
            roots=tuple(taking_part(self._roots, reached)),
            inputs=tuple(self._inputs),
            line=user_line(),
        )
        self._roots, self._inputs = [], []
        self._waiting.append(call)

    def _before_update(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        """Assign pending ``backward`` calls to the optimizer that is about to step."""
        del args, kwargs
        tensors = of_optimizer(optimizer)
        wanted = set(map(id, tensors))
        mine = [call for call in self._waiting if wanted & set(map(id, call.leaves))]
        mine = mine or self._waiting
        self._waiting = [call for call in self._waiting if not any(call is each for each in mine)]
        model = self._trained.get(optimizer)
        if model is None:
            if not mine:
                return  # an update without gradients, which some make before a scheduler
            model = self._model_of([root for call in mine for root in call.roots])
        self._trained[optimizer], self._used = model, mine
        if model.add(mine) or model.number == self._record.models:
            name = model.name(tensors)
            self._record.model(model.number, name, model.tensors, model.kinds)

    def _after_update(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        del args, kwargs
        model, calls = self._trained.get(optimizer), self._used
        if model is None:
            return
        self._record.add(
            "update",
            model=model.number,
            digests=self._record.digests(model.tensors),
            losses=[number for call in calls for number in call.losses],
            inputs=[each for call in calls for each in call.inputs],
            alone=True,
            line=calls[-1].line if calls else user_line(),
        )
        if self._record.updates >= self._record.steps:
            self.finish()
        self._record.end_step()

    def _model_of(self, roots: Sequence[torch.nn.Module]) -> Trained:
        """Return the recorded model with these modules, or a new one."""
        for model in self._models:
            if set(map(id, model.roots)) == set(map(id, roots)):
                return model
        self._models.append(Trained(len(self._models)))
        return self._models[-1]


def of_optimizer(optimizer: Any) -> list[torch.Tensor]:
    """Return the tensors in an optimizer's parameter groups; empty if it has none."""
    groups = getattr(optimizer, "param_groups", ())
    return [each for group in groups for each in group["params"]]


@contextlib.contextmanager
def wrapped(owner: Any, name: str, before: Callable[..., None]) -> Generator[None]:
    """Call a function before each call of a torch function, while the context is open."""
    plain = getattr(owner, name)

    @functools.wraps(plain)
    def both(*args: Any, **kwargs: Any) -> Any:
        before(*args, **kwargs)
        return plain(*args, **kwargs)

    setattr(owner, name, both)
    try:
        yield
    finally:
        setattr(owner, name, plain)


# -- ports -----------------------------------------------------------------------------------------


class Port:
    """Records the updates of a ported script from its training sessions, one model per session."""

    def __init__(self, record: Record):
        self._record = record

    def watching(self) -> contextlib.AbstractContextManager[object]:
        """Observe new training sessions of the script, while the context is open."""
        return of_new_sessions(
            lambda session: _Calls(self._record, session) if session.config.training else None
        )

    def finish(self) -> None:
        """Do nothing, because all calls of sessions are already recorded."""


class _Calls(Observer):
    """Records the calls of a training session."""

    def __init__(self, record: Record, session: Session):
        self._record, self._session = record, session
        self._model = -1
        self._inputs: list[str] = []
        self._losses: list[float] = []
        self._digests: list[dict[str, str]] = []

    def on_inputs(self, inputs: Sequence[torch.Tensor]) -> None:
        """Record the digests of a call's inputs, and the model before its first call."""
        if self._model < 0:
            self._model = self._record.models
            params, buffers = self._session.params, self._session.buffers[0]
            kinds = dict.fromkeys(params, PARAMETER) | dict.fromkeys(buffers, BUFFER)
            self._record.model(self._model, "", {**params, **buffers}, kinds)
        self._inputs, self._digests = [digest(each) for each in inputs], []

    def on_update(self, step: MicroStep) -> None:
        """Record the digests of parameters and buffers after an update."""
        del step
        tensors = {**self._session.params, **self._session.buffers[0]}
        self._digests.append(self._record.digests(tensors))

    def on_outputs(self, outputs: Sequence[torch.Tensor]) -> None:
        """Record the loss among the outputs of a training call."""
        loss = self._session.loss
        self._losses = [] if loss is None else numbers(outputs[loss])

    def on_call_end(self, call: CallRecord) -> None:
        """Write the updates of a training call with their losses to the record."""
        if call.error is not None:
            return
        count = len(self._digests)
        each, rest = divmod(len(self._losses), count or 1)
        for position, digests in enumerate(self._digests, 1):
            losses = self._losses if position == count else []
            if each and not rest:
                losses = self._losses[each * (position - 1) : each * position]
            self._record.add(
                "update", model=self._model, digests=digests, losses=losses, inputs=self._inputs,
                alone=count == 1, line=user_line(),
            )  # fmt: skip
        self._record.end_step()
