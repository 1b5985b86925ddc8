"""Objects of Python that a function reaches, and what a traced call changes in them.

A program repeats the tensor operations of the call that was traced and nothing else. A counter that
the call increments would stand still, so such changes are found, undone and reported.
"""

from __future__ import annotations

import collections
import contextlib
import copy
import dataclasses
import functools
import io
import operator
import random
import re
import types
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple, cast

import numpy as np
import torch

from abele import _torch
from abele.capture import reachable
from abele.capture.leftovers import ABSENT, Leftovers, tensors_of, write
from abele.containers import is_array
from abele.errors import CaptureError
from abele.functions.frames import (
    FACTORY,
    PLAIN,
    Frame,
    attribute,
    global_names,
    is_installed,
    is_of_library,
)
from abele.functions.varying import Place, Unread, place_of
from abele.program import Role
from abele.program.aliasing import other_kind
from abele.trace.adopted import by_strides

KINDS = (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer)
_MOST = 20_000
_CACHED: Any = type(functools.lru_cache(len))
_GENERATORS = (random.Random, np.random.Generator, np.random.RandomState)


def _content(value: Any) -> Any:
    """Return the elements of an array, position and end of a stream, or a generator's state."""
    if is_array(value):
        return value.copy()
    if isinstance(value, io.IOBase):
        position, end = value.tell(), value.seek(0, io.SEEK_END)
        value.seek(position)
        return position, end
    if isinstance(value, np.random.Generator):
        return copy.deepcopy(value.bit_generator.state)
    return value.getstate() if isinstance(value, random.Random) else value.get_state()


def _has_content(value: Any) -> bool:
    """Return whether ``_content`` finds changes of an object, and these can be undone."""
    if isinstance(value, io.IOBase):
        with contextlib.suppress(OSError):  # a loop over its lines has no position
            return not value.closed and value.writable() and value.seekable() and value.tell() >= 0
        return False
    return isinstance(value, _GENERATORS) or (is_array(value) and value.size <= _MOST)


class NotYetError(CaptureError):
    """A call outside of a program has to come first, which creates state or fills caches."""


class Changed(NamedTuple):
    """A change of a Python object: its access path, the value before and after.

    Attributes:
        place: of the value, if it is a number.
    """

    path: str
    before: Any
    after: Any
    place: Place | None = None

    def names(self) -> set[str]:
        """Return the variables and attributes of the access path."""
        return {*re.findall(r"[A-Za-z_]\w*", self.path)} - {"self", "an", "argument"}

    def __str__(self) -> str:
        return f"{self.path} from {_short(self.before)} to {_short(self.after)}"


class Stored(NamedTuple):
    """A tensor that a call keeps in a Python object, or the mode that it sets a module to.

    Attributes:
        holder: a dictionary, list or object, or a variable of an enclosing function.
        key: of the entry; lists are appended to.
        before: the value before the call, or ``ABSENT``.
        value: the traced tensor, or a structure of such.
    """

    holder: Any
    key: Any
    before: Any
    value: Any

    @property
    def is_new(self) -> bool:
        """Return whether the program does not depend on the entry before."""
        return self.key != "training" and not issubclass(type(self.before), PLAIN)

    def store(self, value: Any) -> None:
        """Store the value of another call."""
        holder: Any = self.holder
        if isinstance(holder, list) and self.before is ABSENT:
            cast("list[Any]", holder).append(value)
        elif self.key == "training":
            self.holder.training = value  # modules are watched
        else:
            write(self.holder, self.key, value, None)


@dataclasses.dataclass(frozen=True)
class Entry:
    """A tensor that each call finds in a Python object, and replaces.

    Attributes:
        place: of the tensor, or of a structure that has it.
        index: among the leaves of the structure.
        structure: as ``flatten`` returns it; None if the place has the tensor itself.
    """

    place: Place
    index: int = 0
    structure: Any = None

    def get(self) -> Any:
        """Return the present tensor; None if the structure is another one."""
        value = self.place.get()
        if self.structure is None:
            return value
        leaves, structure = _torch.flatten(value)
        return leaves[self.index] if structure == self.structure else None


