"""The state of a capture that annotations need: the options and the open block."""

import contextlib
import contextvars
import dataclasses
from collections.abc import Iterator
from typing import Any

from abele.trace import scopes
from poptorch._error import error
from poptorch._logging import logger
from poptorch.options import Options
from poptorch.options.execution import Placement, _IExecutionStrategy

#: Mark of the operators of a block, a ``Placement`` as a tuple, so that programs with it can be
#: written to a file; after a block was left, its name.
BLOCK = "block"
#: Mark of operators whose activations are computed again together.
SEGMENT = "segment"

# What programs write into autoRecomputation to have every stage's activations computed again.
_RECOMPUTES_STAGES = (1, 3, 4)

_active: contextvars.ContextVar["Tracing | None"] = contextvars.ContextVar("tracing", default=None)


class Tracing:
    """The blocks that one forward enters, in order.

    Args:
        options: of the wrapper; its strategy decides where a block goes.
    """

    def __init__(self, options: Options):
        self.options = options
        self._next_name = 0
        self._scopes: list[Placement] = []
        #: The device that was given at each block, by its name.
        self.devices: dict[str, int | None] = {}

    @property
    def strategy(self) -> _IExecutionStrategy:
        """The execution strategy in force."""
        return self.options._execution_strategy

    @contextlib.contextmanager
    def open(self) -> Iterator[None]:
        """While open, annotations find this object; numbering starts again at every opening."""
        self.strategy._restart()
        self._next_name = 0
        self._scopes, self.devices = [], {}
        token = _active.set(self)
        try:
            yield
        finally:
            _active.reset(token)

    def restart_names(self) -> None:
        """Have the next block without a name be called ``0``."""
        self._next_name = 0

    def next_name(self) -> str:
        """Return a name for a block without one: ``0``, ``1``, ..."""
        self._next_name += 1
        return str(self._next_name - 1)

    def keep_name(self, name: str) -> None:
        """Take a name that was given by ``next_name`` in an earlier capture out of the count."""
        self._next_name = max(self._next_name, int(name) + 1)

    def begin(self, name: str, ipu_id: int | None) -> Placement:
        """Place the operators to come.

        Raises:
            AssertionError: the strategy does not know the block, or where to put it.
            poptorch.Error: phases and devices that do not go together.
        """
        placed, marks = self.placed(name, ipu_id)
        logger.debug(
            "Starting block id=%s stage=%d phase=%d ipu=%d",
            placed.block,
            placed.stage,
            placed.phase,
            placed.ipu,
        )
        for key, value in marks.items():
            scopes.mark(key, value)
        return placed

    def placed(self, name: str, ipu_id: int | None) -> tuple[Placement, dict[str, Any]]:
        """Return where the strategy puts a block, and the marks of its operators.

        Raises:
            AssertionError, poptorch.Error: as for ``begin``.
        """
        placed = self.strategy.place(name, ipu_id)
        self.devices[name] = ipu_id
        marks: dict[str, Any] = {BLOCK: dataclasses.astuple(placed)}
        if self.options._Popart.options.get("autoRecomputation") in _RECOMPUTES_STAGES:
            marks[SEGMENT] = placed.stage
        return placed, marks

    def enter(self, name: str, ipu_id: int | None) -> None:
        """Begin a block that ends with ``leave``."""
        self._scopes.append(self.begin(name, ipu_id))

    def leave(self) -> None:
        """End the innermost entered block; operators then belong to the one around it, if any."""
        left = self._scopes.pop()
        logger.debug("Leaving block id=%s", left.block)
        around = self._scopes[-1] if self._scopes else None
        scopes.mark(BLOCK, dataclasses.astuple(around) if around else left.block)


# A capture waits for this thread: it may run what is compiled, but not compile.
_waited_for: contextvars.ContextVar[bool] = contextvars.ContextVar("waited_for", default=False)


def refuse_compiling_from_now_on() -> None:
    """Have every compilation in this thread refused, because a capture waits for the thread."""
    _waited_for.set(True)


def refuse_compiling_inside_capture() -> None:
    """Raise poptorch.Error in a thread for which a capture waits."""
    if _waited_for.get():
        raise error(
            "A poptorch.CPU called a wrapped model that is not compiled, while the model around it "
            "is captured. Compile the inner one before: wrapped.compile(...)."
        )


def current() -> Tracing | None:
    """Return the capture under way, or None outside of one."""
    return _active.get()


def refuse_nested_call() -> None:
    """Raise poptorch.Error if a forward is being captured."""
    if current() is not None:
        raise error(
            "A wrapped model was called inside the forward of another one. Call the plain module "
            "there (wrapped.model): it becomes part of the program that is being captured."
        )
