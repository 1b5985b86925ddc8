"""Division of a function into a traced part and statements of the host.

A program repeats tensor operations only. Statements of the decorated function that read numbers,
print, or change lists, counters and schedulers run after it; see ``host``. A function whose traced
part needs what such a statement computes is not divided.
"""

from __future__ import annotations

import ast
import copy
import logging
import sys
import types
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from typing import Any, TypeGuard, cast

import torch

from abele.containers import is_list
from abele.errors import CaptureError
from abele.functions.frames import SETTING, Frame, Frames, is_of_library, uses
from abele.functions.host import RETURNED, Held, Host
from abele.functions.source import (
    OF_EVERYBODY,
    Names,
    attributes,
    chain,
    chains,
    changed_expressions,
    changed_fields,
    compiled_like,
    definition,
    effects,
    fields,
    loaded,
    outside,
    parsed,
    reason_to_wait,
    root,
    stored,
)
from abele.functions.state import holds_tensors

_METHODS = frozenset({"item", "tolist", "numpy", "get_last_lr"})
_FUNCTIONS = frozenset({"float", "int", "bool", "round", "str"})
_RECORD = "__abele_record"
_HELD = "__abele_held"
_HOISTED = "__abele_value_"
_DRAWS = frozenset(
    ("rand", "randn", "randint", "randperm", "rand_like", "randn_like", "bernoulli", "multinomial")
)
_METHODS_OF_DATA = frozenset((*dir(torch.Tensor), *dir(list), *dir(dict), *dir(str), *dir(set)))
_BACKWARD = frozenset({"backward", "autograd", "requires_grad_"})
#: Names of code that a statement of the host does not run.
TRAINING = _BACKWARD | _DRAWS | {"step", "zero_grad", "dropout"}
_UNKNOWN: Any = object()
_SIMPLE = (ast.Expr, ast.Assign, ast.AugAssign, ast.AnnAssign, ast.Return, ast.Delete, ast.Assert)
_LEAVES = (ast.Return, ast.Raise, ast.Assert, ast.Break, ast.Continue)
_CONDITIONAL = (
    *(ast.Lambda, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp),
    *(ast.IfExp, ast.BoolOp),
)
_UNDIVIDED = (ast.Yield, ast.YieldFrom, ast.Await)


def divide(
    function: Callable[..., Any],
    lines: Mapping[int, bool],
    changed: Collection[str],
    frames: Frames,
    *,
    defers: bool = False,
) -> Host | None:
    """Divide a function; None if every statement is traced.

    Args:
        function: a function or method whose source is at hand.
        lines: those at which tracing has failed because a value was read, and whether functions
            that they call may change what they are given.
        changed: names of attributes and variables whose objects calls change.
        frames: the user's code that earlier calls of it ran.
        defers: numbers of tensors get stand-ins, so that a statement that reads one is traced.

    Raises:
        CaptureError: the traced part depends on a statement of the host.
    """
    plain = getattr(function, "__func__", function)
    if not isinstance(plain, types.FunctionType):
        return None
    wrapped = getattr(plain, "__wrapped__", None)
    if isinstance(wrapped, types.FunctionType):

        def inside(part: Callable[..., Any]) -> Host | None:
            return divide(part, lines, changed, frames, defers=defers)

        return _divided_inside(function, plain, wrapped, inside)
    tree = parsed(plain)
    if tree is None or any(isinstance(each, _UNDIVIDED) for each in ast.walk(tree)):
        return None
    owner = getattr(function, "__self__", None)
    divided = _Division(plain, tree, lines, frozenset(changed), frames, owner, defers)
    return divided.made(function) if divided.hosts else None


