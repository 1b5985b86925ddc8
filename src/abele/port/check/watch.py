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
from collections.abc import Callable, Container, Generator, Iterable, Mapping, Sequence
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
from abele.runtime.observers import Observer, of_new_sessions
from abele.runtime.session import Session
from abele.step.batching import MicroStep
from abele.storage.digests import raw_bytes
from abele.warn import user_line

GO = "go"
PARAMETER, BUFFER = "parameter", "buffer"
_MOST_LOSSES = 4096
_MOST_NAMES = 3
_Value = TypeVar("_Value")


class Channel:
    """The script's end.

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
        """Say which tensors a model has.

        Args:
            number: of the model, in the order of first updates.
            name: what the user calls it; empty if that is not known.
            tensors: parameters and buffers by name.
            kinds: which of the two they are.
            lines: who made them, where that is known.
        """
        said = {
            name: {"shape": list(value.shape), "kind": kinds[name], "line": lines.get(name, "")}
            for name, value in tensors.items()
        }
        self.send("model", model=number, name=name, tensors=said)

    def state(self, model: int, step: int, tensors: Mapping[str, torch.Tensor]) -> None:
        """Tell the state of a model after one of its updates, and wait until it was compared."""
        digests = {name: digest(tensor) for name, tensor in tensors.items()}
        self.send("state", model=model, step=step, digests=digests)
        answer = self._answers.readline().rstrip("\n")
        if not answer:
            raise EOFError("whoever compares is gone")
        if answer != GO:
            plain = {name: value.detach().cpu().clone() for name, value in tensors.items()}
            torch.save(plain, answer)
            self.send("saved")


def digest(tensor: torch.Tensor) -> str:
    """A hash of a tensor's numbers and type; views of one shape or another are alike."""
    plain = tensor.detach()
    if plain.layout is not torch.strided:
        plain = plain.to_dense()
    return f"{plain.dtype} {hashlib.sha256(raw_bytes(plain)).hexdigest()[:24]}"


def described(tensor: torch.Tensor) -> dict[str, Any]:
    """What is said of an input."""
    return {"shape": list(tensor.shape), "digest": digest(tensor)}


def numbers(loss: torch.Tensor) -> list[float]:
    """A loss as JSON can have it: exact, also for float32."""
    values: Any = loss.detach().double().flatten()[:_MOST_LOSSES]
    return values.tolist()


class Enough(BaseException):
    """As many steps were made as were asked for."""


class Watch:
    """What the watchers of an original and of a port share.

    Args:
        channel: where they send.
        steps: how many steps are of interest.

    Attributes:
        updates: number of updates by the number of the model.
    """

    def __init__(self, channel: Channel, steps: int):
        self.channel, self.steps = channel, steps
        self.updates: list[int] = []

    def finish(self) -> None:
        """Send what is only known when the script has ended by itself."""

    @property
    def made(self) -> int:
        """How many updates there were, of all models."""
        return sum(self.updates)

    def updated(self, model: int, tensors: Mapping[str, torch.Tensor]) -> None:
        """Tell the state of a model after one more update."""
        self.updates[model] += 1
        self.channel.state(model, self.updates[model], tensors)

    def tell_step(
        self,
        model: int,
        first: int,
        losses: Sequence[float],
        inputs: Sequence[Mapping[str, Any]],
        line: str,
    ) -> None:
        """Tell of a model's updates from ``first`` to the present one."""
        last = self.updates[model]
        self.channel.send(
            "step", model=model, first=first, last=last, losses=losses, inputs=inputs, line=line
        )

    def stop_if_enough(self) -> None:
        """End the script if all steps were made.

        Raises:
            Enough: they were.
        """
        if self.made >= self.steps:
            raise Enough


class LinesOfParameters:
    """Knows the user's line that made each parameter."""

    def __init__(self) -> None:
        self._lines: dict[int, tuple[weakref.ref[Any], str]] = {}

    @contextlib.contextmanager
    def noting(self) -> Generator[None]:
        """While open, parameters that modules get are noted."""

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
        """The line, or nothing."""
        reference, line = self._lines.get(id(tensor), (None, ""))
        return line if reference is not None and reference() is tensor else ""


