"""Several processes: poprun starts them, and popdist has them train together."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import libcst as cst
from libcst import matchers as m

from abele.port.analysis.batches import argument
from abele.port.analysis.kinds import Kind
from abele.port.analysis.parts import is_call, statement_of
from abele.port.analysis.search import findall
from abele.port.context import Context
from abele.port.edits import keyword
from abele.port.finding import Verdict
from abele.port.layout import laid_out
from abele.port.source import Source

CODES = {
    "ABP801": "popdist.init() takes the place of a process group: poprun starts the instances.",
    "ABP802": "popdist answers what the script asks about processes; their end needs no call.",
    "ABP803": "A program updates the weights of all instances together, without a wrapper.",
    "ABP804": "poptorch.DataLoader gives each instance its share; a sampler is left out.",
    "ABP805": "poprun starts the processes that the program started by itself.",
    "ABP806": "One instance writes the log.",
    "ABP807": (
        "A file that every instance writes has the instance in its name, and is read by that name."
    ),
}

_INIT = "torch.distributed.init_process_group"
_WRAPPERS = frozenset(
    (
        "torch.nn.DataParallel",
        "torch.nn.parallel.DataParallel",
        "torch.nn.parallel.DistributedDataParallel",
    )
)
_SAMPLERS = frozenset(
    (
        "torch.utils.data.DistributedSampler",
        "torch.utils.data.distributed.DistributedSampler",
    )
)
#: What is known of a process, and popdist's name for it.
_NUMBERS = {
    "torch.distributed.get_rank": "popdist.getInstanceIndex()",
    "torch.distributed.get_world_size": "popdist.getNumInstances()",
    "torch.distributed.is_initialized": "popdist.isPopdistEnvSet()",
    "RANK": "popdist.getInstanceIndex()",
    "LOCAL_RANK": "popdist.getLocalInstanceIndex()",
    "WORLD_SIZE": "popdist.getNumInstances()",
}
_UNNEEDED = frozenset(
    (
        "torch.distributed.destroy_process_group",
        "torch.cuda.set_device",
        "torch.distributed.barrier",
    )
)
#: What a program that starts its processes by itself tells them, and poprun tells instances.
_VARIABLES = frozenset(("MASTER_ADDR", "MASTER_PORT", "RANK", "LOCAL_RANK", "WORLD_SIZE"))


def apply(context: Context) -> None:
    """Have popdist do what torch.distributed did."""
    for source in context.project.sources:
        for call in findall(source.module, m.Call()):
            assert isinstance(call, cst.Call)
            name = source.imported(call.func)
            if name in _WRAPPERS and call.args:
                reason = "a program updates the weights of all instances and replicas together"
                context.edits(source).take_out(call, lambda node: node.args[0].value)
                context.say(source, call, "ABP803", Verdict.MODIFIED, reason)
                _without_module(context, source)
            elif context.distributed:
                _of_process(context, source, call, name)
        if context.distributed:
            _environment(context, source)
            _drop_variables(context, source)
            _log(context, source)
    if context.distributed:
        _files(context)


def _of_process(context: Context, source: Source, call: cst.Call, name: str) -> None:
    """Rewrite calls of ``torch.distributed`` as calls of popdist, or remove them."""
    edits = context.edits(source)
    statement = statement_of(source, call)
    if name == _INIT and is_call(statement):
        edits.need("import popdist")
        text = "if popdist.isPopdistEnvSet():\n    popdist.init()"
        new = cst.parse_module(text).body[0]
        reason = "poprun starts the instances, and this connects them; without poprun there is one"
        edits.change(statement, lambda _: new)
        context.say(source, statement, "ABP801", Verdict.MODIFIED, reason)
    elif name in _NUMBERS:
        edits.need("import popdist")
        edits.replace(call, _NUMBERS[name])
        reason = "popdist answers this, also where there is only one instance"
        context.say(source, call, "ABP802", Verdict.MODIFIED, reason)
    elif name in _UNNEEDED and is_call(statement):
        edits.remove(statement)
        context.say(source, call, "ABP802", Verdict.MODIFIED, "instances need no call at their end")
    elif name == "torch.multiprocessing.spawn":
        _spawned(context, source, call)
    elif name in _SAMPLERS:
        _sampler(context, source, call)


def _spawned(context: Context, source: Source, call: cst.Call) -> None:
    """Call a function that was spawned; poprun starts the processes."""
    function = argument(call, "fn", 0)
    args = argument(call, "args", 1)
    if function is None or not (args is None or isinstance(args, cst.Tuple)):
        reason = (
            "poprun starts the processes: call the function directly, with "
            "popdist.getLocalInstanceIndex() as its first argument"
        )
        context.say(source, call, "ABP805", Verdict.MANUAL, reason)
        return
    rest = [] if args is None else [source.code(each.value) for each in args.elements]
    code = ", ".join(["popdist.getLocalInstanceIndex()", *rest])
    context.edits(source).need("import popdist")
    context.edits(source).replace(call, f"{source.code(function)}({code})")
    reason = "poprun starts the processes: poprun --num-instances N python ..."
    context.say(source, call, "ABP805", Verdict.MODIFIED, reason)


def _sampler(context: Context, source: Source, call: cst.Call) -> None:
    """Samplers that give each process its share: poptorch.DataLoader does that."""
    shuffle = argument(call, "shuffle")
    shuffled = shuffle is None or not m.matches(shuffle, m.Name("False"))
    reason = "poptorch.DataLoader gives each instance its share"
    statement = source.enclosing(call, cst.SimpleStatementLine)
    name = ""
    if statement is not None and m.matches(statement, m.SimpleStatementLine(body=[m.Assign()])):
        assign = cst.ensure_type(statement.body[0], cst.Assign)
        if assign.value is call:
            name = source.code(assign.targets[0].target)
    sampled = False
    for loader in context.things.all(Kind.LOADER):
        if isinstance(loader.made, cst.Call):
            sampler = argument(loader.made, "sampler")
            if sampler is call or (sampler is not None and name and source.code(sampler) == name):
                _unsample(context, loader.source, loader.made, shuffled)
                context.sampled.add(loader)
                sampled = True
    if not sampled:
        context.say(source, call, "ABP804", Verdict.MANUAL, f"leave it out: {reason}")
        return
    context.say(source, call, "ABP804", Verdict.MODIFIED, reason)
    if name and statement is not None:
        context.edits(source).remove(statement)
    for other in findall(source.module, m.Call(func=m.Attribute(attr=m.Name("set_epoch")))):
        if isinstance(other, cst.Call) and is_call(statement_of(source, other)):
            context.edits(source).remove(statement_of(source, other))
            context.say(source, other, "ABP804", Verdict.MODIFIED, reason)


def _unsample(context: Context, source: Source, call: cst.Call, shuffled: bool) -> None:
    """Take the sampler of a loader out, and have it shuffle, or not."""

    def change(node: cst.Call) -> cst.Call:
        names = ("sampler", "shuffle")
        kept = [
            each for each in node.args if each.keyword is None or each.keyword.value not in names
        ]
        return laid_out(source, call, node, [*kept, keyword("shuffle", str(shuffled))])

    context.edits(source).change(call, change)


def _without_module(context: Context, source: Source) -> None:
    """Call the model itself where the wrapped one was named."""
    for node in findall(source.module, m.Attribute(attr=m.Name("module"))):
        assert isinstance(node, cst.Attribute)
        if context.things.of(source, node.value, Kind.MODEL):
            context.edits(source).change(
                node, lambda each: each.value if isinstance(each, cst.Attribute) else each
            )


def _environment(context: Context, source: Source) -> None:
    """Rewrite reads of the launcher's environment."""
    index = m.SubscriptElement(m.Index(m.SaveMatchedNode(m.SimpleString(), "name")))
    read = m.Call(func=m.Name("int"), args=[m.Arg(m.Subscript(value=m.DoNotCare(), slice=[index]))])
    for node in findall(source.module, read):
        name = str(cst.ensure_type(m.extract(node, read)["name"], cst.SimpleString).evaluated_value)  # type: ignore[index]
        if name in _NUMBERS:
            context.edits(source).need("import popdist")
            context.edits(source).replace(node, _NUMBERS[name])
            reason = "popdist answers this, also where there is only one instance"
            context.say(source, node, "ABP802", Verdict.MODIFIED, reason)


