"""Tracebacks that show the user's lines rather than the tracer's."""

import sys
from collections.abc import Iterator
from types import FrameType, TracebackType

from abele.errors import AbeleError
from poptorch._logging import HIDDEN_FRAMES, logger

_INTERNAL = {"abele", "poptorch", "torch", *sys.stdlib_module_names}


def show_user_frames(raised: BaseException) -> bool:
    """Remove torch's and this project's frames from an error of forward.

    Left are the frames of other code, and the innermost one, which raised. Tracing puts thirty
    frames between a call and forward. Errors of the engine say what happened and need none of them;
    an error without a frame of the user's is a defect, and keeps all. At log level DEBUG nothing
    changes.

    Args:
        raised: the error; changed in place, like the errors that led to it.

    Returns:
        Whether frames are gone.
    """
    if logger.isEnabledFor(10):
        return False
    gone = False
    for error in _chain(raised):
        frames = list(_frames(error.__traceback__))
        kept = [entry for entry in frames if _is_users(entry.tb_frame)]
        if not kept and not isinstance(error, AbeleError):
            continue
        if kept and kept[-1] is not frames[-1]:
            kept.append(frames[-1])
        gone |= len(kept) < len(frames)
        error.__traceback__ = _joined(kept)
    return gone


def note_hidden_frames(error: BaseException) -> None:
    """Add the note on removed frames, once."""
    if HIDDEN_FRAMES not in getattr(error, "__notes__", ()):
        error.add_note(HIDDEN_FRAMES)


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__ or error.__context__


def _frames(trace: TracebackType | None) -> Iterator[TracebackType]:
    while trace is not None:
        yield trace
        trace = trace.tb_next


def _is_users(frame: FrameType) -> bool:
    # Functions that torch generates have no module of their own.
    module = frame.f_globals.get("__name__") or "torch"
    return module.partition(".")[0] not in _INTERNAL


def _joined(entries: list[TracebackType]) -> TracebackType | None:
    joined = None
    for entry in reversed(entries):
        joined = TracebackType(joined, entry.tb_frame, entry.tb_lasti, entry.tb_lineno)
    return joined
