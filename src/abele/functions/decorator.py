"""``abele.compile``: a function of plain PyTorch, whose calls run as static programs.

The first call runs as it is and creates what first calls create, such as optimizer state. Later
calls run programs: one for each combination of shapes, types and Python values that is met.
"""

from __future__ import annotations

import collections
import contextlib
import copy
import functools
import inspect
import itertools
import os
import threading
import traceback
import weakref
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, cast, overload

import torch

from abele import _torch, cpython, targets
from abele._torch.replicas import CHANGING
from abele.capture.diagnose import user_frame
from abele.compilation import start as start_mode
from abele.compilation.cache import ExecutableCache
from abele.compilation.executable_file import SUFFIX
from abele.compilation.start import Start
from abele.errors import AbeleError, CaptureError, DataDependentError, TargetError, ValueCheckError
from abele.functions.arguments import Arguments
from abele.functions.batches import flatten
from abele.functions.capture import CapturedCall, ChangesError, capture, code_of
from abele.functions.compiled import CompiledCall
from abele.functions.division import TRAINING, divide
from abele.functions.frames import Frame, Frames, codes
from abele.functions.guards import Guards
from abele.functions.host import Host
from abele.functions.optimizers import changed_names, numbers_of
from abele.functions.prologue import Prologue, split
from abele.functions.source import may_change_arguments
from abele.functions.state import Changed, NotYetError, Reached, holds_tensors
from abele.functions.varying import NUMBERS, Element, Place, Slots, What, elements_of
from abele.kernels.build import cache_folder
from abele.locks import Lock
from abele.program.core import is_library
from abele.storage.files import prune
from abele.tracebacks import show_user_frames
from abele.warn import show, warn_user

if TYPE_CHECKING:
    from abele.functions.shown import Recording
    from abele.report.card import Written

_Function = TypeVar("_Function", bound=Callable[..., Any])
MOST_PROGRAMS = 8
_MOST_FAILURES = 3
# Single calls with other arguments that run as plain PyTorch before one gets a program: the short
# last batch of an epoch may never be worth a capture and compilation.
_MOST_SINGLE = 8
_DROPPED = (
    "gradients that the update uses are not written to memory: grad is None after a call "
    "(keep_gradients=True keeps them)"
)
_tracing = threading.local()
# Names by which code reads the numbers of optimizers.
_NUMBERS = frozenset({"lr", "param_groups", "get_last_lr", "get_lr"})
_OF_SCHEDULERS = frozenset({"last_epoch", "_step_count", "_last_lr"})
_OF_OPTIMIZERS = _NUMBERS | {"state", "defaults", "state_dict", "__dict__"}


class EagerWarning(UserWarning):
    """A compiled function runs as plain PyTorch, or from now on does."""


@functools.cache
def _warn_of_observers() -> None:
    warn_user(
        "A function of abele.compile is called inside a transform or mode that sees each operator "
        "(torch.func, FlopCounterMode, hooks of saved tensors). Such calls run as plain PyTorch.",
        EagerWarning,
    )


def _line_in(function: Callable[..., Any], error: BaseException) -> tuple[int | None, bool]:
    """Return the line of a function's own code at which a value was read; None if none did.

    Functions that it calls may read one if they only compute with what they are given: they train
    nothing, and reach no tensors by other ways. The second result says whether they may change it.
    """
    code, line, changes = code_of(function), None, False
    while error.__cause__ is not None:
        error = error.__cause__
    for frame, number in traceback.walk_tb(error.__traceback__):
        own = (frame.f_code.co_filename, frame.f_code.co_name)
        if code and own == (code.co_filename, code.co_name):
            line = number
        elif line is not None and not is_library(frame.f_code.co_filename):
            free = {n: v for n, v in frame.f_locals.items() if n in frame.f_code.co_freevars}
            called = Frame(frame.f_code, frame.f_globals, free)
            if called.may_call(TRAINING) or any(holds_tensors(v) for _, v in called.roots()):
                return None, False
            changes = changes or may_change_arguments(frame.f_code, frame.f_globals)
    return line, changes


class _SplitError(Exception):
    """A prologue has been split off a function."""


_OWN = frozenset({"function", "programs", "eager"})


