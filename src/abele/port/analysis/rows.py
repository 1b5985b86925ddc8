"""How many rows a loader goes through in an epoch, where the text of a program says it."""

from __future__ import annotations

from typing import NamedTuple

import libcst as cst
from libcst import matchers as m

from abele.port.analysis.batches import argument, may_be_short, size
from abele.port.analysis.kinds import Thing
from abele.port.analysis.things import Things
from abele.port.analysis.written_values import Value, values_of, whole_number
from abele.port.project import Project
from abele.port.source import Source

_DEPTH = 8  # data sets in data sets, at most
_FILLED = ("randn", "rand", "zeros", "ones", "empty")
_COUNTED = ("arange", "randperm", "eye")
_SAME_ROWS = ("float", "double", "half", "long", "int", "bool", "to", "unsqueeze", "clone")
_OWN_ORDER = ("sampler", "batch_sampler")


class Epoch(NamedTuple):
    """What a loader gives in an epoch.

    Attributes:
        rows: of its data.
        batch: rows of a batch.
        drops: whether a last, shorter batch is left out.
    """

    rows: int
    batch: int
    drops: bool

    @property
    def batches(self) -> int:
        """How many there are, with a shorter one."""
        return self.rows // self.batch if self.drops else -(-self.rows // self.batch)

    def left_over(self, every: int) -> int:
        """How many batches a program leaves out that takes whole ones, so many in a call."""
        return self.batches - self.rows // (self.batch * every) * every


def epoch_of(project: Project, things: Things, loader: Thing) -> Epoch | None:
    """What a loader gives in an epoch; None where the text does not say it.

    Args:
        project: the program.
        things: what names stand for.
        loader: the loader.
    """
    call = loader.made
    if not isinstance(call, cst.Call) or any(each.star for each in call.args):
        return None
    data, drop, batch = argument(call, "dataset", 0), argument(call, "drop_last"), size(loader)
    known = drop is None or m.matches(drop, m.Name("True") | m.Name("False"))
    if data is None or not known or any(argument(call, each) is not None for each in _OWN_ORDER):
        return None
    of_batch = 1 if batch is None else whole_number(things, loader.source, batch)
    rows = _Rows(project, things).of_data(loader.source, data, _DEPTH)
    if rows is None or not of_batch:
        return None
    return Epoch(rows, of_batch, drop is not None and m.matches(drop, m.Name("True")))


def leaves_rows_out(project: Project, things: Things, loader: Thing, every: int = 1) -> bool:
    """Whether a loader of PopTorch may leave rows out that torch's gives.

    Args:
        project: the program.
        things: what names stand for.
        loader: the loader.
        every: how many batches a call takes.
    """
    if every == 1 and not may_be_short(loader):
        return False
    epoch = epoch_of(project, things, loader)
    return epoch is None or epoch.left_over(every) > 0


class _Rows:
    def __init__(self, project: Project, things: Things):
        self._project, self._things = project, things

    def of_data(self, source: Source, node: cst.BaseExpression, depth: int) -> int | None:
        """The rows of a data set, if all that it may be has as many."""
        values = values_of(self._things, source, node) if depth else []
        numbers = {self._of_data(each, depth - 1) for each in values}
        return numbers.pop() if len(numbers) == 1 else None

    def _of_data(self, value: Value, depth: int) -> int | None:
        source, call, index = value
        if not isinstance(call, cst.Call):
            return None
        name = source.imported(call.func)
        if index is not None:
            return self._of_part(source, call, index) if name.endswith(".random_split") else None
        if name.endswith(".TensorDataset"):
            numbers = {self._of_tensor(source, each.value, _DEPTH) for each in call.args} - {None}
            return numbers.pop() if len(numbers) == 1 else None
        if name.endswith(".Subset"):
            chosen = argument(call, "indices", 1)
            ranged = m.matches(chosen, m.Call(func=m.Name("range"))) if chosen else False
            return self._of_range(source, cst.ensure_type(chosen, cst.Call)) if ranged else None
        cls = self._project.class_of(source, call.func)
        return None if cls is None else self._of_class(cls)

    def _of_part(self, source: Source, call: cst.Call, index: int) -> int | None:
        """The rows of one part of a data set, if the parts are numbers."""
        parts = argument(call, "lengths", 1)
        if not isinstance(parts, cst.List | cst.Tuple) or index >= len(parts.elements):
            return None
        return whole_number(self._things, source, parts.elements[index].value)

    def _of_range(self, source: Source, call: cst.Call) -> int | None:
        numbers = [whole_number(self._things, source, each.value) for each in call.args]
        return None if None in numbers else len(range(*(each or 0 for each in numbers)))

    def _of_class(self, cls: cst.ClassDef) -> int | None:
        """What ``__len__`` of a class of the program returns, if that is one number."""
        method = self._project.method(cls, "__len__")
        body = method.body.body if method is not None else ()
        if method is None or len(body) != 1 or not isinstance(body[0], cst.SimpleStatementLine):
            return None
        (last,) = body[0].body
        if not isinstance(last, cst.Return) or last.value is None:
            return None
        return whole_number(self._things, self._things.file(method), last.value)

    def _of_tensor(self, source: Source, node: cst.BaseExpression, depth: int) -> int | None:
        values = values_of(self._things, source, node) if depth else []
        numbers = {self._of_made(each, depth - 1) for each in values}
        return numbers.pop() if len(numbers) == 1 else None

    def _of_made(self, value: Value, depth: int) -> int | None:
        """The rows of a tensor that a function of torch makes."""
        source, call, index = value
        if index is not None or not isinstance(call, cst.Call):
            return None
        module, _, last = source.imported(call.func).rpartition(".")
        if not module:
            kept = m.Attribute(attr=m.OneOf(*map(m.Name, _SAME_ROWS)))
            if not m.matches(call.func, kept) or m.matches(call, _IN_FRONT):
                return None
            return self._of_tensor(source, cst.ensure_type(call.func, cst.Attribute).value, depth)
        given = [each.value for each in call.args if each.keyword is None]
        if module != "torch" or not given:
            return None
        shape: cst.BaseExpression | None = None
        if last in _FILLED or (last in _COUNTED and len(given) == 1):
            shape = given[0]
        elif last == "randint":
            shape = given[-1]
        if isinstance(shape, cst.Tuple | cst.List) and shape.elements:
            shape = shape.elements[0].value
        elif last == "randint":
            return None
        return None if shape is None else whole_number(self._things, source, shape)


_IN_FRONT = m.Call(func=m.Attribute(attr=m.Name("unsqueeze")), args=[m.Arg(~m.Integer("1"))])
