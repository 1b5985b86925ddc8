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
import threading
import types
import weakref
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from typing import Any, cast

import torch
from torch.overrides import TorchFunctionMode

from abele import _torch
from abele._torch.dynamo import compiled_functions_run_plainly
from abele.capture import reachable
from abele.capture.core import tracing
from abele.capture.diagnose import explained
from abele.capture.replacements import recurrent_layers
from abele.capture.replacements.portable import portable_functions
from abele.containers import is_list
from abele.errors import CaptureError, DataDependentError
from abele.functions.arguments import Arguments
from abele.functions.frames import PLAIN
from abele.functions.host import Host
from abele.functions.optimizers import Numbers, TracedSteps
from abele.functions.parallel import Replicas
from abele.functions.randomness import without_output, without_random_numbers
from abele.functions.state import Changed, Reached, Stored
from abele.functions.varying import Slots, Unread, Varying
from abele.ops.host_call import HostCalls
from abele.ops.recurrent import StepsNeeded
from abele.ops.value_check import checked
from abele.program import Program, Role
from abele.trace import scopes, tracer
from abele.trace.adopted import Adopted, Reading, SharedMemoryError
from abele.trace.module_state import named_modules
from abele.trace.plain_tensors import stand_in
from abele.trace.tensor_names import Lookup
from abele.trace.tracer import Values
from abele.warn import user_line

_Tensor: Any = torch.Tensor  # its attributes have no types
_READ_MEMORY = {_Tensor.tolist, _Tensor.numpy, _Tensor.__array__}
_OF_GRADIENT = (
    *(_Tensor.grad.__get__, _Tensor.grad.__set__, _Tensor.grad.__delete__),
    *(_Tensor.requires_grad.__set__, _Tensor.requires_grad_),
)
_ALIASING = (_Tensor.data.__get__, _Tensor.detach)
_MOST_TRACES = 4
_OF_DISTRIBUTIONS = (
    "an argument of a distribution, or a value passed to its log_prob, is invalid or not a number. "
    "Call the function without abele.compile to see it."
)
_KINDS = (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer)


@dataclasses.dataclass(frozen=True)
class Output:
    """A leaf of a function's result that the program computes; ``index`` counts its outputs."""

    index: int


@dataclasses.dataclass(frozen=True)
class Given:
    """A leaf of a function's result that is an argument; ``index`` counts their leaves."""

    index: int


@dataclasses.dataclass(frozen=True)
class GivenBatch:
    """A leaf of a function's result that is a batch; ``index`` counts those of the arguments."""

    index: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class Gradients:
    """The effects of a call on ``grad`` of the tensors that it trains.

    Attributes:
        kept: tensors whose gradient stays, and the index of the program's output that has it.
        emptied: tensors whose ``grad`` is None after the call.
        absent: tensors whose ``grad`` has to be None before the call.
        given: tensors whose gradients are inputs of the program, behind its arguments.
        dropped: how many gradients an update has used up, which are not written to memory.
    """

    kept: Mapping[torch.Tensor, int]
    emptied: Sequence[torch.Tensor]
    absent: Sequence[torch.Tensor]
    given: Sequence[torch.Tensor]
    dropped: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class CapturedCall:
    """A captured call of a function.

    Attributes:
        program: ``step`` if it trains, else ``forward``.
        structure: of the function's result, and of what statements of the host read.
        leaves: of the result: ``Output``, ``Given``, or an object that every call returns.
        tensors: the user's tensors behind the slots of state, by slot.
        state: the same memory as the slots have it.
        numbers: of the optimizers that step.
        schedulers: those whose steps end the call, in order.
        gradients: effects on ``grad``.
        stored: tensors that the call keeps in Python objects.
        read: values of state that Python has read.
        varying: numbers of Python that are slots, by the names of these.
        free: these and other values of Python, on whose types alone the program depends.
        calls: what the program calls to exchange tensors with other processes.
    """

    program: Program
    structure: Any
    leaves: Sequence[Any]
    tensors: Mapping[tuple[Role, str], torch.Tensor]
    state: Mapping[tuple[Role, str], torch.Tensor]
    numbers: Sequence[Numbers]
    schedulers: Sequence[Any]
    gradients: Gradients
    stored: Sequence[Stored]
    read: Sequence[Reading]
    varying: Mapping[str, Varying]
    free: Sequence[Unread]
    calls: HostCalls