def _refuse_tracing(name: str) -> None:
    if getattr(_tracing, "active", False):
        raise CaptureError(
            f"It uses attribute {name!r} of a compiled function, which a program does not. Use a "
            "variable, or an object of your own."
        )


class _Bound:
    """A method's function in the dictionary of its object, which no copy of the object takes over.

    Attributes:
        function: the function; None before the first use.
        owner: a weak reference to the object.
    """

    def __init__(self):
        self.function: Function | None = None
        self.owner: weakref.ref[Any] | None = None

    def __reduce__(self) -> Any:
        """Copy and pickle as an empty one."""
        return _Bound, ()


class Options(NamedTuple):
    """The options of ``abele.compile``."""

    strict: bool
    keep_gradients: bool
    cache: ExecutableCache | None
    start: Start
    report: Path | None


class Function:
    """A function whose calls run as programs; made by ``abele.compile``.

    Attributes:
        function: the user's function.
        programs: the compiled calls, the latest one first.
        eager: why calls without a program run as plain PyTorch; None if they are captured.
    """

    def __init__(self, function: Callable[..., Any], options: Options):
        self._of_users: dict[str, Any] = {}
        if not isinstance(function, torch.nn.Module):
            functools.update_wrapper(self, function)
        self.function, self._options = function, options
        self.programs: list[CompiledCall] = []
        self.eager: str | None = None
        self._recording: Recording | None = None
        self._calls, self._failures, self._said = 0, 0, False
        # Calls of single shapes so far, and how many programs had served before the latest call.
        self._single, self._served = 0, -1
        self._frames = Frames(code_of(function))
        self._promoted = collections.defaultdict[int, frozenset[str]](frozenset)
        self._replaced = set[Place]()  # which had other tensors at earlier calls
        self._moved = dict[int, torch.Tensor]()  # which had other memory, by ``id``
        self._prologue: Prologue | None = None
        self._may_split = True
        self._batches, self._expands = list[Any](), False
        # Lines and names of the host's statements, and numbers whose values captures have read.
        self._lines, self._changed = dict[int, bool](), set[str]()
        self._expected = frozenset[str]()  # names that the first call counts by
        self._first: tuple[list[Any], Any] = [], None  # its arguments
        self._rates: list[tuple[torch.optim.Optimizer, list[Any]]] = []  # before it
        self._read = set[What]()
        self._counters, self._defers = set[Place](), False
        self._elements = dict[int, Element]()  # of the state that calls change, by memory
        self._lock = Lock()
        self._name = getattr(function, "__qualname__", type(function).__name__)
        self._of_others: dict[int, _Bound] = {}  # for classes, and objects without a dictionary
        if inspect.isgeneratorfunction(function) or inspect.iscoroutinefunction(function):
            self._give_up(CaptureError("It is a generator or coroutine, which runs in pieces."))

    def __setattr__(self, name: str, value: Any) -> None:
        """Set an attribute; those of users are apart, since programs neither set nor read them."""
        if name.startswith("_") or name in _OWN:
            object.__setattr__(self, name, value)
        else:
            _refuse_tracing(name)
            self._of_users[name] = value

    def __getattr__(self, name: str) -> Any:
        """Return an attribute that a user has set."""
        if not name.startswith("_"):
            _refuse_tracing(name)
            if name in self._of_users:
                return self._of_users[name]
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def _repr_html_(self) -> str:
        from abele.functions.shown import card_of  # charts take time to import

        return card_of(self._name, self.programs, self.eager)

    def report(self, path: str | os.PathLike[str], *, measure: bool = False) -> Written:
        """Write the HTML report of this function so far: programs, memory and times.

        With ``abele.compile(report=FOLDER)`` it has every call, else only the latest one.

        Args:
            path: a file whose name ends with ``.html`` gets the page; else a folder gets the page
                and the files that ``abele report`` reads.
            measure: time each kernel first, which takes a few seconds.

        Returns:
            The path of the page, which a notebook shows.

        Raises:
            ReportError: the function has no program.
            OSError: a file cannot be written.
        """
        with self._lock:
            return self._shown().write(Path(path), self.eager, measure=measure)

    def _shown(self) -> Recording:
        if self._recording is None:
            from abele.functions.shown import Recording

            self._recording = Recording(self._name, self.programs, self._options.report)
        return self._recording

    def __repr__(self) -> str:
        name = self._name
        targets = sorted({each.record.target for each in self.programs})
        where = f" on {', '.join(targets)}" if targets else ""
        count = len(self.programs)
        programs = f"{count} program{'s' * (count != 1)}{where}"
        if self.eager is None:
            return f"<abele function {name}: {programs}>"
        others = f"{programs}, otherwise " if self.programs else ""
        return f"<abele function {name}: {others}plain PyTorch, because {self.eager}>"

    def __get__(self, owner: Any, kind: type | None = None) -> Any:
        """Bind a method: each object gets programs of its own."""
        if owner is None:
            return self
        if isinstance(owner, type) or not hasattr(owner, "__dict__"):
            kept = self._of_others.setdefault(id(owner), _Bound())
        else:
            name = f"_abele_{getattr(self.function, '__qualname__', 'function')}_"
            space = cast("dict[str, _Bound]", vars(owner))
            kept = space.setdefault(name, _Bound())
            if kept.owner is not None and kept.owner() is not owner:  # of a copied object
                kept = space[name] = _Bound()
        if kept.function is None:
            kept.function = self._like(cast("Any", self.function).__get__(owner, kind))
            with contextlib.suppress(TypeError):
                kept.owner = weakref.ref(owner)
        return kept.function

    def _like(self, function: Callable[..., Any]) -> Function:
        return Function(function, self._options)

    def __deepcopy__(self, memo: dict[int, Any]) -> Function:
        """Return a function without programs, of the copied object if it is a method."""
        return self._like(copy.deepcopy(self.function, memo))

    def __reduce__(self) -> Any:
        """Pickle a function by its name, and a method by its object and name."""
        owner = getattr(self.function, "__self__", None)
        name = cast("Any", self.function).__name__
        return cast("Any", self).__qualname__ if owner is None else (getattr, (owner, name))

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function, by a program if there is one for these arguments."""
        plain = self.eager is not None and not self.programs
        if plain or cpython.is_watched():  # as a part of another function, which sees its code
            return self.function(*args, **kwargs)
        if _torch.is_observed():
            _warn_of_observers()
            return self.function(*args, **kwargs)
        with self._lock:
            if self._prologue is not None:
                args, kwargs = self._prologue(args, kwargs), {}
            for index, program in enumerate(self.programs):
                inputs = program.accepts(args, kwargs)
                if inputs is not None:
                    if index:
                        self.programs.insert(0, self.programs.pop(index))
                    return self._run(program, inputs, args, kwargs)
            if self.eager is not None:
                return self._body(*args, **kwargs)
            return self._other(args, kwargs)

    @property
    def _body(self) -> Callable[..., Any]:
        """The function of which programs are captured, without a prologue."""
        return self.function if self._prologue is None else self._prologue.rest

    def _other(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call the function with arguments that no program serves."""
        self._calls += 1
        self._compare_batches(args, kwargs)
        if self._calls == 1:
            return self._called_first(args, kwargs)
        if (reason := self._too_many(args, kwargs)) is not None:
            self._give_up(CaptureError(reason))
            return self._body(*args, **kwargs)
        if self._is_single(args, kwargs):
            return self._body(*args, **kwargs)
        self._promote()
        try:
            compiled = self._compiled(args, kwargs)
        except TargetError:  # one that was asked for
            raise
        except _SplitError:
            return self._called_anew(args, kwargs)
        except NotYetError as error:
            return self._called_plainly(error, args, kwargs)
        except AbeleError as error:
            self._give_up(error)
            return self._body(*args, **kwargs)
        except (Exception, SystemExit) as error:  # noqa: BLE001 - the call may raise the same
            return self._called_plainly(error, args, kwargs)
        inputs = compiled.accepts(args, kwargs)
        if inputs is None:
            reason = compiled.difference(args, kwargs)
            compiled.close()
            self._give_up(CaptureError(f"What a call depends on changes while it runs: {reason}."))
            return self._body(*args, **kwargs)
        if compiled.captured.gradients.dropped and not self._said:
            self._said = True
            self._announce(_DROPPED)
        self._add(compiled)
        return self._run(compiled, inputs, args, kwargs)

    def _run(self, program: CompiledCall, inputs: Any, args: Any, kwargs: Any) -> Any:
        """Run a program, or call the function if a check of the program has failed."""
        try:
            return program.run(inputs)
        except ValueCheckError:
            if program.captured.calls.functions:  # which other processes meet once
                raise
        return self._body(*args, **kwargs)  # which does the same, up to the error

    def _called_first(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call the function, and note which numbers change: captures would find out later."""
        code, reached, integers = code_of(self._body), None, dict[int, Element]()
        leaves, structure = _torch.flatten((args, kwargs))
        self._first = [each if type(each) in NUMBERS else None for each in leaves], structure
        with contextlib.suppress(Exception):  # which the call or the capture will raise
            named = inspect.signature(self._body).bind(*args, **kwargs).arguments
            values = {n: v for n, v in named.items() if not isinstance(v, torch.Tensor)}
            frames = [Frame(code, cast("Any", self._body).__globals__, values)]
            reached = Reached(self._body, frames, ())
            optimizers = [each for _, each in reached.optimizers.values()]
            self._rates = [(each, numbers_of(each)) for each in optimizers]
            integers = elements_of(tensor for _, tensor, _ in reached.names())
        with self._frames.watching():
            result = self._body(*args, **kwargs)
        with contextlib.suppress(RuntimeError):  # one has another size now
            self._elements |= {key: e for key, e in integers.items() if e.get() != e.look()}
        with contextlib.suppress(NotYetError):
            changes = list[Changed]() if reached is None else reached.changes()[0]
            counted = [e.names() for e in changes if {type(e.before), type(e.after)} <= {*NUMBERS}]
            of_torch = _OF_SCHEDULERS | _OF_OPTIMIZERS  # which captures follow
            found = (each for each in counted if of_torch.isdisjoint(each))
            self._expected = frozenset[str]().union(*found)
        return result

    def _is_single(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        """Return whether programs serve the calls around this one, which is not worth one yet."""
        before, self._served = self._served, sum(each.calls for each in self.programs)
        if self._served in (0, before) or not all(e.refuses(args, kwargs) for e in self.programs):
            return False
        self._single += 1
        asked, options = start_mode.requested() or targets.requested(), self._options
        if asked or options.strict or options.report or options.start is not Start.TIERED:
            return False
        # Processes that train together run equal programs.
        return self._single <= _MOST_SINGLE and not torch.distributed.is_initialized()

    def _too_many(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str | None:
        """Return why a call gets no program of its own; None if it gets one."""
        if len(self.programs) >= MOST_PROGRAMS:
            reason = self.programs[0].difference(args, kwargs)
            return f"It needs more than {MOST_PROGRAMS} programs; in this call {reason}."
        sizes = [each.parts for each in self.programs if each.calls == 1][:3]
        sizes = [len(_torch.flatten((args, kwargs))[0]), *sizes]
        steps = {a - b for a, b in itertools.pairwise(sizes)}
        grows = len(sizes) > 3 and len(steps) == 1 and min(steps) > 0
        return f"A list in its arguments grows: {sizes[0]} values in this call." if grows else None

    def _add(self, compiled: CompiledCall) -> None:
        self.programs.insert(0, compiled)
        if self._options.report is not None:
            self._shown().added(compiled)

    def _compare_batches(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Find out whether objects that hold tensors are other ones at each call."""
        if self._expands:
            return
        found = flatten((args, kwargs))[2]
        before = self._batches if self._calls > 1 else found
        self._expands = any(a is not b for a, b in zip(found, before, strict=False))
        self._batches = [] if self._expands else found  # which lets no other one have their id

    def _split(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Split a prologue off, once.

        Raises:
            _SplitError: there is one, so that the call begins anew.
        """
        if self._may_split:
            self._may_split = False
            self._prologue = split(self.function, args, kwargs, self._frames)
            if self._prologue is not None:
                raise _SplitError

    def _called_anew(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call the function in two parts, of which the second one has had no call yet."""
        assert self._prologue is not None
        for program in self.programs:
            program.close()
        self.programs.clear()
        self._calls, self._frames = 0, Frames(code_of(self._body))
        self._defers = False
        for known in (self._lines, self._changed, self._read, self._counters):
            known.clear()
        return self._other(self._prologue(args, kwargs), {})

    def _called_plainly(self, error: BaseException, args: Any, kwargs: dict[str, Any]) -> Any:
        """Call the function after a capture that may succeed at another call.

        An error of the call itself says nothing of captures, if there have been some, and neither
        does code that runs for the first time.
        """
        failed, known = True, {each.code for each in self._frames}
        try:
            with self._frames.watching():
                result = self._body(*args, **kwargs)
            failed = False
            return result
        finally:
            learned = known < {each.code for each in self._frames}
            self._failures += not (learned or (failed and self.programs))
            if self._failures > _MOST_FAILURES and not (failed and self._options.strict):
                self._give_up(error)

    def _promote(self) -> None:
        """Make numbers of optimizers slots, and tensors inputs, once they have changed."""
        for optimizer, before in self._rates:
            self._promoted[id(optimizer)] = changed_names(before, numbers_of(optimizer))
        self._rates.clear()
        for program in self.programs:
            gradients = program.captured.gradients
            trained = {*map(id, gradients.kept), *map(id, gradients.emptied)}
            self._replaced.update(program.guards.replaced(trained))
            self._moved |= {id(t): t for t in program.moved() if id(t) not in trained}
            for each in program.captured.numbers:
                self._promoted[id(each.optimizer)] |= each.changed()[1] - {"param_groups"}
            read = (each.slots.values() for each in program.captured.read if not each.holds())
            self._elements = elements_of(now for each in read for now, _ in each) | self._elements

    def _compiled(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> CompiledCall:
        """Capture and compile a call, for any value of the numbers that differ from other calls.

        Raises:
            _SplitError: a prologue has been split off instead.
        """
        known, expected = (dict(self._lines), {*self._changed}), self._expected
        self._changed, self._expected = self._changed | expected, frozenset[str]()
        found = [program.changed(args, kwargs) for program in self.programs[:1]]
        differ = found[0] if found else self._changed_since_first(args, kwargs)
        differ |= {each: each.look() for each in self._elements.values()}
        while free := {k: v for k, v in differ.items() if k not in self._read}:
            numbers = self._numbers(free)
            with contextlib.suppress(Exception):  # then something reads their values
                return self._divided(args, kwargs, numbers)
            self._split(args, kwargs)
            if numbers.read.isdisjoint(free):  # others stay stand-ins in the next attempt
                break
            self._read |= numbers.read if numbers.decides else set()
        if differ:
            self._split(args, kwargs)
        if expected:
            with contextlib.suppress(Exception):  # then its later calls may do something else
                return self._divided(args, kwargs, self._numbers({}))
            self._lines, self._changed = dict(known[0]), {*known[1]}
        try:
            return self._divided(args, kwargs, self._numbers({}))
        except NotYetError:
            raise
        except CaptureError:
            tried = self._defers and not self._may_split
            compiled = None if tried else self._deferred(args, kwargs, *known)
            if compiled is None:
                self._split(args, kwargs)
                raise
            return compiled

    def _changed_since_first(self, args: Any, kwargs: Any) -> dict[What, Any]:
        """Return the numbers among arguments that differ from those of the first call."""
        (before, expected), (leaves, structure) = self._first, _torch.flatten((args, kwargs))
        if self._expands or structure != expected:
            return {}
        pairs = enumerate(zip(before, leaves, strict=True))
        return {i: b for i, (a, b) in pairs if type(a) is type(b) and a != b and a is not None}

    def _numbers(self, free: Mapping[What, Any]) -> Slots:
        """Return the slots of numbers that a capture is not to depend on."""
        places = dict[What, Any]()
        for place in self._counters if self._defers else ():
            with contextlib.suppress(LookupError):  # it is set at some calls only
                places |= {place: place.get()} if type(place.get()) in NUMBERS else {}
        return Slots({**places, **free}, defers=self._defers, decides=not self._may_split)

    def _deferred(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], lines: Any, changed: Any
    ) -> CompiledCall | None:
        """Capture a call with stand-ins for numbers of tensors, and for numbers that it changes.

        None if Python decides by one; the reason to tell is then that of the call without.
        """
        self._defers, count = True, -1
        while count < len(self._counters):
            count = len(self._counters)
            self._lines, self._changed = dict(lines), {*changed}
            numbers = self._numbers({})
            try:
                return self._divided(args, kwargs, numbers)
            except Exception as error:
                if isinstance(error, NotYetError):
                    self._undefer()
                    raise
            if numbers.read and not numbers.decides:
                self._split(args, kwargs)
                count = -1
        self._undefer()
        return None

    def _undefer(self) -> None:
        """Capture without stand-ins for numbers of tensors from now on."""
        self._defers = False
        self._counters.clear()

    def _divided(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], numbers: Slots
    ) -> CompiledCall:
        """Capture and compile a call, divided into traced and host's statements as needed."""
        cause: CaptureError | None = None
        while True:
            try:
                known = self._lines, self._changed, self._frames
                host = divide(self._body, *known, defers=numbers.defers)
            except CaptureError as error:
                if cause is None:
                    raise
                if isinstance(cause, ChangesError):
                    raise cause from error
                raise CaptureError(f"{str(cause).partition('. ')[0]}. {error}") from cause
            try:
                return self._captured(args, kwargs, host, numbers)
            except DataDependentError as error:
                (line, changes), cause = _line_in(self._body, error), error
                if line is None or line in self._lines:
                    raise
                self._lines[line] = changes
            except ChangesError as error:
                count = len(self._counters)
                self._counters |= {each.place for each in error.changes if each.place is not None}
                names = {part for each in error.changes for part in each.names()} - self._changed
                if not names or (numbers.defers and len(self._counters) > count):
                    raise
                self._changed |= names
                cause = error

    def _captured(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], host: Host | None, numbers: Slots
    ) -> CompiledCall:
        arguments = Arguments(args, kwargs, numbers.stand_ins, expands=self._expands)
        own = self._body if host is None else host.remaining
        frames = Frames(code_of(own))
        spaces = {id(each.namespace): each.namespace for each in self._frames}
        with numbers.in_place(spaces.values(), *map(frames.noting, (getattr, hasattr))):
            reached = Reached(self._body, self._frames, arguments.others)
            reached.refuse_iterators()
            frames.new = reached.add
            _tracing.active = True
            try:
                captured = capture(
                    self._body,
                    arguments,
                    reached,
                    self._promoted,
                    frames,
                    keep_gradients=self._options.keep_gradients,
                    slots=self._may_have_slots(host),
                    host=host,
                    numbers=numbers,
                    replaced=self._replaced,
                    moved=self._moved.values(),
                )
            finally:
                _tracing.active = False
        stands_in = numbers.stand_ins or numbers.items or arguments.arrays
        if stands_in and any(frame.reads_types() for frame in frames):
            raise CaptureError("Code asks for type() or methods of values, which stand-ins lack.")
        return CompiledCall(
            captured,
            arguments,
            self._guards(frames, reached, captured, host, numbers),
            host,
            cache=self._options.cache,
            start=self._options.start,
            announce=self._switched,
        )

    def _guards(
        self,
        frames: Frames,
        reached: Reached,
        captured: CapturedCall,
        host: Host | None,
        numbers: Slots,
    ) -> Guards:
        """Return the conditions under which a captured call is repeated."""
        if any(frame.mentions(_OF_OPTIMIZERS) for frame in frames):
            for numbers_of_optimizer in captured.numbers:
                numbers_of_optimizer.steps = True
        if any(frame.reads_clock() for frame in frames):
            raise CaptureError(
                "The function reads a clock or the environment, or variables by eval, exec or "
                "globals(), which a program would repeat. Read them outside."
            )
        self._refuse_reads_of_changes(frames, captured, host)
        kept = [each for each in captured.stored if each.is_new]
        frames.asked |= reached.asked
        return Guards(
            self._body,
            frames,
            [module for _, module in reached.modules.values()],
            [*captured.tensors.values(), *captured.aliases, *captured.gradients.kept],
            [optimizer for _, optimizer in reached.optimizers.values()],
            CHANGING if host is None else CHANGING | host.outside.keys(),
            frozenset[str]() if host is None else host.variables,
            frozenset((*((id(e.holder), e.key) for e in kept), *(e.id for e in captured.replaced))),
            reached.caches,
            [each for each in numbers.stand_ins if isinstance(each, Place)],
            reached.scalers,
        )

    def _refuse_reads_of_changes(
        self, frames: Frames, captured: CapturedCall, host: Host | None
    ) -> None:
        """Refuse a traced part that reads what Python changes after the program."""
        own = code_of(self._body if host is None else host.remaining)
        outside = set[str]() if host is None else host.outside.keys()
        for frame in frames:
            read = set[str]() if frame.code is own else outside & frame.reads()
            scheduled = _OF_SCHEDULERS if frame.code is own else _OF_SCHEDULERS | _NUMBERS
            if captured.schedulers and (frame.mentions(scheduled) or frame.sets() & _NUMBERS):
                read = {"a number of a scheduler"}
            if read:
                raise CaptureError(
                    f"{frame.code.co_qualname} uses {', '.join(sorted(read))}, which the function "
                    "changes in a statement that Python runs after the program."
                )

    def _may_have_slots(self, host: Host | None) -> bool:
        """Return whether no traced code of the user's reads the numbers of optimizers."""
        own, body = code_of(self._body if host is None else host.remaining), code_of(self._body)
        frames = [] if own is None else [Frame(each, {}, {}) for each in codes(own)]
        whole = [] if body is None else [*codes(body)]
        others = [each for each in self._frames if each.code not in whole]
        return not any(each.mentions(_NUMBERS) for each in (*frames, *others))

    def _announce(self, text: str) -> None:
        show(f"abele: {getattr(self.function, '__name__', 'function')}: {text}")

    def _switched(self, text: str) -> None:
        """Announce and record that other programs run."""
        self._announce(text)
        if self._recording is not None:
            self._recording.changed(text)

    def _give_up(self, error: BaseException) -> None:
        known = isinstance(error, AbeleError)
        text = str(error)
        if not known:
            file, line, code = user_frame(error)
            what = f"{type(error).__name__}: {text}".rstrip(": ")
            text = f"its capture fails by {what}, at {file}:{line}: `{code}`."
        if self._options.strict and known:
            show_user_frames(error)
            raise error
        if self._options.strict:
            raise CaptureError(text) from error
        self.eager = text
        others = ", but for calls that have a program" if self.programs else ""
        warn_user(
            f"{self._name} runs as plain PyTorch from now on{others}: {text} "
            "Pass strict=True to abele.compile to make this an error.",
            EagerWarning,
        )