class Reached:
    """The objects that a function can reach, by access path.

    Args:
        function: the user's function.
        frames: the user's code that earlier calls of it ran.
        arguments: the objects that it is called with.

    Attributes:
        modules: modules with their paths.
        optimizers: optimizers with their paths.
        scalers: objects of ``torch.amp.GradScaler``.
        asked: names of attributes that objects of ``operator`` read.
    """

    def __init__(self, function: Any, frames: Iterable[Frame], arguments: Sequence[Any]):
        self.modules: dict[int, tuple[str, torch.nn.Module]] = {}
        self.optimizers: dict[int, tuple[str, torch.optim.Optimizer]] = {}
        self.scalers: list[torch.amp.GradScaler] = []
        self.asked = set[str]()
        self._paths: dict[int, str] = {}
        self._kept: list[Any] = []
        self._globals = list(global_names(frames))
        self._contents: list[tuple[str, Any, Any]] = []
        self._iterators: list[tuple[str, Any]] = []
        self._caches: list[tuple[str, Any, int]] = []
        self._classes: dict[type, dict[str, Any]] = {}
        roots = [("", function), *((name, value) for _, name, value in self._globals)]
        self._roots = roots
        roots += [(name, value) for frame in frames for name, value in frame.values.items()]
        roots += [("an argument", each) for each in arguments]
        inside: list[Any] = []
        for _, value in (each for frame in frames for each in frame.globals()):
            if isinstance(value, type):
                self._note_class(value)
            elif isinstance(value, types.FunctionType) and not is_of_library(value.__module__):
                roots.append((value.__name__, value.__dict__))
                inside += [] if is_installed(value) else value.__closure__ or ()
        for path, value in roots:  # which classes append to
            for name, each in reachable.walk(value, path, self._enters):
                self._note(name.strip("."), each, inside)
        self.leftovers = Leftovers(*(value for _, value in roots), *inside)
        self._codes, self._further = {each.code for each in frames}, dict[Any, Reached]()

    def add(self, frame: Frame) -> None:
        """Note what code reaches that no earlier call has run, just before it runs."""
        key = frame.code, *(id(frame.values.get(name)) for name in frame.code.co_freevars)
        is_part = frame.code.co_qualname.startswith(FACTORY)  # of the function itself
        if not is_part and frame.code not in self._codes and key not in self._further:
            self._further[key] = Reached(None, [frame], ())

    def _enters(self, value: Any) -> bool:
        return len(self._kept) < _MOST and not isinstance(value, torch.nn.Module)

    def _note(self, path: str, value: Any, inside: list[Any]) -> None:
        if isinstance(value, torch.nn.Module | torch.Tensor):
            is_tensor = isinstance(value, torch.Tensor)
            for each in [value] if is_tensor else [*value.parameters(), *value.buffers()]:
                self._paths.setdefault(id(each.__dict__), f"{path}'s tensor")
                inside.append(each.__dict__)
        if isinstance(value, (*PLAIN, torch.Tensor)):
            return
        self._kept.append(value)
        if type(value) in (operator.attrgetter, operator.methodcaller):
            given: Any = value.__reduce__()[1]
            self.asked.update(*(name.split(".") for name in given if isinstance(name, str)))
        if isinstance(value, torch.nn.Module):
            self.modules.setdefault(id(value), (path, value))
        elif isinstance(value, torch.optim.Optimizer) and "param_groups" in vars(value):
            self.optimizers.setdefault(id(value), (path, value))
        elif isinstance(value, torch.amp.GradScaler) and not self.has(value):
            self.scalers.append(value)
        self._paths.setdefault(id(value), path)
        self._note_generator(path, value)
        kind: Any = value if isinstance(value, type) else type(value)
        self._note_class(kind)
        of_torch = str(kind.__module__).startswith(("torch.optim", "torch.amp"))
        holds_items = isinstance(value, dict | list | set | collections.deque)
        if (of_torch or holds_items) and kind is not value and kind.__dictoffset__:
            attributes = reachable.attributes_of(value)
            self._paths.setdefault(id(attributes), path)
            inside.append(attributes)

    def _note_class(self, kind: type) -> None:
        if kind not in self._classes and not is_of_library(kind.__module__):
            data = self._classes[kind] = _data_of(kind)
            static = {k: v.__func__ for k, v in vars(kind).items() if isinstance(v, staticmethod)}
            self._roots += [(f"{kind.__name__}.{k}", v) for k, v in {**data, **static}.items()]

    def _note_generator(self, path: str, value: Any) -> None:
        if type(value) is _CACHED:
            self._caches.append((path, value, value.cache_info().misses))
        elif attribute(value, "cache_info") and attribute(value, "cache_clear"):
            self._iterators.append((path, value))
        advances: Any = value
        if isinstance(advances, Iterator) and not isinstance(advances, io.IOBase):
            self._iterators.append((path, value))
        elif _has_content(value):
            self._contents.append((path, value, _content(value)))

    def _tensors(self) -> Iterator[torch.Tensor]:
        yield from tensors_of(before for _, _, before, _ in self._entries())
        yield from self.leftovers.tensors()

    def _entries(self) -> Iterator[tuple[Any, str, Any, Any]]:
        """Yield globals and attributes of classes: what has them, name, value before and now."""
        for space, name, before in self._globals:
            yield space, name, before, space.get(name, ABSENT)
        for kind, before in self._classes.items():
            now = _data_of(kind)
            for name in {**before, **now}:
                yield kind, name, before.get(name, ABSENT), now.get(name, ABSENT)

    def entries(self, place: Place) -> dict[int, Any]:
        """Return the tensors at a place by their memory; none if one cannot be an input."""
        found = dict[int, Entry]()
        with contextlib.suppress(LookupError):
            leaves, structure = _torch.flatten(value := place.get())
            for index, leaf in enumerate(leaves):
                if may_be_input(leaf) and not self.shares(leaf):
                    within = None if leaf is value else structure
                    found[_torch.memory_of(leaf)] = Entry(place, index, within)
                elif not isinstance(leaf, PLAIN):
                    return {}
        return found

    def shares(self, tensor: torch.Tensor) -> bool:
        """Return whether several entries hold a tensor, or others in its memory."""
        return self._memories[_torch.memory_of(tensor)] > 1

    @functools.cached_property
    def _memories(self) -> collections.Counter[int]:
        tensors = [each for each in self._tensors() if other_kind(each) is None]
        return collections.Counter(map(_torch.memory_of, tensors))

    def has(self, value: Any) -> bool:
        """Return whether an object was reached, before the call."""
        return id(value) in self._paths

    def refuse_iterators(self) -> None:
        """Refuse iterators, whose next value no program can ask for.

        Raises:
            CaptureError: the function names one.
        """
        for path, value in self._iterators:
            raise CaptureError(
                f"The function reaches {path}, an iterator or cache ({type(value).__name__}), and "
                "a program would repeat what it gave. Use it outside, and pass the value."
            )

    def _filled(self) -> Iterator[tuple[str, Any]]:
        """Yield the caches that have computed something since this object was made."""
        for path, cache, misses in self._caches:
            if cache.cache_info().misses != misses:
                yield path, cache

    def objects(self) -> Iterator[tuple[Any, dict[str, Any]]]:
        """Yield objects and classes, and their attributes before the capture."""
        yield from (*self.leftovers.objects(), *self._classes.items())

    @property
    def caches(self) -> list[Any]:
        """The caches of functions of the user's own."""
        return [cache for _, cache, _ in self._caches if not is_installed(cache.__wrapped__)]

    @property
    def streams(self) -> list[io.IOBase]:
        """The streams that may be written to."""
        return [each for _, each, _ in self._contents if isinstance(each, io.IOBase)]

    def _changed_contents(self) -> Iterator[tuple[str, Any, Any]]:
        """Yield the arrays and generators that have other numbers than before: path, it, before."""
        for path, value, before in self._contents:
            now = _content(value)
            same_bits = is_array(now) and now.tobytes() == before.tobytes()
            if not same_bits and (is_array(now) or repr(now) != repr(before)):
                yield path, value, before

    def names(self) -> Iterator[tuple[str, torch.Tensor, bool]]:
        """Yield the tensors of modules and optimizers: name, tensor, whether an optimizer's."""
        params: dict[int, str] = {}
        for path, module in self.modules.values():
            for name, value in (*module.named_parameters(), *module.named_buffers()):
                params.setdefault(id(value), f"{path}.{name}" if path else name)
                yield params[id(value)], value, False
        for path, optimizer in self.optimizers.values():
            for index, (param, state) in enumerate(optimizer.state.items()):
                name = params.get(id(param), f"{path}.{index}")
                for key, value in state.items():
                    if isinstance(value, torch.Tensor):
                        yield f"{name}.{key}", value, True

    def changes(self) -> tuple[list[Changed], list[Stored]]:
        """Return what has changed since this object was made, and which tensors were stored."""
        for (code, *_), further in self._further.items():
            named = {*self.modules, *self.optimizers} >= {*further.modules, *further.optimizers}
            if not named or any(further.changes()):
                name = code.co_qualname
                raise NotYetError(f"{name} changes or trains what no code of earlier calls names.")
        found = [Changed(path, "its content", "another") for path, *_ in self._changed_contents()]
        for path, _ in self._filled():
            raise NotYetError(
                f"The function calls {path} with arguments that its cache does not have yet, at "
                "every call. Call it outside, and pass its result."
            )
        stored: list[Stored] = []
        names = {id(space) for space, _, _ in self._globals}
        for holder, key, before, after in (*self._entries(), *self.leftovers.changes()):
            if same(before, after):
                continue
            is_mode = isinstance(holder, torch.nn.Module) and key == "training"
            is_flag = is_mode or key == "_opt_called"  # by which schedulers know of a first step
            overwritten = issubclass(type(before), Unread) and isinstance(after, PLAIN)
            place = place_of(holder, key, before, after)
            new = place is None and _is_traced(before, after) and _can_store(holder, before)
            if is_flag or overwritten or new:
                stored.append(Stored(holder, key, before, after))
            else:
                name = (holder if isinstance(holder, type) else type(holder)).__name__
                owner = self._paths.get(id(holder), name)
                path = key if id(holder) in names else _path(owner, holder, key)
                found.append(Changed(path, before, after, place))
        return found, stored

    def put_back(self) -> None:
        """Undo all changes of Python objects since this object was made."""
        for further in reversed(self._further.values()):
            further.put_back()
        for holder, key, before, now in [*self._entries()]:
            if before is not now:
                write(holder, key, before, now)
        self.leftovers.put_back()
        for _, cache in self._filled():  # with traced tensors, or what depends on such
            cache.cache_clear()
        for _, value, before in self._changed_contents():
            if is_array(value):
                value[...] = before
            elif isinstance(value, io.IOBase):
                position, end = before
                if value.seek(0, io.SEEK_END) > end:  # what was there before stays
                    value.truncate(end)
                value.seek(position)
            elif isinstance(value, np.random.Generator):
                value.bit_generator.state = before
            else:
                (value.setstate if isinstance(value, random.Random) else value.set_state)(before)


