"""The log of the package: what happened, and which requests have no meaning on this machine."""

import logging
import sys

#: The logger that programs import; its messages go to the standard output's neighbour, stderr.
samba_logger = logging.getLogger("sambaflow")

_said: set[str] = set()


class _Stderr(logging.StreamHandler):
    """Writes to the present ``sys.stderr``, which programs and tests may replace."""

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
    """Print a line of a command on standard output."""
    print(f"[sambaflow] {text}", flush=True)


def say_once(text: str) -> None:
    """Log a line once per process."""
    if text not in _said:
        _said.add(text)
        samba_logger.info(text)


def hint(name: str, why: str = "it steers hardware that is not here") -> None:
    """Say once that what a program asked for was accepted and has no effect, and why."""
    say_once(f"{name} is accepted and has no effect: {why}.")
