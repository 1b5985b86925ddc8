"""Guards: the values of Python that a captured program depends on.

The user's code names globals, variables of enclosing functions and attributes. Their values are
noted when a call is captured; the program serves later calls while they are the same. Attributes of
modules are watched instead: setting one, or adding a hook, counts up a number that each call
compares.
"""

from __future__ import annotations

import builtins
import collections
import contextlib
import functools
import gc
import itertools
import math
import operator
import sys
import types
import weakref
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Any, cast

import torch
from torch.utils.hooks import RemovableHandle

from abele import _torch
from abele._torch import scaling
from abele._torch.contexts import around_step
from abele._torch.replaced import original_of
from abele.capture import reachable
from abele.capture.leftovers import ABSENT, tensors_of
from abele.containers import is_array, is_dict, is_list, is_sequence, parts_of
from abele.errors import CaptureError
from abele.functions.frames import PLAIN, Frames, attribute, is_of_library, uses
from abele.functions.state import are_same, same, same_reads
from abele.functions.varying import Place, Unread

_MOST_ITEMS, _MOST_PARTS = 4096, 16
_DEPTH = 8
_STRUCTURES = (torch.Tensor, tuple, list, dict)
_PARTS = ("_parameters", "_buffers", "_modules")
_values_of: Callable[[Any], Iterable[Any]] = dict[str, Any].values
_items_of: Callable[[Any], Any] = dict[Any, Any].items
_forward_of = operator.attrgetter("forward")
_WITHOUT_FIELDS = (types.ModuleType, types.FunctionType, type)
_METHODS: Any = (types.FunctionType, staticmethod, classmethod, property)
_OF_CODE = ("__code__", "__defaults__", "__kwdefaults__")
_code_of = operator.attrgetter(*_OF_CODE)


class _Watch:
    """Changes of watched modules since this process began.

    Attributes:
        changes: the number of attributes set, parts registered and hooks added or removed.
    """

    def __init__(self):
        self.changes = 0
        self._modules: weakref.WeakSet[torch.nn.Module] = weakref.WeakSet()
        self._installed = False

    def add(self, modules: Iterable[torch.nn.Module]) -> None:
        """Watch modules from now on."""
        if not self._installed:
            self._install()
        self._modules.update(modules)

    def _install(self) -> None:
        self._installed = True
        for kind, name in (
            (torch.nn.Module, "__setattr__"),
            (torch.nn.Module, "__delattr__"),
            (RemovableHandle, "__init__"),
            (RemovableHandle, "remove"),
        ):
            setattr(kind, name, self._counting(kind, getattr(kind, name)))

    def _counting(self, kind: type, original: Callable[..., Any]) -> Callable[..., Any]:
        is_module = kind is torch.nn.Module

        @functools.wraps(original)
        def counting(owner: Any, *args: Any, **kwargs: Any) -> Any:
            if not is_module or owner in self._modules:
                self.changes += 1
            return original(owner, *args, **kwargs)

        return counting


WATCH = _Watch()


