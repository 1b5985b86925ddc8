"""A captured call of a function, compiled, with the calls that it serves."""

from __future__ import annotations

import operator
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.backends import cuda as attention

from abele import _torch, questions
from abele._torch import casts, scaling
from abele.compilation.build import BuildRecord, build
from abele.compilation.compiling import return_memory
from abele.compilation.executable import Announce, ExecutableSource
from abele.compilation.start import Start
from abele.errors import CaptureError, ValueCheckError
from abele.functions import batches
from abele.functions.arguments import Arguments, layout
from abele.functions.arrays import as_tensor
from abele.functions.capture import CapturedCall, Given, GivenBatch, Output, View
from abele.functions.guards import Guards
from abele.functions.host import Host, Shared
from abele.functions.state import Entry, form_of, same_reads
from abele.functions.varying import Unread, entry_of
from abele.program import Role
from abele.runtime.session import Session
from abele.step.config import MatmulPrecision, StepConfig
from abele.trace.adopted import by_strides

_data_ptr, _numel, _stride = torch.Tensor.data_ptr, torch.Tensor.numel, torch.Tensor.stride
_requires_grad = operator.attrgetter("requires_grad")


# Settings of this thread that change what a function computes.
_SETTINGS: Sequence[Callable[[], Any]] = (
    torch.is_grad_enabled,
    torch.is_inference_mode_enabled,
    torch.get_default_dtype,
    _torch.checks_distributions,
    _torch.default_device,
    casts.types,
    casts.are_kept,
    torch.is_autocast_cache_enabled,
    torch.are_deterministic_algorithms_enabled,
    casts.of_products,
    attention.flash_sdp_enabled,
    attention.mem_efficient_sdp_enabled,
    attention.math_sdp_enabled,
    attention.cudnn_sdp_enabled,
)


