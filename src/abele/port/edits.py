"""Collects the edits of one source file by syntax node, and applies them together at the end."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeAlias, TypeVar, cast

import libcst as cst

from abele.port.analysis.flow import reads, writes
from abele.port.source import Source

_Node = TypeVar("_Node", bound=cst.CSTNode)
#: Given a node with its inner changes made, what takes its place.
Change: TypeAlias = Callable[[Any], Any]
_Statement: TypeAlias = cst.SimpleStatementLine | cst.BaseCompoundStatement


class Edits:
    """Collected edits of the source text of one file."""

    def __init__(self, source: Source):
        """Begin without edits."""
        self._source = source
        self._changes: dict[cst.CSTNode, list[Change]] = {}
        self._around: dict[cst.CSTNode, list[_Statement]] = {}
        self._imports: dict[str, None] = {}
        self._lines: dict[str, None] = {}
        self._definitions: list[_Statement] = []

    def change(self, node: cst.CSTNode, change: Change) -> None:
        """Record an edit of a syntax node; several edits of one node are applied in order."""
        self._changes.setdefault(node, []).append(change)

    def replace(self, node: cst.CSTNode, text: str) -> None:
        """Replace a syntax node by an expression given as text."""
        self.change(node, lambda _: cst.parse_expression(text))

    def give(self, call: cst.Call, argument: cst.Arg) -> None:
        """Add an argument to a call, formatted like the call's other arguments."""

        def change(node: cst.Call) -> cst.Call:
            return laid_out(node, [*node.args, argument])

        self.change(call, change)

    def take_out(self, node: cst.CSTNode, change: Change) -> None:
        """Replace an expression by a part of it; remove a statement that becomes a no-op."""
        self.change(node, change)
        statement = self._source.enclosing(node, cst.SimpleStatementLine)
        if statement is not None:
            self.change(statement, _without_identity)

    def remove(self, statement: cst.CSTNode) -> None:
        """Remove a statement and the comments directly above."""
        self.change(statement, lambda _: cst.RemoveFromParent())

    def after(self, statement: cst.CSTNode, text: str) -> None:
        """Insert statements, given as text, after a statement."""
        self._around.setdefault(statement, []).extend(parsed(text))

    def need(self, line: str) -> None:
        """Add an import unless the file already has this import."""
        self._imports[line] = None

    def define(self, text: str) -> None:
        """Insert a definition after the file's imports and before its first use."""
        self._definitions += parsed(text, blank=2)

    def define_once(self, line: str) -> None:
        """Insert a one-line definition after the file's imports, unless already inserted."""
        self._lines[line] = None

    def applied(self, node: _Node) -> _Node:
        """Return a syntax node with the edits inside it applied, such as a moved expression."""
        return changed(self._source, node, self._changes, self._around)

    def text(self) -> str:
        """Return the source text of the file with all edits applied."""
        added = self._imports, self._lines, self._definitions
        if not any((self._changes, self._around, *added)):
            return self._source.text
        module = self.applied(self._source.module)
        definitions = [*parsed("\n".join(self._lines), blank=1), *self._definitions]
        return with_header(module, self._imports, definitions).code


def _without_identity(node: Any) -> Any:
    """Remove an assignment of names to themselves, or an expression without effect."""
    if not isinstance(node, cst.SimpleStatementLine) or len(node.body) != 1:
        return node
    (small,) = node.body
    if isinstance(small, cst.Expr) and isinstance(small.value, cst.Name | cst.Attribute):
        return cst.RemoveFromParent()
    if isinstance(small, cst.Assign) and len(small.targets) == 1:
        target = small.targets[0].target
        if _plain(target) and _codes(target) == _codes(small.value):
            return cst.RemoveFromParent()
    return node


def _plain(node: cst.BaseExpression) -> bool:
    elements = node.elements if isinstance(node, cst.Tuple) else ()
    return isinstance(node, cst.Name) or (
        bool(elements) and all(isinstance(each.value, cst.Name) for each in elements)
    )


def _codes(node: cst.BaseExpression) -> list[str]:
    """Return the source text of an expression, or of each element of a tuple."""
    parts = [each.value for each in node.elements] if isinstance(node, cst.Tuple) else [node]
    return [cst.Module([]).code_for_node(part) for part in parts]


def keyword(name: str, value: str) -> cst.Arg:
    """Return a keyword argument, parsed from the text of its value."""
    tight = cst.AssignEqual(cst.SimpleWhitespace(""), cst.SimpleWhitespace(""))
    return cst.Arg(cst.parse_expression(value), keyword=cst.Name(name), equal=tight)


def is_named(argument: cst.Arg, *names: str) -> bool:
    """Return whether an argument of a call is passed by one of several names."""
    return argument.keyword is not None and argument.keyword.value in names


def renamed(node: cst.CSTNode, names: Mapping[str, str]) -> cst.CSTNode:
    """Return a syntax node with names replaced by expressions, given as text."""
    return cast("cst.CSTNode", node.visit(_Renamer(names)))


