"""What the process itself takes of the machine's memory, beside what an estimate counts."""

from pathlib import Path

from abele.fit import Interval, Part

# Python's own memory, threads and libraries may grow by this while programs run.
_GROWTH = (0.0, 0.05, 0.15)


def beside(counted: int) -> Part:
    """Memory of this process that is in use now, but for tensors that an estimate counts.

    Args:
        counted: bytes of these tensors.
    """
    size = max(0, _private() - counted)
    return Part(role="Python, torch and what else this process holds", size=_grown(size))


def _grown(size: int) -> Interval:
    low, expected, high = (size * (1 + share) for share in _GROWTH)
    return Interval(low, expected, high)


def _private() -> int:
    """Bytes in use that no file backs; the others can be dropped where memory is short."""
    for line in _status().splitlines():
        name, _, value = line.partition(":")
        if name == "RssAnon":
            return int(value.split()[0]) * 1024
    return 0


def _status() -> str:
    try:
        return Path("/proc/self/status").read_text()
    except OSError:  # another system than Linux
        return ""
