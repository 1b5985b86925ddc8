"""Context managers of compiler hints: accepted without effect, logged once."""

import contextlib
from collections.abc import Iterator
from typing import Any

from sambaflow.logging import hint


@contextlib.contextmanager
def op_fusion(*settings: Any, **more: Any) -> Iterator[None]:
    """Accept a fusion hint without effect: the compiler chooses."""
    del settings, more
    hint("directives.op_fusion", "what is fused is the compiler's choice")
    yield
