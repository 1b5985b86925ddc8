"""Numbers as the tables and lists show them; ``N/A`` for what the system does not tell."""

from __future__ import annotations

UNKNOWN = "N/A"


def number(value: float | None, digits: int = 0) -> str:
    """Format a number with some digits after the point."""
    return UNKNOWN if value is None else f"{value:.{digits}f}"


def unit(value: float | None, suffix: str, digits: int = 0) -> str:
    """Format a number directly followed by its unit: ``1850MHz``."""
    return UNKNOWN if value is None else f"{value:.{digits}f}{suffix}"


def gibibytes(value: int | None) -> str:
    """Bytes as GiB."""
    return UNKNOWN if value is None else f"{value / 2**30:.1f}"


def elapsed(seconds: float | None) -> str:
    """Two units: ``9s``, ``4m1s``, ``3h20m``, ``2d5h``."""
    if seconds is None:
        return UNKNOWN
    whole = int(seconds)
    days, hours, minutes = whole // 86400, whole // 3600 % 24, whole // 60 % 60
    if days:
        return f"{days}d{hours}h"
    if hours:
        return f"{hours}h{minutes}m"
    return f"{minutes}m{whole % 60}s" if minutes else f"{whole}s"


def count(value: int, one: str) -> str:
    """``1 socket``, ``2 sockets``."""
    return f"{value} {one}" if value == 1 else f"{value} {one}s"