# -- plain scripts ---------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True, kw_only=True)
class Backward:
    """A call of backward.

    Attributes:
        losses: numbers of the tensors that it began from.
        leaves: what they were differentiated by.
        roots: the modules that were called since the call before.
        inputs: of these modules.
        line: the user's line that made the call.
    """

    losses: tuple[float, ...]
    leaves: tuple[torch.Tensor, ...]
    roots: tuple[torch.nn.Module, ...]
    inputs: tuple[dict[str, Any], ...]
    line: str

    def reaches(self, tensors: Sequence[torch.Tensor]) -> bool:
        """Whether it gives one of these a gradient."""
        wanted = set(map(id, tensors))
        return any(id(leaf) in wanted for leaf in self.leaves)


class Trained:
    """A model with its tensors.

    Args:
        number: in the order of first updates.

    Attributes:
        number: as given.
        tensors: parameters and buffers by name.
        kinds: which of the two they are.
    """

    def __init__(self, number: int):
        self.number = number
        self.tensors: dict[str, torch.Tensor] = {}
        self.kinds: dict[str, str] = {}
        self._roots: list[torch.nn.Module] = []

    def consists_of(self, roots: Iterable[torch.nn.Module]) -> bool:
        """Whether these are its modules."""
        return set(map(id, self._roots)) == set(map(id, roots))

    def add(self, calls: Sequence[Backward]) -> bool:
        """Add what took part in these calls, and say whether something is new."""
        before = len(self.tensors)
        new = not before
        for root in unique(root for call in calls for root in call.roots):
            if not any(each is root for each in self._roots):
                self._roots.append(root)
                self._add_module(root)
        # Later, inputs that are differentiated by would be among them.
        reached = unique(leaf for call in calls for leaf in call.leaves) if new else []
        for number, leaf in enumerate(reached):
            self._add(f"tensor{number}", "tensor", leaf, PARAMETER)
        return len(self.tensors) > before

    def parameters(self) -> dict[str, torch.Tensor]:
        """Those of its tensors that are parameters."""
        return {name: t for name, t in self.tensors.items() if self.kinds[name] == PARAMETER}

    def name(self, updated: Sequence[torch.Tensor]) -> str:
        """The classes of the modules that have tensors which are updated; of all if none has."""
        wanted = set(map(id, updated))
        named = [
            root for root in self._roots if any(id(each) in wanted for each in root.parameters())
        ]
        classes = [type(root).__name__ for root in named or self._roots]
        more = ", ..." if len(classes) > _MOST_NAMES else ""
        return ", ".join(classes[:_MOST_NAMES]) + more

    def lines(self, known: LinesOfParameters) -> dict[str, str]:
        """The user's lines that made its tensors."""
        return {name: known.of(tensor) for name, tensor in self.tensors.items()}

    def _add_module(self, module: torch.nn.Module) -> None:
        prefix = type(module).__name__
        for name, tensor in module.named_parameters():
            self._add(name, prefix, tensor, PARAMETER)
        for name, tensor in module.named_buffers():
            self._add(name, prefix, tensor, BUFFER)

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
    """Each object once, in order."""
    return list({id(value): value for value in values}.values())


def taking_part(
    called: Sequence[torch.nn.Module], reached: Sequence[torch.Tensor]
) -> list[torch.nn.Module]:
    """The modules that a loss may come from, of those that were called before it.

    One that was evaluated with gradients has some, but not of this loss; a frozen one has none.
    """
    wanted = set(map(id, reached))

    def takes_part(root: torch.nn.Module) -> bool:
        parameters = [*root.parameters()]
        return any(id(each) in wanted for each in parameters) or not any(
            each.requires_grad for each in parameters
        )

    roots = unique(called)
    return [root for root in roots if takes_part(root)] or roots