def capture(
    function: Callable[..., Any],
    arguments: Arguments,
    reached: Reached,
    promoted: Mapping[int, frozenset[str]],
    *,
    keep_gradients: bool,
    slots: bool,
    host: Host | None = None,
    numbers: Slots,
) -> CapturedCall:
    """Capture a call of a function as one static program.

    Args:
        function: the user's function.
        arguments: of the call.
        reached: what the function reaches, for the names of slots.
        promoted: see ``TracedSteps``.
        keep_gradients: gradients stay in ``grad`` after an update that has used them.
        slots: numbers of optimizers may be slots; see ``TracedSteps``.
        host: the function in two parts, of which the traced one is captured.
        numbers: those that the program is not to depend on.

    Raises:
        ChangesError: the call changes objects of Python.
        CaptureError: the call cannot be one program.
        Exception: of the function itself.
    """
    whole: frozenset[int] = frozenset()
    whole_layers = True
    with tracing():
        for _ in range(_MOST_TRACES):
            events = [] if host is None else host.events
            steps = TracedSteps(stand_in, promoted, events, slots=slots)
            attempt = _Capture(
                function,
                arguments,
                reached,
                steps,
                whole,
                whole_layers,
                keep_gradients,
                host,
                numbers,
            )
            try:
                return attempt.made()
            except StepsNeeded:
                whole_layers = False
            except SharedMemoryError as error:
                if error.memory in whole:
                    raise
                whole |= {error.memory}
    raise CaptureError("The function uses tensors that overlap in memory in too many ways.")


