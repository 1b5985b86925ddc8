"""Finds training steps: the statements from a model's call to the update of its parameters."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence

import libcst as cst
from libcst import matchers as m

from abele.port.analysis.flow import Variable, changes, is_method, names_in, needs, reads, writes
from abele.port.analysis.kinds import Kind, Thing, targets_of
from abele.port.analysis.parts import (
    Loop,
    Statement,
    StepError,
    block_of,
    calls_of,
    is_call,
    receiver,
    statement_of,
    statements_in,
)
from abele.port.analysis.things import Things
from abele.port.analysis.updates import (
    CONDITION,
    NO_STEP,
    Update,
    forgets,
    is_forgotten,
    read_update,
)
from abele.port.project import Owner, Project
from abele.port.source import Source, findall

#: A loop that adds up the gradients of a known number of batches.
_REPEATED = m.For(
    iter=m.Call(func=m.Name("range"), args=[m.Arg()]), body=m.IndentedBlock(), orelse=None
)
_BY_TEXT = m.Subscript(slice=[m.SubscriptElement(m.Index(m.SimpleString()))])


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class Step:
    """A training step of a PyTorch script, from the model's call to the parameter update.

    Attributes:
        source: the file of the step.
        owner: the enclosing function or module.
        loop: the enclosing loop in that function; None if the function is one step.
        block: the statements of the block that contains the step.
        loss: the variable of the differentiated loss.
        forward: the statements of the block from the model to the loss. If the loss has no name,
            a last statement that is not in the program assigns it to one.
        place: the statement of the block that the training model's call replaces.
        backward: the statement that calls ``backward``.
        zero: the statements that call ``zero_grad``.
        models: the models that forward statements call, each with its expression there.
        helpers: functions of the program through which models are called.
        gradients: the update, and the changes of gradients before it.
        inputs: variables that the forward statements read and that change between steps.
        keys: the keys that are read of each input that is a dictionary, as text.
        slow: inputs that only change outside of the loop, and may be numbers.
        constants: variables that the forward statements read and that are the same in every step.
        outputs: variables of the forward pass that later code or the next step reads, but the loss.
        carried: inputs that the previous step has computed.
        repeated: the loop of ``range(k)`` that adds up gradients before the update, or None.
    """

    source: Source
    owner: Owner
    loop: Loop | None
    block: Sequence[Statement]
    loss: str
    forward: tuple[Statement, ...]
    place: Statement
    backward: Statement
    zero: tuple[Statement, ...]
    models: dict[Thing, cst.BaseExpression]
    helpers: tuple[cst.FunctionDef, ...]
    gradients: Update
    inputs: tuple[str, ...]
    keys: Mapping[str, tuple[str, ...]]
    slow: tuple[str, ...] = ()
    constants: tuple[str, ...]
    outputs: tuple[str, ...]
    carried: tuple[str, ...]
    repeated: cst.For | None

    @property
    def update(self) -> Statement:
        """The statement that updates parameters."""
        return self.gradients.statement

    @property
    def optimizer(self) -> Thing:
        """The optimizer that updates."""
        return self.gradients.optimizers[0]

    @property
    def arguments(self) -> str:
        """The arguments with which the ported program calls its training model.

        Numbers that change become tensors. Of a dictionary, only keys that are read are passed:
        other values of a batch may be text, such as file names.
        """
        texts = {name: f"torch.as_tensor({name})" for name in self.slow}
        for name, keys in self.keys.items():
            if keys:
                texts[name] = f"{{{', '.join(f'{key}: {name}[{key}]' for key in keys)}}}"
        return ", ".join(texts.get(name, name) for name in self.inputs)


def training_steps(project: Project, things: Things) -> Iterator[tuple[Source, Step | StepError]]:
    """Yield every training step of a program, or the reason that a step cannot be ported."""
    for source in project.sources:
        every = calls_of(source.module, "backward")
        for call in (each for each in every if things.function(source, each) is None):
            reader = _Reader(source, project, things, call)
            try:
                yield source, reader.step()
            except StepError as error:
                yield source, reader.explained(error)


class _Reader:
    """Reads the training step around one call of ``backward``."""

    def __init__(self, source: Source, project: Project, things: Things, call: cst.Call):
        self._project, self._functions = project, dict[cst.FunctionDef, None]()
        self._source, self._things, self._call = source, things, call
        self._backward = self._site = statement_of(source, call)
        self._own = self._block = block_of(source, self._backward)
        if not any(calls_of(each, "step") for each in self._block):
            self._with_helpers()
        self._owner = things.owner(source, self._site)
        loop = source.enclosing(self._site, cst.For, cst.While, cst.FunctionDef)
        self._loop = loop if isinstance(loop, cst.For | cst.While) else None
        self._repeated: cst.For | None = None
        self._anchor, self._outer = self._backward, self._block
        if isinstance(loop, cst.For) and m.matches(loop, _REPEATED):
            outer, inner = block_of(source, loop), list(statements_in(source, loop.body))
            later = outer[outer.index(loop) + 1 :]
            steps = [any(calls_of(each, "step") for each in some) for some in (inner, later)]
            if inner == list(self._block) and steps == [False, True]:
                self._repeated, self._anchor, self._outer = loop, loop, outer

    def _with_helpers(self) -> None:
        """Read functions that the block calls, and make updates, as parts of the block."""
        function = self._source.enclosing(self._backward, cst.FunctionDef)
        calls = [*self._things.calls(function)] if function is not None else []
        site = statement_of(self._source, calls[0]) if len(calls) == 1 else None
        if site is not None and self._inlined(site):
            self._site, self._own = site, block_of(self._source, site)
        self._block = [inner for each in self._own for inner in self._inlined(each) or [each]]

    def _inlined(self, statement: Statement) -> list[Statement]:
        """Return the body of the function that a statement calls, if only it does; else nothing."""
        call = findall(statement, m.Call())[0] if is_call(statement) else cst.Call(cst.Name("none"))
        function = self._things.function(self._source, call)
        if function is None or [*self._things.calls(function).items()] != [(call, self._source)]:
            return []
        given = self._things.arguments(function, call)
        same = all(m.matches(value, m.Name(name)) for name, value in given.items())
        updates = m.OneOf(*map(m.Name, ("backward", "step", "zero_grad")))
        made = findall(function.body, m.Call(func=m.Attribute(attr=updates)))
        leaves = findall(function.body, m.Return() | m.Raise() | m.Yield())
        return (
            list(statements_in(self._source, function.body)) if same and made and not leaves else []
        )

    def step(self) -> Step:
        """Return the training step around the call of ``backward``."""
        update = (self._outer, self._call, self._anchor)
        gradients = read_update(self._source, self._things, *update)
        loss, differentiated = self._loss()
        forward = self._forward(loss, differentiated)
        self._functions.clear()  # it may have those of other statements
        models = self._models(forward)
        if not models:
            raise StepError(self._call, _NO_FORWARD_HERE)
        zero = tuple(self._zero(gradients, {*gradients.optimizers, *models}))
        rest = {self._backward, self._anchor, gradients.statement, *zero, *forward}
        rest |= {each.statement for each in gradients.removed}
        self._check_way(forward, gradients.statement, rest)
        varying = Varying(self._project, self._things, gradients.optimizers)
        changing = set[str]().union(*(varying.at(self._source, each) for each in forward))
        needed = self._needed(forward)
        inputs = [name for name in needed if name in self._fresh() | changing]
        slow = [each for each in inputs if each == self._counter() or each not in self._fresh()]
        carried = self._carried(forward, needed)
        return self._checked(varying, Step(
            source=self._source,
            owner=self._owner,
            loop=self._loop,
            block=self._block,
            loss=loss,
            forward=forward,
            place=forward[-1] if forward[-1] in self._block else self._backward,
            backward=self._backward,
            zero=zero,
            models=models,
            helpers=tuple(self._functions),
            gradients=gradients,
            inputs=tuple(inputs),
            keys={each: self._keys(forward, each) for each in needed if each not in carried},
            slow=tuple(slow),
            constants=tuple(name for name in needed if name not in inputs),
            outputs=self._outputs(forward, rest, carried, loss),
            carried=tuple(name for name in carried if name in inputs),
            repeated=self._repeated,
        ))  # fmt: skip

    def _checked(self, varying: Varying, step: Step) -> Step:
        """Return a step, unless its loop adds up gradients of batches that one call cannot get.

        Raises:
            StepError: not all inputs are tensors of a batch, or other results are read.
        """
        inside = [*(each for each in step.forward if each in self._block), step.place]
        if any(each not in self._own for each in inside):
            raise StepError(self._call, NO_STEP)
        others = (step.slow, step.carried, step.outputs, *step.keys.values())
        if self._repeated is not None and (
            any(others) or not step.inputs or varying.at(self._source, self._repeated.iter)
        ):
            raise StepError(self._call, NO_STEP)
        return step

    def explained(self, error: StepError) -> StepError:
        """Return the error of a step; one with its own reason for an ``if`` that never changes."""
        outer = self._loop or self._owner
        above = self._source.between(error.node, outer)
        ifs = [each for each in above if isinstance(each, cst.If)]
        if error.reason not in _BY_CONDITION or not ifs or not all(map(self._is_constant, ifs)):
            return error
        test = self._source.code(ifs[-1].test)
        return StepError(ifs[-1], _NEVER_CHANGES.format(test=test))

    def _is_constant(self, condition: cst.If) -> bool:
        """Return whether a condition has one value in all steps, as far as names tell."""
        optimizers = self._things.all(Kind.OPTIMIZER)
        varying = Varying(self._project, self._things, optimizers).at(self._source, condition.test)
        assigned = {
            at.code(target)
            for at in self._project.sources
            for node in findall(at.module, m.Assign() | m.AugAssign())
            if getattr(at.enclosing(node, cst.FunctionDef), "name", cst.Name("_")).value
            != "__init__"
            for target in targets_of(node)
        }
        parts = {self._source.code(each) for each in findall(condition.test, m.Attribute())}
        unknown = varying | self._fresh() & {*reads(condition.test)} | parts & assigned
        return not unknown and not findall(condition.test, m.Call())

    def _loss(self) -> tuple[str, cst.BaseExpression | None]:
        """Return the variable of the differentiated loss, or a new name and the loss expression."""
        value = receiver(self._call)
        if self._call.args:
            before = self._block[: self._block.index(self._backward)]
            computed = {name for each in before for name in writes(each)}
            given = {*reads(self._call.args[0].value)} & computed
            library = given and not {*reads(value)} & computed
            text = self._source.code(value)
            raise StepError(self._call, _OF_LIBRARY.format(text) if library else _ARGUMENTS)
        if not is_call(self._backward):
            raise StepError(self._call, _NOT_ALONE)
        scale = m.Call(func=m.Attribute(attr=m.Name("scale")), args=[m.Arg()])
        if isinstance(value, cst.Call) and m.matches(value, scale):
            scaler = self._things.of(self._source, receiver(value), Kind.SCALER)
            value = value.args[0].value if scaler else value
        if isinstance(value, cst.Name):
            return value.value, None
        around = self._owner.body if isinstance(self._owner, cst.FunctionDef) else self._owner
        used = {*reads(around), *writes(around)}
        return next(name for name in _LOSSES if name not in used), value

    def _check_attributes(self, forward: Sequence[Statement]) -> None:
        """Raise StepError for a forward pass that assigns to attributes of ``self``."""
        own = m.Attribute(value=m.Name("self"))
        for target in (each for piece in forward for each in findall(piece, m.AssignTarget())):
            for node in findall(target, own):
                raise StepError(node, _NO_ATTRIBUTES)

    def _check_way(
        self, forward: Sequence[Statement], update: Statement, rest: set[Statement]
    ) -> None:
        """Raise StepError for a step that may skip its update or that reads gradients."""
        real = [each for each in forward if each in self._block]
        way = [*self._block]
        if self._repeated is not None:
            way += self._outer[self._outer.index(self._anchor) :]
        first = way.index(real[0] if real else self._backward)
        last = way.index(update)
        leave = m.Continue() | m.Break() | m.Return() | m.Raise()
        for index, statement in enumerate(way):
            if index < first or statement in rest:
                continue
            for node in findall(statement, leave) if index < last else ():
                raise StepError(node, _MAY_SKIP)
            for node in findall(statement, m.Attribute(attr=m.Name("grad"))):
                raise StepError(node, _READS_GRADIENT)

    def _zero(self, gradients: Update, trained: set[Thing]) -> Iterator[Statement]:
        """Return the ``zero_grad`` statements of a training step's block.

        Raises:
            StepError: gradients accumulate over updates, or are cleared before the update.
        """
        for call in calls_of(self._repeated, "zero_grad") if self._repeated else ():
            raise StepError(call, _FORGETS)
        some = (forgets(self._source, self._things, each, trained) for each in self._outer)
        if not any(some) and not is_forgotten(self._source, self._things, self._anchor, trained):
            raise StepError(self._call, _NOT_FORGOTTEN)
        first, last = map(self._outer.index, (self._anchor, gradients.statement))
        for index, statement in enumerate(self._outer):
            for call in calls_of(statement, "zero_grad"):
                things = self._things.of(self._source, receiver(call))
                others = things and not things & trained
                if others and all(each.kind is Kind.MODEL for each in things):
                    continue
                within = first < index + bool(self._repeated) and index < last
                if others or within or not is_call(statement):
                    raise StepError(call, _FORGETS)
                yield statement

    def _forward(
        self, loss: str, differentiated: cst.BaseExpression | None
    ) -> tuple[Statement, ...]:
        """Return the statements of the forward pass, from a model's call to the loss."""
        end = self._block.index(self._backward)
        follows = self._following(end)
        needed = {loss} if differentiated is None else set(reads(differentiated))
        chosen = list[Statement]()
        for statement in reversed(self._block[:end]):
            written = {*writes(statement), *changes(statement)} & needed
            if not written or statement not in follows:
                continue
            chosen.append(statement)
            if isinstance(statement, cst.SimpleStatementLine):
                needed -= written
            needed |= set(reads(statement))
        self._add_rebound(chosen, end)
        if not chosen and differentiated is None:
            raise StepError(self._call, _NO_FORWARD_HERE)
        self._check_attributes(chosen)
        target = [cst.AssignTarget(cst.Name(loss))]
        named = [] if differentiated is None else [cst.Assign(target, differentiated)]
        return (*reversed(chosen), *(cst.SimpleStatementLine([each]) for each in named))

    def _add_rebound(self, chosen: list[Statement], end: int) -> None:
        """Add statements that rebind a variable which a forward statement has read before.

        Args:
            chosen: the forward statements so far, last first; extended in place.
            end: index in the block at which the forward statements end.

        Raises:
            StepError: only other statements read the new value, and would see it too early.
        """
        first = self._block.index(chosen[-1]) if chosen else end
        for index in range(first + 1, end):
            statement = self._block[index]
            before = [each for each in chosen if self._block.index(each) < index]
            again = {*writes(statement), *changes(statement)}
            again &= {name for each in before for name in reads(each)}
            if statement in chosen or not again:
                continue
            if not again & {name for each in chosen if each not in before for name in reads(each)}:
                name = min(again)
                reason = f"{name} gets another value before the loss is computed"
                raise StepError(statement, f"{reason}; give that value a name of its own")
            chosen.insert(len(chosen) - len(before), statement)

    def _carried(self, forward: Sequence[Statement], needed: Sequence[str]) -> list[str]:
        """Return the variables that a training step binds and that the next step reads."""
        kept = self._declared()
        if self._loop is not None:
            bound = names_in(self._loop.target) if isinstance(self._loop, cst.For) else ()
            kept = {*needs(self._loop.body)} - {*bound}
        return [name for name in _written(forward) if name in needed and name in kept]

    def _declared(self) -> set[str]:
        """Return the ``global`` and ``nonlocal`` names of the enclosing function."""
        declared = findall(self._owner, m.Global() | m.Nonlocal())
        return {
            item.name.value
            for each in declared
            if isinstance(each, cst.Global | cst.Nonlocal)
            for item in each.names
        }

    def _following(self, end: int) -> set[Statement]:
        """Return the statements that call a model or use a model's results."""
        names: set[str] = set()
        follows: set[Statement] = set()
        for statement in self._block[:end]:
            if self._models((statement,)) or names & set(reads(statement)):
                follows.add(statement)
                names |= {*writes(statement), *changes(statement)}
        return follows

    def _models(self, statements: Sequence[Statement]) -> dict[Thing, cst.BaseExpression]:
        """Return the models that statements call, directly or by a method."""
        models: dict[Thing, cst.BaseExpression] = {}
        for statement in statements:
            for call in findall(statement, m.Call()):
                for node in (call.func, getattr(call.func, "value", None)):
                    if not isinstance(node, cst.Name | cst.Attribute):
                        continue
                    for thing in self._things.of(self._source, node, Kind.MODEL):
                        if not m.matches(call.func, m.Attribute(attr=_NO_FORWARD)):
                            models.setdefault(thing, node)
            for thing, expression in self._by_functions(self._source, statement, ()):
                models.setdefault(thing, expression)
            for node in self._parts_of_models(statement):
                for thing in self._things.of(self._source, node, Kind.MODEL):
                    models.setdefault(thing, node)
        return models

    def _by_functions(
        self, source: Source, node: cst.CSTNode, around: tuple[cst.FunctionDef, ...]
    ) -> Iterator[tuple[Thing, cst.BaseExpression]]:
        """Find the models that functions of the program call, for functions called at a node.

        Yields:
            Each model, with the expression that refers to it at the call.
        """
        for call in findall(node, m.Call()):
            function = self._things.function(source, call)
            if function is None or function in around or function.name.value == "__init__":
                continue
            where = self._project.source(function)
            cls = where.enclosing(function, cst.ClassDef)
            if cls is not None and self._project.is_module(cls):
                continue
            called = findall(function.body, m.Call(func=m.Name() | m.Attribute()))
            inner = [
                (each, it.func)
                for it in called
                for each in self._things.of(where, it.func, Kind.MODEL)
            ]
            inner += self._by_functions(where, function.body, (*around, function))
            given = self._things.arguments(function, call)
            for thing, expression in inner:
                variable = self._things.variable(where, expression)
                outside = expression if where is source and variable is not None else None
                if variable is not None and variable.owner is function:
                    outside = given.get(variable.name)
                if outside is not None:
                    self._functions[function] = None
                    yield thing, outside

    def _parts_of_models(self, statement: Statement) -> Iterator[cst.BaseExpression]:
        """Yield expressions whose attribute or element a statement reads, as ``model.head``."""
        for node in findall(statement, m.Attribute() | m.Subscript()):
            if isinstance(node.value, cst.Name | cst.Attribute) and not m.matches(
                node, m.Attribute(attr=_NO_PART)
            ):
                yield node.value

    def _needed(self, forward: Sequence[Statement]) -> list[str]:
        """Return the variables that forward statements read before binding them."""
        written: set[str] = set()
        needed: dict[str, None] = {}
        for statement in forward:
            needed |= {name: None for name in needs(statement) if name not in written}
            written |= set(writes(statement))
        return list(needed)

    def _fresh(self) -> set[str]:
        """Return the variables that are rebound in each training step."""
        if self._loop is not None:
            return {*writes(self._loop)} - {"self"}
        owner = self._owner
        if not isinstance(owner, cst.FunctionDef):
            return set()
        params = [each.name for each in owner.params.params][is_method(owner) :]
        values = {each.value for each in params if not self._things.of(self._source, each)}
        return {*writes(owner.body), *values}

    def _keys(self, forward: Sequence[Statement], name: str) -> tuple[str, ...]:
        """Return the keys that statements read of a dictionary; empty if it is used otherwise."""
        keys: dict[str, None] = {}
        for node in (each for piece in forward for each in findall(piece, m.Name(name))):
            around = self._source.parent(node)
            if not isinstance(around, cst.Subscript) or not m.matches(around, _BY_TEXT):
                return ()
            keys[self._source.code(around.slice[0])] = None
        return tuple(keys)

    def _counter(self) -> str:
        """Return the variable that counts the iterations of the training loop, or ``""``."""
        if not isinstance(self._loop, cst.For):
            return ""
        target = self._loop.target
        if m.matches(self._loop.iter, m.Call(func=m.Name("enumerate"))):
            target = target.elements[0].value if isinstance(target, cst.Tuple) else target
        elif not m.matches(self._loop.iter, m.Call(func=m.Name("range"))):
            return ""
        return target.value if isinstance(target, cst.Name) else ""

    def _outputs(
        self, forward: Sequence[Statement], rest: set[Statement], carried: Sequence[str], loss: str
    ) -> tuple[str, ...]:
        """Return the variables of the forward pass that later code or the next step reads."""
        used = self._declared() | self._used_after() | {*carried}
        for statement in self._block:
            if statement not in rest:
                used |= set(reads(statement))
        return tuple(name for name in _written(forward) if name in used and name != loss)

    def _used_after(self) -> set[str]:
        """Return the variables that the function reads after the training step's block."""
        parent: cst.CSTNode = self._site
        used: set[str] = set()
        for each in self._source.above(self._site):
            if isinstance(each, cst.IndentedBlock | cst.Module) and parent is not self._site:
                later = each.body[list(each.body).index(parent) + 1 :]  # type: ignore[arg-type]
                used |= set(needs(*later))
            if isinstance(each, cst.For | cst.While) and each is not self._loop:
                used |= set(needs(*each.body.body))
            parent = each
            if isinstance(each, cst.FunctionDef):
                break
        return used


