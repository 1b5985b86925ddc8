"""Watch the updates of a script, and send them as JSON lines over pipes of its own.

Messages by ``kind``:

- ``model``: ``model``, its number in the order of first updates; ``name``; ``tensors``, by name the
  ``shape``, the ``kind`` and the ``line`` that made it; again where the model has grown;
- ``state``: ``model``; ``step``, the number of its updates so far; and ``digests`` by name. The
  answer is awaited: ``go``, or the path of a file that the tensors are to be written to first;
- ``step``: ``model``; ``first`` and ``last`` of its updates, which are equal unless a call makes
  several; ``losses``, ``inputs``, and the user's ``line``;
- ``saved``: the file is complete;
- ``note``: ``text``, something that was changed so that both can be compared;
- ``end``: ``error``, the traceback of a script that failed, or null.

A step of a plain script ends with ``optimizer.step()``. A script without an optimizer updates its
parameters by hand; there a step ends where the next backward begins.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hashlib
import json
import os
import weakref
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from typing import Any, TypeVar

import torch
from torch.nn.modules.module import (
    register_module_forward_hook,
    register_module_forward_pre_hook,
    register_module_parameter_registration_hook,
)
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from abele.runtime.clock import CallRecord
from abele.runtime.observers import Observer
from abele.runtime.session import Session, of_new_sessions
from abele.step.batching import MicroStep
from abele.storage.digests import raw_bytes
from abele.warn import user_line

GO = "go"
PARAMETER, BUFFER = "parameter", "buffer"
_MOST_LOSSES = 4096
_MOST_NAMES = 3
_Value = TypeVar("_Value")


class Channel:
    """Pipes of a watched script.

    Args:
        answers: file descriptor to read from.
        messages: file descriptor to write to.
    """

    def __init__(self, answers: int, messages: int):
        self._answers = os.fdopen(answers, "r", encoding="utf-8")
        self._messages = os.fdopen(messages, "w", encoding="utf-8")

    def send(self, kind: str, **content: Any) -> None:
        """Send a message."""
        self._messages.write(json.dumps({"kind": kind, **content}) + "\n")
        self._messages.flush()

    def model(
        self,
        number: int,
        name: str,
        tensors: Mapping[str, torch.Tensor],
        kinds: Mapping[str, str],
        lines: Mapping[str, str],
    ) -> None:
        """Send the tensors of a model: their shapes, kinds, and the lines that made them."""
        said = {
            name: {"shape": list(value.shape), "kind": kinds[name], "line": lines.get(name, "")}
            for name, value in tensors.items()
        }
        self.send("model", model=number, name=name, tensors=said)

    def state(self, model: int, step: int, tensors: Mapping[str, torch.Tensor]) -> None:
        """Send the state of a model after one of its updates, and wait until it was compared."""
        digests = {name: digest(tensor) for name, tensor in tensors.items()}
        self.send("state", model=model, step=step, digests=digests)
        answer = self._answers.readline().rstrip("\n")
        if not answer:
            raise EOFError("the comparing process has ended")
        if answer != GO:
            plain = {name: value.detach().cpu().clone() for name, value in tensors.items()}
            torch.save(plain, answer)
            self.send("saved")


def digest(tensor: torch.Tensor) -> str:
    """Return a hash of a tensor's type and numbers, whatever its shape."""
    plain = tensor.detach()
    if plain.layout is not torch.strided:
        plain = plain.to_dense()
    return f"{plain.dtype} {hashlib.sha256(raw_bytes(plain)).hexdigest()[:24]}"


def described(tensor: torch.Tensor) -> dict[str, Any]:
    """Return the shape and digest of an input."""
    return {"shape": list(tensor.shape), "digest": digest(tensor)}


def numbers(loss: torch.Tensor) -> list[float]:
    """Return the numbers of a loss in double precision, which is exact for float32."""
    values: Any = loss.detach().double().flatten()[:_MOST_LOSSES]
    return values.tolist()


class Enough(BaseException):
    """The end of a script that has made all steps."""


