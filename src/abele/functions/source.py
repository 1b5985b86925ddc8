"""Source of functions as syntax trees: what code reads, sets and changes, and new functions."""

from __future__ import annotations

import ast
import builtins
import copy
import dis
import inspect
import math
import textwrap
import types
import weakref
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, cast

import torch

from abele.functions.frames import CHANGING, FACTORY, KEEPING, is_installed, is_of_library

#: Definitions of functions that no file has.
DEFINITIONS = weakref.WeakKeyDictionary[types.CodeType, ast.FunctionDef]()
#: Variables and attributes.
Names = frozenset[str]


def parsed(function: types.FunctionType) -> ast.FunctionDef | None:
    """Return the definition of a function; None if its source is not at hand."""
    if function.__code__ in DEFINITIONS:
        return copy.deepcopy(DEFINITIONS[function.__code__])
    try:
        source, first = inspect.getsourcelines(function.__code__)
        tree = ast.parse(textwrap.dedent("".join(source)))
    except (OSError, TypeError, SyntaxError):
        return None
    found = tree.body[0] if tree.body else None
    if not isinstance(found, ast.FunctionDef) or found.name != function.__code__.co_name:
        return None
    if any(map(_is_mangled, ast.walk(found))):
        return None  # a class gives these other names
    ast.increment_lineno(tree, first - 1)
    found.decorator_list = []
    return found


def _is_mangled(node: ast.AST) -> bool:
    name = node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")
    return str(name).startswith("__") and not str(name).endswith("__")


def outside(function: types.FunctionType, name: str, default: Any = None) -> Any:
    """Return a variable of enclosing functions, a global or a builtin; a default if not set."""
    cells = dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=True))
    if name not in cells:
        return function.__globals__.get(name, getattr(builtins, name, default))
    try:
        return cells[name].cell_contents
    except ValueError:
        return default


def compiled_like(
    function: types.FunctionType,
    tree: ast.FunctionDef,
    definitions: Sequence[ast.FunctionDef],
    values: Mapping[str, Any],
) -> list[types.FunctionType]:
    """Compile functions with another one's globals and variables; the first has its defaults."""
    outer = function.__code__.co_freevars
    cells = dict(zip(outer, function.__closure__ or (), strict=True))
    cells |= {name: types.CellType(value) for name, value in values.items()}
    # Under other names, since a function may read its own, which is a global.
    renamed = [copy.copy(each) for each in definitions]
    for index, each in enumerate(renamed):
        each.name = f"__abele_{index}"
    returned = ast.Return(ast.Tuple([ast.Name(n.name, ast.Load()) for n in renamed], ast.Load()))
    factory = definition(FACTORY, [*cells], [*renamed, returned], tree)
    module = ast.fix_missing_locations(ast.Module([factory], []))
    space: dict[str, Any] = {}
    code = compile(module, function.__code__.co_filename, "exec", dont_inherit=True)
    exec(code, function.__globals__, space)
    result: list[types.FunctionType] = []
    made_there = space[FACTORY](*[None] * len(cells))
    for name, each in zip((each.name for each in definitions), made_there, strict=True):
        closure = tuple(cells[free] for free in each.__code__.co_freevars)
        code = each.__code__.replace(co_name=name)
        made = types.FunctionType(
            code, function.__globals__, name, each.__defaults__, closure or None
        )
        made.__module__ = function.__module__
        result.append(made)
    result[0].__defaults__ = function.__defaults__
    result[0].__kwdefaults__ = function.__kwdefaults__
    return result


def definition(
    name: str, arguments: Sequence[str], body: Sequence[ast.stmt], like: ast.AST
) -> ast.FunctionDef:
    """Return the definition of a function at the place of other code."""
    made: Any = ast.parse(f"def {name}({', '.join(arguments)}): pass").body[0]
    made.body = list(body)
    return ast.copy_location(made, like)


_EXITS = frozenset({"exit", "_exit", "quit", "abort"})
OF_EVERYBODY = frozenset((*dir(builtins), *dir(list), *dir(dict), *dir(str), "torch", "math"))


def reason_to_wait(function: Any, names: Names, depth: int = 3) -> str | None:
    """Return why a function cannot be called later than where it stands; None if it can.

    Functions of libraries are taken to raise nothing, and to change nothing that others read.

    Args:
        function: it, or another object that is called.
        names: variables and attributes that the code reads before which it stands.
        depth: how many functions of the user's may call each other.
    """
    kinds = (types.BuiltinFunctionType, type, types.FunctionType, types.MethodType)
    owner = getattr(function, "__self__", None)
    if not isinstance(function, kinds):
        owner, function = function, inspect.getattr_static(function, "__call__", None)
    plain = getattr(function, "__func__", function)
    if getattr(plain, "__name__", "") in _EXITS:
        return "exits"
    if not isinstance(plain, types.FunctionType) or is_installed(plain):
        return None
    if is_of_library(plain.__module__):
        return None
    code = plain.__code__
    if any(each.opname == "RAISE_VARARGS" for each in dis.get_instructions(code)):
        return "may raise an error"
    own = frozenset((*code.co_names, *code.co_freevars, *code.co_cellvars))
    common = (own & names) - OF_EVERYBODY
    if common:
        return f"may change {', '.join(sorted(common))}, which the step reads"
    for name in own:
        called = plain.__globals__.get(name, inspect.getattr_static(owner, name, None))
        if isinstance(called, types.FunctionType) or name in _EXITS:
            reason = reason_to_wait(called, names, depth - 1) if depth else "calls many others"
            if reason is not None or name in _EXITS:
                return reason or "exits"
    return None