class _Renamer(cst.CSTTransformer):
    def __init__(self, names: Mapping[str, str]):
        super().__init__()
        self._names = names

    def leave_Name(self, original_node: cst.Name, updated_node: cst.Name) -> Any:
        name = self._names.get(original_node.value, original_node.value)
        return updated_node if name == original_node.value else cst.parse_expression(name)

    def leave_Attribute(self, original_node: cst.Attribute, updated_node: cst.Attribute) -> Any:
        return updated_node.with_changes(attr=original_node.attr)

    def leave_Arg(self, original_node: cst.Arg, updated_node: cst.Arg) -> Any:
        return updated_node.with_changes(keyword=original_node.keyword)


def parsed(text: str, blank: int = 0) -> list[_Statement]:
    """Return the statements of a source text, with blank lines before the first one."""
    statements = list(cst.parse_module(text).body)
    if statements and blank:
        lines = [cst.EmptyLine(indent=False)] * blank
        statements[0] = statements[0].with_changes(leading_lines=lines)
    return statements


def changed(
    source: Source,
    node: _Node,
    changes: Mapping[cst.CSTNode, Sequence[Change]],
    around: Mapping[cst.CSTNode, Sequence[_Statement]] | None = None,
) -> _Node:
    """Return a syntax node with replacements applied.

    Args:
        source: the file.
        node: the node.
        changes: changes by node of the file.
        around: statements to insert after statements of the file.
    """
    around = around or {}
    is_of_file = node is source.module or source.parent(node) is not None
    touched = _touched(source, (*changes, *around)) if is_of_file else None
    return cast("_Node", node.visit(_Transformer(changes, around, touched)))


def _touched(source: Source, nodes: Iterable[cst.CSTNode]) -> set[cst.CSTNode]:
    """Return syntax nodes together with all of their ancestors."""
    touched: set[cst.CSTNode] = set()
    for node in nodes:
        for each in (
            node,
            *itertools.takewhile(lambda outer: outer not in touched, source.above(node)),
        ):
            touched.add(each)
    return touched


class _Transformer(cst.CSTTransformer):
    """Applies edits to a syntax tree, inner ones first; other subtrees stay unchanged."""

    def __init__(
        self,
        changes: Mapping[cst.CSTNode, Sequence[Change]],
        around: Mapping[cst.CSTNode, Sequence[_Statement]],
        touched: set[cst.CSTNode] | None,
    ):
        super().__init__()
        self._changes, self._around, self._touched = changes, around, touched

    def on_visit(self, node: cst.CSTNode) -> bool:
        return self._touched is None or node in self._touched

    def on_leave(self, original_node: Any, updated_node: Any) -> Any:
        node = updated_node
        for change in self._changes.get(original_node, ()):
            node = change(node)
        around = self._around.get(original_node)
        if around is None:
            return _filled(node)
        return cst.FlattenSentinel([*statements_of(node), *around])


def statements_of(changed: Any) -> list[Any]:
    """Return the statements that replace an edited statement; empty if it was removed."""
    if isinstance(changed, cst.RemovalSentinel):
        return []
    nodes: Any = changed
    return list(nodes) if isinstance(changed, cst.FlattenSentinel) else [changed]


def _filled(node: Any) -> Any:
    """Return a ``pass`` block in place of a block without statements."""
    if isinstance(node, cst.IndentedBlock) and not node.body:
        return node.with_changes(body=parsed("pass"))
    return node


def with_header(
    module: cst.Module, imports: dict[str, None], definitions: Sequence[_Statement]
) -> cst.Module:
    """Return a module with imports added, and definitions after them."""
    body: list[Any] = list(module.body)
    end = min(_last_import(body) + 1, _first_use(body, imports, definitions))
    present = {module.code_for_node(each).strip() for each in body[:end]}
    missing = [line for line in imports if line not in present]
    new: list[Any] = [each for line in missing for each in parsed(line)]
    top, rest = body[:end], body[end:]
    first = next((index for index, each in enumerate(top) if _imports_torch(each)), end)
    if new and first < end:
        new[0] = new[0].with_changes(leading_lines=top[first].leading_lines)
        top[first] = top[first].with_changes(leading_lines=[])
    if definitions and rest:
        rest[0] = _spaced(rest[0])
    return module.with_changes(body=[*top[:first], *new, *top[first:], *definitions, *rest])


def _first_use(
    body: Sequence[Any], imports: dict[str, None], definitions: Sequence[_Statement]
) -> int:
    """Return the index of the first statement that uses added names, or the end."""
    names = {name for each in definitions for name in writes(each)}
    names |= {name for line in imports for each in parsed(line) for name in _bound_by(each)}
    names -= {"torch"}
    for index, statement in enumerate(body):
        line = isinstance(statement, cst.SimpleStatementLine) and statement.body[0]
        if not isinstance(line, cst.Import | cst.ImportFrom) and names & set(reads(statement)):
            return index
    return len(body)