# Bytes of the user's cache of compiled programs.
_CACHE_BYTES = 2 * 1024**3


def _cache_of(cache: str | os.PathLike[str] | bool) -> ExecutableCache | None:
    if cache is False:
        return None
    if cache is not True:
        return ExecutableCache(cache)
    folder = cache_folder() / "programs"
    prune(folder.glob(f"*{SUFFIX}"), _CACHE_BYTES)
    return ExecutableCache(folder)


@overload
def compile(function: _Function) -> _Function: ...


@overload
def compile(
    *,
    strict: bool = ...,
    keep_gradients: bool = ...,
    cache: str | os.PathLike[str] | bool = ...,
    start: Start | str = ...,
    report: str | os.PathLike[str] | None = ...,
) -> Callable[[_Function], _Function]: ...


def compile(
    function: Any = None,
    *,
    strict: bool = False,
    keep_gradients: bool = False,
    cache: str | os.PathLike[str] | bool = True,
    start: Start | str = Start.TIERED,
    report: str | os.PathLike[str] | None = None,
) -> Any:
    """Compile a function of tensors, such as a whole training step, to static programs.

    Forward, backward, clipping and the optimizer's update become one program, which writes the
    user's own parameters, buffers and optimizer state.

    Args:
        function: any function or method that computes with tensors; also a module.
        strict: raise an error where the function would run as plain PyTorch.
        keep_gradients: leave gradients in ``grad`` after an update has used them; by default they
            are never written to memory, and ``grad`` is None.
        cache: a folder for compiled programs; True for one of at most 2 GiB in the user's cache
            folder, False for none.
        start: how first calls run; see ``abele.compilation.start``.
        report: a folder for the report of all calls of programs, which ``abele report`` reads;
            further functions and methods that name it get folders with a number.

    Raises:
        CaptureError: at a call, with ``strict``, where the function cannot be one program.
    """
    if function is None:
        given: Any = {"strict": strict, "keep_gradients": keep_gradients, "cache": cache}
        return functools.partial(compile, **given, start=start, report=report)
    if not callable(function):
        raise TypeError(f"abele.compile takes a function, found {function!r}.")
    if start not in list(Start):
        raise ValueError(f"start={start!r} was asked for. Pass one of {', '.join(Start)}.")
    folder = None if report is None else Path(report)
    return Function(
        function, Options(strict, keep_gradients, _cache_of(cache), Start(start), folder)
    )