def _drop_variables(context: Context, source: Source) -> None:
    """Remove writes to the environment of torch.distributed, which poprun sets."""
    name = m.SaveMatchedNode(m.SimpleString(), "name")
    target = m.Subscript(slice=[m.SubscriptElement(m.Index(name))])
    written = m.SimpleStatementLine(body=[m.Assign(targets=[m.AssignTarget(target)])])
    for node in findall(source.module, written):
        key = cst.ensure_type(m.extract(node, written)["name"], cst.SimpleString)  # type: ignore[index]
        place = cst.ensure_type(node.body[0].targets[0].target, cst.Subscript).value
        if key.evaluated_value in _VARIABLES and source.imported(place) == "os.environ":
            context.edits(source).remove(node)
            reason = "poprun sets the address and the number of each instance"
            context.say(source, node, "ABP802", Verdict.MODIFIED, reason)


def _log(context: Context, source: Source) -> None:
    """Let one instance write the log."""
    for statement in _unguarded(source):
        call = cst.ensure_type(statement.body[0], cst.Expr).value
        assert isinstance(call, cst.Call)
        if not _is_log(context, source, call):
            continue
        context.edits(source).need("import popdist")
        context.edits(source).change(statement, _in_one_instance)
        reason = "one instance prints, not each"
        context.say(source, statement, "ABP806", Verdict.MODIFIED, reason)