_ARGUMENTS = (
    "backward() has arguments, and a compiled program calls it without, once, and keeps no graph: "
    "take them out, and multiply the loss by the weights before; second derivatives "
    "(create_graph) cannot be ported"
)
_OF_LIBRARY = (
    "{0}.backward(loss) is a method of a library, which prepares model, optimizer and batches in "
    "its own way: write loss.backward(), and take {0} out of the program first"
)
_NEVER_CHANGES = (
    "the step depends on `{test}`, which seems to be the same in all steps: keep the branch that "
    "the program takes, with the statements from the model to step() in one block"
)
_NOT_ALONE = "backward() is part of a larger statement: call it in a line of its own"
_NO_FORWARD_HERE = (
    "the loss is not computed from a model that is known in this block: call the model, the loss "
    "and backward() in one block, assign what they return to variables, not to attributes, and "
    "write a loop each for training and evaluation"
)
#: Reasons that a condition may be behind.
_BY_CONDITION = (_NO_FORWARD_HERE, CONDITION, NO_STEP)
_NO_ATTRIBUTES = (
    "the forward pass cannot change an attribute; use a variable, and then give its value to the "
    "attribute"
)
_MAY_SKIP = (
    "this may skip the update, and a compiled program always makes it: move this after the update"
)
_READS_GRADIENT = "a compiled program keeps gradients on its device: opts.anchorTensor returns them"
_NOT_FORGOTTEN = (
    "no zero_grad() is called between updates, so each update uses the sum of all gradients so "
    "far, and a compiled program uses those of its batch: if that is what you mean, call "
    "zero_grad() of the optimizer in each turn of the loop"
)
_FORGETS = (
    "a compiled program forgets gradients before each update: call zero_grad() of the optimizer "
    "that updates here in a statement of its own, before backward() or after step()"
)
#: Names for what is differentiated and has none.
_LOSSES = ("loss", "total_loss", "objective", "loss_to_minimize", *map("loss_{}".format, range(99)))
_NO_FORWARD = m.OneOf(*map(m.Name, ("train", "eval", "state_dict", "zero_grad", "to", "cuda")))
_NO_PART = m.OneOf(_NO_FORWARD, m.Name("training"), m.Name("module"))