def _bound_by(statement: _Statement) -> list[str]:
    """Return the names that an import statement binds."""
    text = cst.Module([statement]).code.split("import ")[-1]
    return [each.split(" as ")[-1].strip().split(".")[0] for each in text.split(",")]


def _imports_torch(statement: Any) -> bool:
    """Return whether a statement imports torch, before which new imports are inserted."""
    text = cst.Module([statement.with_changes(leading_lines=[])]).code
    return text.startswith(("import torch", "from torch"))


def _spaced(statement: Any) -> Any:
    """Return a statement preceded by two empty lines."""
    lines = list(statement.leading_lines)
    while lines and lines[0].comment is None:
        lines.pop(0)
    return statement.with_changes(leading_lines=[cst.EmptyLine(indent=False)] * 2 + lines)


_BODIES = (cst.FunctionDef, cst.ClassDef, cst.For, cst.While)


def _last_import(body: Sequence[Any]) -> int:
    """Return the index of the last import at the top of a module, else of the docstring, or -1."""
    last = -1
    for index, statement in enumerate(body):
        if isinstance(statement, _BODIES):
            break  # imports that come later are those of later parts of a script
        small = statement.body if isinstance(statement, cst.SimpleStatementLine) else ()
        if any(isinstance(each, cst.Import | cst.ImportFrom) for each in small) or (
            isinstance(statement, cst.Try) and "import " in cst.Module([statement]).code
        ):
            last = index
        elif index == 0 and len(small) == 1 and isinstance(small[0], cst.Expr):
            last = 0
    return last


# -- arguments of calls and parameters of functions -----------------------------------------------

_Item = TypeVar("_Item", cst.Arg, cst.Param)
_NONE = cst.SimpleWhitespace("")
_SPACE = cst.Comma(whitespace_after=cst.SimpleWhitespace(" "))
_INDENTED = cst.ParenthesizedWhitespace(indent=True, last_line=cst.SimpleWhitespace("    "))


def laid_out(call: cst.Call, arguments: Sequence[cst.Arg]) -> cst.Call:
    """Return a call with other arguments, keeping its comments and one argument per line."""
    if not arguments or not call.args:
        return call.with_changes(args=arguments)
    between = _between(call.args, call.whitespace_before_args)
    return call.with_changes(args=_laid(call.args, arguments, between, "whitespace_after_arg"))


def with_one_more(params: Sequence[cst.Param], new: cst.Param) -> list[cst.Param]:
    """Append a parameter to a function's parameters, keeping one per line."""
    between = _between(params, _INDENTED)
    return _laid(params, [*params, new], between, "whitespace_after_param") if params else [new]


def _laid(
    old: Sequence[_Item], items: Sequence[_Item], between: cst.Comma, behind: str
) -> list[_Item]:
    """Return arguments or parameters joined by commas, ending as the old ones did."""
    *first, end = items
    spaced = [_followed(each, between, behind, is_last=each is old[-1]) for each in first]
    if end is not old[-1]:
        space = _without_comment(getattr(old[-1], behind))
        end = end.with_changes(comma=_without_comment(old[-1].comma), **{behind: space})
    return [*spaced, end]


def _between(items: Sequence[_Item], before: cst.BaseParenthesizableWhitespace) -> cst.Comma:
    """Return the comma between arguments: with a new line if all commas have one."""
    commas = [each.comma for each in items[:-1] if isinstance(each.comma, cst.Comma)]
    if commas:
        alone = all(_breaks(each.whitespace_after) for each in commas)
        return _without_comment(commas[0]) if alone else _SPACE
    trailing = items[-1].comma if items else None
    alone = isinstance(trailing, cst.Comma) and _breaks(trailing.whitespace_after)
    return cst.Comma(whitespace_after=before) if alone and _breaks(before) else _SPACE


def _followed(item: _Item, between: cst.Comma, behind: str, *, is_last: bool) -> _Item:
    """Return an argument or parameter with a comma, keeping a comment behind it."""
    comma = item.comma
    if isinstance(comma, cst.Comma) and not is_last:
        return item
    space = comma.whitespace_after if isinstance(comma, cst.Comma) else getattr(item, behind)
    if isinstance(space, cst.ParenthesizedWhitespace) and (
        space.first_line.comment is not None or space.empty_lines
    ):
        line = _INDENTED.last_line
        if isinstance(between.whitespace_after, cst.ParenthesizedWhitespace):
            line = between.whitespace_after.last_line
        between = between.with_changes(
            whitespace_after=space.with_changes(indent=True, last_line=line)
        )
    return item.with_changes(comma=between, **{behind: _NONE})


def _without_comment(node: Any) -> Any:
    """Return a comma or white space without its comments."""
    if isinstance(node, cst.Comma):
        return node.with_changes(whitespace_after=_without_comment(node.whitespace_after))
    if isinstance(node, cst.ParenthesizedWhitespace):
        return node.with_changes(first_line=cst.TrailingWhitespace(), empty_lines=[])
    return node


def _breaks(space: cst.BaseParenthesizableWhitespace) -> bool:
    return isinstance(space, cst.ParenthesizedWhitespace)
