"""Replacement of ``torch.optim`` steps by update rules while a function is traced.

    optimizer.step()   ->   the tensor operations of the optimizer's update rule

A rule has the bits of ``torch.optim``, and reads no value of a tensor as Adam's own step does. It
rounds bfloat16 parameters and state once, where torch rounds after each of its operations. The
learning rate is a slot of the program, so that a scheduler needs no other program; other numbers
become slots once they have changed. Optimizers without a rule are traced as they are.
"""

from __future__ import annotations

import contextlib
import dataclasses
import operator
import threading
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping, Sequence
from typing import Any, cast

import torch
from torch.optim.lr_scheduler import LRScheduler
from torch.optim.optimizer import register_optimizer_step_pre_hook

from abele import _torch, cpython
from abele._torch.replaced import replaced
from abele.capture.gradient_hooks import refused_around_step
from abele.errors import CaptureError
from abele.functions.state import NotYetError, Stored, are_same, same_reads
from abele.functions.varying import Place, Unread, Varying
from abele.step import update_rules
from abele.step.optimizers import KINDS, PAIRS, Kind, kind_of, refused, switches
from abele.step.update_rules import RULES, Group, UpdateRule
from abele.warn import user_line

StandIn = Callable[[torch.Tensor], torch.Tensor]
# Update rules that torch computes with other roundings for lists of tensors.
_OTHER_BITS_FOR_EACH = frozenset({"asgd", "nadam", "radam"})
_Group = dict[str, Any]