class Guards:
    """The values of Python that a program depends on.

    Args:
        function: the user's function.
        frames: the user's code that the captured call ran.
        modules: modules that it reached.
        tensors: the tensors of its state, whose hooks the program has.
        optimizers: those that it reached.
        left_out: attributes that only the host's part of the function changes; see ``host``.
        variables: variables of the function whose lists and dictionaries it changes.
        stored: entries of objects that each call sets to a tensor: ``id`` of the object, key.
        caches: of functions; what a program has taken from one stays while it computes nothing.
        free: numbers that a call may have any value of.
        scalers: objects of ``torch.amp.GradScaler`` that it reached.
    """

    def __init__(
        self,
        function: Any,
        frames: Frames,
        modules: Iterable[torch.nn.Module],
        tensors: Sequence[torch.Tensor],
        optimizers: Sequence[torch.optim.Optimizer],
        left_out: frozenset[str] = frozenset(),
        variables: frozenset[str] = frozenset(),
        stored: frozenset[tuple[int, Any]] = frozenset(),
        caches: Iterable[Any] = (),
        free: Collection[Place] = (),
        scalers: Iterable[Any] = (),
    ):
        self.free = [*free]
        self._left_out, self._variables = left_out, variables
        self._stored = stored | {each.id for each in free}
        self._caches = [(each.cache_info, each.cache_info()) for each in caches]
        self._held = collections.defaultdict[int, set[Any]](set)  # keys that are not compared
        for owner, key in self._stored:
            self._held[owner].add(key)
        self._tensors, self._optimizers, self._frames = tensors, optimizers, frames
        self._places: list[tuple[str, Place]] = []
        self._functions: set[types.FunctionType] = set()  # whose code may be exchanged
        self._absent: dict[tuple[int, str], list[Any]] = {}  # what would hide compared entries
        self._unnamed: dict[tuple[int, str], Any] = {}  # entries that no code names, by owner
        self._containers: list[tuple[str, Any, Any]] = []
        self._modules: dict[int, torch.nn.Module] = {}
        self._paired: set[tuple[int, str]] = set()  # entries of objects that are compared
        # Entries whose attributes of some names are compared, and containers whose items' are.
        self._followed: set[tuple[Any, ...]] = set()
        self._contained: dict[int, Any] = {}  # parts of containers that are compared, kept alive
        for module in modules:
            self._add_module(module)
        for space in map(reachable.attributes_of, scalers):
            for name in scaling.SETTINGS & space.keys():
                self._add_pair(space, name, space[name], f"{name[1:]} of a GradScaler")
        self._find(function)
        self._hidden = [(space, key[1]) for key, each in self._absent.items() for space in each]
        self._values = [*map(original_of, self._now())]
        self._of_modules, self._hooks = dict(self._module_values()), self._hooks_now()
        self._watch_modules(function)

    def _watch_modules(self, function: Any) -> None:
        """Note the parts of modules, and the functions that run, for comparisons."""
        WATCH.add(self._modules.values())
        self._changes = WATCH.changes
        spaces = map(reachable.attributes_of, self._modules.values())
        parts = [space[name] for space in spaces for name in _PARTS if name in space]
        self._dictionaries = [each for each in parts if id(each) not in self._held]
        partly = [each for each in parts if id(each) in self._held]
        self._beside = [Place(d, k) for d in partly for k in d if k not in self._held[id(d)]]
        self._kinds = [*dict.fromkeys(map(type, self._modules.values()))]
        for each in (getattr(function, "__func__", function), *map(_forward_of, self._kinds)):
            self._add_function(each)
        self._dictionaries += [f.__kwdefaults__ for f in self._functions if f.__kwdefaults__]
        self._beside += [Place(owner, name) for (_, name), owner in self._unnamed.items()]
        spaces = (vars(p.holder) if isinstance(p.holder, type) else p.holder for p in self._beside)
        self._found = [(s.get, p.key) for s, p in zip(spaces, self._beside, strict=True)]
        self._written = _torch.versions_of(self._dictionaries)
        self._versions, self._parts = self._written(), [*map(original_of, self._parts_now())]
        reads: list[Any] = [("{o}({k})", get, key) for get, key in self._found]
        reads += [("{o}.forward", kind, None) for kind in self._kinds]
        reads += [(f"{{o}}.{name}", f, None) for f in self._functions for name in _OF_CODE]
        others = self._parts[len(self._parts) - len(reads) :]
        reads += [each.read for _, each in self._places]
        self._has_same_objects = same_reads(reads, [*others, *self._values])

    def hold(self) -> bool:
        """Return whether every value is as it was when the call was captured."""
        if self._changes != WATCH.changes:
            if self._changed_module() is not None or self._hooks_now() != self._hooks:
                return False
            self._changes = WATCH.changes
        try:
            versions = self._written()
            is_known = versions == self._versions and self._has_same_objects()
            if not is_known and not self._are_equal(versions):
                return False
            if [name for space, name in self._hidden if name in space]:
                return False
            if self._caches and any(_is_refilled(info(), was) for info, was in self._caches):
                return False
            # Generators take longer than what an empty list needs.
            return not self._containers or all(
                self._snapshot(value) == saved for _, value, saved in self._containers
            )
        except (AttributeError, KeyError, RuntimeError, ValueError):  # a name that is no more
            return False

    def _are_equal(self, versions: list[Any]) -> bool:
        """Return whether all parts of modules are the same, and all values equal."""
        now = [*map(original_of, self._now())]  # another thread may trace
        pairs = zip(self._values, now, strict=True)
        if not all(a is b or same(a, b) for a, b in pairs) or not self._has_same_parts():
            return False
        self._versions = versions
        return True

    def difference(self) -> str | None:
        """Return the first value that differs, in words; None if all are the same."""
        changed = self._changed_module()
        if changed is not None:
            return changed
        if self._hooks_now() != self._hooks:
            return "a hook has been added or removed"
        owners = [name for name, _ in self._places]
        with contextlib.suppress(KeyError):
            for owner, before, now in zip(owners, self._values, self._now(), strict=True):
                if not same(before, now):
                    return f"{owner} was {before!r:.40} and is {now!r:.40}"
        for owner, value, saved in self._containers:
            if self._snapshot(value) != saved:
                return f"the contents of {owner} have changed"
        if any(_is_refilled(info(), before) for info, before in self._caches):
            return "a cache of a function has other contents"
        hiding = [name for space, name in self._hidden if name in space]
        return f"{hiding[0]} has been set" if hiding else None

    def changed(self) -> list[Place]:
        """Return the numbers that differ; none if something else but tensors differs, too."""
        found = [each for each in self._different() if not isinstance(each[2], _STRUCTURES)]
        numbers = all(type(a) is type(b) and type(b) in (int, float) for _, a, b in found)
        return [p for p, *_ in found] if numbers and self._hooks_now() == self._hooks else []

    def replaced(self, trained: Collection[int]) -> list[Place]:
        """Return places of other tensors, or of structures, but not of those with some ``id``."""
        found = [each for each in self._different() if isinstance(each[2], _STRUCTURES)]
        return [place for place, before, _ in found if id(before) not in trained]

    def compared(self) -> set[int]:
        """Return the ``id`` of each tensor that is compared, which code may find to be another."""
        parts = (part for items in self._contained.values() for _, part in items)
        found = tensors_of((*self._values, *self._of_modules.values(), *self._parts, *parts))
        return {*map(id, found)}

    def _different(self) -> Iterator[tuple[Place, Any, Any]]:
        """Yield the values that differ: their place, the value before and now, or ``ABSENT``."""
        pairs = list(zip([place for _, place in self._places], self._values, strict=True))
        for (key, name), before in self._of_modules.items():
            space = reachable.attributes_of(self._modules[key])
            if name in space and name not in _PARTS:
                pairs.append((Place(space, name), before))
        if len(self._parts_now()) == len(self._parts):
            of_modules = [*(Place(d, key) for d in self._dictionaries for key in d), *self._beside]
            pairs += zip(of_modules, self._parts, strict=False)
        for _, value, saved in self._containers:
            now = self._snapshot(value)
            if not (is_dict(value) or is_list(value)) or len(now) != len(saved):
                continue
            keys = list(value) if is_dict(value) else range(len(saved))
            items = zip(keys, saved, now, strict=True)
            pairs += [
                (Place(value, key), (value[key] if a == b else _plain_of(a))) for key, a, b in items
            ]
        for place, before in pairs:
            now: Any = ABSENT
            with contextlib.suppress(LookupError):
                now = place.get()
            if not same(before, now):
                yield place, before, now

    def _now(self) -> list[Any]:
        return [place.get() for _, place in self._places]

    def _hooks_now(self) -> list[Any]:
        hooks = itertools.chain(*map(around_step, self._optimizers))
        of_optimizers = [each for each in hooks if not _torch.is_own(each)]
        of_tensors = [_torch.hooks_of(tensor) for tensor in self._tensors]
        return [of_optimizers, *of_tensors, *_torch.global_hooks()]

    def _has_same_parts(self) -> bool:
        now = self._parts_now()  # while another thread may trace
        return are_same(now, self._parts) or are_same([*map(original_of, now)], self._parts)

    def _parts_now(self) -> list[Any]:
        """Return the parts of modules, which torch also puts there without setting attributes.

        And the ``forward`` of their classes, the code of functions, which a reload exchanges, and
        what code uses without a name of its own, such as ``__call__`` and builtins.
        """
        flat = itertools.chain.from_iterable
        parts = [*flat(map(_values_of, self._dictionaries))]
        parts += [get(key) for get, key in self._found]
        parts += map(_forward_of, self._kinds)
        return [*parts, *flat(map(_code_of, self._functions))]

    def _changed_module(self) -> str | None:
        now = dict(self._module_values())
        for (path, name), before in self._of_modules.items():
            if not same(before, now.get((path, name))):
                return f"{name} of a {type(self._modules[path]).__name__} has changed"
        if not self._has_same_parts():
            return "a module has other parameters, buffers or children, or a function other code"
        return None if len(now) == len(self._of_modules) else "a module has other attributes"

    def _module_values(self) -> Iterator[tuple[tuple[int, str], Any]]:
        for key, module in self._modules.items():
            for name, value in reachable.attributes_of(module).items():
                keys = {(key, name), (id(reachable.attributes_of(module)), name)}
                if name in self._left_out or keys & self._stored:
                    continue
                if name in _PARTS:
                    yield (key, name), id(value)
                elif is_dict(value):
                    if id(value) not in self._held:
                        content = list(value) if name.endswith("_hooks") else len(value)
                        yield (key, f"{name} ({content})"), len(value)
                else:
                    yield (key, name), value

    def _add_module(self, module: torch.nn.Module) -> None:
        for each in module.modules():
            self._modules.setdefault(id(each), each)

    def _add_function(self, value: Any) -> None:
        if isinstance(value, types.FunctionType) and not is_of_library(str(value.__module__)):
            self._functions.add(value)

    def _add_pair(self, space: Any, name: str, value: Any, owner: str) -> None:
        key = (id(space), name)
        self._add_function(value)
        if key in self._paired or name in self._left_out or _stands_in(value):
            return
        methods = types.FunctionType | types.MethodDescriptorType
        is_method = isinstance(space, type) and isinstance(value, methods)
        of_library = is_method and is_of_library(getattr(value, "__module__", None) or "torch")
        if key in self._stored or of_library:
            return
        self._paired.add(key)
        self._places.append((owner, Place(space, name)))

    def _follow(self, path: str, value: Any, names: frozenset[str], depth: int) -> None:
        """Add the attributes of an object that the code may read."""
        has_attributes = may_have_attributes(value)
        if depth == 0 or (isinstance(value, PLAIN) and not has_attributes) or _stands_in(value):
            return
        if parts_of(value) is not None:
            self._add_container(path, value, names, depth)
        self._add_methods(value if isinstance(value, type) else type(value))
        is_module = isinstance(value, torch.nn.Module)
        if is_module:
            self._add_module(value)
        elif isinstance(value, torch.Tensor):
            names = names.intersection(value.__dict__)
        elif isinstance(value, torch.optim.Optimizer) and not has_attributes:
            names &= {"step", "zero_grad"}
        elif not has_attributes:
            return
        elif isinstance(value, types.FunctionType):
            names |= {"registry"}  # of functools.singledispatch
        if "__dict__" in names and not (is_module or isinstance(value, _WITHOUT_FIELDS)):
            self._add_container(path, reachable.attributes_of(value), names, depth)
        fields = _names_of(value) if "__dict__" in names else ()
        for name in names.union(fields) - {"__dict__"}:
            found = attribute(value, name)
            if found is None and ("AttributeError" in names or name in self._optional):
                self._add_absent(value, name)
            if found is None or name in self._left_out or (id(value), name) in self._stored:
                continue
            space, part = found
            if isinstance(space, type) and (id(value), name) not in self._absent:
                kinds: Any = (value if isinstance(value, type) else type(value)).__mro__
                index = kinds.index(space)
                hiding = [*map(vars, kinds[:index]), reachable.attributes_of(value)]
                self._absent[id(value), name] = hiding
                for base in kinds[index + 1 :]:  # which super() finds
                    if name in vars(base):
                        self._add_pair(base, name, vars(base)[name], f"{base.__name__}.{name}")
            if not is_module or space is not reachable.attributes_of(value):
                self._add_pair(space, name, part, f"{path}.{name}")
            if (id(space), name, names) not in self._followed:
                self._followed.add((id(space), name, names))
                self._follow(f"{path}.{name}", part, names, depth - 1)

    def _add_absent(self, value: Any, name: str) -> None:
        """Add an attribute that the code has looked for, and an object does not have."""
        kinds = (value if isinstance(value, type) else type(value)).__mro__
        spaces = [*map(vars, kinds), reachable.attributes_of(value)]
        self._absent[id(value), name] = [each for each in spaces if name not in each]

    def _add_methods(self, kind: type) -> None:
        """Add the methods of a user's class that operators, or torch's backward, call."""
        for each in kind.__mro__ if may_have_attributes(kind) else ():
            called = issubclass(cast("Any", each), torch.autograd.Function)
            for name, value in vars(each).items() if may_have_attributes(each) else ():
                if isinstance(value, _METHODS) and (called or name[:2] == "__"):
                    self._unnamed[id(each), name] = each
                    self._add_function(value)

    def _find(self, function: Any) -> None:
        """Add the variables and attributes that the user's code may read."""
        self._optional = self._frames.asked.union(*(each.optional for each in self._frames))
        for name, cell in cells_of(function, self._frames):
            if name not in self._left_out:
                self._add_pair(cell, "cell_contents", cell.cell_contents, name)
        for frame in self._frames:
            for name in frame.builtins():
                self._absent[id(frame.namespace), name] = [frame.namespace]
                self._unnamed[id(builtins), name] = vars(builtins)
            for name, value in frame.roots():
                if frame.namespace.get(name, frame) is value:
                    self._add_pair(frame.namespace, name, value, name)
                elif sys.modules.get(name) is value:
                    self._unnamed[id(sys.modules), name] = sys.modules
                self._follow(name, value, frame.attributes | self._frames.asked, _DEPTH)
        names = self._frames.asked.union(*(frame.attributes for frame in self._frames))
        of_modules = (t for m in self._modules.values() for t in m.parameters(recurse=False))
        for value in (*self._tensors, *of_modules, *self._now()):
            if isinstance(value, torch.Tensor):
                self._follow("a tensor", value, names, _DEPTH)

    def _add_container(self, path: str, value: Any, names: frozenset[str], depth: int) -> None:
        if path in self._variables or path.rpartition(".")[2] in self._left_out:
            return
        key = (id(value), names)
        if key in self._followed or self._only_appends(path, value):
            return
        self._followed.add(key)
        parts = parts_of(value) or []
        size = value.size if is_array(value) else len(parts)
        if size > _MOST_ITEMS:
            raise CaptureError(
                f"The function reaches {path}, which has {size} values of Python. A program "
                f"depends on those that it was captured with, and at most {_MOST_ITEMS} are "
                "compared at each call. Make it a tensor, or pass what is needed of it."
            )
        if id(value) not in self._contained:
            self._contained[id(value)] = parts
            self._containers.append((path, value, self._snapshot(value)))
        for item, part in self._contained[id(value)]:
            self._follow(f"{path}[{item!r}]", part, names, depth - 1)

    def _only_appends(self, path: str, value: Any) -> bool:
        """Return whether the code at most adds traced values to a list, and reads nothing of it."""
        added = self._held.get(id(value), ())
        if not is_list(value) or min(added, default=len(value)) < len(value):
            return False
        name = path.rpartition(".")[2]
        return set[str]().union(*(uses(each.code, name) for each in self._frames)) == {"append"}

    def _snapshot(self, value: Any) -> Any:
        """Return the items of a container: plain ones by value, others by identity."""
        held = self._held.get(id(value), ())
        if is_list(value):
            return [index in held or _item(part) for index, part in enumerate(value)]
        parts = _items_of(value) if cast("Any", type(value)) is dict else parts_of(value)
        return [(key, key in held or _item(part)) for key, part in parts or ()]