class _Capture:
    """An attempt to capture a call."""

    def __init__(
        self,
        function: Callable[..., Any],
        arguments: Arguments,
        reached: Reached,
        steps: TracedSteps,
        whole: frozenset[int],
        whole_layers: bool,
        keep_gradients: bool,
        host: Host | None,
        numbers: Slots,
    ):
        self._numbers = numbers
        self._function = function if host is None else host.remaining
        self._host, self._arguments = host, arguments
        self._whole_layers, self._keep = whole_layers, keep_gradients
        self._reached = reached
        self._names = _Names(reached)
        self._replicas = Replicas(reached)
        self.steps, self._stored = steps, list[Stored]()
        self.adopted = Adopted(self._describe, whole, code_of(self._function))
        self._grads = _GradJournal()
        self._backward = False
        self._repeated: Sequence[str] = ()
        self._caches_casts = torch.is_autocast_cache_enabled()  # a trace of torch's turns it off
        self._outputs: list[tuple[torch.Tensor, Output]] = []
        self._checks: list[torch.Tensor] = []  # of arguments of distributions
        self._kept: list[torch.Tensor] = []  # tensors whose gradient stays

    def _describe(self, tensor: torch.Tensor) -> tuple[str, Role]:
        if id(tensor) in self.steps.hyper:
            return self.steps.hyper[id(tensor)][0], Role.HYPER
        if id(tensor) in self._numbers.tensors:
            return self._numbers.tensors[id(tensor)][0], Role.HYPER
        if tensor.requires_grad and not tensor.is_leaf:
            raise CaptureError(
                f"The function computes with a tensor that has a gradient function from outside, "
                f"at {user_line()}. Compute it inside, or pass detach() of it."
            )
        if type(tensor) not in _KINDS:
            raise CaptureError(
                f"The function computes with a {type(tensor).__name__}; a program keeps plain "
                "tensors."
            )
        self._grads.note(tensor)
        if self._grads.has_given(tensor):
            return f"gradient{len(self.adopted.named)}", Role.INPUT
        return self._names.of(tensor)

    def made(self) -> CapturedCall:
        """Trace the call."""
        try:
            program, (structure, leaves) = tracer.trace(
                "step",
                self._body,
                self._arguments.named,
                _torch.static_fakes(),
                Lookup(()),
                self.adopted,
            )
        finally:
            journal = self._grads.restored()
        self._check(journal, program)
        effects, numbers = self._effects(journal, leaves), self._numbers
        written = {(slot.role, slot.name) for slot in program.inputs if slot.mutated}
        trains = any(role in (Role.PARAMETER, Role.OPTIMIZER_STATE) for role, _ in written)
        self._arguments.check_memory(self.adopted.tensors, written)
        slots = {
            (item.role, item.name): (tensor, item.value)
            for item, tensor in zip(self.adopted.named, self.adopted.tensors, strict=True)
            if item.role not in (Role.HYPER, Role.INPUT)
        }
        return CapturedCall(
            program=program.replace(name="step" if trains or self._backward else "call"),
            structure=structure,
            leaves=leaves[: len(leaves) - len(effects.kept)],
            tensors={key: tensor for key, (tensor, _) in slots.items()},
            state={key: laid for key, (_, laid) in slots.items()},
            numbers=[
                *self.steps.stepped.values(),
                *self.steps.others(each for _, each in self._reached.optimizers.values()),
            ],
            schedulers=[each[0] for each in self.steps.schedules],
            gradients=effects,
            stored=self._stored,
            read=self.adopted.read,
            varying=numbers.used([item.name for item in self.adopted.named]),
            free=[*numbers.stand_ins.values()],
            calls=self._replicas.calls,
        )

    def _check(self, journal: Sequence[_Grad], program: Program) -> None:
        """Refuse what a program cannot repeat."""
        self.steps.refuse_scheduled()
        if any(each.freezes for each in journal):
            raise CaptureError(
                "The function leaves requires_grad of a tensor changed. Do that outside."
            )
        if self._repeated and program.uses_random:
            raise CaptureError(
                "The function draws random numbers inside torch.utils.checkpoint, which have to be "
                "drawn twice alike. Leave out the checkpoint or the dropout in it."
            )
        # Stored tensors would be read by the next call.
        used = {id(tensor) for tensor in self.adopted.tensors}
        early = self._host is not None and self._host.has_early_events()
        for each in self._stored:
            if early and issubclass(type(each.value), Unread):
                raise CaptureError(
                    "The function counts in code that it calls, and has statements that Python "
                    "runs after the program and that may read the count. Put these last."
                )
            leaves, _ = _torch.flatten(each.before)
            if is_list(each.holder):
                leaves = each.holder
            if any(id(leaf) in used for leaf in leaves):
                raise CaptureError(
                    f"The function puts a new tensor in the place of one that it computes with "
                    f"({each.key!r} of a {type(each.holder).__name__}). Write into it with copy_()."
                )

    def _body(self, values: Values) -> tuple[list[torch.Tensor], tuple[Any, list[Any]]]:
        inputs = list(values.of(Role.INPUT).values())
        if self._host is not None:
            self._host.start()
        result = self._called(inputs)
        if self._host is not None:
            self._host.check()
        events = [] if self._host is None else list(self._host.events)
        changes, self._stored = self._reached.changes()
        if changes:
            raise ChangesError(changes)
        kept = [each.value for each in self._stored]
        schedules = [each[1:] for each in self.steps.schedules]
        flat, structure = _torch.flatten((result, events, kept, schedules, self._checks))
        self._require_own(result, kept)
        outputs: list[torch.Tensor] = []
        leaves: list[Any] = []
        for leaf in flat:
            leaves.append(self._leaf(leaf, outputs))
        for tensor in self._grads.made():
            if self._stays(tensor):
                self._kept.append(tensor)
                leaves.append(Output(len(outputs)))
                outputs.append(cast("Any", tensor.grad).detach())
        return outputs, (structure, leaves)

    def _leaf(self, leaf: Any, outputs: list[torch.Tensor]) -> Any:
        for index, given in enumerate(self._arguments.given):
            if leaf is given and isinstance(leaf, _torch.FakeTensor):
                return Given(index)
        for index, copied in enumerate(self._arguments.copies):
            if leaf is copied:
                return GivenBatch(index)
        if issubclass(type(leaf), Unread):
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
        outputs.append(leaf.detach())
        made = Output(len(outputs) - 1)
        self._outputs.append((leaf, made))
        return made

    def _require_own(self, *results: Any) -> None:
        """Refuse results that are views of state."""
        for leaf in _torch.flatten(results)[0]:
            given = any(leaf is each for each in self._arguments.given)
            if isinstance(leaf, _torch.FakeTensor) and not given and self.adopted.has(leaf):
                raise CaptureError(
                    "The function returns or keeps a view of a parameter or other state, which "
                    "later calls write. Return the tensor itself, or clone() of the view."
                )

    def _kept_object(self, leaf: Any) -> Any:
        """Return an object that a function returns; refuse it if it has traced tensors."""
        known = self._reached.modules

        def enters(part: Any) -> bool:
            return id(part) not in known and not isinstance(part, (*PLAIN, torch.optim.Optimizer))

        is_plain = isinstance(leaf, (*PLAIN, torch.Tensor))
        parts = () if is_plain else reachable.walk(leaf, "", enters)
        kind: Any = types.GeneratorType
        advances = isinstance(leaf, kind)
        if advances or any(isinstance(p, _torch.FakeTensor) for _, p in parts):
            raise CaptureError(
                f"The function returns or keeps a {type(leaf).__name__} with tensors that it has "
                "computed. Return tensors, or lists, tuples and dictionaries of them."
            )
        return leaf

    def _called(self, inputs: list[torch.Tensor]) -> Any:
        args, kwargs = self._arguments.rebuilt(inputs)
        self._refuse_modules()
        modules: dict[torch.nn.Module, str] = {
            module: f"{path}.{name}".strip(".")
            for path, each in self._reached.modules.values()
            for name, module in named_modules(each)
        }
        if torch.is_autocast_enabled("cpu") and self._caches_casts:
            raise CaptureError(
                "The function is called under torch.autocast, which keeps casts of weights beyond "
                "the call. Enter it inside the function, or with cache_enabled=False."
            )
        with (
            _autocast_cache(enabled=self._caches_casts),
            torch.autograd.set_multithreading_enabled(False),
            without_random_numbers() as self._repeated,
            without_output(),
            self._observed(),
            self.steps.replaced(),
            self._replicas.replaced(),
            explained(subject="The function"),
            scopes.recording(modules),
            portable_functions(training=torch.is_grad_enabled(), whole_layers=self._whole_layers),
            compiled_functions_run_plainly(),
            _torch.distributions_check_by(self._check_later),
        ):
            result = self._function(*args, **kwargs)
        self._arguments.require_unchanged(args, kwargs)
        self._check_gradients_of(inputs)
        return result

    def _check_later(self, valid: torch.Tensor) -> bool:
        """Let the program check arguments of a distribution, as part of its outputs."""
        with torch.no_grad():
            self._checks.append(checked(valid.logical_not(), _OF_DISTRIBUTIONS))
        return True

    def _check_gradients_of(self, inputs: Sequence[torch.Tensor]) -> None:
        """Refuse gradients of arguments, which would leave the call."""
        for item, tensor in zip(self._arguments.named, inputs, strict=True):
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
        for _, module in self._reached.modules.values():
            for name, each in named_modules(module):
                if getattr(each, "sparse", False) is True:
                    raise CaptureError(
                        f"{name} is an embedding with sparse=True; a program's gradients are dense."
                    )

    @contextlib.contextmanager
    def _observed(self) -> Generator[None]:
        """Note calls of backward and what the function does to real tensors."""
        before = torch.autograd.backward, torch.autograd.grad
        zeroing: Any = (torch.optim.Optimizer, torch.nn.Module)
        zero_grads = [kind.zero_grad for kind in zeroing]
        thread = threading.get_ident()  # others may train meanwhile

        def emptying(original: Callable[..., Any]) -> Callable[..., Any]:
            @functools.wraps(original)
            def zero_grad(owner: Any, *args: Any, **kwargs: Any) -> None:
                if threading.get_ident() == thread:
                    self._grads.note_emptied(_params_of(owner))
                original(owner, *args, **kwargs)

            return zero_grad

        def noting(original: Callable[..., Any]) -> Callable[..., Any]:
            @functools.wraps(original)
            def call(*args: Any, **kwargs: Any) -> Any:
                if threading.get_ident() != thread:
                    return original(*args, **kwargs)
                self._backward = True
                _torch.mark_traced("forward")
                for node in reversed(_torch.traced_nodes()):
                    recurrent_layers.require_only_readers(node.graph)
                    break
                result = original(*args, **kwargs)
                _torch.mark_traced("backward")
                return result

            return call

        torch.autograd.backward, torch.autograd.grad = map(noting, before)  # type: ignore[misc]
        for kind, original in zip(zeroing, zero_grads, strict=True):
            kind.zero_grad = emptying(original)
        try:
            with _RealTensors(self._grads, self.adopted):
                yield
        finally:
            torch.autograd.backward, torch.autograd.grad = before  # type: ignore[misc]
            for kind, original in zip(zeroing, zero_grads, strict=True):
                kind.zero_grad = original

    def _stays(self, tensor: torch.Tensor) -> bool:
        now: Any = tensor.grad
        grad, version = self.steps.consumed.get(id(tensor), (None, 0))
        consumed = now is grad and now._version == version
        return self._keep or not consumed or not self._grads.starts_empty(tensor)

    def _effects(self, journal: list[_Grad], leaves: Sequence[Any]) -> Gradients:
        made = [each for each in journal if isinstance(each.after, _torch.FakeTensor)]
        kept, count = self._kept, len(self._kept)
        indices = [each.index for each in leaves[len(leaves) - count :]] if count else []
        staying = {id(tensor) for tensor in kept}
        dropped = [each.tensor for each in made if id(each.tensor) not in staying]
        emptied = [e.tensor for e in journal if e.after is None and e.before is not None]
        used = self._backward or self._grads.read
        owners = {id(e.before): e.tensor for e in journal if e.before is not None}
        items = zip(self.adopted.named, self.adopted.tensors, strict=True)
        given = [owners[id(tensor)] for item, tensor in items if item.role is Role.INPUT]
        return Gradients(
            kept=dict(zip(kept, indices, strict=True)),
            emptied=[*dropped, *emptied],
            absent=[e.tensor for e in journal if used and e.is_absent],
            given=given,
            dropped=len(dropped),
        )


