"""What C++ for processors can say."""

from __future__ import annotations

from collections.abc import Callable

import torch

from abele.targets.cpu.emitted.calls import HANDLERS
from abele.targets.cpu.emitted.calls.products import packed_once
from abele.targets.cpu.index_bounds import IndexBounds
from abele.targets.translation.dialect import Dialect
from abele.targets.translation.pointwise import TYPES


def _may_leave(graph: torch.fx.GraphModule) -> Callable[[torch.fx.Node], bool]:
    return IndexBounds(graph).may_leave


DIALECT = Dialect(handlers=HANDLERS, types=TYPES, may_leave=_may_leave, rewritten=packed_once)
