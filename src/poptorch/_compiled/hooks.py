"""Functions of the user's that run around every compilation of any wrapper."""

import contextlib
from collections import OrderedDict
from collections.abc import Callable, Iterator

from torch.utils.hooks import RemovableHandle

_before: "OrderedDict[int, Callable[[], None]]" = OrderedDict()
_after: "OrderedDict[int, Callable[[], None]]" = OrderedDict()


def registerPreCompileHook(hook: Callable[[], None]) -> RemovableHandle:
    """Has ``hook`` called before each model's forward is captured.

    Args:
        hook: called without arguments, in the order of registration.

    Returns:
        A handle whose ``remove()`` takes the hook away.

    Raises:
        RuntimeError: it cannot be called.
    """
    return _register(_before, hook)


def registerPostCompileHook(hook: Callable[[], None]) -> RemovableHandle:
    """Has ``hook`` called after each model's forward was captured, also if that failed.

    Args:
        hook: called without arguments, in the order of registration.

    Returns:
        A handle whose ``remove()`` takes the hook away.

    Raises:
        RuntimeError: it cannot be called.
    """
    return _register(_after, hook)


def _register(
    hooks: "OrderedDict[int, Callable[[], None]]", hook: Callable[[], None]
) -> RemovableHandle:
    if not callable(hook):
        raise RuntimeError(f"A compile hook must be callable, found {hook!r}.")
    handle = RemovableHandle(hooks)
    hooks[handle.id] = hook
    return handle


@contextlib.contextmanager
def around_capture() -> Iterator[None]:
    """Run the hooks on entering and on leaving."""
    for hook in tuple(_before.values()):
        hook()
    try:
        yield
    finally:
        for hook in tuple(_after.values()):
            hook()
