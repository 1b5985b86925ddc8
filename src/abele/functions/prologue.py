"""Statements at the beginning of a function that compute numbers of Python.

    def step(x, y, it):                           def prologue(x, y, it): lr = get_lr(it); ...
        lr = get_lr(it)                           def rest(x, y):
        for group in optimizer.param_groups:  ->      loss = ...
            group["lr"] = lr                          loss.backward()
        loss = ...                                    optimizer.step()

The prologue runs as Python at each call, before a program of the rest is chosen. Other values of
its numbers need no other program then, except where the rest reads them. Both parts together are
the function, whether the rest is a program or not.
"""

from __future__ import annotations

import ast
import copy
import inspect
import types
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, cast

import numpy as np
import torch

from abele.containers import is_dict, is_list, is_sequence
from abele.functions.frames import PLAIN, Frame, attribute, is_of_library
from abele.functions.source import (
    DEFINITIONS,
    attributes,
    chain,
    compiled_like,
    definition,
    effects,
    loaded,
    outside,
    parsed,
    stored,
)
from abele.functions.state import holds_tensors

_NUMBER: Any = object()  # stands for a value of Python that is not known before a call
_GROUP: Any = object()  # stands for a parameter group of an optimizer
_UNSET: Any = object()
_PURE: Sequence[Any] = (
    *(abs, bool, divmod, enumerate, float, int, isinstance, len, max, min),
    *(pow, range, reversed, round, sorted, str, sum, zip),
)
_READS = frozenset({"get", "items", "keys", "values", "index", "count"})
# What statements that stay behind may change, and the prologue would see too early or late.
_NOT_READ = frozenset({"grad", "training", "data", "state", "__dict__"})
_UNSPLIT = frozenset({"locals", "vars", "eval", "exec", "dir", "globals"})
# Methods that set no numbers.
_LEFT_BEHIND = frozenset({"zero_grad", "train", "eval"})
_DEPTH, _MOST = 4, 16
_COMPUTED = (
    *(ast.BinOp, ast.UnaryOp, ast.BoolOp, ast.Compare, ast.IfExp, ast.List, ast.Dict),
    *(ast.JoinedStr, ast.FormattedValue),
)
_SIMPLE = (ast.Expr, ast.Assign, ast.AugAssign, ast.AnnAssign)
# What sets or reads numbers of optimizers.
_STEPS = frozenset({"step", "load_state_dict", "state_dict", "param_groups", "lr", "get_last_lr"})