def leaves(losses: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """The tensors that losses are differentiated by, in the order in which they are reached."""
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
    """Watches the updates of a script."""

    def __init__(self, channel: Channel, steps: int):
        super().__init__(channel, steps)
        self._lines = LinesOfParameters()
        self._models: list[Trained] = []
        self._optimizers = Optimizers()
        self._roots: list[torch.nn.Module] = []
        self._depth = 0
        self._inputs: list[dict[str, Any]] = []
        self._waiting: list[Backward] = []  # for an update

    @contextlib.contextmanager
    def watching(self) -> Generator[None]:
        """While open, the script is watched."""
        handles: list[Any] = [
            register_module_forward_pre_hook(self._enter),
            register_module_forward_hook(self._leave, always_call=True),
            register_optimizer_step_pre_hook(self._before_update),
            register_optimizer_step_post_hook(self._after_update),
        ]
        optimizer = wrapped(torch.optim.Optimizer, "__init__", self._optimizers.made)
        backward = wrapped(torch.autograd, "backward", self._before_backward)
        try:
            with self._lines.noting(), optimizer, backward:
                yield
        finally:
            for handle in handles:
                handle.remove()

    def finish(self) -> None:
        """Tell the last step of a script without an optimizer, and what made no update."""
        if not self._optimizers and self._waiting:
            self._update_by_hand()
        self._tell_unused()

    # -- forward ---------------------------------------------------------------------------

    def _enter(self, module: torch.nn.Module, args: Any) -> None:
        self._depth += 1
        if (
            self._depth > 1
            or not torch.is_grad_enabled()
            or next(module.parameters(), None) is None
        ):
            return
        self._roots.append(module)
        self._inputs += [described(each) for each in args if isinstance(each, torch.Tensor)]

    def _leave(self, module: torch.nn.Module, args: Any, result: Any) -> None:
        del module, args, result
        self._depth = max(0, self._depth - 1)

    # -- backward and updates ----------------------------------------------------------------

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
        by_hand = not self._optimizers
        if by_hand and self._waiting:
            self._update_by_hand()
        self._waiting.append(call)
        if by_hand:
            self._model_by_hand([call])

    def _before_update(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        """Take what an optimizer is about to use: calls that give its tensors gradients."""
        del args, kwargs
        tensors = of_optimizer(optimizer)
        mine = [call for call in self._waiting if call.reaches(tensors)] or self._waiting
        self._waiting = [call for call in self._waiting if not any(call is each for each in mine)]
        model = self._optimizers.model_of(optimizer)
        if model is None:
            if not mine:
                return  # an update without gradients, which some make before a scheduler
            model = self._model_of([root for call in mine for root in call.roots])
        known = model.number < len(self.updates)
        if model.add(mine) or not known:
            self._tell_model(model, model.name(tensors))
        if not known:
            self._begin(model)
        self._optimizers.uses(optimizer, model, mine)

    def _after_update(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        del args, kwargs
        model = self._optimizers.model_of(optimizer)
        if model is not None:
            self._end_step(model, self._optimizers.used(optimizer), model.tensors)

    def _end_step(
        self, model: Trained, calls: Sequence[Backward], tensors: Mapping[str, torch.Tensor]
    ) -> None:
        self.updated(model.number, tensors)
        if self.made >= self.steps:
            self._tell_unused()
        losses = [number for call in calls for number in call.losses]
        inputs = [each for call in calls for each in call.inputs]
        line = calls[-1].line if calls else user_line()
        self.tell_step(model.number, self.updates[model.number], losses, inputs, line)
        self.stop_if_enough()

    # -- models ------------------------------------------------------------------------------

    def _model_of(self, roots: Sequence[torch.nn.Module]) -> Trained:
        """The model with these modules, which another optimizer may have trained before."""
        for model in self._models:
            if model.consists_of(roots):
                return model
        self._models.append(Trained(len(self._models)))
        return self._models[-1]

    def _begin(self, model: Trained) -> None:
        """Tell parameters before the first update; buffers may have changed in forward."""
        self.updates.append(0)
        self.channel.state(model.number, 0, model.parameters())

    def _tell_model(self, model: Trained, name: str) -> None:
        lines = model.lines(self._lines)
        self.channel.model(model.number, name, model.tensors, model.kinds, lines)

    def _tell_unused(self) -> None:
        compared = {id(each) for model in self._models for each in model.tensors.values()}
        for line in self._optimizers.unused(compared):
            self.channel.send("note", text=f"the optimizer of {line} made no update in these steps")

    # -- updates by hand -----------------------------------------------------------------------

    def _model_by_hand(self, calls: Sequence[Backward]) -> None:
        """A script without an optimizer trains one model, with all that it calls."""
        if not self._models:
            self._models.append(Trained(0))
        model = self._models[0]
        if model.add(calls) or not self.updates:
            self._tell_model(model, model.name([]))
        if not self.updates:
            self._begin(model)
            self.channel.send(
                "note", text="the original updates by hand, so its buffers were not compared"
            )

    def _update_by_hand(self) -> None:
        """End a step where the next backward begins: buffers are of its forward already."""
        calls, self._waiting = self._waiting, []
        self._end_step(self._models[0], calls, self._models[0].parameters())


class Optimizers:
    """The optimizers of a script, with the models that they train."""

    def __init__(self) -> None:
        self._lines: weakref.WeakKeyDictionary[Any, str] = weakref.WeakKeyDictionary()
        self._models: weakref.WeakKeyDictionary[Any, Trained] = weakref.WeakKeyDictionary()
        self._calls: weakref.WeakKeyDictionary[Any, list[Backward]] = weakref.WeakKeyDictionary()
        self._any = False

    def __bool__(self) -> bool:
        """Whether the script has made one."""
        return self._any

    def made(self, optimizer: Any, *args: Any, **kwargs: Any) -> None:
        """Note one that is being made."""
        del args, kwargs
        self._any = True
        self._lines[optimizer] = user_line()

    def model_of(self, optimizer: Any) -> Trained | None:
        """The model that it has updated."""
        return self._models.get(optimizer)

    def uses(self, optimizer: Any, model: Trained, calls: list[Backward]) -> None:
        """Note what it updates next, with the gradients of which calls."""
        self._models[optimizer], self._calls[optimizer] = model, calls

    def used(self, optimizer: Any) -> list[Backward]:
        """The calls of its latest update."""
        return self._calls.get(optimizer, [])

    def unused(self, compared: Container[int]) -> list[str]:
        """The lines that made those without an update whose tensors nothing else has updated.

        Args:
            compared: ids of the tensors of models that were updated.
        """
        return [
            line
            for optimizer, line in self._lines.items()
            if optimizer not in self._models
            and (tensors := of_optimizer(optimizer))
            and not any(id(each) in compared for each in tensors)
        ]


def of_optimizer(optimizer: Any) -> list[torch.Tensor]:
    """The tensors that it updates."""
    groups = getattr(optimizer, "param_groups", ())  # none where its construction has failed
    return [each for group in groups for each in group["params"]]


@contextlib.contextmanager
def wrapped(owner: Any, name: str, before: Callable[..., None]) -> Generator[None]:
    """While open, a function of torch calls another one first, with its arguments."""
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
        """While open, the script is watched."""
        with of_new_sessions(self._observer):
            yield

    def _observer(self, session: Session) -> Observer | None:
        if not session.config.training:
            return None
        models = [number for number, each in enumerate(self._latest) if _goes_on(each, session)]
        return _Calls(self, session, models[-1] if models else None)

    def model_of(self, session: Session, model: int | None) -> int:
        """The number of the model that a session trains from now on; None is a new model."""
        if model is not None:
            self._latest[model] = session
            return model
        self._latest.append(session)
        self.updates.append(0)
        return len(self._latest) - 1


def _goes_on(before: Session, session: Session) -> bool:
    """Whether a session begins with the weights that another has come to: its model, made anew."""
    mine, other = before.params, session.params
    return mine.keys() == other.keys() and all(
        torch.equal(mine[name], each) for name, each in other.items()
    )


class _Calls(Observer):
    """Tells of the calls of a session.

    Args:
        watch: of the script.
        session: the one.
        goes_on: the number of the model that it goes on with; None if its model is a new one.
    """

    def __init__(self, watch: Port, session: Session, goes_on: int | None):
        self._watch, self._session, self._goes_on = watch, session, goes_on
        self._inputs: list[dict[str, Any]] = []
        self._losses: list[float] = []
        self._first = 1
        self._model = -1

    def on_inputs(self, inputs: Sequence[torch.Tensor]) -> None:
        """Note what comes in."""
        if self._model < 0:
            self._model = self._watch.model_of(self._session, self._goes_on)
            if self._goes_on is None:
                self._tell_start()
        self._first = self._watch.updates[self._model] + 1
        self._inputs = [described(each) for each in inputs]

    def on_update(self, step: MicroStep) -> None:
        """Tell the state after an update."""
        del step
        self._watch.updated(self._model, self._state())

    def on_outputs(self, outputs: Sequence[torch.Tensor]) -> None:
        """Note the loss."""
        loss = self._session.loss
        self._losses = [] if loss is None else numbers(outputs[loss])

    def on_call_end(self, call: CallRecord) -> None:
        """Tell of the call."""
        if call.error is None:
            self._watch.tell_step(self._model, self._first, self._losses, self._inputs, user_line())
            self._watch.stop_if_enough()

    def _tell_start(self) -> None:
        session, channel = self._session, self._watch.channel
        kinds = dict.fromkeys(session.params, PARAMETER) | dict.fromkeys(session.buffers[0], BUFFER)
        channel.model(self._model, "", self._state(), kinds, {})
        channel.state(self._model, 0, session.params)

    def _state(self) -> dict[str, torch.Tensor]:
        return {**self._session.params, **self._session.buffers[0]}
