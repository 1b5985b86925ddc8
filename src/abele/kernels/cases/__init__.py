"""Test cases of the kernels' self-test: calls of each function in ``abi.h`` with exact results.

Sizes are small and cover each remainder of registers and blocks. Exact results are those of torch's
own operators or of plain loops in float64, which use no kernel of ours. Functions that only count
threads have no table.
"""

from __future__ import annotations

from abele.kernels.cases import images, matrices, rows
from abele.kernels.cases.case import Table

#: Test tables by kind of ``sources.KINDS``, then by function.
TABLES: dict[str, dict[str, Table]] = {
    **matrices.TABLES,
    "rows": rows.TABLES,
    "checksums": rows.CHECKSUMS,
    **images.TABLES,
}
