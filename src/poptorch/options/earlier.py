"""Notice of names from releases before 3.4, which programs still call."""

import logging

_logger = logging.getLogger("poptorch::python")
_logged: set[str] = set()


def say_once(old: str, instead: str) -> None:
    """Log the first use of a name from an earlier release.

    Args:
        old: the name.
        instead: what it does now.
    """
    if old not in _logged:
        _logged.add(old)
        _logger.warning("%s is of an earlier release of PopTorch: %s.", old, instead)