def _written(forward: Sequence[Statement]) -> list[str]:
    """Return the variables that statements bind, without duplicates."""
    return list(dict.fromkeys(name for each in forward for name in writes(each)))


# -- names that get other values between updates: a program takes them as inputs ----------------

_BINDS = m.Assign() | m.AugAssign() | m.AnnAssign() | m.For() | m.WithItem()


class Varying:
    """Finds variables whose values change between training steps."""

    def __init__(self, project: Project, things: Things, optimizers: Iterable[Thing]):
        """Record the statements that bind each variable of a program.

        Args:
            project: the program.
            things: the tracked objects of the program.
            optimizers: optimizers of the step; loops around their construction are ignored.
        """
        self._things = things
        self._made = {each for thing in optimizers for each in thing.source.above(thing.made)}
        self._bindings: dict[Variable, list[tuple[Source, cst.CSTNode]]] = {}
        for source in project.sources:
            for node in findall(source.module, _BINDS):
                names = names_in(node.target) if isinstance(node, cst.For) else writes(node)
                for name in names:
                    variable = Variable(things.named(source, node, name), name)
                    self._bindings.setdefault(variable, []).append((source, node))

    def at(self, source: Source, node: cst.CSTNode) -> set[str]:
        """Return the variables that a syntax node reads and whose values change between steps."""
        return {
            name
            for name in reads(node)
            if self._varies(Variable(self._things.named(source, node, name), name), frozenset())
        }

    def _varies(self, variable: Variable, seen: frozenset[Variable]) -> bool:
        if variable in seen or self._things.may_be(variable):
            return False
        seen |= {variable}
        return any(
            self._changes(source, node, seen) for source, node in self._bindings.get(variable, ())
        ) or self._differs(variable, seen)

    def _changes(self, source: Source, node: cst.CSTNode, seen: frozenset[Variable]) -> bool:
        """Return whether a statement may run repeatedly and bind a variable to a new value."""
        around = [node, *source.between(node, self._things.owner(source, node))]
        loops = [each for each in around if isinstance(each, cst.For | cst.While)]
        function = source.enclosing(node, cst.FunctionDef)
        if isinstance(node, cst.AugAssign) or any(each not in self._made for each in loops):
            return True
        if function is not None and any(
            isinstance(each, cst.Global | cst.Nonlocal)
            and {item.name.value for item in each.names} & {*writes(node)}
            for each in findall(function.body, m.Global() | m.Nonlocal())
        ):
            return True
        return self._any(source, getattr(node, "value", None), seen)

    def _differs(self, variable: Variable, seen: frozenset[Variable]) -> bool:
        """Return whether calls of a function pass different values for a parameter."""
        function = variable.owner
        if not isinstance(function, cst.FunctionDef):
            return False
        given = [
            (source, value)
            for call, source in self._things.calls(function).items()
            if (value := self._things.arguments(function, call).get(variable.name)) is not None
        ]
        texts = {source.code(value) for source, value in given}
        return len(texts) > 1 or any(self._any(source, value, seen) for source, value in given)

    def _any(self, source: Source, value: cst.CSTNode | None, seen: frozenset[Variable]) -> bool:
        """Return whether an expression reads a variable whose value changes between steps."""
        return value is not None and any(
            self._varies(Variable(self._things.named(source, value, name), name), seen)
            for name in reads(value)
        )
