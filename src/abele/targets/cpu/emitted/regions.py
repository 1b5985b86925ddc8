"""Parallel regions: units of which each thread runs all, on its own rows.

    states = multiply(states, weight)        in each thread, on its rows:
    states = tanh(states + inputs[0])            multiply, tanh,
    states = multiply(states, weight)   ->       multiply, tanh, ...
    states = tanh(states + inputs[1])        and only then do they meet

The time steps of a recurrent layer are such units: no sequence of the batch reads what belongs to
another. Threads do not wait for each other after each step then, and what a thread has computed is
in its own cache when it goes on.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from abele.targets.cpu.emitted.by_rows import ByRows
from abele.targets.cpu.emitted.calls.products import Product
from abele.targets.translation import loops
from abele.targets.translation.groups import Unit
from abele.targets.translation.places import Buffer, Kind, Place, Rows

#: A product of fewer rows takes as long as one of so many.
LEAST_ROWS = 4
# With fewer products, threads meet seldom anyway; of a larger one, waiting is a small part.
_LEAST_PRODUCTS, _MOST_ADDS = 3, 1 << 24


@dataclasses.dataclass(eq=False)
class Region(Unit):
    """Units that run one after the other, in each thread on its rows.

    Attributes:
        units: products and loops.
        rows: how many there are.
    """

    units: list[Unit] = dataclasses.field(kw_only=True)
    rows: int = dataclasses.field(kw_only=True)

    @property
    def elementwise(self) -> bool:
        """False: the unit is no loop, though it may begin with one."""
        return False

    @property
    def adds(self) -> int:
        """Number of FMAs of its GEMMs."""
        return sum(each.adds for each in self.operations if isinstance(each, Product))


def with_regions(units: Sequence[Unit], kept: set[Buffer]) -> list[Unit]:
    """Fuse consecutive units that work on the same rows.

    Args:
        units: in the order in which they run.
        kept: memory that is written. What regions do without is removed.
    """
    result: list[Unit] = []
    index = 0
    while index < len(units):
        region = _longest(units, index, kept)
        result.append(units[index] if region is None else region)
        index += 1 if region is None else len(region.units)
    for region in result:
        if isinstance(region, Region):
            _share_memory(region, result, kept)
    return result


def _longest(units: Sequence[Unit], first: int, kept: set[Buffer]) -> Region | None:
    """Return the longest region that begins with a unit, or None if it is not worth it."""
    product = units[first].operations[0]
    if not isinstance(product, Product) or not _belongs(product):
        return None
    count = product.sizes[0]
    known: dict[Buffer, set[Rows]] = {}
    last = first
    for unit in units[first:]:
        rows = _rows(unit, kept, count)
        if rows is None or not _joined(rows, known, count):
            break
        last += 1
    chosen = list(units[first:last])
    if sum(isinstance(each.operations[0], Product) for each in chosen) < _LEAST_PRODUCTS:
        return None
    operations = [operation for unit in chosen for operation in unit.operations]
    return Region(operations, units=chosen, rows=count)


def _belongs(product: Product) -> bool:
    """Return whether threads should share a GEMM's rows, each reading the whole right factor."""
    enough = product.count == 1 and product.sizes[0] >= 2 * LEAST_ROWS
    return enough and product.packed and product.keeps_factor and product.adds <= _MOST_ADDS


def _rows(unit: Unit, kept: set[Buffer], count: int) -> list[Rows] | None:
    """Return the accesses of each row of a unit; None if a region cannot contain it."""
    operation = unit.operations[0]
    if isinstance(operation, Product) and not isinstance(unit, ByRows):
        if not _belongs(operation) or operation.sizes[0] != count:
            return None
        a, b = operation.reads
        (result,) = operation.writes
        whole = Rows(b.buffer, b.offset, 0, b.size, written=False)
        return [_of_matrix(a, written=False), whole, _of_matrix(result, written=True)]
    return loops.rows(unit, kept, count) if unit.elementwise else None


def _of_matrix(place: Place, *, written: bool) -> Rows:
    (_, columns), (row, column) = place.shape, place.stride
    return Rows(place.buffer, place.offset, row, 1 + (columns - 1) * column, written)


def _joined(rows: Sequence[Rows], known: dict[Buffer, set[Rows]], count: int) -> bool:
    """Add what a unit reads and writes to what others do, unless rows would meet."""
    together = {each.buffer: known.get(each.buffer, set[Rows]()) for each in rows}
    pairs = ((a, b) for a in rows for b in (*together[a.buffer], *rows))
    if any((a.written or b.written) and a.collide(b, count) for a, b in pairs):
        return False
    for each in rows:
        known.setdefault(each.buffer, set()).add(each)
    return True


def _share_memory(region: Region, units: Sequence[Unit], kept: set[Buffer]) -> None:
    """Let values that only a region needs lie where earlier ones did.

    A thread may be some units ahead of another, so the plan of the arena has to keep all memory of
    a region apart; but rows of the same place belong to the same thread.
    """
    elsewhere = {
        place.buffer
        for unit in units
        if unit is not region
        for each in unit.operations
        for place in (*each.reads, *each.writes)
    }
    lives: dict[Buffer, tuple[int, int]] = {}
    for index, unit in enumerate(region.units):
        for each in _rows(unit, kept, region.rows) or ():
            first, _ = lives.get(each.buffer, (index, index))
            lives[each.buffer] = first, index
            if each.buffer.kind is not Kind.ARENA or not _is_apart(each, region.rows):
                elsewhere.add(each.buffer)
    inside = [buffer for buffer in lives if buffer not in elsewhere]
    free: list[tuple[int, Buffer]] = []  # since when
    for buffer in sorted(inside, key=lambda each: lives[each][0]):
        first, last = lives[buffer]
        for entry in free:
            since, other = entry
            if since < first and (other.dtype, other.size) == (buffer.dtype, buffer.size):
                buffer.inside = other, 0
                kept.discard(buffer)
                free.remove(entry)
                break
        free.append((last, buffer if buffer.inside is None else buffer.inside[0]))
    for operation in region.operations:
        operation.resolve()


def _is_apart(rows: Rows, count: int) -> bool:
    """Return whether rows tile their buffer without overlap."""
    within = rows.offset >= 0 and rows.offset + rows.extent <= rows.step
    return within and rows.step * count == rows.buffer.size
