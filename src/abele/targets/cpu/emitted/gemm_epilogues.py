"""Fusion of GEMMs with the elementwise loops that read their results, block of rows by block.

    gradient = multiply(a, b)             multiply_by_rows(a, b, rows:
    update(gradient, weight, moments)  ->     update(rows, their weight, their moments))

Nothing else reads the GEMM's result, so it is never stored: a block of its rows is still in cache
when the loop reads them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from abele.containers import traverse
from abele.targets.cpu.emitted.calls.products import Product
from abele.targets.translation import loops
from abele.targets.translation.groups import Unit
from abele.targets.translation.places import Buffer, Kind


@dataclasses.dataclass(eq=False)
class GemmWithEpilogue(Unit):
    """A GEMM fused with the elementwise loop that alone reads its result.

    Attributes:
        product: the GEMM, first of the operations.
        loop: the unit of the other operations.
    """

    product: Product = dataclasses.field(kw_only=True)
    loop: Unit = dataclasses.field(kw_only=True)


def fuse_gemm_epilogues(units: Sequence[Unit]) -> list[Unit]:
    """Fuse GEMMs with the loops that read them where that is faster.

    Args:
        units: with dependencies in ``before``.
    """
    result = list(units)
    for unit in units:
        product = unit.operations[0]
        if not isinstance(product, Product) or not product.is_faster_by_rows:
            continue
        loop = _only_reader(product.writes[0].buffer, unit, result)
        if loop is not None and _can_follow(loop, unit, product):
            result = _joined(result, unit, product, loop)
    return result


def _only_reader(buffer: Buffer, maker: Unit, units: Sequence[Unit]) -> Unit | None:
    """Return the only loop that reads a buffer, or None."""
    if buffer.kind is not Kind.ARENA:
        return None
    users = [
        unit
        for unit in units
        if unit is not maker
        and any(
            place.buffer is buffer
            for each in unit.operations
            for place in (*each.reads, *each.writes)
        )
    ]
    return users[0] if len(users) == 1 and users[0].elementwise else None


def _can_follow(loop: Unit, unit: Unit, product: Product) -> bool:
    """Return whether a loop may run on rows of a GEMM before other rows are computed."""
    factors = {place.buffer for place in product.reads}
    result = product.writes[0]
    written = {place.buffer for each in loop.operations for place in each.writes}
    if result.size != loop.size or result.buffer in written or written & factors:
        return False
    by_rows = loops.LoopWriter(loop, ()).goes_through_rows(result)
    return by_rows and not _waits_in_between(loop, unit)


def _waits_in_between(loop: Unit, unit: Unit) -> bool:
    """Return whether a loop depends on a unit that itself depends on the GEMM."""
    others = traverse(loop.before - {unit}, lambda each: each.before)
    return any(unit in each.before for each in others)


def _joined(units: Sequence[Unit], unit: Unit, product: Product, loop: Unit) -> list[Unit]:
    both = {unit, loop}
    operations = [product, *loop.operations]
    before = (unit.before | loop.before) - both
    joined = GemmWithEpilogue(operations, loop.shape, loop.size, before, product=product, loop=loop)
    others = [each for each in units if each not in both]
    for each in others:
        if each.before & both:
            each.before = each.before - both | {joined}
    return [*others[: units.index(unit)], joined, *others[units.index(unit) :]]