def _divided_inside(
    function: Callable[..., Any],
    wrapper: types.FunctionType,
    wrapped: types.FunctionType,
    divided: Callable[..., Host | None],
) -> Host | None:
    """Divide a function below a decorator such as ``torch.no_grad()``, which calls it."""
    owner = getattr(function, "__self__", None)
    host = divided(wrapped if owner is None else types.MethodType(wrapped, owner))
    if host is None:
        return None
    part: Any = getattr(host.remaining, "__func__", host.remaining)
    cells = [_cell_of(cell, wrapped, part) for cell in wrapper.__closure__ or ()]
    if cells == list(wrapper.__closure__ or ()):
        return None  # the decorator keeps the function elsewhere
    made = types.FunctionType(
        wrapper.__code__, wrapper.__globals__, wrapper.__name__, wrapper.__defaults__, tuple(cells)
    )
    made.__kwdefaults__ = wrapper.__kwdefaults__
    host.remaining = made if owner is None else types.MethodType(made, owner)
    return host


def _cell_of(cell: types.CellType, old: object, new: object) -> types.CellType:
    try:
        return types.CellType(new) if cell.cell_contents is old else cell
    except ValueError:
        return cell


class _Division:
    """The classification of a function's statements, and the two parts made of it."""

    def __init__(
        self,
        function: types.FunctionType,
        tree: ast.FunctionDef,
        lines: Mapping[int, bool],
        changed: Names,
        frames: Frames,
        owner: Any,
        defers: bool,
    ):
        self._function, self._tree, self._defers = function, tree, defers
        self._lines, self._changed, self._frames = lines, changed, frames
        code = function.__code__
        self._locals = {*code.co_varnames, *code.co_cellvars}
        self._owner, self._self_name = owner, code.co_varnames[0] if owner is not None else ""
        self._found: dict[int, ast.stmt] = {}
        self.held_at: dict[int, Names] = {}  # by the id of each statement
        self._walk(tree.body, set())

    @property
    def hosts(self) -> list[ast.stmt]:
        """The statements of the host, in their order."""
        return sorted(self._found.values(), key=lambda each: (each.lineno, each.col_offset))

    # -- which statements are the host's --------------------------------------------------------

    def _walk(self, body: Sequence[ast.stmt], held: set[str]) -> bool:
        """Find the host's statements in a block; return whether all of it is the host's.

        Args:
            body: statements in order.
            held: variables that the host has set so far; changed.
        """
        whole = True
        for each in body:
            self.held_at[id(each)] = frozenset(held)
            is_host = self._is_host(each, held)
            whole = whole and is_host
            if is_host:
                held |= self.set_by(each)
            elif isinstance(each, _SIMPLE):
                held -= stored(each)
        return whole

    def _is_host(self, statement: ast.stmt, held: set[str]) -> bool:
        if isinstance(statement, _SIMPLE):
            changes = self._effects(statement) & self._changed or self._writes_elsewhere(statement)
            if self._reads(statement, held) or changes or self._overwrites(statement):
                self._found[id(statement)] = statement
                return True
            return False
        if isinstance(statement, ast.Pass | ast.Continue | ast.Break):
            return True
        if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            return False
        before = dict(self._found)
        conditional = isinstance(statement, ast.If | ast.For | ast.While) or self._wraps(statement)
        if isinstance(statement, ast.If) and self._depends(statement.test, held):
            self._found[id(statement)] = statement
            return True
        whole, after, loops = True, set(held), isinstance(statement, ast.For | ast.While)
        for name in ("body", "orelse", "finalbody"):
            inside = set(after if loops else held)
            for _ in range(1 + loops):  # what a turn leaves, the next one finds
                whole = self._walk(getattr(statement, name, []), inside) and whole
            after |= inside
        if conditional and whole and len(self._found) > len(before):
            self._found = {**before, id(statement): statement}
            return True
        held |= after
        return False

    def _wraps(self, node: ast.AST) -> TypeGuard[ast.With]:
        """Return whether a ``with`` block may do something around statements of the host."""
        items = node.items if isinstance(node, ast.With) else []
        made = [each.context_expr for each in items]
        found = [self._value(each.func if isinstance(each, ast.Call) else each) for each in made]
        known = [each for each in found if each is not _UNKNOWN and each is not nullcontext]
        others = [each for each in known if not isinstance(each, nullcontext)]
        return any(str(getattr(each, "__module__", ""))[:6] != "torch." for each in others)

    def _depends(self, node: ast.AST, held: set[str]) -> bool:
        """Return whether code reads a value, or what the host has read."""
        if loaded(node) & held or self._failed(node):
            return True
        found = [each for each in ast.walk(node) if _is_reading(each)]
        return not all(self._defers and _is_item(each) for each in found)

    def _reads(self, statement: ast.stmt, held: set[str]) -> bool:
        if self._depends(statement, held):
            return True
        if isinstance(statement, ast.Return) and _looks_up(statement):
            changed = frozenset[str]().union(*map(self._effects, self._found.values()))
            return bool(attributes(statement) & (changed - self._locals))
        return False

    def _failed(self, statement: ast.AST) -> list[bool]:
        """Return for each failed line of a statement whether functions may change arguments."""
        ends: Any = statement
        lines = range(ends.lineno, (ends.end_lineno or ends.lineno) + 1)
        return [self._lines[line] for line in lines if line in self._lines]

    def _given(self, statement: ast.AST) -> set[str]:
        """Return the names of objects that functions are given and may change."""
        if not any(self._failed(statement)):
            return set()
        calls = [each for each in ast.walk(statement) if isinstance(each, ast.Call)]
        given = [*(a for e in calls for a in e.args), *(k.value for e in calls for k in e.keywords)]
        return {
            part for each in given for part in (*chain(each), root(each, ast.Subscript)) if part
        }

    def _effects(self, statement: ast.AST) -> Names:
        """Return the names of objects that a statement may change."""
        return effects(statement) | self._given(statement)

    def _overwrites(self, statement: ast.stmt) -> bool:
        """Return whether a statement sets what an earlier statement of the host reads."""
        sets = changed_fields(statement)
        reads = (fields(self._without_tensors(each)) for each in self._found.values())
        return bool(sets) and any(map(sets.intersection, reads))

    def _writes_elsewhere(self, statement: ast.stmt) -> bool:
        """Return whether a statement calls a method of a list, file, logger or the like."""
        call = statement.value if isinstance(statement, ast.Expr) else None
        if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Attribute):
            return False
        receiver = call.func.value
        value = (
            self._value(receiver) if isinstance(receiver, ast.Name | ast.Attribute) else _UNKNOWN
        )
        called = [each.func for each in ast.walk(call) if isinstance(each, ast.Call)]
        of_data = all(isinstance(e, ast.Attribute) and e.attr in _METHODS_OF_DATA for e in called)
        if self._defers and of_data and is_list(value):  # which gets what the program computes
            return uses(self._function.__code__, "".join(chain(receiver))) != {"append"}
        if value is _UNKNOWN or isinstance(value, types.ModuleType):
            return value is logging or value is warnings
        return type(value).__module__.partition(".")[0] in sys.stdlib_module_names - {"__main__"}

    def set_by(self, statement: ast.stmt) -> Names:
        """Return the variables that a statement sets, or whose containers it changes."""
        changed = {root(each, ast.Subscript) for each in changed_expressions(statement)}
        own = changed & (self._locals - {self._self_name})
        given = self._given(statement) & (self._locals - {self._self_name})
        return (stored(statement) & self._locals) | own | given

    # -- what forbids a division ------------------------------------------------------------------

    def _check(self) -> list[bool]:
        """Return whether each statement of the host comes after everything traced."""
        late = self._late(self._tree.body, following=False)
        traced = [*_statements(self._tree.body, self.hosts)]
        names = frozenset[str]().union(*map(attributes, traced))
        read = frozenset[str]().union(*map(fields, traced))
        for code in self._called(traced):
            frame = Frame(code, {}, {})
            names, read = names | frame.attributes, read | frame.reads()
        for each in self.hosts:
            if attributes(each) & _BACKWARD:
                raise self._refusal(each.lineno, "computes gradients with the value of a tensor")
            if attributes(each) & _DRAWS:
                raise self._refusal(
                    each.lineno, "draws random numbers besides those of the program"
                )
            if not late[id(each)]:
                self._check_early(each, names, read)
                self._check_early_code(each, names - OF_EVERYBODY, read)
            self._require_no_training(each)
        for each in ast.walk(self._tree):
            if isinstance(each, ast.Try) and self.hosts:
                raise self._refusal(each.lineno, "is a try, in a function with numbers of tensors")
            inside = {id(part) for part in ast.walk(each)} & {*self._found} - {id(each)}
            if inside and self._wraps(each):
                text = ast.unparse(each.items[0].context_expr)
                raise self._refusal(
                    each.lineno, f"trains and reads numbers under {text}. Read them behind it"
                )
        return [late[id(each)] for each in self.hosts]

    def _check_early(self, statement: ast.stmt, names: Names, read: Names) -> None:
        """Check a statement that has to run later than where it stands."""
        inside = [each for each in ast.walk(statement) if isinstance(each, _LEAVES)]
        if any(not isinstance(each, ast.Return) or each is not statement for each in inside):
            raise self._refusal(statement.lineno, "ends the call early by the value of a tensor")
        changed = (self._effects(statement) - self._locals) & names
        if changed or changed_fields(statement) & read or attributes(statement) & SETTING:
            raise self._refusal(statement.lineno, "changes an object that is read afterwards")
        rest = self._without_tensors(statement)
        for each in ast.walk(rest):
            if isinstance(each, ast.Call):
                self._check_early_call(each, names)
                owner = getattr(self._value(each.func), "__self__", None)
                if isinstance(owner, torch.optim.lr_scheduler.LRScheduler):
                    raise self._refusal(each.lineno, "steps a scheduler before the step ends")
        for each in chains(rest):
            value = self._value(each)
            is_local = root(each) in self._locals - {self._self_name}
            if value is _UNKNOWN and (is_local or root(each).startswith(_HOISTED)):
                continue  # its value is looked at when the statement is recorded
            if value is _UNKNOWN or holds_tensors(value) or self._is_of_state(each):
                raise self._refusal(
                    statement.lineno,
                    f"uses {ast.unparse(each)} before the function goes on to change it",
                )

    def _without_tensors(self, statement: ast.stmt) -> ast.AST:
        """Return a statement without the tensor expressions that it reads, which are traced."""
        hoist = self.hoist(0, statement)
        return hoist.visit(copy.deepcopy(statement)) if type(statement) in _SIMPLE else statement

    def hoist(self, index: int, statement: ast.stmt) -> _Hoist:
        """Return what moves the tensor expressions of a statement to the traced part."""
        sets = Names().union(*map(changed_fields, self.hosts))
        return _Hoist(index, self.held_at[id(statement)], sets)

    def _called(self, nodes: Iterable[ast.AST]) -> set[types.CodeType]:
        """Return the code that some statements have run."""
        found: list[Any] = [getattr(each, "context_expr", each) for each in nodes]
        lines = {n for e in found for n in range(e.lineno, (e.end_lineno or e.lineno) + 1)}
        return self._frames.called(self._function.__code__, lines)

    def _check_early_code(self, statement: ast.stmt, names: Names, read: Names) -> None:
        """Check the code that runs in a statement, such as methods behind operators."""
        for code in self._called([statement]):
            changes = sorted(Frame(code, {}, {}).changes(read, names))
            if changes:
                what = f"{code.co_qualname}, which may change {', '.join(changes)} that the step"
                raise self._refusal(statement.lineno, f"runs {what} reads. Put it behind the step")

    def _check_early_call(self, call: ast.Call, names: Names) -> None:
        """Check what a statement calls that has to run later than where it stands."""
        called, what = self._value(call.func), ast.unparse(call.func)
        if called is _UNKNOWN:
            is_method = isinstance(call.func, ast.Attribute) and call.func.attr in _METHODS_OF_DATA
            reason = None if is_method else "is not known"
        else:
            reason = reason_to_wait(called, names)
        if reason is not None:
            raise self._refusal(
                call.lineno,
                f"calls {what} with a number before the rest of the step, and {what} {reason}. Put "
                "the statement behind the step",
            )

    def _require_no_training(self, statement: ast.stmt) -> None:
        """Refuse a statement that calls a module and reads numbers of it, or that trains."""
        rest = self._without_tensors(statement)
        for each in ast.walk(rest):
            called = self._value(each.func) if isinstance(each, ast.Call) else None
            code = getattr(getattr(called, "__func__", called), "__code__", None)
            own = isinstance(code, types.CodeType) and not is_of_library(str(called.__module__))
            trains = own and Frame(cast("Any", code), {}, {}).may_call(TRAINING)
            if trains or isinstance(getattr(called, "__self__", None), torch.optim.Optimizer):
                raise self._refusal(statement.lineno, "trains with values of tensors")
            if isinstance(called, torch.nn.Module) and self._failed(statement):
                text = ast.unparse(each)
                raise self._refusal(
                    statement.lineno,
                    f"computes {text} and reads numbers of it. Give {text} a line of its own",
                )

    def _is_of_state(self, node: ast.expr) -> bool:
        """Return whether a chain of attributes leads through a module or an optimizer."""
        while isinstance(node, ast.Attribute):
            node = node.value
            is_self = isinstance(node, ast.Name) and node.id == self._self_name
            value = None if is_self else self._value(node)
            if isinstance(value, torch.nn.Module | torch.optim.Optimizer):
                return True
        return False

    def _value(self, node: ast.expr) -> Any:
        """Return the object of a chain of attributes as far as it is known before a call."""
        if isinstance(node, ast.Attribute):
            owner = self._value(node.value)
            return _UNKNOWN if owner is _UNKNOWN else getattr(owner, node.attr, _UNKNOWN)
        if not isinstance(node, ast.Name):
            return _UNKNOWN
        if node.id == self._self_name:
            return self._owner
        return _UNKNOWN if node.id in self._locals else outside(self._function, node.id)

    def _late(self, body: Sequence[ast.stmt], *, following: bool) -> dict[int, bool]:
        result: dict[int, bool] = {}
        for each in reversed(body):
            if id(each) in self._found:
                result[id(each)] = not following or isinstance(each, ast.Return)
                continue
            loops = isinstance(each, ast.For | ast.While)
            for name in ("body", "orelse", "finalbody"):
                block = getattr(each, name, [])
                result |= self._late(block, following=following or loops)
            changed = frozenset[str]().union(*map(self._effects, self.hosts)) - self._locals
            checks = isinstance(each, ast.Assert) and not changed.isdisjoint(attributes(each))
            following = following or checks or not _computes_nothing(each)
        return result

    def _refusal(self, line: int, what: str) -> CaptureError:
        file = self._function.__code__.co_filename
        return CaptureError(f"The statement at {file}:{line} {what}.")

    # -- the two parts ----------------------------------------------------------------------------

    def made(self, function: Callable[..., Any]) -> Host:
        """Return the function in two parts.

        Raises:
            CaptureError: the traced part depends on a statement of the host.
        """
        late = self._check()
        declared = [e for e in ast.walk(self._tree) if isinstance(e, ast.Global | ast.Nonlocal)]
        writer = _Writer(self, self._locals, declared)
        traced = copy.copy(self._tree)
        traced.body = writer.block(self._tree.body)
        lines = {name: each.lineno for each in self.hosts for name in self._effects(each)}
        rest = [*_statements(self._tree.body, self.hosts)]
        changed = Names(lines) - Names().union(*map(attributes, rest))
        sets = Names().union(*map(changed_fields, self.hosts)) - Names().union(*map(fields, rest))
        outside = {n: lines[n] for n in changed - self._locals | sets}
        own = changed - outside.keys()
        host = Host(lambda: None, [], late, own, outside, sets, [], self._self_name)
        functions = compiled_like(
            self._function,
            self._tree,
            [traced, *writer.functions],
            {_RECORD: host.record, _HELD: Held},
        )
        if isinstance(function, types.MethodType):
            host.remaining = types.MethodType(functions[0], function.__self__)
        else:
            host.remaining = functions[0]
        host.statements = functions[1:]
        return host