@dataclasses.dataclass
class Numbers:
    """The numbers of an optimizer's parameter groups, some of them slots of a program.

    Attributes:
        optimizer: the optimizer.
        label: prefix of the names of its slots.
        variable: arguments of the optimizer that are slots.
        seen: the values of each group when they were last looked at, without its parameters.
        slots: the present number of each slot.
        free: places of numbers that the program sets or has as slots of its own.
        steps: the optimizer steps in the program, by an update rule or its own code.
    """

    optimizer: torch.optim.Optimizer
    label: str
    variable: frozenset[str]
    seen: list[_Group] = dataclasses.field(default_factory=list[_Group])
    slots: dict[str, float] = dataclasses.field(default_factory=dict[str, float])
    free: frozenset[Any] = frozenset()
    steps: bool = True

    def __post_init__(self):
        self.seen = numbers_of(self.optimizer, self.free)
        state: Any = self.optimizer.state
        self._state, self._groups = state, self.optimizer.param_groups
        self._of_params = list(state), list(state.values())
        entries = [
            (value, key, part)
            for value in state.values()
            for key, part in value.items()
            if not issubclass(type(part), Unread)  # counts on at each call
        ]
        self._compare(entries)
        of_state = [state, *state.values()] if self.steps else []
        lists = (v for group in self._groups for k, v in group.items() if k != "params")
        can_change = any(isinstance(each, list | dict) for each in lists)
        written = _torch.versions_of([*self._groups, *of_state])
        self._written = object if can_change else written
        self._versions, self._has_same_objects = list[Any](), self._reading()

    def _compare(self, entries: Sequence[tuple[Any, Any, Any]]) -> None:
        self._holders = [holder for holder, _, _ in entries]
        self._keys = [key for _, key, _ in entries]
        self._entries = [part for _, _, part in entries]

    def leave_out(self, stored: Collection[tuple[int, Any]]) -> None:
        """Leave out entries of the state, by ``id`` of their dictionary and key."""
        entries = zip(self._holders, self._keys, self._entries, strict=True)
        self._compare([each for each in entries if (id(each[0]), each[1]) not in stored])

    def _reading(self) -> Callable[[], bool]:
        """Return a comparison of the optimizer's groups, parameters, state and step."""
        optimizer, groups = self.optimizer, self._groups
        kind, space = type(optimizer), vars(optimizer)
        reads: list[Any] = [("{o}.param_groups", optimizer, None), ("{o}.state", optimizer, None)]
        reads += [("{o}.step", kind, None), ("{o}.get({k})", space, "step")]
        values = [groups, self._state, kind.step, space.get("step")]
        lists = [group["params"] for group in groups]
        for each in (groups, *lists):
            reads.append(("(len({o}) == {k})", each, len(each)))
            reads += [("{o}[{k}]", each, index) for index in range(len(each))]
            values += [True, *each]
        reads += [("{o}.get({k})", group, "params") for group in groups]
        return same_reads(reads, [*values, *lists])

    def serves(self, write: Callable[[str, float], None]) -> bool:
        """Return whether a program serves these numbers and state; write numbers to its slots."""
        versions = self._written()
        if versions == self._versions and self._has_same_objects():
            return True
        if not self.has_same_state():
            return False
        slots, others = self.changed()
        if slots and not others:
            self.follow(write)
        self._versions = [] if others else versions
        return not others

    def has_same_state(self) -> bool:
        """Return whether parameters and objects of state are those of the captured call."""
        try:
            if not self._has_same_objects():
                return False
            if not self.steps:
                return True
            keys, values = self._of_params
            if not (are_same(self._state, keys) and are_same(self._state.values(), values)):
                return False
            now = list(map(operator.getitem, self._holders, self._keys))
        except KeyError:
            return False
        if are_same(now, self._entries):  # as nearly always
            return True
        pairs = zip(now, self._entries, strict=True)
        return all(a is b or (not isinstance(a, torch.Tensor) and a == b) for a, b in pairs)

    def changed(self) -> tuple[frozenset[str], frozenset[str]]:
        """Return the names of arguments that have changed: slots, and others."""
        now = numbers_of(self.optimizer, self.free)
        if not self.steps or now == self.seen:
            return frozenset(), frozenset()
        if [*map(list, now)] != [*map(list, self.seen)]:
            return frozenset(), frozenset({"param_groups"})
        names = changed_names(self.seen, now)
        return names & self.variable, names - self.variable

    def follow(self, write: Callable[[str, float], None]) -> None:
        """Write changed numbers to their slots."""
        self.seen = numbers_of(self.optimizer, self.free)
        for index, group in enumerate(self.optimizer.param_groups):
            fixed = _fixed(group, self.free)
            for name, number in _slots_of(self.label, index, fixed, self.variable).items():
                if self.slots.get(name) != number:
                    self.slots[name] = number
                    write(name, number)


def _kinds_of(kind: Any) -> Iterator[Any]:
    yield kind
    for each in kind.__subclasses__():
        yield from _kinds_of(each)


def numbers_of(optimizer: torch.optim.Optimizer, free: Collection[Any] = ()) -> list[_Group]:
    """Return each parameter group without its parameters, and without numbers at given places."""
    return [
        {k: tuple(v) if k in PAIRS else v for k, v in _fixed(group, free).items() if k != "params"}
        for group in optimizer.param_groups
    ]


def changed_names(before: list[_Group], now: list[_Group]) -> frozenset[str]:
    """Return the names of arguments that differ between the parameter groups of two times."""
    pairs = zip(before, now, strict=False)
    found = [(n, a.get(n), b.get(n)) for a, b in pairs for n in {**a, **b}]
    return frozenset(n for n, a, b in found if type(a) is not type(b) or a != b)


def _fixed(group: _Group, free: Collection[Any]) -> _Group:
    """Return a group without numbers at given places."""
    return {k: v for k, v in group.items() if (id(group), k) not in free} if free else group


def _slots_of(label: str, index: int, group: _Group, names: frozenset[str]) -> dict[str, float]:
    return {
        f"{label}.group{index}.{part}": number
        for name in sorted(names & group.keys())
        for part, number in _split(name, group[name]).items()
    }