class CompiledCall:
    """A program of a function and the conditions under which it serves a call.

    Attributes:
        captured: the program with its effects.
        record: of the build.
        session: runs the program on the user's own tensors.
        parts: how many tensors and other values its arguments hold.
    """

    def __init__(
        self,
        captured: CapturedCall,
        arguments: Arguments,
        guards: Guards,
        host: Host | None,
        *,
        cache: ExecutableSource | None,
        start: Start,
        announce: Announce,
    ):
        self.captured, self._arguments, self.guards = captured, arguments, guards
        self._host = host
        settings = [("{o}()", read, None) for read in _SETTINGS]
        self._has_same_modes = same_reads(settings, [read() for read in _SETTINGS], "==")
        self._draws = captured.program.uses_random
        self.parts = len(arguments.present)
        self._tensors = [*captured.tensors.values(), *captured.aliases]
        gradients = captured.gradients
        self._looked = [*gradients.looked, *captured.aliases]
        self._memory, self._forms = self._memory_now(), self._forms_now()
        self._distinct = {id(each): each for each in (*self._tensors, *self._looked)}.values()
        self._are_alike = _torch.comparison_with([*self._distinct])
        self._absent, self._given = gradients.absent, captured.given
        self._pinned = [(tensor, _place(grad)) for tensor, grad in gradients.pinned]
        self._returns_leaf = self._is_leaf_alone()
        given = [get() for get in self._given]
        self._layouts, orders = [*map(_layout, given)], [*map(by_strides, given)]
        self._orders = [None if how == sorted(how) else how for how in orders]
        self._read = captured.read
        kept = [s for s in captured.stored if not issubclass(type(s.before), Unread)]
        self._replaced = [(entry_of(s.holder, s.key), form_of(s.before)) for s in kept]
        self._replaced += [(each, form_of(each.get())) for each in captured.replaced]
        self._known = (guards.compared() | {*map(id, self._tensors)}) - {*self._others_found()}
        written = {(s.role, s.name) for s in captured.program.inputs if s.mutated}
        self._written = [t for key, t in captured.tensors.items() if key in written]
        leaves = (*captured.leaves, *(item.leaf for item in captured.items))
        sources = [each.source for each in leaves if type(each) is View]
        self._shared = {each.index for each in sources if type(each) is Output}
        self._scalers = captured.scalers
        self._storages = {_memory(tensor) for tensor in self._tensors} - {0}
        slots = [slot for slot in captured.program.inputs if slot.role is Role.INPUT]
        self._written_inputs = [index for index, slot in enumerate(slots) if slot.mutated]
        self._drop_gradients((*arguments.tensors, *given))
        self.session, self.record = self._session(cache, start, announce)
        arguments.forget_examples()

    def _session(
        self, cache: ExecutableSource | None, start: Start, announce: Announce
    ) -> tuple[Session, BuildRecord]:
        captured = self.captured
        config = StepConfig(
            training=captured.program.name == "step",
            adopts=True,
            matmul_precision=MatmulPrecision.of_torch(),
        )
        used = [*self._tensors, *(item.value for item in self._arguments.named)]
        used += [get() for get in self._given]
        devices = {tensor.device for tensor in used} or {torch.device("cpu")}
        if torch.device("meta") in devices:
            raise CaptureError("The function uses tensors on meta, which have no data.")
        if len(devices) > 1:
            listed = " and ".join(sorted(map(str, devices)))
            raise CaptureError(f"The function uses tensors on {listed}; a program has one device.")
        device = devices.pop()
        questions.about_function([captured.program], config, device, start)
        executable, record = build(
            [captured.program], config, device=device, cache=cache, start=start, announce=announce
        )
        by_role: dict[Role, dict[str, torch.Tensor]] = {role: {} for role in Role}
        for (role, name), value in captured.state.items():
            by_role[role][name] = value
        hyper = {n: v for each in captured.numbers for n, v in each.slots.items()}
        hyper |= captured.followed.values
        session = Session(
            executable,
            config,
            by_role[Role.PARAMETER],
            by_role[Role.BUFFER],
            by_role[Role.OPTIMIZER_STATE],
            hyper,
            loss=self._loss() if config.training else None,
        )
        return session, record

    def _is_leaf_alone(self) -> bool:
        """Return whether a call does nothing in Python but return a leaf."""
        leaves = self.captured.leaves
        if len(leaves) != 1 or self._host is not None:
            return False
        (result, *others), _ = batches.unflatten(leaves, self.captured.structure)
        return result is leaves[0] and not any(others)

    def _loss(self) -> int | None:
        """Return the index of the first number that the call computes; None if it has none."""
        gradients = self.captured.gradients.kept.values()
        for index, slot in enumerate(self.captured.program.outputs):
            if slot.role is Role.OUTPUT and not slot.shape and slot.dtype.is_floating_point:
                return None if index in gradients else index
        return None

    @property
    def calls(self) -> int:
        """The number of calls that the program has served."""
        return self.session.calls

    def accepts(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Return the inputs of a call that this program serves; else None."""
        inputs = self._arguments.accepts(args, kwargs)
        if inputs is None or not self._has_same_modes() or not self._state_is_same():
            return None
        if not self._follow_numbers() or not self.guards.hold():
            return None
        found = self._found() if self._given or self._replaced else []  # which may make casts
        if found is None:
            return None
        inputs = [*inputs, *found] if found else inputs
        if (self._written or self._written_inputs) and self._overlap(inputs):
            return None
        followed = self.captured.followed.follow(self._arguments.present, self.session.set_hyper)
        return inputs if followed else None

    def _found(self) -> list[torch.Tensor] | None:
        """Return the further inputs that the call finds; None if their layouts differ."""
        try:
            found = [get() for get in self._given]
            is_same = all(not p or form_of(p.get()) == form for p, form in self._replaced)
            others = self._others_found() if self.captured.replaced else []
            is_same = is_same and len({*others}) == len(others) and self._known.isdisjoint(others)
        except LookupError:  # an entry that is no more
            return None
        if not is_same or list(map(_layout, found)) != self._layouts:
            return None
        pairs = zip(found, self._orders, strict=True)
        return [t.detach().permute(how) if how else t.detach() for t, how in pairs]

    def _others_found(self) -> list[int]:
        """Return the ``id`` of each tensor that is where others replace tensors."""
        leaves = _torch.flatten([each.get() for each in self.captured.replaced])[0]
        return [id(each) for each in leaves if isinstance(each, torch.Tensor)]

    def _overlap(self, inputs: Sequence[torch.Tensor]) -> bool:
        """Return whether inputs share memory with state, or with an input that is written."""
        own = self._arguments.tensors  # inputs may be copies of these
        inputs = [*own, *inputs[len(own) :]]
        memory = [tensor.untyped_storage().data_ptr() for tensor in inputs]
        if not self._storages.isdisjoint(memory):
            return True
        if self._arguments.arrays:  # whose slices begin at other places of one memory
            spans = [*map(_span, (*inputs, *self._tensors))]
            written = {*self._written_inputs, *range(len(inputs), len(spans))}
            return any(
                i != j and j in written and a < d and c < b
                for i, (a, b) in enumerate(spans[: len(inputs)])
                for j, (c, d) in enumerate(spans)
            )
        return bool([i for i in self._written_inputs if memory.count(memory[i]) > 1])

    def _memory_now(self) -> list[int]:
        """Return the addresses of the state."""
        return [*map(_data_ptr, self._tensors)]

    def _forms_now(self) -> list[Any]:
        """Return how the state is laid out, and whether what calls look at is trained."""
        state, looked = self._tensors, self._looked
        return [*map(_numel, state), *map(_stride, state), *map(_requires_grad, looked)]

    def moved(self) -> list[torch.Tensor]:
        """Return the tensors of the state that have other memory."""
        pairs = zip(self._tensors, self._memory, strict=True)
        return [tensor for tensor, memory in pairs if _data_ptr(tensor) != memory]

    def _state_is_same(self) -> bool:
        if self._memory_now() != self._memory:
            return False
        if not self._are_alike(*self._distinct) and self._forms_now() != self._forms:
            return False
        # Generators take longer than what an empty list needs.
        if self._absent and any(tensor.grad is not None for tensor in self._absent):
            return False
        if self._pinned and any(_place(tensor.grad) != place for tensor, place in self._pinned):
            return False
        if self._scalers and any(map(scaling.is_pending, self._scalers)):
            return False
        return not self._read or all(each.holds() for each in self._read)

    def _follow_numbers(self) -> bool:
        write = self.session.set_hyper
        return not [each for each in self.captured.numbers if not each.serves(write)]

    def difference(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str:
        """Return why this program does not serve a call, in words."""
        inputs = self._arguments.accepts(args, kwargs)
        if inputs is None:
            return "the arguments have other shapes, types or values"
        if not self._has_same_modes():
            return "grad mode, autocast or another setting of torch differs"
        if not self._state_is_same():
            return "a tensor of the state has been replaced, or a number in one has changed"
        if not self._follow_numbers():
            changed = [sorted(numbers.changed()[1]) for numbers in self.captured.numbers]
            names = ", ".join(name for each in changed for name in each)
            return f"the optimizer has other numbers or state: {names or 'its state'}"
        shares = "an argument shares its memory with another one or with state that is written"
        if self._found() is None:
            return "a tensor that calls replace has another shape, type, layout or place"
        decides = "a number by which Python decides"
        return self.guards.difference() or (shares if self._overlap(inputs) else decides)

    def run(self, inputs: Sequence[torch.Tensor]) -> Any:
        """Run the program; return the function's result."""
        captured = self.captured
        numbers = torch.get_rng_state() if self._draws else None
        calls, began_ns = captured.calls, time.perf_counter_ns()
        try:
            if calls.functions:
                with calls.in_use():
                    outputs = self.session.call(inputs, began_ns, _refusing_no_detach)
            else:
                outputs = self.session.call(inputs, began_ns, _refusing_no_detach)
        except ValueCheckError:
            if numbers is not None:
                torch.set_rng_state(numbers)
            raise
        for index in self._shared:
            outputs[index] = outputs[index].contiguous()
        if self._written:
            torch.autograd.graph.increment_version(self._written)
        captured.gradients.leave(outputs)
        for item in captured.items:
            item.value = item.read(self._leaf(item.leaf, outputs))
        if self._returns_leaf:
            return self._leaf(captured.leaves[0], outputs)
        leaves = [self._leaf(each, outputs) for each in captured.leaves]
        made, _ = batches.unflatten(leaves, captured.structure)
        result, events, stored, schedules, _ = made
        for each, value in zip(captured.stored, stored, strict=True):
            each.store(value)
        if self._host is None and not schedules:
            return result

        def before(place: int) -> None:
            for scheduler, (at, args, kwargs) in zip(captured.schedulers, schedules, strict=True):
                if at == place:
                    scheduler.step(*args, **kwargs)

        if self._host is None:
            before(0)
            return result
        return self._host.run(events, result, before)

    def _drop_gradients(self, read: Sequence[torch.Tensor]) -> None:
        """Free gradients that a call drops and does not read: its first run needs the memory."""
        memory = set(map(_memory, read))
        for tensor in self.captured.gradients.emptied:
            if tensor.grad is not None and _memory(tensor.grad) not in memory:
                tensor.grad = None
        return_memory()

    def _leaf(self, leaf: Any, outputs: Sequence[torch.Tensor]) -> Any:
        if type(leaf) is Output:
            return outputs[leaf.index]
        if type(leaf) is Shared:
            known = self._arguments.containers
            return known[leaf.value] if type(leaf.value) is int else leaf.value
        if type(leaf) is Entry:
            return leaf.get()
        if type(leaf) is View:
            source = leaf.source
            is_tensor = isinstance(source, torch.Tensor)
            return leaf.of(source if is_tensor else as_tensor(self._leaf(source, outputs)))
        present = self._arguments.present
        if issubclass(type(leaf), Unread):
            return leaf.now(present)
        if type(leaf) is GivenBatch:
            return self._arguments.objects[leaf.index]
        return present[leaf.index] if type(leaf) is Given else leaf

    def refuses(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
        """Return whether arguments differ in more than numbers from those of this program."""
        arguments = self._arguments
        return arguments.accepts(args, kwargs) is None and not arguments.changed(args, kwargs)

    def changed(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[Any, Any]:
        """Return numbers that differ in another call, and those that this program has as slots.

        By index of the argument or place; the slots alone if something else differs, too.
        """
        found: dict[Any, Any] = {**self._arguments.changed(args, kwargs)}
        known = found or self._arguments.accepts(args, kwargs) is not None
        places = [*self.guards.free, *(self.guards.changed() if known else ())]
        return found | {each: each.get() for each in places}

    def close(self) -> None:
        """Stop compiling, and release the program."""
        self.session.close()


def _refusing_no_detach(outputs: list[torch.Tensor]) -> list[torch.Tensor]:
    """Return the outputs of a program without views, which would refuse ``detach_()``."""
    return [each.data if each._is_view() else each for each in outputs]


def _memory(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def _span(tensor: torch.Tensor) -> tuple[int, int]:
    return _memory(tensor), _memory(tensor) + tensor.untyped_storage().nbytes()


def _place(gradient: torch.Tensor | None) -> Any:
    return None if gradient is None else (_data_ptr(gradient), layout(gradient))


def _layout(value: Any) -> Any:
    return layout(value) if isinstance(value, torch.Tensor) else None
