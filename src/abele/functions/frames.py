"""The user's code that runs during a call, with the objects that it names."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import datetime
import dis
import functools
import gc
import io
import itertools
import os
import re
import sys
import sysconfig
import time
import types
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Any, cast

import numpy as np
import torch

from abele import cpython, libraries
from abele.capture import reachable

#: Types whose values are compared, and not their identity.
PLAIN: tuple[Any, ...] = (
    *(type(None), bool, int, float, complex, str, bytes),
    *(torch.dtype, torch.device, torch.Size, np.generic),
)
#: The name of a function around the parts of one that is called in two parts.
FACTORY = "__abele_factory"
_MOST = 4000
_ENVIRONMENT = frozenset({"environ", "getenv"})
_BY_TEXT = frozenset({"eval", "exec", "globals"})
# Functions that read attributes by names that they are given.
_BY_NAME = {"vars", "attrgetter", "methodcaller", "__getattribute__", "__reduce_ex__"}
# Functions that read all attributes of their first argument, and copy stand-ins as numbers.
_COPYING = (copy.copy, copy.deepcopy, dataclasses.replace, dataclasses.asdict, dataclasses.astuple)
_COPIES = frozenset(each.__code__ for each in _COPYING)
_OF_METHODS = frozenset({"callable", "Callable", "Iterable", "Sized", "__len__", "__iter__"})
KEEPING = frozenset((*dir(tuple), *dir(frozenset), "copy", "get", "items", "keys", "values"))
#: Methods that change lists, dictionaries and sets.
CHANGING = frozenset((*dir(list), *dir(dict), *dir(set))) - KEEPING
#: Names by which code sets attributes that it computes the names of.
SETTING = frozenset({"setattr", "delattr", "vars", "__dict__", "__setattr__"})
_CLOCKS = frozenset(
    {"now", *(name for name in dir(time) if name.startswith(("time", "perf", "mono", "process")))}
)


@dataclasses.dataclass(frozen=True)
class Frame:
    """A call of a user's function: its code, its globals, and objects among its variables.

    Attributes:
        code: of the function.
        namespace: its globals.
        values: arguments and variables of enclosing functions that are no tensors, by name.
    """

    code: types.CodeType
    namespace: dict[str, Any]
    values: dict[str, Any]

    def roots(self) -> Iterator[tuple[str, Any]]:
        """Yield the objects that the code can start from, with the names that it uses."""
        yield from self.values.items()
        yield from self.globals()

    def globals(self) -> Iterator[tuple[str, Any]]:
        """Yield the globals that the code reads, and the modules that it imports."""
        variables, _, modules, _ = _loads(self.code)
        for name in variables:
            if name in self.namespace:
                yield name, self.namespace[name]
        for name in modules:
            inside = f"{self.namespace.get('__package__')}.{name}".rstrip(".")
            if found := sys.modules.get(name) or sys.modules.get(inside):
                yield name, found

    def builtins(self) -> frozenset[str]:
        """Return the globals that the code reads and its module does not have."""
        return _loads(self.code)[0] - self.namespace.keys()

    @property
    def attributes(self) -> frozenset[str]:
        """The names of attributes that the code reads, maybe by ``getattr`` or as keys."""
        variables, names, *_ = _loads(self.code)
        whole = not _BY_NAME.isdisjoint(variables | names) or self.code in _COPIES
        return names.union(("__dict__",) * whole, variables & {"AttributeError"})

    @property
    def optional(self) -> frozenset[str]:
        """The names by which the code may look for attributes that an object does not have."""
        variables, names, _, texts = _loads(self.code)
        return frozenset() if (variables | names).isdisjoint({"getattr", "hasattr"}) else texts

    def reads_clock(self) -> bool:
        """Return whether the code names a clock, the environment, or variables as text."""
        if _PACKAGES.search(self.code.co_filename):
            return False
        return not _BY_TEXT.isdisjoint(self.builtins()) or any(
            self._is_clock(value) for _, value in self.roots()
        )

    def _is_clock(self, value: Any) -> bool:
        if value is os.environ or value is os.getenv:
            return True
        if value is os:
            return bool(self.attributes & _ENVIRONMENT)
        if value is time or value is datetime or value is datetime.datetime:
            return bool(self.attributes & _CLOCKS)
        return getattr(value, "__module__", None) == "time" and callable(value)

    def reads_types(self) -> bool:
        """Return whether the code may ask for the exact type of a value, or for its methods."""
        variables, names, *_ = _loads(self.code)
        asks = _OF_METHODS & (variables | names) and not _PACKAGES.search(self.code.co_filename)
        return ("type" in variables or bool(asks)) and self.code not in _COPIES

    def reads(self) -> set[str]:
        """Return attributes and variables outside that the code reads, without called methods."""
        found = [e for e in dis.get_instructions(self.code) if "NULL|self" not in e.argrepr]
        kinds = ("LOAD_ATTR", "LOAD_GLOBAL", "LOAD_DEREF", "LOAD_NAME")
        return {str(each.argval) for each in found if each.opname.startswith(kinds)}

    def sets(self) -> set[str]:
        """Return the attributes and variables outside that the code sets, or may set items of."""
        found = [each for each in dis.get_instructions(self.code) if "FAST" not in each.opname]
        stores = [each for each in found if each.opname.startswith(("STORE_", "DELETE_"))]
        items = any("SUBSCR" in each.opname for each in stores)
        texts = [each for each in self.code.co_consts if isinstance(each, str)]
        holders = (*self.code.co_names, *self.code.co_freevars, *texts) if items else ()
        return {*(str(each.argval) for each in stores), *holders}

    def changes(self, read: frozenset[str], names: frozenset[str]) -> frozenset[str]:
        """Return which attributes and variables that other code reads this code may change.

        Args:
            read: what that code reads; methods that it calls are not among it.
            names: all names in it, without those that everybody uses.
        """
        found = [e for e in dis.get_instructions(self.code) if "FAST" not in e.opname]
        stores = [each for each in found if each.opname.startswith(("STORE_", "DELETE_"))]
        variables, attributes, *_ = _loads(self.code)
        own = attributes.union(variables, self.code.co_freevars)
        changes = own & CHANGING or any(e.opname.endswith(("SUBSCR", "SLICE")) for e in stores)
        sets = read.intersection(str(each.argval) for each in stores)
        sets |= {"attributes"} if own & SETTING else sets
        return sets | (own & names) if changes else sets

    def mentions(self, texts: frozenset[str]) -> bool:
        """Return whether the code has one of some names or string constants."""
        constants = {each for each in self.code.co_consts if isinstance(each, str)}
        return bool(texts & (constants | {*self.code.co_names}))

    def may_call(self, names: frozenset[str]) -> bool:
        """Return whether the code has one of some names, maybe as a text for ``getattr``."""
        return not names.isdisjoint(self.optional.union(self.code.co_names))


def codes(code: types.CodeType) -> Iterator[types.CodeType]:
    """Yield the code of a function and of what it defines, such as comprehensions."""
    yield code
    for each in code.co_consts:
        if isinstance(each, types.CodeType):
            yield from codes(each)


def uses(code: types.CodeType, name: str) -> set[str]:
    """Return the attributes that code asks a variable for; ``""`` for any other use."""
    variables = (*code.co_names, *code.co_varnames, *code.co_freevars, *code.co_cellvars)
    instructions = [*dis.get_instructions(code)] if name in variables else []
    instructions = [each for each in instructions if each.opname != "PUSH_NULL"]
    found = {
        str(after.argval) if after.opname.endswith(("_ATTR", "_METHOD")) else ""
        for each, after in itertools.pairwise(instructions)
        if "LOAD" in each.opname and name in re.findall(r"\w+", each.argrepr)
    }
    inner = [each for each in code.co_consts if isinstance(each, types.CodeType)]
    return found.union(*(uses(each, name) for each in inner))


@functools.cache
def _loads(code: types.CodeType) -> tuple[frozenset[str], ...]:
    """Return the globals and attributes that code reads or sets, its imports, and its texts."""
    every = variables, attributes, modules, texts = [set[str]() for _ in range(4)]
    before: Any = None
    for each in dis.get_instructions(code):
        if each.opname == "MATCH_CLASS":  # with names of attributes, and maybe others by position
            attributes |= {*before.argval, *("__dict__",) * bool(each.arg)}
        before = each
        if each.opname == "IMPORT_NAME":
            modules.add(str(each.argval))
        elif each.opname.endswith(("_GLOBAL", "_NAME")):
            variables.add(str(each.argval))
        elif each.opname.endswith(("_ATTR", "_METHOD", "IMPORT_FROM")):
            attributes.add(str(each.argval))
    for inner in code.co_consts:
        if isinstance(inner, str) and inner.isidentifier():
            texts.add(inner)
        if isinstance(inner, types.CodeType):
            for found, more in zip(every, _loads(inner), strict=True):
                found |= more
    return tuple(map(frozenset[str], (variables, attributes | texts, modules, texts)))


class Frames:
    """The frames of a user's code that were seen while functions were called.

    Args:
        own: code that is the user's wherever it comes from.

    Attributes:
        new: receives frames of other code before they run; None for no such function.
        asked: names that a ``__getattr__`` of theirs, or their ``getattr``, has been called with.
    """

    def __init__(self, own: types.CodeType | None):
        self.new: Callable[[Frame], None] | None = None
        self._own, self.asked = own, frozenset[str]()
        self._seen: dict[tuple[Any, ...], Frame] = {}
        self._library: dict[types.CodeType, bool] = {}
        self._called_at = dict[tuple[types.CodeType, int], set[types.CodeType]]()

    def __iter__(self) -> Iterator[Frame]:
        return iter(list(self._seen.values()))

    def watching(self) -> contextlib.AbstractContextManager[None]:
        """Note the functions that this thread calls in a ``with`` block."""
        return cpython.calls_passed_to(self._called, self._library)

    def called(self, code: types.CodeType, lines: Collection[int]) -> set[types.CodeType]:
        """Return the code that some lines of other code have run, at any depth."""
        found, todo = set[types.CodeType](), [(code, lines)]
        while todo:
            caller, at = todo.pop()
            calls = [codes for (c, n), codes in self._called_at.items() if c is caller and n in at]
            new = set[types.CodeType]().union(*calls) - found
            found |= new
            todo += [(each, range(sys.maxsize)) for each in new]
        return found

    def noting(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return ``getattr`` or ``hasattr`` that notes the names it gets, which code computes."""

        @functools.wraps(function)
        def call(owner: Any, name: str, *default: Any) -> Any:
            self.asked |= {name}
            return function(owner, name, *default)

        return call

    def _called(self, frame: types.FrameType, event: str, arg: Any) -> None:
        code = frame.f_code
        if code in _COPIES:
            if frame.f_back is not None and frame.f_back.f_code.co_filename != code.co_filename:
                self._note(frame, code.co_varnames[:1])
            return
        is_library = self._library.get(code)
        if is_library is None:
            file = code.co_filename
            is_library = file.startswith("<") and not _is_users(frame)
            collects = [getattr(each, "__code__", None) for each in gc.callbacks]
            is_library = is_library or code in collects or _is_of_library(file)
            is_library = code is not self._own and is_library
            self._library[code] = is_library
        if not is_library and len(self._seen) < _MOST and not _is_imported(frame):
            caller = frame.f_back
            while caller is not None and self._library.get(caller.f_code, True):
                caller = caller.f_back
            if caller is not None:
                self._called_at.setdefault((caller.f_code, caller.f_lineno), set()).add(code)
            self._note(frame)

    def _note(self, frame: types.FrameType, names: Sequence[str] = ()) -> None:
        if frame.f_code.co_name in ("__getattr__", "__getattribute__"):
            self.asked |= {each for each in frame.f_locals.values() if isinstance(each, str)}
        free = frame.f_code.co_freevars
        made = frame.f_code is not self._own  # an iterator that a helper is given is made inside
        values = {
            name: value
            for name, value in frame.f_locals.items()
            if not isinstance(value, torch.Tensor) and not name.startswith(".")
            if not names or name in names
            if not (made and name not in free and _iterates(value))
        }
        objects = [id(v) for v in values.values() if not isinstance(v, PLAIN)]
        key = (frame.f_code, *objects)
        if key not in self._seen:
            kept = {n: v for n, v in values.items() if n in free or not isinstance(v, PLAIN)}
            self._seen[key] = found = Frame(frame.f_code, frame.f_globals, kept)
            if made and self.new is not None:
                self.new(found)


