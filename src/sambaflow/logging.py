"""The log of sambaflow: events, and requests that have no effect on this machine."""

import logging
import sys

#: The logger that programs import; it writes to stderr.
samba_logger = logging.getLogger("sambaflow")

_said: set[str] = set()


class _Stderr(logging.StreamHandler):
    """A log handler that writes to the current ``sys.stderr``, which programs and tests replace."""

    def __init__(self):
        logging.Handler.__init__(self)

    @property
    def stream(self):
        return sys.stderr


if not samba_logger.handlers:
    _handler = _Stderr()
    _handler.setFormatter(logging.Formatter("[sambaflow] %(message)s"))
    samba_logger.addHandler(_handler)
    samba_logger.setLevel(logging.INFO)


def say(text: str) -> None:
    """Print a line of a sambaflow command on standard output."""
    print(f"[sambaflow] {text}", flush=True)


def say_once(text: str) -> None:
    """Log a line once per process."""
    if text not in _said:
        _said.add(text)
        samba_logger.info(text)


def hint(name: str, why: str = "it steers hardware that is not here") -> None:
    """Log once that a request was accepted without effect, and why."""
    say_once(f"{name} is accepted and has no effect: {why}.")