def _are_one(first: torch.Tensor, second: torch.Tensor) -> bool:
    """Return whether two traced tensors are one, or the same elements of one memory."""
    if first is second:
        return True
    layouts = [(t.dtype, t.shape, t.stride(), t.storage_offset()) for t in (first, second)]
    return layouts[0] == layouts[1] and _torch.memory_of(first) == _torch.memory_of(second)


def _params_of(owner: Any) -> list[torch.Tensor]:
    if isinstance(owner, torch.nn.Module):
        return list(owner.parameters())
    return [param for group in owner.param_groups for param in group["params"]]


@contextlib.contextmanager
def _autocast_cache(*, enabled: bool) -> Generator[None]:
    """Let autocast cast each weight once in a ``with`` block, or not."""
    before = torch.is_autocast_cache_enabled()
    torch.set_autocast_cache_enabled(enabled)
    try:
        yield
    finally:
        torch.set_autocast_cache_enabled(before)


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


class _Names:
    """Names and roles of the tensors that a function reaches."""

    def __init__(self, reached: Reached):
        self._known: dict[int, tuple[str, Role]] = {}
        for name, tensor, is_optimizers in reached.names():
            role = Role.BUFFER
            if is_optimizers:
                role = Role.OPTIMIZER_STATE
            elif isinstance(tensor, torch.nn.Parameter):
                role = Role.PARAMETER
            self._known.setdefault(id(tensor), (name, role))
        self._taken: set[tuple[Role, str]] = set()

    def of(self, tensor: torch.Tensor) -> tuple[str, Role]:
        trained = tensor.requires_grad and tensor.is_leaf
        default = f"tensor{len(self._taken)}", Role.PARAMETER if trained else Role.BUFFER
        name, role = self._known.get(id(tensor), default)
        while (role, name) in self._taken:
            name += "_"
        self._taken.add((role, name))
        return name, role