class Watch:
    """The base of both watchers.

    Args:
        channel: pipes to the comparing process.
        steps: number of steps after which the script ends.

    Attributes:
        updates: number of updates by the number of the model.
    """

    def __init__(self, channel: Channel, steps: int):
        self.channel, self.steps = channel, steps
        self.updates: list[int] = []

    def finish(self) -> None:
        """Send what is only known when the script has ended by itself."""

    def updated(self, model: int, tensors: Mapping[str, torch.Tensor]) -> None:
        """Send the state of a model after one more update."""
        self.updates[model] += 1
        self.channel.state(model, self.updates[model], tensors)

    def end_step(self, model: int, first: int, **facts: Any) -> None:
        """Send facts of a model's updates from ``first`` to the present one.

        Raises:
            Enough: all steps were made.
        """
        self.channel.send("step", model=model, first=first, last=self.updates[model], **facts)
        if sum(self.updates) >= self.steps:
            raise Enough


class LinesOfParameters:
    """The user's line that made each parameter."""

    def __init__(self) -> None:
        self._lines: dict[int, tuple[weakref.ref[Any], str]] = {}

    @contextlib.contextmanager
    def noting(self) -> Generator[None]:
        """While open, note the parameters that modules get."""

        def note(module: torch.nn.Module, name: str, parameter: Any) -> None:
            del module, name
            if parameter is not None and self.of(parameter) == "":
                self._lines[id(parameter)] = weakref.ref(parameter), user_line()

        handle: Any = register_module_parameter_registration_hook(note)
        try:
            yield
        finally:
            handle.remove()

    def of(self, tensor: torch.Tensor) -> str:
        """Return the line, or an empty text."""
        reference, line = self._lines.get(id(tensor), (None, ""))
        return line if reference is not None and reference() is tensor else ""


# -- plain scripts ---------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True, kw_only=True)
class Backward:
    """A call of backward.

    Attributes:
        losses: numbers of the tensors that it began from.
        leaves: tensors that they were differentiated by.
        roots: modules that were called since the call before.
        inputs: shapes and digests of their inputs.
        line: the user's line that made the call.
    """

    losses: tuple[float, ...]
    leaves: tuple[torch.Tensor, ...]
    roots: tuple[torch.nn.Module, ...]
    inputs: tuple[dict[str, Any], ...]
    line: str


class Trained:
    """A model of a plain script: the modules whose losses its optimizers use.

    Args:
        number: index of the model in the order of first updates.

    Attributes:
        tensors: parameters and buffers by name.
        kinds: ``PARAMETER`` or ``BUFFER`` by name.
        roots: its modules.
    """

    def __init__(self, number: int):
        self.number = number
        self.tensors: dict[str, torch.Tensor] = {}
        self.kinds: dict[str, str] = {}
        self.roots: list[torch.nn.Module] = []

    def add(self, calls: Sequence[Backward]) -> bool:
        """Add the modules of some calls, and return whether a tensor is new."""
        before = len(self.tensors)
        for root in unique(root for call in calls for root in call.roots):
            if not any(each is root for each in self.roots):
                self.roots.append(root)
                prefix = type(root).__name__
                for name, tensor in root.named_parameters():
                    self._add(name, prefix, tensor, PARAMETER)
                for name, tensor in root.named_buffers():
                    self._add(name, prefix, tensor, BUFFER)
        # Later, inputs that are differentiated by would be among them.
        reached = unique(leaf for call in calls for leaf in call.leaves) if not before else []
        for number, leaf in enumerate(reached):
            self._add(f"tensor{number}", "tensor", leaf, PARAMETER)
        return len(self.tensors) > before

    def parameters(self) -> dict[str, torch.Tensor]:
        """Return its parameters by name."""
        return {name: t for name, t in self.tensors.items() if self.kinds[name] == PARAMETER}

    def name(self, updated: Sequence[torch.Tensor]) -> str:
        """Return the classes of its modules with some tensors; of all modules if none has."""
        wanted = set(map(id, updated))
        named = [each for each in self.roots if wanted & set(map(id, each.parameters()))]
        classes = [type(root).__name__ for root in named or self.roots]
        more = ", ..." if len(classes) > _MOST_NAMES else ""
        return ", ".join(classes[:_MOST_NAMES]) + more

    def _add(self, name: str, prefix: str, tensor: torch.Tensor, kind: str) -> None:
        """Add a tensor by a name that no other one has."""
        if any(each is tensor for each in self.tensors.values()):
            return
        unused, number = name, 1
        while unused in self.tensors:
            unused = f"{prefix}.{name}" if number == 1 else f"{prefix}{number}.{name}"
            number += 1
        self.tensors[unused], self.kinds[unused] = tensor, kind


def unique(values: Iterable[_Value]) -> list[_Value]:
    """Return each object once, in order."""
    return list({id(value): value for value in values}.values())


