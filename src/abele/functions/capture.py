"""Capture of one call of a function as a program, with its results and effects.

The function runs once with its own objects, on inputs without data. Every real tensor that an
operator receives becomes a slot of the program, so that closures, attributes and optimizers keep
their tensors, and the program writes these in place. Gradients that the call leaves in ``grad`` are
effects of their own, because plain PyTorch makes new tensors for them.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import functools
import types
from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from typing import Any, cast

import torch
from torch.utils.hooks import RemovableHandle

from abele import _torch
from abele._torch import casts, scaling
from abele._torch.dynamo import compiled_functions_run_plainly
from abele._torch.replaced import Function, replaced
from abele.capture import reachable
from abele.capture.core import tracing
from abele.capture.diagnose import explained
from abele.capture.leftovers import ABSENT
from abele.capture.replacements import recurrent_layers
from abele.capture.replacements.portable import portable_functions
from abele.containers import is_list
from abele.errors import CaptureError, DataDependentError
from abele.functions import arrays, batches
from abele.functions.arguments import Arguments, containers_of, order
from abele.functions.frames import PLAIN, Frames
from abele.functions.host import HeldAttribute, Host, Shared
from abele.functions.journal import Grad, Gradients, GradJournal, RealTensors
from abele.functions.optimizers import Numbers, TracedSteps
from abele.functions.parallel import Replicas
from abele.functions.randomness import without_output, without_random_numbers
from abele.functions.state import KINDS, Changed, Entry, Names, Reached, Stored, may_be_input
from abele.functions.varying import Followed, Item, Place, Slots, Unread, entry_of
from abele.ops.host_call import HostCalls
from abele.ops.recurrent import StepsNeeded
from abele.ops.value_check import checked
from abele.program import Program, Role
from abele.program.aliasing import base, other_kind, written
from abele.trace import scopes, tracer
from abele.trace.adopted import Adopted, Reading, SharedMemoryError
from abele.trace.module_state import named_modules
from abele.trace.plain_tensors import stand_in
from abele.trace.tensor_names import Lookup
from abele.trace.tracer import Values
from abele.warn import user_line

_MOST_TRACES = 5
_OF_DISTRIBUTIONS = "an argument of a distribution, or a value passed to its log_prob, is invalid."
_OF_FAKES = frozenset((*dir(_torch.FakeTensor), *_torch.FakeTensor.__annotations__))


@dataclasses.dataclass(frozen=True)
class Output:
    """A leaf of a function's result that the program computes; ``index`` counts its outputs."""

    index: int


class Given(Output):
    """A leaf of a function's result that is an argument; ``index`` counts their leaves."""


class GivenBatch(Output):
    """A leaf of a function's result that is a batch; ``index`` counts those of the arguments."""


@dataclasses.dataclass(frozen=True)
class View:
    """A leaf of a function's result in the memory of an output, an argument or a tensor of state.

    Attributes:
        source: what has the memory, as a contiguous tensor if it is an output or argument.
        shape: of the leaf.
        strides: of the leaf, in elements.
        offset: of the leaf in the source, in elements.
        dtype: of the leaf.
    """

    source: Output | Given | torch.Tensor
    shape: Sequence[int]
    strides: Sequence[int]
    offset: int
    dtype: torch.dtype

    def of(self, source: torch.Tensor) -> torch.Tensor:
        """Return the leaf in the memory of a tensor that stands for the source in a call."""
        flat = source.detach().view(-1).view(self.dtype)
        return flat.as_strided(self.shape, self.strides, flat.storage_offset() + self.offset)