def _iterates(value: Any) -> bool:
    return isinstance(value, Iterator) and not isinstance(value, io.IOBase)


_STDLIB = sysconfig.get_path("stdlib") + os.sep
# Installed packages, of this interpreter or of others whose packages it sees.
_PACKAGES = re.compile(r"[\\/](site|dist)-packages[\\/]")
# Those that torch and this project call, whose numbers no result depends on.
_OPAQUE = re.compile(
    _PACKAGES.pattern + r"((tqdm|numpy|sympy|filelock)[\\/]|typing_extensions\.py)"
)


def is_installed(function: Any) -> bool:
    """Return whether a function's source file belongs to an installed package."""
    code = getattr(function, "__code__", None)
    return code is not None and _PACKAGES.search(code.co_filename) is not None


def is_of_python(file: str) -> bool:
    """Return whether a source file is Python's own."""
    return file.startswith((_STDLIB, "<frozen")) and not _PACKAGES.search(file)


def _is_of_library(file: str) -> bool:
    """Return whether a source file is torch's, this project's or Python's own."""
    own = is_of_python(file) or _OPAQUE.search(file) is not None
    return own or libraries.has_file(file)


def _is_users(frame: types.FrameType) -> bool:
    """Return whether code without a file is the user's: typed in a console or a notebook."""
    name = str(frame.f_globals.get("__name__", ""))
    generated = frame.f_code.co_filename.startswith(("<frozen", "<eval_with_key", "<torch"))
    known = name.startswith("namedtuple_") or is_of_library(name)
    return bool(name) and not generated and not known