def _split(name: str, value: Any) -> dict[str, float]:
    """Return an argument of an optimizer as numbers by the names of update rules."""
    if name in PAIRS:
        first, second = value
        return dict(zip(PAIRS[name], (_number(name, first), _number(name, second)), strict=True))
    return {name: _number(name, value)}


def _number(name: str, value: Any) -> float:
    value = value.number if issubclass(type(value), Varying) else value
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise CaptureError(
            f"An optimizer has {name}={value!r}; a program needs a number. Pass a float."
        )
    return float(value)


class TracedSteps:
    """The optimizers that step while a function is traced.

    Args:
        stand_in: returns the traced tensor of a real one.
        promoted: by ``id`` of an optimizer, arguments besides ``lr`` that are slots.
        events: the events of the host so far.
        slots: numbers may be slots, since no code of Python reads them.
        free: places of numbers that have stand-ins.

    Attributes:
        stepped: the numbers of each optimizer that has stepped, by its ``id``.
        hyper: real tensors that stand for the numbers of slots, with their names.
        consumed: by the ``id`` of a parameter, the gradient that updated it, and its version.
        schedules: calls of schedulers' steps, which are for the host: scheduler, number of events
            of the host before it, arguments.
    """

    def __init__(
        self,
        stand_in: StandIn,
        promoted: Mapping[int, frozenset[str]],
        events: Sequence[Any],
        *,
        slots: bool = True,
        free: Iterable[Any] = (),
    ):
        self._stand_in, self._promoted, self._events = stand_in, promoted, events
        self._variable = frozenset({"lr"} if slots else ())
        self._free = frozenset(each.id for each in free if isinstance(each, Place))
        self.stepped: dict[int, Numbers] = {}
        self.hyper: dict[int, tuple[str, torch.Tensor]] = {}
        self.consumed: dict[int, tuple[torch.Tensor, int]] = {}
        self._plain: list[Any] = []  # optimizers whose own steps are traced
        self._skipped: torch.Tensor | None = None  # whether a GradScaler skips the step
        self.schedules: list[tuple[Any, int, tuple[Any, ...], dict[str, Any]]] = []

    @contextlib.contextmanager
    def replaced(self) -> Generator[None]:
        """Apply update rules instead of optimizers' steps, in a ``with`` block of this thread."""
        thread = threading.get_ident()

        def before_step(optimizer: Any, args: Any, kwargs: Any) -> Any:
            if threading.get_ident() != thread:
                return None
            kind = _own_kind(optimizer)
            if kind is None:
                self._plain.append(optimizer)
                if self._skipped is not None:
                    raise CaptureError(
                        f"A GradScaler steps a {type(optimizer).__name__}, which has no update "
                        "rule whose results a program could leave out. Use an optimizer of "
                        "torch.optim, or bfloat16 without a GradScaler."
                    )
            return None if kind is None else self._step(optimizer, kind, args, kwargs)

        def schedule(original: Any, scheduler: Any, *args: Any, **kwargs: Any) -> None:
            self.schedules.append((scheduler, len(self._events), args, kwargs))

        before_step._is_internal = True  # type: ignore[reportFunctionMemberAccess]
        handle = register_optimizer_step_pre_hook(before_step)
        kinds = [kind for kind in _kinds_of(LRScheduler) if "step" in vars(kind)]
        try:
            with replaced(*((kind, "step", schedule) for kind in kinds)):
                yield
        finally:
            handle.remove()

    @contextlib.contextmanager
    def skipping(self, skipped: torch.Tensor) -> Generator[None]:
        """Let steps change nothing in a ``with`` block where a 0-d bool tensor is true."""
        self._skipped = skipped
        try:
            yield
        finally:
            self._skipped = None

    def refuse_scheduled(self, stored: Iterable[Stored]) -> None:
        """Refuse schedulers of optimizers whose numbers are constants, or set by the program.

        Raises:
            CaptureError: one steps in the call.
        """
        for scheduler, *_ in self.schedules:
            if any(each.holder is g for each in stored for g in scheduler.optimizer.param_groups):
                raise CaptureError(
                    "The function steps a scheduler, and sets numbers of its optimizer itself. Do "
                    "one of these outside."
                )
            if any(scheduler.optimizer is each for each in self._plain):
                name = type(scheduler.optimizer).__name__
                raise CaptureError(
                    f"The function steps a scheduler of {name}, whose numbers are constants of a "
                    "program. Step the scheduler outside, or use an optimizer of torch.optim with "
                    "an update rule."
                )

    def numbers(
        self, optimizers: Mapping[int, tuple[str, Any]], stored: Iterable[Stored]
    ) -> list[Numbers]:
        """Return the numbers of optimizers, but for those that the call sets.

        Args:
            optimizers: all that the function reaches, with their paths.
            stored: entries of objects that the call sets.
        """
        plain, entries = set(map(id, self._plain)), {(id(e.holder), e.key) for e in stored}
        found = [*self.stepped.values()]
        found += [
            Numbers(each, "", frozenset(), free=self._free, steps=key in plain)
            for key, (_, each) in optimizers.items()
            if key not in self.stepped
        ]
        for each in found:
            each.leave_out(entries)
        return found

    def _step(self, optimizer: Any, kind: Kind, args: Any, kwargs: Any) -> Any:
        """Trace a step; return arguments with which the optimizer's own step does nothing."""
        problem = refused_around_step(optimizer)
        if problem is not None:
            raise CaptureError(problem)
        if any(getattr(each, "optimizer", None) is optimizer for each, *_ in self.schedules):
            raise CaptureError(
                f"An optimizer steps after its scheduler in the same call, at {user_line()}. Step "
                "the scheduler last, or outside of the function."
            )
        closure = kwargs.get("closure", args[1] if len(args) > 1 else None)
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        with torch.no_grad(), cpython.unwatched():
            self._apply(optimizer, kind)
            _torch.mark_traced("update")
        emptied: Any = object.__new__(cast("Any", type(optimizer)))
        emptied.__dict__.update(optimizer.__dict__, param_groups=[], state={})
        return (emptied,), {} if closure is None else {"closure": lambda: loss}

    def _apply(self, optimizer: Any, kind: Kind) -> None:
        numbers = self.stepped.get(id(optimizer))
        if numbers is None:
            variable = self._variable
            if variable:
                promoted = self._promoted.get(id(optimizer), frozenset())
                variable |= promoted & frozenset(kind.numbers)
            label = f"optimizer{len(self.stepped)}"
            numbers = Numbers(optimizer, label, variable, free=self._free)
            self.stepped[id(optimizer)] = numbers
        params: dict[str, torch.Tensor] = {}
        grads: dict[str, torch.Tensor] = {}
        state: dict[str, dict[str, torch.Tensor]] = {}
        hyper: dict[str, torch.Tensor] = {}
        groups: list[Group] = []
        for index, group in enumerate(optimizer.param_groups):
            values = _values(optimizer, kind, group)
            names: list[str] = []
            for place, param in enumerate(group["params"]):
                if param.grad is None:
                    continue
                name = f"{index}.{place}"
                names.append(name)
                self.consumed[id(param)] = param.grad, param.grad._version
                _require_known(optimizer, param)
                params[name] = self._stand_in(param)
                grads[name] = self._stand_in(param.grad)
                state[name] = self._state(optimizer, kind, param, values)
            slots = self._slots(kind, numbers, index, group)
            hyper |= {f"group{index}.{name}": value for name, value in slots.items()}
            groups.append(Group(params=tuple(names), values=values, variable=frozenset(slots)))
        rule = UpdateRule(kind=kind.rule, groups=tuple(groups))
        written = [*params.values(), *(t for each in state.values() for t in each.values())]
        before = [] if self._skipped is None else [tensor.clone() for tensor in written]
        update_rules.apply(rule, params, grads, state, hyper)
        for tensor, old in zip(written, before, strict=False):
            tensor.copy_(torch.where(cast("torch.Tensor", self._skipped), old, tensor))

    def _state(
        self, optimizer: Any, kind: Kind, param: torch.Tensor, values: Mapping[str, float]
    ) -> dict[str, torch.Tensor]:
        stored = optimizer.state.get(param, {})
        wanted = RULES[kind.rule].state(values)
        missing = [key for key in wanted if not isinstance(stored.get(key), torch.Tensor)]
        if missing:
            raise NotYetError(
                f"{type(optimizer).__name__} has no {missing[0]} of a parameter yet, at "
                f"{user_line()}."
            )
        others = [key for key in wanted if key != "step" and stored[key].dtype != param.dtype]
        if others:
            raise CaptureError(
                f"{type(optimizer).__name__} has {others[0]} of {stored[others[0]].dtype} for a "
                f"parameter of {param.dtype}; a program rounds such updates otherwise than torch."
            )
        return {key: self._stand_in(stored[key]) for key in wanted}

    def _slots(
        self, kind: Kind, numbers: Numbers, index: int, group: _Group
    ) -> dict[str, torch.Tensor]:
        result: dict[str, torch.Tensor] = {}
        named = {name: value for _, (name, value) in self.hyper.items()}
        fixed = _fixed(group, self._free)
        for slot, number in _slots_of(numbers.label, index, fixed, numbers.variable).items():
            if slot not in named:
                numbers.slots[slot] = number
                with _torch.outside_the_trace():
                    named[slot] = torch.tensor(number, dtype=torch.float64)
                self.hyper[id(named[slot])] = slot, named[slot]
            result[slot.rpartition(".")[2]] = self._stand_in(named[slot])
        for name in kind.numbers:
            if issubclass(type(group[name]), Varying):
                result[name] = self._stand_in(group[name].slot())
        return result