def _files(context: Context) -> None:
    """Files that several instances write have different names, and are read by these names."""
    loaded: list[tuple[Source, cst.Call, cst.BaseExpression | None]] = []
    for source in context.project.sources:
        alone = {_only_call(each) for each in _unguarded(source)}
        for node in findall(source.module, m.Call()):
            call = cst.ensure_type(node, cst.Call)
            name = source.imported(call.func) or source.code(call.func)
            if name == "torch.save" and call in alone:
                _number_saved(context, source, call, argument(call, "f", 1))
            elif name == "open" and _is_written(call) and not _is_guarded(source, call):
                _number_saved(context, source, call, argument(call, "file", 0))
            elif name in ("torch.load", "open"):
                path = argument(call, "f" if name == "torch.load" else "file", 0)
                loaded.append((source, call, path))
    for source, call, path in loaded:
        _follow_loaded(context, source, call, path)


def _only_call(statement: cst.SimpleStatementLine) -> cst.BaseExpression:
    return cst.ensure_type(statement.body[0], cst.Expr).value


def _is_written(call: cst.Call) -> bool:
    """Return whether ``open`` opens a file for writing."""
    mode = argument(call, "mode", 1)
    return isinstance(mode, cst.SimpleString) and bool(set("wax") & set(str(mode.evaluated_value)))


def _unguarded(source: Source) -> Iterator[cst.SimpleStatementLine]:
    """Statements of one call that every process executes: no condition names a process."""
    pattern = m.SimpleStatementLine(body=[m.Expr(m.Call())])
    for node in findall(source.module, pattern):
        if isinstance(node, cst.SimpleStatementLine) and not _is_guarded(source, node):
            yield node


def _is_guarded(source: Source, node: cst.CSTNode) -> bool:
    """Return whether a condition around a node tests the rank."""
    ranks = m.Name("rank") | m.Name("local_rank") | m.Name("gpu_id") | m.Name("getInstanceIndex")
    conditions = [each.test for each in source.above(node) if isinstance(each, cst.If)]
    return any(findall(each, ranks | m.Name("get_rank")) for each in conditions)


def _in_one_instance(node: Any) -> Any:
    """Return a statement that only the first instance executes."""
    text = "if popdist.getInstanceIndex() == 0:\n    pass"
    made: Any = cst.parse_module(text).body[0]
    body = made.body.with_changes(body=[node.with_changes(leading_lines=[])])
    return made.with_changes(body=body, leading_lines=node.leading_lines)


# -- names of files that every instance writes -----------------------------------------------------

_OWN_FILE = "each instance writes a file of its own, with its number in the name"
_FOLLOWS = "each instance reads the file that it has written, with its number in the name"
_INSTANCE = "popdist.getInstanceIndex()"
_PATHS = frozenset(
    ("os.path.join", "os.path.abspath", "os.fspath", "pathlib.Path", "pathlib.PurePath", "str")
)


def _number_saved(
    context: Context, source: Source, call: cst.Call, path: cst.BaseExpression | None
) -> None:
    """Put the number of the instance into the name of a file that a call writes.

    Args:
        context: the program.
        source: the file.
        call: of ``torch.save``, or of ``open`` for writing.
        path: that it is given.
    """
    ends = [] if path is None else list(_ends(context, source, path, 0, 5))
    if not ends or not all(_numbered(at.code(node), node) for at, node in ends):
        context.say(
            source,
            call,
            "ABP807",
            Verdict.MANUAL,
            "each instance writes this file: put popdist.getInstanceIndex() into its name",
        )
        return
    for at, node in ends:
        _number(context, at, node)
        context.say(at, node, "ABP807", Verdict.MODIFIED, _OWN_FILE)


def _follow_loaded(
    context: Context, source: Source, call: cst.Call, path: cst.BaseExpression | None
) -> None:
    """Have a call that reads a file read the one that this instance has written.

    Args:
        context: the program.
        source: the file.
        call: of ``torch.load``, or of ``open`` for reading.
        path: that it is given.
    """
    for at, node in () if path is None else _ends(context, source, path, 0, 5):
        if node in context.numbered:
            context.say(source, call, "ABP807", Verdict.MATCH, _FOLLOWS)
        elif at.code(node) in context.numbered.values():
            _number(context, at, node)
            context.say(at, node, "ABP807", Verdict.MODIFIED, _FOLLOWS)


def _number(context: Context, source: Source, node: cst.BaseExpression) -> None:
    if node in context.numbered:
        return
    code = source.code(node)
    context.numbered[node] = code
    context.edits(source).need("import popdist")
    context.edits(source).replace(node, _numbered(code, node))


