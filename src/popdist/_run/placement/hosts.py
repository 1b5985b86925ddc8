"""Lists of hosts: ``a,b[0-2,4]`` and files with one host per line."""

import itertools
import re
import socket
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from popdist._run.problems import MOST, Problem

_RANGE = re.compile(r"(?P<head>[^\[\]]*)\[(?P<numbers>[\d,-]+)\](?P<tail>.*)")
_BETWEEN = re.compile(r",(?![^\[]*\])")  # commas outside of brackets
_DIGITS = re.compile(r"[0-9]{1,9}")
_SHOWN = 200  # characters of a list in a message
_NAME = re.compile(r"[A-Za-z0-9_.:@-]+")
LOOPBACK = ("localhost", "127.0.0.1", "::1")


def expand(text: str) -> tuple[str, ...]:
    """Write out a list of hosts.

    Args:
        text: Names with commas in between; ``n[0-2,4]`` stands for n0, n1, n2 and n4, and
            ``n[08-10]`` keeps its zeros.

    Raises:
        Problem: It is no such list, or names a host twice.
    """
    listed = (name for part in _BETWEEN.split(text) for name in _ranges(part.strip(), text))
    names = tuple(itertools.islice(listed, MOST + 1))
    if len(names) > MOST:
        raise Problem(f"The list of hosts {_short(text)} has more than {MOST} of them.")
    twice = sorted(name for name, count in Counter(names).items() if count > 1)
    if twice:
        raise Problem(
            f"The host {twice[0]} is listed twice in {_short(text)}; list it once, and say with "
            "--num-instances how many instances there are."
        )
    return names


def read_file(path: str) -> tuple[str, ...]:
    """Read a file with one host per line; ``#`` starts a comment, ``slots=N`` is ignored.

    Raises:
        Problem: The file cannot be read, or lists no host.
    """
    try:
        lines = Path(path).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not text"
        raise Problem(f"--hostfile {path} cannot be read: {reason}.") from error
    words = [line.partition("#")[0].split() for line in lines]
    names = [fields[0] for fields in words if fields]
    if not names:
        raise Problem(f"--hostfile {path} lists no host; write one per line.")
    return expand(",".join(names))


def is_here(name: str) -> bool:
    """Tell whether a name is that of this machine."""
    hostname = socket.gethostname()
    if name in (*LOOPBACK, hostname):
        return True
    return hostname.startswith(f"{name}.") or name.startswith(f"{hostname}.")


def _no_range(piece: str, text: str) -> Problem:
    return Problem(
        f"{_short(piece)} in the list of hosts {_short(text)} is not a range such as 0-2, of "
        "numbers of up to nine digits."
    )


def _short(text: str) -> str:
    return repr(text if len(text) <= _SHOWN else f"{text[: _SHOWN - 3]}...")


def _ranges(part: str, text: str) -> Iterator[str]:
    match = _RANGE.fullmatch(part)
    if not match:
        if not _NAME.fullmatch(part) or part.startswith("-"):
            raise Problem(
                f"{_short(part)} in the list of hosts {_short(text)} is not a host; write names "
                "with commas in between, such as a,b[0-2]."
            )
        yield part
        return
    for piece in match["numbers"].split(","):
        first, dash, last = piece.partition("-")
        if not _DIGITS.fullmatch(first) or (dash and not _DIGITS.fullmatch(last)):
            raise _no_range(piece, text)
        if int(last or first) < int(first):
            raise _no_range(piece, text)
        for number in range(int(first), int(last or first) + 1):
            yield from _ranges(f"{match['head']}{number:0{len(first)}}{match['tail']}", text)