def cells_of(function: Any, frames: Frames) -> Iterator[tuple[str, types.CellType]]:
    """Yield the variables of enclosing functions that executed code reads, by name."""
    codes = {frame.code for frame in frames if frame.code.co_freevars}
    plain = getattr(function, "__func__", function)
    functions = [plain] if isinstance(plain, types.FunctionType) else []
    if codes - {each.__code__ for each in functions}:  # nothing leads from a frame to its function
        referrers = gc.get_referrers(*codes)
        functions += [each for each in referrers if isinstance(each, types.FunctionType)]
    seen: set[int] = set()
    for each in functions:
        for name, cell in zip(each.__code__.co_freevars, each.__closure__ or (), strict=True):
            if id(cell) not in seen and name != "__class__":
                seen.add(id(cell))
                with contextlib.suppress(ValueError):  # not assigned
                    _ = cell.cell_contents
                    yield name, cell


def may_have_attributes(value: Any) -> bool:
    """Return whether users may change attributes of an object, or functions of a module."""
    if isinstance(value, types.ModuleType):
        return value.__name__.partition(".")[0] == "torch" or not is_of_library(value.__name__)
    if isinstance(value, type):
        return not is_of_library(value.__module__)
    if isinstance(value, types.FunctionType):
        return bool(value.__dict__) and not is_of_library(value.__module__)
    return reachable.has_attributes(value)


def _names_of(value: Any) -> set[str]:
    """Return the names of slots, and of data in a user's class, of an object or class."""
    kinds = (value if isinstance(value, type) else type(value)).__mro__
    parts = [part for kind in kinds if may_have_attributes(kind) for part in vars(kind).items()]
    return {name for name, part in parts if name[:2] != "__" and not isinstance(part, _METHODS)}


def _is_refilled(now: Any, before: Any) -> bool:
    """Return whether a cache has computed something, or was cleared: then its counts restart."""
    return now.misses != before.misses or now.hits < before.hits


def _plain_of(item: Any) -> Any:
    """Return the number of an item of a snapshot; None if it is another one."""
    value: Any = item
    while is_sequence(value) and value:
        value = value[-1]
    return value if type(value) in (int, float) else None


def _stands_in(value: Any) -> bool:
    return issubclass(type(value), Unread)


def _item(value: Any) -> Any:
    kind = cast("Any", type(value))
    if kind is float and not value:
        return kind, math.copysign(1, value), value
    if kind in PLAIN or (isinstance(value, PLAIN) and not _stands_in(value)):
        return kind, value
    if is_sequence(value) and type(value) is tuple and len(value) <= _MOST_PARTS:
        return [_item(part) for part in value]
    return id(value)