def _numbered(code: str, node: cst.BaseExpression) -> str:
    """Return a file name with the instance before its suffix; ``""`` without a suffix."""
    if isinstance(node, cst.Call):
        literal: Any = cst.ensure_type(node.func, cst.Attribute).value
        text = _before_ending(cst.Module([]).code_for_node(literal), "{instance}")
        rest = ", ".join(cst.Module([]).code_for_node(each).rstrip(", ") for each in node.args)
        return text and f"{text}.format({rest}, instance={_INSTANCE})"
    if isinstance(node, cst.FormattedString):
        return _before_ending(code, f"{{{_INSTANCE}}}")
    if isinstance(node, cst.SimpleString) and not node.prefix and "{" not in code:
        return _before_ending(f"f{code}", f"{{{_INSTANCE}}}")
    return ""


def _before_ending(code: str, number: str) -> str:
    stem, dot, ending = code.rpartition(".")
    return f"{stem}-{number}{dot}{ending}" if dot and "}" not in ending else ""


def _ends(
    context: Context, source: Source, node: cst.BaseExpression, place: int, depth: int
) -> Iterator[tuple[Source, cst.BaseExpression]]:
    """Return the expressions that end a path, each with its file.

    Args:
        context: the program.
        source: the file.
        node: the path.
        place: of the path among several results.
        depth: how many more names and functions are followed.
    """
    if isinstance(node, cst.SimpleString | cst.FormattedString) or _is_format(node):
        yield source, node
    elif isinstance(node, cst.BinaryOperation) and isinstance(node.operator, cst.Add | cst.Divide):
        yield from _ends(context, source, node.right, 0, depth)
    elif isinstance(node, cst.Tuple) and place < len(node.elements):
        yield from _ends(context, source, node.elements[place].value, 0, depth)
    elif isinstance(node, cst.Call) and _path_function(source, node) and node.args:
        yield from _ends(context, source, node.args[-1].value, 0, depth)
    elif isinstance(node, cst.Call) and depth:
        yield from _returned(context, source, node, place, depth - 1)
    elif isinstance(node, cst.Name | cst.Attribute) and depth:
        yield from _assigned(context, source, node, depth - 1)


def _is_format(node: cst.CSTNode) -> bool:
    literal = m.Attribute(value=m.SimpleString(), attr=m.Name("format"))
    return m.matches(node, m.Call(func=literal))


def _path_function(source: Source, call: cst.Call) -> bool:
    return (source.imported(call.func) or source.code(call.func)) in _PATHS


def _returned(
    context: Context, source: Source, call: cst.Call, place: int, depth: int
) -> Iterator[tuple[Source, cst.BaseExpression]]:
    """Return the expressions that a function of the program returns."""
    function = context.things.function(source, call)
    for node in () if function is None else findall(function.body, m.Return()):
        assert isinstance(node, cst.Return)
        assert function is not None
        if node.value is not None:
            at = context.project.source(function)
            yield from _ends(context, at, node.value, place, depth)


def _assigned(
    context: Context, source: Source, node: cst.BaseExpression, depth: int
) -> Iterator[tuple[Source, cst.BaseExpression]]:
    """Return the expressions that a variable is assigned."""
    wanted = context.things.variable(source, node)
    for at in context.project.sources if wanted is not None else ():
        for assign in findall(at.module, m.Assign()):
            assert isinstance(assign, cst.Assign)
            target = assign.targets[0].target
            elements = (
                [each.value for each in target.elements] if isinstance(target, cst.Tuple) else []
            )
            for place, each in enumerate(elements or [target]):
                if context.things.variable(at, each) == wanted:
                    yield from _ends(context, at, assign.value, place, depth)


# -- the log ---------------------------------------------------------------------------------------

_FUNCTIONS = frozenset(("print", "logging.info", "logging.warning"))
_METHODS = ("info", "warning")


def _is_log(context: Context, source: Source, call: cst.Call) -> bool:
    """Return whether a call logs a line that one instance may write for all."""
    name = source.imported(call.func) or source.code(call.func)
    if name in _FUNCTIONS:
        return True
    func = call.func
    if not isinstance(func, cst.Attribute) or func.attr.value not in _METHODS:
        return False
    return source.code(func.value).rpartition(".")[2] in _loggers(context)


def _loggers(context: Context) -> set[str]:
    """Names that the program gives to what ``logging.getLogger`` returns."""
    names: set[str] = set()
    for source in context.project.sources:
        for node in findall(source.module, m.Assign(value=m.Call())):
            assert isinstance(node, cst.Assign)
            value = cst.ensure_type(node.value, cst.Call)
            if source.imported(value.func) == "logging.getLogger":
                names |= {source.code(each.target).rpartition(".")[2] for each in node.targets}
    return names