_CODE = (types.FunctionType, types.MemberDescriptorType, classmethod, staticmethod, property, type)


def _data_of(kind: type) -> dict[str, Any]:
    """Return the attributes of a class but for its code."""
    parts = vars(kind).items()
    return {k: part for k, part in parts if k[:2] != "__" and not isinstance(part, _CODE)}


def _path(owner: str, holder: Any, key: Any) -> str:
    if isinstance(holder, types.CellType):
        return owner or str(key)
    if isinstance(holder, dict | list):
        return f"{owner}[{key!r}]"
    return f"{owner}.{key}"


def may_be_input(value: Any) -> bool:
    """Return whether a value is a tensor that each call of a program may find elsewhere."""
    if type(value) not in KINDS or other_kind(value) is not None:
        return False
    is_lazy = value.is_conj() or value.is_neg()
    return not is_lazy and value.permute(by_strides(value)).is_contiguous()


def _is_traced(before: Any, value: Any) -> bool:
    """Return whether a value is a tensor or number of the trace, or a structure of such.

    Other numbers of a structure have to be those before: one may be counted by each call.
    """
    leaves, _ = _torch.flatten(value)
    traced = [isinstance(e, _torch.FakeTensor) or issubclass(type(e), Unread) for e in leaves]
    plain = [leaf for leaf, is_traced in zip(leaves, traced, strict=True) if not is_traced]
    if not any(traced) or not all(isinstance(leaf, PLAIN) for leaf in plain):
        return False
    old = [leaf for leaf in _torch.flatten(before)[0] if not isinstance(leaf, torch.Tensor)]
    return (
        before is None
        or before is ABSENT
        or (len(old) == len(plain) and all(map(same, old, plain)))
    )