_TENSORS = frozenset((*dir(torch), *dir(torch.Tensor), *dir(torch.nn.functional)))
_KEEPS = frozenset(
    name
    for name in (*KEEPING, *dir(builtins), *dir(str), *dir(math), *_TENSORS)
    if name not in CHANGING and (name.endswith("__") or not name.endswith("_"))
)


def may_change_arguments(code: types.CodeType, space: Mapping[str, Any], depth: int = 3) -> bool:
    """Return whether code may write into what it is given: tensors, lists, attributes."""
    for each in dis.get_instructions(code):
        if each.opname.startswith(("STORE_ATTR", "STORE_SUBSCR", "DELETE_", "STORE_SLICE")):
            return True
        if each.opname == "BINARY_OP" and each.argrepr.endswith("="):
            return True
    for name in code.co_names:
        called = space.get(name)
        if isinstance(called, types.FunctionType) and not is_of_library(called.__module__):
            if not depth or may_change_arguments(called.__code__, called.__globals__, depth - 1):
                return True
        elif name not in _KEEPS and not isinstance(called, types.ModuleType):
            return True
    return False


def loaded(node: ast.AST) -> Names:
    """Return the variables that a piece of code reads."""
    parts = [*ast.walk(node)]
    inner = Names().union(*(stored(e.target) for e in parts if isinstance(e, ast.comprehension)))
    changed = [each.target for each in parts if isinstance(each, ast.AugAssign)]
    also = {each.id for each in changed if isinstance(each, ast.Name)}
    return (_named(node, ast.Load) - inner) | also


def attributes(node: ast.AST) -> Names:
    """Return the variables that a piece of code reads, and all attributes."""
    return loaded(node) | fields(node)


def fields(node: ast.AST) -> Names:
    """Return the attributes that a piece of code reads."""
    found = [each for each in ast.walk(node) if isinstance(each, ast.Attribute)]
    return Names(each.attr for each in found if isinstance(each.ctx, ast.Load))


def changed_fields(node: ast.AST) -> Names:
    """Return the attributes that a statement sets, or whose objects it changes."""
    found = [each for each in changed_expressions(node) if not root(each, ast.Subscript)]
    return Names().union(*map(chain, found))


def stored(node: ast.AST) -> Names:
    """Return the variables that a piece of code sets."""
    return _named(node, ast.Store)


def _named(node: ast.AST, context: type[ast.expr_context]) -> Names:
    names = [each for each in ast.walk(node) if isinstance(each, ast.Name)]
    return Names(each.id for each in names if isinstance(each.ctx, context))


def effects(node: ast.AST) -> Names:
    """Return the names of objects that a statement may change: ``losses`` of ``losses.append``."""
    return stored(node).union(*map(chain, changed_expressions(node)))


def changed_expressions(node: ast.AST) -> Iterator[ast.expr]:
    """Yield the expressions whose objects a statement changes: targets and receivers of calls."""
    for each in ast.walk(node):
        if isinstance(each, ast.Attribute | ast.Subscript) and isinstance(each.ctx, ast.Store):
            yield each
        elif isinstance(each, ast.Expr) and isinstance(each.value, ast.Call):
            function = each.value.func
            if isinstance(function, ast.Attribute):
                yield function.value
        elif isinstance(each, ast.Call) and root(each.func) in ("setattr", "delattr", "vars"):
            yield from each.args[:1]


def chains(node: ast.AST) -> Iterator[ast.Name | ast.Attribute]:
    """Yield the longest chains of attributes that a statement names, and its other variables."""
    if isinstance(node, ast.Attribute | ast.Name) and root(node):
        yield node
        return
    for each in ast.iter_child_nodes(node):
        yield from chains(each)


def root(node: Any, kind: type[ast.expr] = ast.Attribute) -> str:
    """Return the variable that a chain of attributes or items begins with; else ``""``."""
    while isinstance(node, kind):
        node = cast("Any", node).value
    return node.id if isinstance(node, ast.Name) else ""


def chain(node: ast.AST) -> set[str]:
    """Return the last name of an attribute chain: ``losses`` of ``self.losses[0]``."""
    while isinstance(node, ast.Subscript):
        node = node.value
    if isinstance(node, ast.Attribute):
        return chain(node.value) if node.attr == "__dict__" else {node.attr}
    return {node.id} if isinstance(node, ast.Name) and node.id != "self" else set()