@dataclasses.dataclass(frozen=True, kw_only=True)
class CapturedCall:
    """A captured call of a function.

    Attributes:
        program: ``step`` if it trains, else ``forward``.
        structure: of the function's result, and of what statements of the host read.
        leaves: of the result: ``Output``, ``Given``, ``View``, or an object that all calls return.
        tensors: the user's tensors behind the slots of state, by slot.
        aliases: further tensors of the user's in the memory of these.
        state: the same memory as the slots have it.
        numbers: of the optimizers that step.
        schedulers: those whose steps end the call, in order.
        gradients: effects on ``grad``.
        given: return the further inputs of the program, behind its arguments: gradients that the
            call finds, tensors that it replaces in Python objects, and casts of weights that
            ``torch.autocast`` keeps beyond the call.
        stored: tensors that the call keeps in Python objects.
        read: values of state that Python has read.
        followed: numbers of Python that are slots, or on which the program does not depend.
        items: what stands for numbers of tensors.
        calls: what the program calls to exchange tensors with other processes.
        scalers: objects of ``torch.amp.GradScaler`` that the function reaches.
        replaced: places whose tensors may be other ones at each call.
    """

    program: Program
    structure: Any
    leaves: Sequence[Any]
    tensors: Mapping[tuple[Role, str], torch.Tensor]
    aliases: Sequence[torch.Tensor]
    state: Mapping[tuple[Role, str], torch.Tensor]
    numbers: Sequence[Numbers]
    schedulers: Sequence[Any]
    gradients: Gradients
    given: Sequence[Callable[[], Any]]
    stored: Sequence[Stored]
    read: Sequence[Reading]
    followed: Followed
    items: Sequence[Item]
    calls: HostCalls
    scalers: Sequence[Any]
    replaced: Sequence[Place] = ()


def capture(
    function: Callable[..., Any],
    arguments: Arguments,
    reached: Reached,
    promoted: Mapping[int, frozenset[str]],
    frames: Frames,
    *,
    keep_gradients: bool,
    slots: bool,
    host: Host | None = None,
    numbers: Slots,
    replaced: Collection[Place] = (),
    moved: Collection[torch.Tensor] = (),
) -> CapturedCall:
    """Capture a call of a function as one static program.

    Args:
        function: the user's function.
        arguments: of the call.
        reached: what the function reaches, for the names of slots.
        promoted: see ``TracedSteps``.
        frames: receives the frames of the user's code.
        keep_gradients: gradients stay in ``grad`` after an update that has used them.
        slots: numbers of optimizers may be slots; see ``TracedSteps``.
        host: the function in two parts, of which the traced one is captured.
        numbers: those that the program is not to depend on.
        replaced: places that had other tensors at earlier calls.
        moved: tensors that had other memory at earlier calls.

    Raises:
        ChangesError: the call changes objects of Python.
        CaptureError: the call cannot be one program.
        Exception: of the function itself.
    """
    whole, whole_layers = frozenset[int](), True
    places = {each: found for each in replaced if (found := reached.entries(each))}
    own = {_torch.memory_of(t): Entry(Place([t], 0)) for t in filter(may_be_input, moved)}
    entries = collections.ChainMap[int, Entry | casts.Cast]({}, *places.values(), {**own})
    hidden = contextlib.nullcontext() if host is None else host.hiding(reached.objects())
    with tracing(), hidden:
        for _ in range(_MOST_TRACES):
            events = [] if host is None else host.events
            attempt = _Capture(
                function=function if host is None else host.remaining,
                arguments=arguments,
                reached=reached,
                frames=frames,
                keep=keep_gradients,
                host=host,
                numbers=numbers,
                steps=TracedSteps(stand_in, promoted, events, slots=slots, free=numbers.stand_ins),
                whole=whole,
                whole_layers=whole_layers,
                entries=entries,
                holders=frozenset(id(e) for p in places for e in containers_of(p.get())),
            )
            try:
                return dataclasses.replace(attempt.made(), replaced=[*places])
            except StepsNeeded:
                whole_layers = False
            except SharedMemoryError as error:
                if error.memory in whole:
                    raise
                whole |= {error.memory}
            except _ReplacedError as error:
                entries.update(error.entries)
            except (DataDependentError, _NoInputError):  # by a mask, or a weight that is trained
                if not places and not moved:
                    raise
                places, moved, entries = {}, (), collections.ChainMap[int, Entry | casts.Cast]({})
            finally:
                reached.put_back()
    raise CaptureError("The function uses tensors that overlap in memory in too many ways.")