def taking_part(
    called: Sequence[torch.nn.Module], reached: Sequence[torch.Tensor]
) -> list[torch.nn.Module]:
    """Return the called modules that a loss may come from.

    A module that was evaluated with gradients has none of this loss; a frozen one has none at all.
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
    """Return the tensors that losses are differentiated by, in the order of the graph."""
    waiting: list[Any] = [loss.grad_fn for loss in losses]
    seen: set[Any] = set()
    reached: list[torch.Tensor] = []
    while waiting:
        node = waiting.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if hasattr(node, "variable"):
            reached.append(node.variable)
        waiting += [source for source, _ in reversed(node.next_functions)]
    return reached


class Original(Watch):
    """Watches the updates of a plain script."""

    def __init__(self, channel: Channel, steps: int):
        super().__init__(channel, steps)
        self._lines = LinesOfParameters()
        self._models: list[Trained] = []
        # By optimizer: the line that made it, its model, and the calls of its latest update.
        self._made: weakref.WeakKeyDictionary[Any, str] = weakref.WeakKeyDictionary()
        self._trained: weakref.WeakKeyDictionary[Any, Trained] = weakref.WeakKeyDictionary()
        self._used: weakref.WeakKeyDictionary[Any, list[Backward]] = weakref.WeakKeyDictionary()
        self._by_hand = True  # until an optimizer is made
        self._roots: list[torch.nn.Module] = []
        self._depth = 0
        self._inputs: list[dict[str, Any]] = []
        self._waiting: list[Backward] = []  # for an update

    @contextlib.contextmanager
    def watching(self) -> Generator[None]:
        """While open, watch the script."""
        handles: list[Any] = [
            register_module_forward_pre_hook(self._enter),
            register_module_forward_hook(self._leave, always_call=True),
            register_optimizer_step_pre_hook(self._before_update),
            register_optimizer_step_post_hook(self._after_update),
        ]
        optimizer = wrapped(torch.optim.Optimizer, "__init__", self._made_optimizer)
        backward = wrapped(torch.autograd, "backward", self._before_backward)
        try:
            with self._lines.noting(), optimizer, backward:
                yield
        finally:
            for handle in handles:
                handle.remove()

    def finish(self) -> None:
        """Send the last step of a script without an optimizer, and which made no update."""
        if self._by_hand and self._waiting:
            self._update_by_hand()
        self._note_unused()

    def _made_optimizer(self, optimizer: Any, *args: Any, **kwargs: Any) -> None:
        del args, kwargs
        self._by_hand = False
        self._made[optimizer] = user_line()

    def _enter(self, module: torch.nn.Module, args: Any) -> None:
        self._depth += 1
        has_parameters = next(module.parameters(), None) is not None
        if self._depth == 1 and torch.is_grad_enabled() and has_parameters:
            self._roots.append(module)
            self._inputs += [described(each) for each in args if isinstance(each, torch.Tensor)]

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
        if self._by_hand and self._waiting:
            self._update_by_hand()
        self._waiting.append(call)
        if self._by_hand:
            self._models = self._models or [Trained(0)]
            if self._begin(self._models[0], [call], []):
                note = "the original updates by hand, so its buffers were not compared"
                self.channel.send("note", text=note)

    def _before_update(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        """Take the calls of backward that give an optimizer's tensors gradients."""
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
        self._begin(model, mine, tensors)
        self._trained[optimizer], self._used[optimizer] = model, mine

    def _after_update(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        del args, kwargs
        model = self._trained.get(optimizer)
        if model is not None:
            self._end_update(model, self._used.get(optimizer, []), model.tensors)

    def _update_by_hand(self) -> None:
        """End a step where the next backward begins: buffers are of its forward already."""
        calls, self._waiting = self._waiting, []
        self._end_update(self._models[0], calls, self._models[0].parameters())

    def _end_update(
        self, model: Trained, calls: Sequence[Backward], tensors: Mapping[str, torch.Tensor]
    ) -> None:
        self.updated(model.number, tensors)
        if sum(self.updates) >= self.steps:
            self._note_unused()
        self.end_step(
            model.number,
            self.updates[model.number],
            losses=[number for call in calls for number in call.losses],
            inputs=[each for call in calls for each in call.inputs],
            line=calls[-1].line if calls else user_line(),
        )

    def _model_of(self, roots: Sequence[torch.nn.Module]) -> Trained:
        """Return the model with these modules, which another optimizer may have trained before."""
        for model in self._models:
            if set(map(id, model.roots)) == set(map(id, roots)):
                return model
        self._models.append(Trained(len(self._models)))
        return self._models[-1]

    def _begin(
        self, model: Trained, calls: Sequence[Backward], updated: Sequence[torch.Tensor]
    ) -> bool:
        """Send a model that is new or has grown, and return whether it is new."""
        is_new = model.number >= len(self.updates)
        if model.add(calls) or is_new:
            lines = {name: self._lines.of(tensor) for name, tensor in model.tensors.items()}
            self.channel.model(model.number, model.name(updated), model.tensors, model.kinds, lines)
        if is_new:
            self.updates.append(0)
            # Buffers may have changed in forward.
            self.channel.state(model.number, 0, model.parameters())
        return is_new

    def _note_unused(self) -> None:
        """Send the lines of optimizers without an update whose tensors nothing else updated."""
        compared = {id(each) for model in self._models for each in model.tensors.values()}
        for optimizer, line in self._made.items():
            tensors = set(map(id, of_optimizer(optimizer)))
            if optimizer not in self._trained and tensors and not tensors & compared:
                note = f"the optimizer of {line} made no update in these steps"
                self.channel.send("note", text=note)


def of_optimizer(optimizer: Any) -> list[torch.Tensor]:
    """Return the tensors that an optimizer updates; none if its construction has failed."""
    groups = getattr(optimizer, "param_groups", ())
    return [each for group in groups for each in group["params"]]


@contextlib.contextmanager
def wrapped(owner: Any, name: str, before: Callable[..., None]) -> Generator[None]:
    """While open, have a function of torch call another one first, with its arguments."""
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


class Port(Watch):
    """Watches the training sessions of a script; some go on with the model of an earlier one."""

    def __init__(self, channel: Channel, steps: int):
        super().__init__(channel, steps)
        self._latest: list[Session] = []  # of each model

    @contextlib.contextmanager
    def watching(self) -> Generator[None]:
        """While open, watch the script."""
        with of_new_sessions(self._observer):
            yield

    def _observer(self, session: Session) -> Observer | None:
        """Observe a training session; its model is an earlier one if it has its weights."""
        if not session.config.training:
            return None
        models = [
            number
            for number, before in enumerate(self._latest)
            if before.params.keys() == session.params.keys()
            and all(torch.equal(before.params[n], each) for n, each in session.params.items())
        ]
        return _Calls(self, session, models[-1] if models else None)

    def model_of(self, session: Session, model: int | None) -> int:
        """Return the number of the model that a session trains; None stands for a new model."""
        if model is not None:
            self._latest[model] = session
            return model
        self._latest.append(session)
        self.updates.append(0)
        return len(self._latest) - 1


class _Calls(Observer):
    """Sends the calls of a session.

    Args:
        watch: of the script.
        session: the observed one.
        goes_on: number of an earlier model that it trains on; None for a new model.
    """

    def __init__(self, watch: Port, session: Session, goes_on: int | None):
        self._watch, self._session, self._goes_on = watch, session, goes_on
        self._inputs: list[dict[str, Any]] = []
        self._losses: list[float] = []
        self._first, self._model = 1, -1

    def on_inputs(self, inputs: Sequence[torch.Tensor]) -> None:
        """Note the inputs, and send a new model."""
        if self._model < 0:
            self._model = self._watch.model_of(self._session, self._goes_on)
            if self._goes_on is None:
                params, buffers, channel = *self._parts(), self._watch.channel
                kinds = dict.fromkeys(params, PARAMETER) | dict.fromkeys(buffers, BUFFER)
                channel.model(self._model, "", {**params, **buffers}, kinds, {})
                channel.state(self._model, 0, params)
        self._first = self._watch.updates[self._model] + 1
        self._inputs = [described(each) for each in inputs]

    def on_update(self, step: MicroStep) -> None:
        """Send the state after an update."""
        del step
        params, buffers = self._parts()
        self._watch.updated(self._model, {**params, **buffers})

    def on_outputs(self, outputs: Sequence[torch.Tensor]) -> None:
        """Note the loss."""
        loss = self._session.loss
        self._losses = [] if loss is None else numbers(outputs[loss])

    def on_call_end(self, call: CallRecord) -> None:
        """Send the call."""
        if call.error is None:
            facts = {"losses": self._losses, "inputs": self._inputs, "line": user_line()}
            self._watch.end_step(self._model, self._first, **facts)

    def _parts(self) -> tuple[Mapping[str, torch.Tensor], Mapping[str, torch.Tensor]]:
        return self._session.params, self._session.buffers[0]