def _can_store(holder: Any, before: Any) -> bool:
    if isinstance(holder, list):
        return before is ABSENT or isinstance(before, torch.Tensor)
    return not isinstance(holder, set | collections.deque)


def _short(value: Any) -> str:
    text = repr(value) if issubclass(type(value), PLAIN) else f"a {type(value).__name__}"
    return text if len(text) < 40 else f"{text[:36]} ..."


def are_same(now: Any, before: Any, of: Callable[[Any, Any], Any] = operator.is_) -> bool:
    """Return whether two collections have the same objects in the same order."""
    return len(now) == len(before) and all(map(of, now, before))


def same_reads(
    reads: Iterable[tuple[str, Any, Any]], values: Iterable[Any], by: str = "is"
) -> Callable[[], bool]:
    """Return a function that reads each value again and compares it, by identity or equality.

    It is generated: loops over lists take three times as long.

    Args:
        reads: an expression of an owner ``o`` and a key ``k``, the owner, and the key.
        values: what each of them gave.
        by: the operator, ``is`` or ``==``.
    """
    names: dict[str, Any] = {}
    tests: list[str] = []
    for i, ((text, owner, key), value) in enumerate(zip(reads, values, strict=True)):
        names |= {f"o{i}": owner, f"k{i}": key, f"v{i}": value}
        tests.append(f"{text.format(o=f'o{i}', k=f'k{i}')} {by} v{i}")
    return eval(f"lambda: {' and '.join(tests) or True}", names)