class _Writer:
    """Writes the traced part of a function and the functions of the host's statements."""

    def __init__(
        self,
        division: _Division,
        variables: Collection[str],
        declared: Sequence[ast.Global | ast.Nonlocal],
    ):
        self._division = division
        self._index = {id(each): index for index, each in enumerate(division.hosts)}
        self._locals, self._declared = {*variables}, declared
        self._by_index: dict[int, ast.FunctionDef] = {}

    @property
    def functions(self) -> list[ast.FunctionDef]:
        """The functions of the host's statements, in their order."""
        return [self._by_index[index] for index in sorted(self._by_index)]

    def block(self, body: Sequence[ast.stmt]) -> list[ast.stmt]:
        """Return a block with the host's statements recorded."""
        result: list[ast.stmt] = []
        for each in body:
            if id(each) in self._index:
                result += self._recorded(each)
                continue
            fields = dict(ast.iter_fields(each))
            for name in ("body", "orelse", "finalbody"):
                if isinstance(fields.get(name), list) and not isinstance(
                    each, ast.FunctionDef | ast.ClassDef
                ):
                    old = fields[name]
                    fields[name] = self.block(old) or ([ast.Pass()] if old else [])
            result.append(ast.copy_location(type(each)(**fields), each))
        return result

    def _recorded(self, statement: ast.stmt) -> list[ast.stmt]:
        """Return what the traced part has in place of a statement of the host."""
        index = self._index[id(statement)]
        hoist = self._division.hoist(index, statement)
        new = statement
        if isinstance(statement, _SIMPLE):
            new = hoist.visit(copy.deepcopy(statement))
        own = {*self._locals, *(name for name, _ in hoist.values)}
        names = sorted(loaded(new) & own)
        # A loop's own variables may not be set yet.
        values = ast.parse(f"{{n: v for n, v in locals().items() if n in {names!r}}}").body[0]
        given = [ast.Constant(index), cast("ast.Expr", values).value]
        call = ast.Call(ast.Name(_RECORD, ast.Load()), given, keywords=[])
        self._by_index[index] = self._function(index, new, names)
        lines: list[ast.stmt] = [
            *(ast.Assign([ast.Name(name, ast.Store())], value) for name, value in hoist.values),
            ast.Expr(call),
        ]
        for name in sorted(self._division.set_by(statement)):
            line = ast.Constant(statement.lineno)
            held = ast.Call(ast.Name(_HELD, ast.Load()), [ast.Constant(name), line], keywords=[])
            lines.append(ast.Assign([ast.Name(name, ast.Store())], held))
        if isinstance(statement, ast.Return):
            lines.append(ast.Return(ast.Constant(None)))
        return [ast.fix_missing_locations(ast.copy_location(each, statement)) for each in lines]

    def _function(self, index: int, statement: ast.stmt, names: Sequence[str]) -> ast.FunctionDef:
        body = [_Returns().visit(copy.deepcopy(statement))]
        written = stored(statement)
        declared = [
            type(each)([name]) for each in self._declared for name in each.names if name in written
        ]
        result = ast.Return(ast.Call(ast.Name("locals", ast.Load()), [], []))
        arguments = [f"{name}=None" for name in names]
        return definition(f"__abele_host_{index}", arguments, [*declared, *body, result], statement)