@dataclasses.dataclass
class _Grad:
    """``grad`` of a tensor before and after a traced call."""

    tensor: torch.Tensor
    before: torch.Tensor | None
    requires: bool
    after: torch.Tensor | None = None
    freezes: bool = False
    emptied: bool = False  # before a gradient was made

    @property
    def is_absent(self) -> bool:
        """True if the call finds no gradient, and would add to one."""
        return self.before is None and self.requires and not self.emptied


class _GradJournal:
    """A record of changes of ``grad`` and ``requires_grad`` by a traced call.

    Attributes:
        read: whether the call has looked at a gradient.
    """

    def __init__(self):
        self.read = False
        self._first: dict[int, _Grad] = {}
        self._given = set[int]()  # gradients that the call finds, by their ``id``

    def note(self, tensor: torch.Tensor) -> None:
        """Note a tensor before a traced call changes its gradient."""
        if tensor.is_leaf and id(tensor) not in self._first:
            self._first[id(tensor)] = _Grad(tensor, tensor.grad, tensor.requires_grad)
            self._given.add(id(tensor.grad))

    def has_given(self, gradient: torch.Tensor) -> bool:
        """Return whether a tensor is a gradient that a call finds."""
        return id(gradient) in self._given

    def made(self) -> list[torch.Tensor]:
        """Return the tensors with a gradient that the trace has made."""
        tensors = [each.tensor for each in self._first.values()]
        return [each for each in tensors if isinstance(each.grad, _torch.FakeTensor)]

    def note_emptied(self, tensors: Iterable[torch.Tensor]) -> None:
        """Note that the function sets gradients to None, or to zero."""
        for tensor in tensors:
            self.note(tensor)
            if not isinstance(tensor.grad, _torch.FakeTensor) and tensor.is_leaf:
                self._first[id(tensor)].emptied = True

    def starts_empty(self, tensor: torch.Tensor) -> bool:
        """Return whether each call makes the gradient of a tensor anew."""
        first = self._first[id(tensor)]
        return first.emptied or first.before is not None

    def restored(self) -> list[_Grad]:
        """Give tensors the gradients that they had; return what the call did to them."""
        for each in self._first.values():
            each.after = each.tensor.grad
            each.freezes = each.tensor.requires_grad != each.requires
            if each.freezes:
                each.tensor.requires_grad_(each.requires)
            each.tensor.grad = each.before
        return list(self._first.values())