def same(before: Any, after: Any) -> bool:
    """Return whether a value is the same, or an equal plain one."""
    if before is after:
        return True
    if type(before) is type(after) is tuple:
        return are_same(before, after, of=same)
    if type(before) is not type(after) or not issubclass(type(before), PLAIN):
        return False
    has_zeros = isinstance(before, float) or type(before) in (np.float32, np.float16)
    return repr(before) == repr(after) if has_zeros else bool(before == after)


def form_of(value: Any) -> Any:
    """Return what code may decide by without reading a tensor: types, shapes and plain values."""
    if isinstance(value, torch.Tensor):
        return type(value), value.dtype, value.shape, value.device
    if isinstance(value, PLAIN):
        return type(value), value
    leaves, structure = _torch.flatten(value)
    is_leaf = any(each is value for each in leaves)
    return cast("Any", type(value)) if is_leaf else (structure, [*map(form_of, leaves)])


def holds_tensors(value: Any) -> bool:
    """Return whether tensors, modules or optimizers can be reached from an object."""
    kinds = (torch.Tensor, torch.nn.Module, torch.optim.Optimizer)

    def enters(part: Any) -> bool:
        return not isinstance(part, PLAIN)

    for count, (_, part) in enumerate(reachable.walk(value, "", enters)):
        if isinstance(part, kinds) or count > _MOST:
            return True
    return False


class Names:
    """Names and roles of the tensors that a function reaches."""

    def __init__(self, reached: Reached):
        self._known: dict[int, tuple[str, Role]] = {}
        for name, tensor, is_optimizers in reached.names():
            trained = isinstance(tensor, torch.nn.Parameter)
            role = Role.PARAMETER if trained else Role.BUFFER
            if is_optimizers:
                role = Role.OPTIMIZER_STATE
            self._known.setdefault(id(tensor), (name, role))
        self._taken: set[tuple[Role, str]] = set()

    def of(self, tensor: torch.Tensor) -> tuple[str, Role]:
        """Return a name that no other tensor of its role has, and the role."""
        trained = tensor.requires_grad and tensor.is_leaf
        default = f"tensor{len(self._taken)}", Role.PARAMETER if trained else Role.BUFFER
        name, role = self._known.get(id(tensor), default)
        while (role, name) in self._taken:
            name += "_"
        self._taken.add((role, name))
        return name, role