def _values(optimizer: Any, kind: Kind, group: _Group) -> dict[str, float]:
    largest = {"amsgrad": bool(group["amsgrad"])} if kind.rule == "adam" else {}
    problem = refused({**group, **dict.fromkeys(largest, False)})
    if problem is not None:
        name, reason = problem
        raise CaptureError(
            f"{type(optimizer).__name__} has {name}={group[name]!r}, which no program can follow. "
            f"{reason} Leave {name} unset."
        )
    if (
        group.get("capturable")
        or group.get("fused")
        or (group.get("foreach") and kind.rule in _OTHER_BITS_FOR_EACH)
    ):
        raise CaptureError(
            f"{type(optimizer).__name__} has capturable, fused or foreach set, whose kernels round "
            "otherwise than a program. Leave them unset."
        )
    values: dict[str, float] = {"tf_variant": False} if kind.rule == "rmsprop" else {}
    for name in kind.numbers:
        values |= _split(name, group[name])
    return values | switches(optimizer, kind.rule, group) | largest


def _require_known(optimizer: Any, param: Any) -> None:
    if param.grad.layout is not torch.strided:
        raise CaptureError("A gradient is sparse; a program computes with dense tensors.")
    if param.dtype not in (torch.float32, torch.float64, torch.bfloat16):
        raise CaptureError(
            f"{type(optimizer).__name__} updates parameters of {param.dtype}. A program rounds "
            "such an update once, at its end, and torch at each operation."
        )


def _own_kind(optimizer: Any) -> Kind | None:
    """Return the row of an optimizer whose step is torch's own; None for other classes."""
    kind = kind_of(optimizer)
    if kind is None or kind not in KINDS:
        return None
    step: Any = cast("Any", type(optimizer)).step
    own: Any = cast("Any", kind.base).step
    return kind if getattr(step, "__wrapped__", step) is getattr(own, "__wrapped__", own) else None