class _Returns(ast.NodeTransformer):
    """Replaces ``return value`` by a dictionary that says so."""

    def visit_Return(self, node: ast.Return) -> ast.Return:
        value = node.value or ast.Constant(None)
        found = ast.Dict([ast.Constant(RETURNED)], [value])
        return ast.copy_location(ast.Return(found), node)

    def visit(self, node: ast.AST) -> Any:
        """Visit a node, but not the functions inside, whose returns are their own."""
        return node if isinstance(node, ast.FunctionDef | ast.Lambda) else super().visit(node)


class _Hoist(ast.NodeTransformer):
    """Moves the tensor expressions whose values a statement reads to the traced part."""

    def __init__(self, index: int, held: Names, sets: Names):
        self._index, self._held, self._sets = index, held, sets
        self.values: list[tuple[str, ast.expr]] = []

    def visit(self, node: ast.AST) -> Any:
        """Visit a node, but not what is computed under a condition, or repeatedly."""
        return node if isinstance(node, _CONDITIONAL) else super().visit(node)

    def visit_Call(self, node: ast.Call) -> ast.AST:
        """Hoist the tensor of a call that reads a value."""
        call: Any = node
        is_method = isinstance(node.func, ast.Attribute) and _is_reading(node)
        if not is_method and not _is_conversion(node):
            return self.generic_visit(node)
        operand: ast.expr = call.func.value if is_method else call.args[0]
        inner = any(_is_reading(each) for each in ast.walk(operand))
        bare = isinstance(operand, ast.Name | ast.Constant)
        if bare or inner or loaded(operand) & self._held or fields(operand) & self._sets:
            return self.generic_visit(node)
        name = f"{_HOISTED}{self._index}_{len(self.values)}"
        self.values.append((name, operand))
        value = ast.copy_location(ast.Name(name, ast.Load()), operand)
        if is_method:
            call.func.value = value
        else:
            call.args[0] = value
        return node