def _is_imported(frame: types.FrameType) -> bool:
    """Return whether code runs because a module is being imported."""
    current: types.FrameType | None = frame
    while current is not None:
        if current.f_code.co_filename.startswith("<frozen importlib"):
            return True
        current = current.f_back
    return False


def global_names(frames: Iterable[Frame]) -> Iterator[tuple[dict[str, Any], str, Any]]:
    """Yield the globals that code names and that hold data: namespace, name, value."""
    seen: set[tuple[int, str]] = set()
    for frame in frames:
        for name, value in frame.globals():
            key = (id(frame.namespace), name)
            if key not in seen:
                seen.add(key)
                if not isinstance(value, types.ModuleType | types.FunctionType | type):
                    yield frame.namespace, name, value


def attribute(value: Any, name: str) -> tuple[Any, Any] | None:
    """Return what has an attribute of an object, and its value; None if the object lacks it.

    A dictionary has it, a class, or the object itself in a slot.
    """
    if isinstance(value, types.ModuleType):
        space = vars(value)
        return (space, space[name]) if name in space else None
    own = {} if isinstance(value, type) else reachable.attributes_of(value)
    if name in own:
        return own, own[name]
    owner: Any = value if isinstance(value, type) else type(value)
    kind: Any = next((kind for kind in owner.__mro__ if name in vars(kind)), None)
    found = cast("Any", None if kind is None else vars(kind)[name])
    if isinstance(found, types.MemberDescriptorType) and owner is not value:
        with contextlib.suppress(AttributeError):  # not set
            return value, found.__get__(value)
        return None
    return None if kind is None else (kind, found)


def is_of_library(module: str | None) -> bool:
    """Return whether a module is torch's, this project's or Python's own; None is no module."""
    top = (module or "").partition(".")[0]
    own = top in sys.stdlib_module_names and top != "__main__"
    return own or top == "numpy" or libraries.has_module(module or "")