@dataclasses.dataclass(kw_only=True)
class _Capture:
    """An attempt to capture a call.

    Attributes:
        function: what is traced.
        whole: see ``Adopted``.
        whole_layers: recurrent layers are one operator.
        entries: tensors of Python objects, and casts that ``torch.autocast`` keeps, which are
            inputs of the program, by their memory.
        holders: lists and dictionaries that are others at each call, by ``id``.
    """

    function: Callable[..., Any]
    arguments: Arguments
    reached: Reached
    frames: Frames
    keep: bool
    host: Host | None
    numbers: Slots
    steps: TracedSteps
    whole: frozenset[int]
    whole_layers: bool
    entries: Mapping[int, Entry | casts.Cast]
    holders: frozenset[int]

    _observed_tensors: RealTensors = dataclasses.field(init=False)

    def __post_init__(self):
        self.numbers.items.clear()
        self.numbers.conditions.clear()
        self._names, self._replicas = Names(self.reached), Replicas(self.reached)
        self._stored = list[Stored]()
        self._grads, code = GradJournal(), code_of(self.function)
        self.adopted = Adopted(self._describe, self.whole, code, self._grads.note_flag)
        self._backward = False
        self._repeated: Sequence[str] = ()
        self._caches_casts = torch.is_autocast_cache_enabled()  # a trace of torch's turns it off
        known = any(type(each) is casts.Cast for each in self.entries.values())
        self._casts = casts.Casts() if casts.are_kept() and not known else None
        self._outside: list[RemovableHandle] = []  # hooks of tensors with a gradient function
        self._refusal: CaptureError | None = None  # by such a hook, which the user's code may catch
        self._outputs: list[tuple[torch.Tensor, Output]] = []
        self._checks: list[torch.Tensor] = []  # of arguments of distributions
        self._kept: list[torch.Tensor] = []  # tensors whose gradient stays
        self._memory: dict[torch.fx.Node, Any] = {}  # that results share, with what has it
        self._moved: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

    def _describe(self, tensor: torch.Tensor) -> tuple[str, Role]:
        if id(tensor) in self.steps.hyper:
            return self.steps.hyper[id(tensor)][0], Role.HYPER
        if id(tensor) in self.numbers.tensors:
            return self.numbers.tensors[id(tensor)][0], Role.HYPER
        kept = self.entries.get(_torch.memory_of(tensor))
        if type(kept) is casts.Cast:
            self._grads.note(kept.weight)  # which the program may not meet otherwise
            return f"given{len(self.adopted.named)}", Role.INPUT
        if tensor.requires_grad and not tensor.is_leaf:
            refuse = functools.partial(self._refuse_gradient, user_line())
            self._outside.append(cast("Any", tensor).register_hook(refuse))
        if type(tensor) not in KINDS:
            raise CaptureError(
                f"The function computes with a {type(tensor).__name__}; a program keeps plain "
                "tensors."
            )
        memory = _torch.memory_of(tensor)
        given = self._grads.has_given(tensor) and memory not in self.whole
        if given or memory in self.entries:
            return f"given{len(self.adopted.named)}", Role.INPUT
        return self._names.of(tensor)

    def made(self) -> CapturedCall:
        """Trace the call."""
        try:
            program, (structure, leaves) = tracer.trace(
                "step",
                self._body,
                self.arguments.named,
                _torch.static_fakes(),
                Lookup(()),
                self.adopted,
            )
        finally:
            journal = self._grads.restored()
            for hook in self._outside:
                hook.remove()
        self._check(journal, program)
        effects, slots = self._effects(journal, leaves), self._slots()
        written = {(slot.role, slot.name) for slot in program.inputs if slot.mutated}
        trains = any(role in (Role.PARAMETER, Role.OPTIMIZER_STATE) for role, _ in written)
        self.arguments.check_memory(self.adopted.tensors, written)
        return CapturedCall(
            program=program.replace(name="step" if trains or self._backward else "call"),
            structure=structure,
            leaves=leaves[: len(leaves) - len(effects.kept)],
            tensors={key: tensor for key, (tensor, _) in slots.items()},
            aliases=self._aliases([tensor for tensor, _ in slots.values()]),
            state={key: laid for key, (_, laid) in slots.items()},
            numbers=self.steps.numbers(self.reached.optimizers, self._stored),
            schedulers=[each[0] for each in self.steps.schedules],
            gradients=effects,
            given=self._given(journal),
            stored=self._stored,
            read=self.adopted.read,
            followed=self.numbers.followed([item.name for item in self.adopted.named]),
            items=[*self.numbers.items],
            calls=self._replicas.calls,
            scalers=self.reached.scalers,
        )

    def _slots(self) -> dict[tuple[Role, str], tuple[torch.Tensor, torch.Tensor]]:
        """Return the user's tensor and its memory as the slot has it, by slot of state."""
        return {
            (item.role, item.name): (tensor, item.value)
            for item, tensor in zip(self.adopted.named, self.adopted.tensors, strict=True)
            if item.role not in (Role.HYPER, Role.INPUT)
        }

    def _aliases(self, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Return further tensors in the memory of some that the call uses and did not make."""
        memory = set(map(_torch.memory_of, tensors))
        made = (alias for tensor in tensors for alias in self._observed_tensors.aliases_of(tensor))
        known = {*map(id, tensors), *map(id, made)}
        others = [each for key, each in self.adopted.met.items() if key not in known]
        return [each for each in others if _torch.memory_of(each) in memory]

    def _check(self, journal: Sequence[Grad], program: Program) -> None:
        """Refuse what a program cannot repeat."""
        self.steps.refuse_scheduled(self._stored)
        changed = [e.tensor for e in journal if e.after is not e.before or e.flag is not None]
        if any(map(self._is_of_call, changed)):
            raise _NoInputError("A tensor that calls replace gets a gradient, or is frozen.")
        if any(id(each.holder) in self.holders for each in self._stored):
            raise _NoInputError("A list or dictionary that calls replace is changed.")
        if self._repeated and program.uses_random:
            raise CaptureError(
                "The function draws random numbers inside torch.utils.checkpoint, which have to be "
                "drawn twice alike. Leave out the checkpoint or the dropout in it."
            )
        early = self.host is not None and self.host.has_early_events()
        for each in self._stored:
            if early and issubclass(type(each.before), Unread):
                raise CaptureError(
                    "The function counts in code that it calls, and has statements that Python "
                    "runs after the program and that may read the count. Put these last."
                )
        self._require_inputs()

    def _require_inputs(self) -> None:
        """Let tensors that calls compute with, and replace, be inputs of the program.

        Raises:
            _ReplacedError: they were not; trace the call again.
            CaptureError: one is not dense, or is held elsewhere, too.
        """
        casting = () if self._casts is None else self._casts.found.values()
        found: dict[int, Any] = {_torch.memory_of(each.get()): each for each in casting}
        for each in self._stored:
            before, holder = each.before, each.holder
            appends = before is ABSENT and is_list(holder)
            leaves, structure = _torch.flatten(holder if appends else before)
            place = entry_of(holder, each.key)
            for index, leaf in enumerate(leaves):
                known = self._observed_tensors.aliases_of(leaf)
                if not any(id(each) in self.adopted.met for each in (leaf, *known)):
                    continue
                alone = leaf.permute(order(leaf)).is_contiguous() and self._is_alone(leaf)
                if appends or not alone or place is None or self.reached.shares(leaf):
                    raise CaptureError(
                        "The function puts a new tensor in the place of one that it computes with "
                        f"({each.key!r} of a {type(holder).__name__}) and that has gaps in memory, "
                        "is held elsewhere, too, or read from a list that grows. Write into it "
                        "with copy_(), or keep its contiguous()."
                    )
                within = None if leaf is before else structure
                found[_torch.memory_of(leaf)] = Entry(place, index, within)
        if not found.keys() <= self.entries.keys():
            raise _ReplacedError(found)
        others = [each.get() for memory, each in self.entries.items() if memory not in found]
        if not all(self._is_alone(each) for each in others if isinstance(each, torch.Tensor)):
            raise _NoInputError("A tensor that calls replace shares its memory with another one.")

    def _is_alone(self, tensor: torch.Tensor) -> bool:
        """Return whether no other tensor that the call computes with shares memory with one."""
        memory, aliases = _torch.memory_of(tensor), self._observed_tensors.aliases_of(tensor)
        others = [each for each in self.adopted.met.values() if _torch.memory_of(each) == memory]
        return all(any(each is known for known in (tensor, *aliases)) for each in others)

    def _body(self, values: Values) -> tuple[list[torch.Tensor], tuple[Any, list[Any]]]:
        inputs = list(values.of(Role.INPUT).values())
        if self.host is not None:
            self.host.start()
            self.host.shared = self._shared
        result = self._called(inputs)
        if self.host is not None:
            self.host.check()
            del self.host.shared  # which holds the trace
        events = [] if self.host is None else list(self.host.events)
        changes, self._stored = self.reached.changes()
        if changes:
            raise ChangesError(changes)
        kept = [each.value for each in self._stored]
        schedules = [each[1:] for each in self.steps.schedules]
        result = self._shared(result, inside=True)
        made = result, events, kept, schedules, self._checks
        flat, structure, objects = batches.flatten(made, self._is_outside)
        if len({*map(id, objects)}) < len(objects):
            raise CaptureError("The function returns or keeps an object with tensors twice.")
        self._find_shared([*flat, *(item.tensor for item in self.numbers.items)], inputs)
        outputs: list[torch.Tensor] = []
        leaves: list[Any] = []
        for leaf in flat:
            leaves.append(self._leaf(leaf, outputs))
        for item in self.numbers.items:
            item.leaf = self._leaf(item.tensor, outputs)
        for tensor in self._grads.made():
            if self._stays(tensor):
                self._kept.append(tensor)
                leaves.append(Output(len(outputs)))
                outputs.append(cast("Any", tensor.grad).detach())
        return outputs, (structure, leaves)

    def _shared(self, value: Any, *, inside: bool = False) -> Any:
        """Return a value whose containers are ``Shared`` if they exist outside of the call.

        With ``inside``, those in new lists and dictionaries are, too.
        """
        if id(value) in self.arguments.places:
            return Shared(self.arguments.places[id(value)])
        if id(value) in self.holders:
            raise _NoInputError("A list or dictionary that calls replace is returned.")
        kind = cast("Any", type(value))
        if kind in (list, dict, set) and self.reached.has(value):
            return Shared(value)
        enter = functools.partial(self._shared, inside=inside)
        if kind is dict and inside:
            return dict(zip(value, map(enter, value.values()), strict=True))
        enters = kind is tuple or (kind is list and inside)
        return cast("Any", kind)(map(enter, value)) if enters else value

    def _leaf(self, leaf: Any, outputs: list[torch.Tensor]) -> Any:
        _refuse_attributes(leaf)
        if id(leaf) in self._moved:
            owner = self._moved[id(leaf)][1]
            source: Any = self.entries.get(_torch.memory_of(owner), owner)
            return View(source, owner.shape, owner.stride(), 0, owner.dtype)
        if isinstance(leaf, torch.Tensor) and not isinstance(leaf, _torch.FakeTensor):
            if self._grads.has_given(leaf):
                raise CaptureError("The function returns or keeps a gradient that it has found.")
            if _torch.memory_of(leaf) in self.entries:
                return self.entries[_torch.memory_of(leaf)]
        for index, given in enumerate(self.arguments.given):
            if leaf is given and isinstance(leaf, _torch.FakeTensor):
                return Given(index)
        for index, copied in enumerate(self.arguments.copies):
            if leaf is copied:
                return GivenBatch(index)
        if issubclass(type(leaf), Unread) or type(leaf) is Shared:
            return leaf
        if not isinstance(leaf, _torch.FakeTensor):
            return self._kept_object(leaf)
        for first, output in self._outputs:
            if _are_one(first, leaf):
                return output
        if leaf.requires_grad and not self._backward:
            raise CaptureError(
                "The function returns a tensor that requires a gradient and calls no backward. A "
                "program has its own backward: call loss.backward() inside the function, or call "
                "the function under torch.no_grad(). torch.compile(backend='abele') compiles "
                "functions whose backward is called outside."
            )
        node = _torch.traced_node(leaf)
        is_lazy = leaf.is_conj() or leaf.is_neg()  # memory has other elements
        source = None if node is None or is_lazy else self._source(base(node), outputs)
        if source is not None:
            offset = int(leaf.storage_offset())
            return View(source, leaf.shape, leaf.stride(), offset, leaf.dtype)
        outputs.append(leaf.detach())
        made = Output(len(outputs) - 1)
        self._outputs.append((leaf, made))
        return made

    def _find_shared(self, leaves: Sequence[Any], inputs: Sequence[torch.Tensor]) -> None:
        """Note the memory that several leaves of a result share, and that of arguments."""
        layouts = set[Any]()
        for leaf in leaves:
            node = _torch.traced_node(leaf) if isinstance(leaf, torch.Tensor) else None
            if node is not None:
                layouts.add((base(node), *tracer.place_in_memory(leaf)))
        memories = collections.Counter(each[0] for each in layouts)
        self._memory = {node: None for node, count in memories.items() if count > 1}
        for index, tensor in zip(self.arguments.contiguous, inputs, strict=True):
            node = _torch.traced_node(tensor)
            if node is not None and index is not None:
                self._memory[base(node)] = Given(index)

    def _source(self, memory: torch.fx.Node, outputs: list[torch.Tensor]) -> Any:
        """Return what has the memory of a leaf; None if the leaf is an output of its own."""
        state = self.adopted.tensor_of(memory)
        if state is not None:
            laid = dict(zip(map(id, self.adopted.tensors), self.adopted.named, strict=True))
            named = laid[id(state)]
            if named.role not in (Role.INPUT, Role.HYPER):
                return named.value
            entry = self.entries.get(_torch.memory_of(state))
            return entry if type(entry) is Entry and state.is_contiguous() else None
        value = memory.meta.get("val")
        contiguous = isinstance(value, torch.Tensor) and value.is_contiguous()
        if memory not in self._memory or not contiguous:
            return None
        if self._memory[memory] is None:
            outputs.append(_torch.tracked_fake(memory).detach())
            self._memory[memory] = Output(len(outputs) - 1)
        return self._memory[memory]

    def _kept_object(self, leaf: Any) -> Any:
        """Return an object that a function returns; refuse it if it has traced tensors."""
        known, has = (*PLAIN, torch.optim.Optimizer), self.reached.has
        is_plain = isinstance(leaf, (*PLAIN, torch.Tensor))
        if isinstance(leaf, torch.Tensor):
            self.adopted.met.setdefault(id(leaf), leaf)  # each call may replace it
        walked = reachable.walk(leaf, "", lambda part: not (has(part) or isinstance(part, known)))
        parts = [] if is_plain else [part for _, part in walked]
        for part in (each for each in parts if type(each) is HeldAttribute):
            part.refuse()
        kind: Any = types.GeneratorType
        advances = isinstance(leaf, kind)
        if advances or any(map(self._is_of_call, parts)):
            raise CaptureError(
                f"The function returns or keeps a {type(leaf).__name__} with tensors that it has "
                "computed. Return tensors, or lists, tuples and dictionaries of them."
            )
        return leaf

    def _is_outside(self, value: Any) -> bool:
        """Return whether an object, or a list or dictionary in it, exists outside of the call."""
        inside = containers_of([part for _, part in reachable.attributes(value)])
        known = {*self.arguments.places, *map(id, self.arguments.copies)}
        return any(self.reached.has(each) or id(each) in known for each in (value, *inside))

    def _is_of_call(self, value: Any) -> bool:
        """Return whether a value is a tensor or number that is another one at each call."""
        is_dense = isinstance(value, torch.Tensor) and other_kind(value) is None
        traced = issubclass(type(value), _torch.FakeTensor | Unread)
        return traced or (is_dense and _torch.memory_of(value) in self.entries)

    def _called(self, inputs: list[torch.Tensor]) -> Any:
        args, kwargs = self.arguments.rebuilt(inputs)
        self._refuse_modules()
        modules: dict[torch.nn.Module, str] = {
            module: f"{path}.{name}".strip(".")
            for path, each in self.reached.modules.values()
            for name, module in named_modules(each)
        }
        self._refuse_pending()
        with (
            casts.caching(self._casts, enabled=self._caches_casts),
            torch.autograd.set_multithreading_enabled(False),
            without_random_numbers() as self._repeated,
            without_output(self.reached.streams),
            self.steps.replaced(),
            self._replicas.replaced(),
            explained(subject="The function"),
            scopes.recording(modules),
            portable_functions(training=torch.is_grad_enabled(), whole_layers=self.whole_layers),
            self._observed() as observed,
            compiled_functions_run_plainly(),
            _torch.distributions_check_by(self._check_later),
            arrays.conversions(),
            replaced(*scaling.replacements(self.steps.skipping)),
            self.frames.watching(),
        ):
            result = self.function(*args, **kwargs)
            observed.require_known()
            self._refuse_late_casts()
            self._observed_tensors = observed
        self._refuse_pending()
        self.arguments.require_unchanged(args, kwargs)
        self._check_gradients_of(inputs)
        return result

    def _refuse_pending(self) -> None:
        """Refuse a call that begins or ends between a scaler's step and its update."""
        if any(map(scaling.is_pending, self.reached.scalers)):
            raise CaptureError(
                "The function begins or ends between unscale_() or step() of a GradScaler and its "
                "update(). Call unscale_(), step() and update() in one function."
            )

    def _refuse_late_casts(self) -> None:
        """Refuse weights that change before autocast casts them."""
        changed, found = set[torch.fx.Node](), {} if self._casts is None else self._casts.found
        for node in _torch.traced_nodes() if found else ():
            changed.update(map(base, written(node)))
            slot = base(cast("Any", node.args[0])) if node.target is casts.TO_COPY else None
            if slot in changed and id(self.adopted.tensor_of(slot)) in found:
                raise CaptureError(
                    "The function changes a weight before torch.autocast casts it, and is called "
                    "inside of autocast. Enter autocast in the function."
                )

    def _check_later(self, valid: torch.Tensor) -> bool:
        """Let the program check arguments of a distribution, as part of its outputs."""
        with torch.no_grad():
            self._checks.append(checked(valid.logical_not(), _OF_DISTRIBUTIONS))
        return True

    def _refuse_gradient(self, line: str, _: torch.Tensor) -> None:
        """Refuse the gradient of a tensor that was computed outside."""
        self._refusal = CaptureError(
            "The function's backward enters the gradient function of a tensor from outside, with "
            f"which it computes at {line}. Compute it inside, or use detach() of it."
        )
        raise self._refusal

    def _check_gradients_of(self, inputs: Sequence[torch.Tensor]) -> None:
        """Refuse gradients of tensors from outside, which would leave the call."""
        if self._refusal is not None:
            raise self._refusal
        for leaf in self.arguments.given:
            _refuse_attributes(leaf)
        for item, tensor in zip(self.arguments.named, inputs, strict=True):
            if tensor.requires_grad and not item.requires_grad:
                raise CaptureError(
                    "The function sets requires_grad of an argument, whose gradient would stay in "
                    "it. Begin with detach() of the argument."
                )
            if tensor.grad is not None:
                raise CaptureError(
                    f"Argument {item.name[5:]} has a gradient function from outside, which the "
                    "function's backward enters. Pass detach() of it, or compute it inside."
                )

    def _refuse_modules(self) -> None:
        """Refuse modules whose gradients no program computes."""
        for _, module in self.reached.modules.values():
            for name, each in named_modules(module):
                if getattr(each, "sparse", False) is True:
                    raise CaptureError(
                        f"{name} is an embedding with sparse=True; a program's gradients are dense."
                    )

    @contextlib.contextmanager
    def _observed(self) -> Generator[RealTensors]:
        """Note calls of backward and what the function does to real tensors."""

        def zero_grad(original: Function, owner: Any, *args: Any, **kwargs: Any) -> None:
            removed = bool((*args, kwargs.get("set_to_none", True))[0])
            of_module = isinstance(owner, torch.nn.Module)
            groups = [{"params": owner.parameters()}] if of_module else owner.param_groups
            params = [param for group in groups for param in group["params"]]
            self._grads.note_emptied(params, removed=removed)
            # Zeros and None differ for weights that a later call leaves unused.
            self.keep |= not removed
            original(owner, *args, **kwargs)

        def backward(original: Function, *args: Any, **kwargs: Any) -> Any:
            self._backward = True
            _torch.mark_traced("forward")
            for node in reversed(_torch.traced_nodes()):
                recurrent_layers.require_only_readers(node.graph)
                break
            result = original(*args, **kwargs)
            _torch.mark_traced("backward")
            return result

        def tolist(original: Function, tensor: Any) -> Any:
            return cast("Any", torch.Tensor).tolist(tensor)

        laid = self.arguments.laid
        with (
            replaced(
                *((torch.autograd, name, backward) for name in ("backward", "grad")),
                *(
                    (each, "zero_grad", zero_grad)
                    for each in (torch.optim.Optimizer, torch.nn.Module)
                ),
                (_torch.FakeTensor, "tolist", tolist),
            ),
            RealTensors(
                self._grads, self.adopted, self.numbers, self._moved, self._casts, laid
            ) as mode,
        ):
            yield mode

    def _given(self, journal: Sequence[Grad]) -> list[Callable[[], Any]]:
        """Return what gives the further inputs of the program at each call, in their order."""
        grads = {id(each.before): each.tensor for each in journal}
        found: list[Callable[[], Any]] = []
        for item, tensor in zip(self.adopted.named, self.adopted.tensors, strict=True):
            if item.role is Role.INPUT and id(tensor) in grads:
                found.append(functools.partial(getattr, grads[id(tensor)], "grad"))
            elif item.role is Role.INPUT:
                found.append(self.entries[_torch.memory_of(tensor)].get)
        return found

    def _stays(self, tensor: torch.Tensor) -> bool:
        now: Any = tensor.grad
        grad, version = self.steps.consumed.get(id(tensor), (None, 0))
        consumed = now is grad and now._version == version
        return self.keep or not consumed or not self._grads.starts_empty(tensor)

    def _effects(self, journal: list[Grad], leaves: Sequence[Any]) -> Gradients:
        made = [each for each in journal if isinstance(each.after, _torch.FakeTensor)]
        kept, count = self._kept, len(self._kept)
        indices = [each.index for each in leaves[len(leaves) - count :]] if count else []
        staying = {id(tensor) for tensor in kept}
        dropped = [each.tensor for each in made if id(each.tensor) not in staying]
        emptied = [each.tensor for each in journal if each.is_emptied]
        used = self._backward or self._grads.read
        slots = self._slots()
        state = {_torch.memory_of(tensor) for tensor, _ in slots.values()}
        found = [(each.tensor, each.before) for each in journal if each.before is not None]
        others = {id(t) for (role, _), (t, _) in slots.items() if role is Role.OPTIMIZER_STATE}
        others |= {id(each.before) for each in journal}
        own = [e for e in journal if id(e.tensor) not in others and not self._is_of_call(e.tensor)]
        return Gradients(
            kept=dict(zip(kept, indices, strict=True)),
            emptied=[*dropped, *emptied],
            absent=[e.tensor for e in journal if used and e.is_absent],
            pinned=[pair for pair in found if _torch.memory_of(pair[1]) in state],
            dropped=len(dropped),
            flags={e.tensor: e.flag for e in own if e.flag is not None},
            looked=[each.tensor for each in own if each.looked],
        )


def _refuse_attributes(value: Any) -> None:
    """Refuse attributes that the function sets on a tensor which others see."""
    for name in vars(value) if isinstance(value, _torch.FakeTensor) else ():
        if name not in _OF_FAKES and "_memo" not in name:
            raise CaptureError(
                f"The function sets attribute {name!r} of a tensor that it is given, returns or "
                "keeps, which a program does not. Return the value, or keep it elsewhere."
            )


def _are_one(first: torch.Tensor, second: torch.Tensor) -> bool:
    """Return whether two traced tensors are one, or the same elements of one memory."""
    if first is second:
        return True
    places = tracer.place_in_memory(first), tracer.place_in_memory(second)
    return places[0] == places[1] and _torch.memory_of(first) == _torch.memory_of(second)


class _ReplacedError(CaptureError):
    """A call computes with tensors that have to be inputs of the program.

    Attributes:
        entries: where they are, by their memory.
    """

    def __init__(self, entries: Mapping[int, Entry | casts.Cast]):
        super().__init__("The function computes with tensors that calls replace.")
        self.entries = entries


class _NoInputError(CaptureError):
    """A tensor that calls replace cannot be an input of the program."""


class ChangesError(CaptureError):
    """A call changes objects of Python, which a program does not repeat."""

    def __init__(self, changes: Sequence[Changed]):
        listed = "; ".join(map(str, changes[:3]))
        super().__init__(
            f"Each call changes objects of Python ({listed}), which a program does not repeat. Do "
            "that outside of the function, or in a statement of its own in it."
        )
        self.changes = changes


def code_of(function: Any) -> Any:
    """Return the code object of a function or method; None for other callables."""
    return getattr(getattr(function, "__func__", function), "__code__", None)