class _RealTensors(TorchFunctionMode):
    """A mode for what a traced function does to real tensors beside computing with them."""

    def __init__(self, grads: _GradJournal, adopted: Adopted):
        super().__init__()
        self._grads, self._adopted = grads, adopted
        self._aliases = collections.defaultdict[int, list[weakref.ref[Any]]](list)

    def __torch_function__(
        self, func: Callable[..., Any], kinds: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        first = args[0] if args else None
        if isinstance(first, torch.Tensor) and not isinstance(first, _torch.FakeTensor):
            if func in _READ_MEMORY:
                raise DataDependentError(
                    f"The function reads the value of a tensor, at {user_line()}, while it is "
                    "captured."
                )
            if func == _Tensor.data.__set__:
                return self._assign(*args)
            if func in _OF_GRADIENT:
                self._grads.read = True
                self._grads.note(first)
                if func == _Tensor.grad.__delete__ or args[-1] is None:
                    self._grads.note_emptied([first])
            if func in _ALIASING:
                alias = func(*args, **(kwargs or {}))
                self._aliases[id(first)].append(weakref.ref(alias))
                return alias
        return func(*args, **(kwargs or {}))

    def _assign(self, tensor: torch.Tensor, value: Any) -> None:
        """Write assigned data into a tensor's own memory."""
        fits = isinstance(value, _torch.FakeTensor) and value.dtype == tensor.dtype
        if not fits or value.shape != tensor.shape or self._adopted.has(value):
            raise CaptureError(
                f"The function assigns to the data of a tensor, at {user_line()}: another tensor "
                "that it did not compute, or one of another shape or type. Use copy_()."
            )
        if any(alias() is not None for alias in self._aliases[id(tensor)]):
            raise CaptureError(
                f"The function assigns to the data of a tensor, at {user_line()}, and keeps what "
                "was there before. Keep clone() of it."
            )
        with torch.no_grad():
            tensor.copy_(value)