class Prologue:
    """A function in two parts: numbers of Python, and the rest.

    Args:
        run: the first part; returns its variables.
        rest: the second part, a function of variables.
        names: of these variables, in their order.
    """

    def __init__(
        self, run: Callable[..., dict[str, Any]], rest: Callable[..., Any], names: Sequence[str]
    ):
        self._run, self.rest, self._names = run, rest, names

    def __call__(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[Any, ...]:
        """Run the first part; return the arguments of the second one."""
        variables = self._run(*args, **kwargs)
        return tuple(variables[name] for name in self._names)


def split(
    function: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    frames: Iterable[Frame] = (),
) -> Prologue | None:
    """Split the numbers of Python at the beginning of a function off; None if there are none.

    Args:
        function: a function or method whose source is at hand.
        args: by position, of a call; the kinds of its values decide what is split off.
        kwargs: by name.
        frames: the user's code that a call of it ran.
    """
    plain: Any = getattr(function, "__func__", function)
    if not isinstance(plain, types.FunctionType) or hasattr(plain, "__wrapped__"):
        return None
    tree = parsed(plain)
    kinds = (ast.Yield, ast.YieldFrom, ast.Await)
    inner = [] if tree is None else [each for part in tree.body for each in ast.walk(part)]
    if tree is None or loaded(tree) & _UNSPLIT or any(isinstance(each, kinds) for each in inner):
        return None
    try:
        bound = inspect.signature(function).bind(*args, **kwargs)
    except TypeError:  # the call itself will say so
        return None
    bound.apply_defaults()
    space = dict(bound.arguments)
    owner = getattr(function, "__self__", None)
    if owner is not None:
        space[plain.__code__.co_varnames[0]] = owner
    others = [each for each in frames if each.code is not plain.__code__]
    moved = _moved(tree.body, _Reader(plain, dict(space)), others)
    staying = [each for each in tree.body if each not in moved]
    changed = frozenset[str]().union(*map(effects, staying))
    if any(_makes_container(each) and stored(each) & changed for each in moved):
        moved = _moved(tree.body, _Reader(plain, space), others, changed)
    return _made(function, plain, tree, moved) if moved else None


def _moved(
    body: Sequence[ast.stmt],
    reader: _Reader,
    others: Sequence[Frame],
    changed: frozenset[str] = frozenset(),
) -> list[ast.stmt]:
    """Return the statements of the prologue.

    Args:
        body: statements of the function.
        reader: reads them in their order.
        others: code that they may call.
        changed: variables whose lists and dictionaries the rest changes, and therefore makes.
    """
    moved: list[ast.stmt] = []
    useful, calls = 0, False
    read, written = set[str](), set[str]()  # variables of the statements that stay behind
    for index, statement in enumerate(body):
        is_text = isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
        if is_text or isinstance(statement, ast.Global | ast.Nonlocal | ast.Pass):
            continue
        depends = attributes(statement) & written or effects(statement) & (read | written)
        reader.called.clear()
        reader.trains = False
        stays = depends or (_makes_container(statement) and stored(statement) & changed)
        free = not stays and reader.runs(statement)
        if free and calls:
            later = frozenset[str]().union(*map(_names, body[index:]))
            if not _is_independent(
                statement, reader, others, reader.before(others, read, later), read
            ):
                break
        if free:
            moved.append(statement)
            useful = useful if _is_unpacking(statement) else len(moved)
        elif isinstance(statement, _SIMPLE) and not _names(statement) & _STEPS:
            calls = True
            read |= _names(statement)
            known = attributes(statement) & _LEFT_BEHIND
            written |= stored(statement) if known else effects(statement)
        else:
            break
    return moved[:useful]


def _is_independent(
    statement: ast.stmt,
    reader: _Reader,
    others: Sequence[Frame],
    before: Sequence[Frame],
    read: set[str],
) -> bool:
    """Return whether a statement may run before others that call code.

    Args:
        statement: computes numbers of Python.
        reader: has read it, and functions that it calls.
        others: code that runs during a call of the whole function.
        before: that of these which may run before the statement.
        read: names and texts in the statements before it.
    """
    nodes = [each for tree in (statement, *reader.called.values()) for each in ast.walk(tree)]
    if any(isinstance(each, ast.Assert) for each in nodes):  # whose error comes after these calls
        return False
    changed = stored(statement) & reader.outer
    for each in nodes:
        if isinstance(each, ast.Global | ast.Nonlocal):
            changed |= {*each.names}
        if isinstance(each, ast.Attribute | ast.Subscript) and isinstance(each.ctx, ast.Store):
            keys = each.slice if isinstance(each, ast.Subscript) else ast.Pass()
            changed |= chain(each) | _names(keys)
    used = changed.union(*map(_names, nodes))
    codes = [each for each in others if each.code not in reader.called]
    if reader.trains and any(each.mentions(_STEPS) for each in before):
        return False
    inside = [changed.intersection(e.code.co_freevars) or e.mentions(changed) for e in codes]
    mentioned = changed & read or any(inside)
    return not mentioned and not any(each.sets() & used for each in codes)


def _names(node: ast.AST) -> frozenset[str]:
    """Return the variables, attributes and texts in a piece of code."""
    found = [each.value for each in ast.walk(node) if isinstance(each, ast.Constant)]
    return attributes(node) | effects(node) | {each for each in found if isinstance(each, str)}


def _makes_container(statement: ast.stmt) -> bool:
    return any(isinstance(each, ast.List | ast.Dict) for each in ast.walk(statement))


def _is_unpacking(statement: ast.stmt) -> bool:
    if not isinstance(statement, ast.Assign):
        return False
    variables = all(isinstance(each, ast.Name | ast.Tuple) for each in statement.targets)
    return variables and isinstance(statement.value, ast.Name | ast.Subscript | ast.Tuple)


def _made(
    function: Callable[..., Any],
    plain: types.FunctionType,
    tree: ast.FunctionDef,
    moved: Sequence[ast.stmt],
) -> Prologue | None:
    ids = set(map(id, moved))
    rest = [each for each in tree.body if id(each) not in ids] or [ast.Pass()]
    first = plain.__code__.co_varnames[:1] if isinstance(function, types.MethodType) else ()
    declared = [each for each in ast.walk(tree) if isinstance(each, ast.Global | ast.Nonlocal)]
    arguments = {each.arg for each in ast.walk(tree.args) if isinstance(each, ast.arg)} - {*first}
    set_before = arguments.union(*map(stored, moved)).difference(*(each.names for each in declared))
    names = sorted(name for name in set_before if _reads_first(name, rest))
    if not arguments.union(*map(_surely_stored, moved)).issuperset(names):
        return None
    returned = ast.Return(ast.Call(ast.Name("locals", ast.Load()), [], []))
    run = copy.copy(tree)
    run.name = "__abele_prologue"
    run.body = [*map(copy.deepcopy, declared), *moved, returned]
    remaining = definition(tree.name, [*first, *names], rest, tree)
    own = copy.deepcopy(remaining)
    made = compiled_like(plain, tree, [run, remaining], {})
    DEFINITIONS[made[1].__code__] = own
    parts: list[Callable[..., Any]] = [*made]
    if isinstance(function, types.MethodType):
        parts = [types.MethodType(each, function.__self__) for each in made]
    return Prologue(parts[0], parts[1], names)


def _surely_stored(statement: ast.stmt) -> set[str]:
    """Return the variables that a statement sets in any case."""
    if isinstance(statement, ast.If):
        body, other = (
            set[str]().union(*map(_surely_stored, block))
            for block in (statement.body, statement.orelse)
        )
        return body & other
    simple = isinstance(statement, ast.Assign | ast.AugAssign | ast.AnnAssign)
    return {*stored(statement)} if simple else set()


def _reads_first(name: str, body: Sequence[ast.stmt]) -> bool:
    """Return whether statements may read a variable before they set it."""
    for each in body:
        before: list[ast.AST] = [each]
        if isinstance(each, ast.For):
            before = [each.iter]
        elif isinstance(each, ast.Assign | ast.AnnAssign) and each.value is not None:
            before = [each.value]
        if any(name in loaded(part) for part in before):
            return True
        if isinstance(each, ast.For | ast.Assign | ast.AnnAssign) and name in stored(each):
            return isinstance(each, ast.For) and name not in stored(each.target)
        if name in stored(each) | loaded(each):
            return True
    return False


class _NotPlainError(Exception):
    """A piece of code does more than to compute with values of Python."""


class _Reader:
    """A reader of code that finds out whether it computes with values of Python only.

    Args:
        function: the code is of this function.
        space: its variables, as far as they are known: objects, or ``_NUMBER`` and ``_GROUP``.
        depth: how many functions may call each other.
        called: gets the functions that the code calls.

    Attributes:
        trains: the code reads or sets numbers of optimizers or schedulers.
    """

    def __init__(
        self,
        function: types.FunctionType,
        space: dict[str, Any],
        depth: int = _DEPTH,
        called: dict[types.CodeType, ast.FunctionDef] | None = None,
    ):
        self._function, self._space, self._depth = function, space, depth
        self.called = {} if called is None else called
        self.trains = False
        self.outer = {*function.__code__.co_names, *function.__code__.co_freevars}

    def runs(self, statement: ast.stmt) -> bool:
        """Return whether a statement of the decorated function can be part of the prologue."""
        before = dict(self._space)
        try:
            if any(isinstance(each, ast.Return) for each in ast.walk(statement)):
                return False
            self._statement(statement, nested=False)
        except _NotPlainError:
            self._space = before
            return False
        return True

    def before(
        self, frames: Sequence[Frame], first: Collection[str], last: Collection[str]
    ) -> list[Frame]:
        """Return the code that statements may call before others.

        Args:
            frames: the code that an earlier call of all of them ran.
            first: names in the statements.
            last: names in the others.
        """
        known = [*frames, *self._methods()]

        def reached(names: Collection[str]) -> set[str]:
            found, count = {*names}, -1
            while count < len(found):
                count = len(found)
                found.update(*(each.code.co_names for each in known if each.code.co_name in found))
            return found

        early, late = reached(first), reached(last)
        others = [each for each in frames if each.code.co_name not in late]
        found = [*others, *(each for each in known if each.code.co_name in early)]
        return [each for each in found if each.code not in self.called]

    def _methods(self) -> Iterator[Frame]:
        """Yield the user's methods of the objects that the function names."""
        named = [outside(self._function, name) for name in self.outer]
        kinds = {kind for value in (*self._space.values(), *named) for kind in type(value).__mro__}
        for kind in kinds:
            for each in () if is_of_library(kind.__module__) else vars(kind).values():
                if isinstance(each, types.FunctionType):
                    yield Frame(each.__code__, each.__globals__, {})

    def _block(self, body: Sequence[ast.stmt], *, nested: bool) -> None:
        for each in body:
            self._statement(each, nested=nested)

    def _statement(self, statement: ast.stmt, *, nested: bool) -> None:
        match statement:
            case ast.Assign():
                value = self.value(statement.value)
                for target in statement.targets:
                    self._store(target, value, nested=nested)
            case ast.AugAssign():
                self._number(statement.value)
                self._number(statement.target)
                self._store(statement.target, _NUMBER, nested=nested)
            case ast.AnnAssign() if statement.value is not None:
                self._store(statement.target, self.value(statement.value), nested=nested)
            case ast.Expr():
                self.value(statement.value)
            case ast.If():
                self._number(statement.test)
                self._block(statement.body, nested=True)
                self._block(statement.orelse, nested=True)
            case ast.For():
                for item in self._items(statement.iter):
                    self._store(statement.target, item, nested=False)
                    self._block(statement.body, nested=True)
                self._block(statement.orelse, nested=True)
            case ast.Return():
                if statement.value is not None:
                    self._number(statement.value)
            case ast.Assert():
                self._number(statement.test)
            case ast.Pass() | ast.Break() | ast.Continue() | ast.Global() | ast.Nonlocal():
                pass
            case _:
                raise _NotPlainError

    def _store(self, target: ast.expr, value: Any, *, nested: bool) -> None:
        """Set a variable, a number of a group or object, or an item of a container."""
        match target:
            case ast.Name():
                before = self._space.get(target.id, _NUMBER)
                if _is_plain(value):
                    value = _NUMBER if isinstance(value, PLAIN) else value
                if nested and value is not before and not (_is_plain(value) and _is_plain(before)):
                    raise _NotPlainError
                self._space[target.id] = value
            case ast.Tuple() | ast.List():
                for each, part in zip(target.elts, _parts(value, len(target.elts)), strict=True):
                    self._store(each, part, nested=nested)
            case ast.Subscript() if _is_plain(value):
                owner = self.value(target.value)
                if owner is _GROUP:
                    _key_of_group(target.slice)
                elif not (_is_plain(owner) and _is_plain(self.value(target.slice))):
                    raise _NotPlainError
            case ast.Attribute() if _is_plain(value):
                owner = self.value(target.value)
                if _is_plain(owner) or owner is _GROUP or target.attr in _NOT_READ:
                    raise _NotPlainError
                if _runs_code(cast("Any", type(owner)), target.attr):
                    raise _NotPlainError
                if not _is_plain(attribute(owner, target.attr) and self._of(owner, target.attr)):
                    raise _NotPlainError
            case _:
                raise _NotPlainError

    def _items(self, node: ast.expr) -> list[Any]:
        """Return what a loop goes over: one stand-in for all items, or the known objects."""
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and not node.keywords:
            parts = [self._items(each) for each in node.args]
            if node.func.id == "enumerate" and len(parts) == 1:
                return [(_NUMBER, each) for each in parts[0]]
            if node.func.id == "zip" and parts:
                return [tuple(each) for each in zip(*parts, strict=False)]
        value = self.value(node)
        if _is_groups(value):
            return [_GROUP]
        if is_sequence(value) and not _is_plain(value) and len(value) <= _MOST:
            return [*value]
        if not _is_plain(value):
            raise _NotPlainError
        return [_NUMBER]

    def _number(self, node: ast.expr) -> None:
        if not _is_plain(self.value(node)):
            raise _NotPlainError

    def value(self, node: ast.expr) -> Any:
        """Return the object of an expression, or a stand-in.

        Raises:
            _NotPlainError: it does more than to compute with values of Python.
        """
        match node:
            case ast.Constant():
                return node.value
            case ast.Name():
                return self._variable(node.id)
            case ast.Attribute():
                return self._of(self.value(node.value), node.attr)
            case ast.Subscript():
                return self._item(self.value(node.value), node.slice)
            case ast.Call():
                return self._call(node)
            case ast.Tuple() if isinstance(node.ctx, ast.Load):
                values = tuple(map(self.value, node.elts))
                return _NUMBER if all(map(_is_plain, values)) else values
            case _ if isinstance(node, _COMPUTED):
                for each in ast.iter_child_nodes(node):
                    if isinstance(each, ast.expr):
                        self._number(each)
                return _NUMBER
            case _:
                raise _NotPlainError

    def _variable(self, name: str) -> Any:
        value = self._space.get(name, _UNSET)
        if value is _UNSET and name in self.outer:
            value = outside(self._function, name, _UNSET)
        if value is _UNSET:
            raise _NotPlainError
        self._note(value)
        return value

    def _note(self, value: Any) -> None:
        optim = torch.optim.Optimizer, torch.optim.lr_scheduler.LRScheduler
        self.trains |= value is _GROUP or _is_groups(value) or isinstance(value, optim)

    def _of(self, owner: Any, name: str) -> Any:
        """Return an attribute of an object, read past descriptors."""
        self._note(owner)
        found = None if name in _NOT_READ or owner is _GROUP else attribute(owner, name)
        if found is None or _is_plain(owner):
            raise _NotPlainError
        value = found[1]
        if isinstance(value, types.FunctionType) and not isinstance(owner, types.ModuleType | type):
            return types.MethodType(value, owner)
        if isinstance(value, (property, staticmethod, classmethod, torch.Tensor)):
            raise _NotPlainError
        return value

    def _item(self, owner: Any, key: ast.expr) -> Any:
        if owner is _GROUP:
            _key_of_group(key)
            return _NUMBER
        if _is_groups(owner):
            self._number(key)
            return _GROUP
        if isinstance(key, ast.Constant) and isinstance(owner, dict | list | tuple):
            try:
                return owner[key.value]  # type: ignore[reportUnknownVariableType]
            except (LookupError, TypeError):
                raise _NotPlainError from None
        if not _is_plain(owner):
            raise _NotPlainError
        self._number(key)
        return _NUMBER

    def _call(self, node: ast.Call) -> Any:
        starred = any(isinstance(each, ast.Starred) for each in node.args)
        if starred or any(each.arg is None for each in node.keywords):
            raise _NotPlainError
        args = [self.value(each) for each in node.args]
        kwargs = {str(each.arg): self.value(each.value) for each in node.keywords}
        plain = all(map(_is_plain, (*args, *kwargs.values())))
        if isinstance(node.func, ast.Attribute) and node.func.attr in _READS:
            owner = self.value(node.func.value)
            if owner is _GROUP and node.func.attr == "get" and node.args:
                _key_of_group(node.args[0])
                return _NUMBER
            if _is_plain(owner) and plain:
                return _NUMBER
        function = self.value(node.func)
        if isinstance(function, types.MethodType):
            args, function = [function.__self__, *args], function.__func__
        if isinstance(function, types.FunctionType):
            return self._called(function, args, kwargs)
        known = isinstance(function, np.ufunc) or getattr(function, "__module__", "") == "math"
        if not plain or not (known or any(function is each for each in _PURE)):
            raise _NotPlainError
        return _NUMBER

    def _called(
        self, function: types.FunctionType, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> Any:
        """Read a function of the user's; return a stand-in for what it returns."""
        tree = parsed(function)
        if tree is None or not self._depth or loaded(tree) & _UNSPLIT:
            raise _NotPlainError
        try:
            bound = inspect.signature(function).bind(*args, **kwargs)
        except (TypeError, ValueError):
            raise _NotPlainError from None
        bound.apply_defaults()
        self.called[function.__code__] = tree
        inner = _Reader(function, dict(bound.arguments), self._depth - 1, self.called)
        inner._block(tree.body, nested=False)
        self.trains |= inner.trains
        return _NUMBER


def _runs_code(kind: Any, name: str) -> bool:
    """Return whether a class has code of its own for setting an attribute."""
    setter, descriptor = kind.__setattr__, inspect.getattr_static(kind, name, None)
    own = isinstance(setter, types.FunctionType) and setter is not torch.nn.Module.__setattr__
    is_slot = isinstance(descriptor, types.MemberDescriptorType)
    return own or (hasattr(descriptor, "__set__") and not is_slot)


def _is_plain(value: Any) -> bool:
    """Return whether a value is one of Python, without tensors and code of a user's."""
    if value is _NUMBER or isinstance(value, PLAIN):
        return True
    if value is _GROUP or callable(value) or _is_groups(value):
        return False
    containers = isinstance(value, dict | list | tuple | range | set)
    return containers and not holds_tensors(value)


def _is_groups(value: Any) -> bool:
    groups = value if is_list(value) else []
    return bool(groups) and all(is_dict(each) and "params" in each for each in groups)


def _key_of_group(key: ast.expr) -> None:
    if not isinstance(key, ast.Constant) or key.value == "params":
        raise _NotPlainError


def _parts(value: Any, count: int) -> Iterator[Any]:
    """Yield the items of a value that is unpacked."""
    if is_sequence(value) and len(value) == count:
        yield from value
    elif _is_plain(value):
        yield from [_NUMBER] * count
    else:
        raise _NotPlainError