def _looks_up(statement: ast.Return) -> bool:
    """Return whether a statement returns an item or attribute, and computes nothing."""
    kinds = (ast.expr_context, ast.Name, ast.Attribute, ast.Subscript, ast.Constant, ast.Tuple)
    value = statement.value
    return value is not None and all(isinstance(each, kinds) for each in ast.walk(value))


def _is_detached(node: ast.AST) -> bool:
    """Return whether a node is part of a method call that only passes a tensor's value on."""
    called = node.func if isinstance(node, ast.Call) and not node.args else node
    return isinstance(called, ast.Attribute) and called.attr in ("detach", "clone", "cpu", "item")


def _computes_nothing(statement: ast.stmt) -> bool:
    """Return whether a statement only returns variables, checks something, or does nothing."""
    if isinstance(statement, ast.Return) and statement.value is not None:
        kinds = (ast.Name, ast.Tuple, ast.Dict, ast.List, ast.Constant, ast.Load)
        return all(isinstance(e, kinds) or _is_detached(e) for e in ast.walk(statement.value))
    return isinstance(statement, ast.Pass | ast.Return | ast.Assert)


def _is_reading(node: ast.AST) -> bool:
    """Return whether an expression reads the value of a tensor, or prints."""
    if isinstance(node, ast.Subscript):  # a number of an optimizer
        key = node.slice.value if isinstance(node.slice, ast.Constant) else None
        return isinstance(node.ctx, ast.Load) and key == "lr"
    if not isinstance(node, ast.Call):
        return False
    if isinstance(node.func, ast.Attribute):
        return node.func.attr in _METHODS and not node.args
    return isinstance(node.func, ast.Name) and node.func.id == "print"


def _is_item(node: ast.AST) -> bool:
    function = node.func if isinstance(node, ast.Call) else None
    return isinstance(function, ast.Attribute) and function.attr == "item"


def _is_conversion(node: ast.Call) -> bool:
    is_name = isinstance(node.func, ast.Name) and node.func.id in _FUNCTIONS
    return is_name and len(node.args) == 1 and not node.keywords


def _statements(body: Sequence[ast.stmt], hosts: Sequence[ast.stmt]) -> Iterator[ast.AST]:
    """Yield the simple statements and conditions of a block that are not the host's."""
    ids = {id(each) for each in hosts}
    for each in body:
        if id(each) in ids:
            continue
        blocks = [name for name in ("body", "orelse", "finalbody") if getattr(each, name, None)]
        if not blocks or isinstance(each, ast.FunctionDef | ast.ClassDef):
            yield each
            continue
        for name, value in ast.iter_fields(each):
            if name in blocks:
                yield from _statements(value, hosts)
            else:
                parts: list[Any] = value if is_list(value) else [value]
                for part in parts:
                    if isinstance(part, ast.expr | ast.withitem):
                        yield part
