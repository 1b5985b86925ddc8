"""Tracebacks without the frames of libraries, which plain Python and IPython then show."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from types import FrameType, TracebackType

from abele import libraries
from abele.errors import AbeleError


def show_user_frames(
    raised: BaseException, deliberate: tuple[type[BaseException], ...] = (AbeleError,)
) -> bool:
    """Remove torch's and this project's frames from the traceback of an error in forward.

    Frames of other code and the innermost frame remain. Tracing puts thirty frames between a call
    and forward. The errors that led to it are changed alike, all in place.

    Args:
        raised: the error.
        deliberate: errors that say what happened and need no frame of ours. Another error without
            a frame of the user's is a defect, and keeps all.

    Returns:
        Whether frames were removed.
    """
    gone = False
    for problem in _chain(raised):
        frames = frames_of(problem)
        kept = [entry for entry in frames if is_users(entry.tb_frame)]
        if not kept and not isinstance(problem, deliberate):
            continue
        if kept and kept[-1] is not frames[-1]:
            kept.append(frames[-1])
        gone |= len(kept) < len(frames)
        problem.__traceback__ = joined(kept)
    return gone


def _chain(problem: BaseException | None) -> Iterator[BaseException]:
    seen: set[int] = set()
    while problem is not None and id(problem) not in seen:
        seen.add(id(problem))
        yield problem
        problem = problem.__cause__ or problem.__context__


def frames_of(problem: BaseException) -> list[TracebackType]:
    """Return the entries of an error's traceback, the outermost first."""
    frames: list[TracebackType] = []
    trace = problem.__traceback__
    while trace is not None:
        frames.append(trace)
        trace = trace.tb_next
    return frames


def is_users(frame: FrameType) -> bool:
    """Return whether a frame belongs neither to Python's own modules nor to a library."""
    # Functions that torch generates have no module of their own.
    module = frame.f_globals.get("__name__") or "torch"
    of_python = module.partition(".")[0] in sys.stdlib_module_names
    return not of_python and not libraries.has_module(module)


def joined(entries: Sequence[TracebackType]) -> TracebackType | None:
    """Return the traceback that consists of some entries; None if there are none."""
    trace = None
    for entry in reversed(entries):
        trace = TracebackType(trace, entry.tb_frame, entry.tb_lasti, entry.tb_lineno)
    return trace
