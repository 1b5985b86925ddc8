"""Refusing an environment that also has the original package of the same name."""

import importlib.metadata

from poptorch._process.distribution import OwnDistribution


def refuse_second_distribution() -> None:
    """Raise ImportError if a distribution that is itself called ``poptorch`` is installed."""
    try:
        distribution = importlib.metadata.distribution("poptorch")
    except importlib.metadata.PackageNotFoundError:
        return
    if isinstance(distribution, OwnDistribution):
        return
    raise ImportError(
        f"abele provides the package 'poptorch', but another distribution called poptorch "
        f"{distribution.version} is installed in the same environment. Keep one of them: "
        "`pip uninstall poptorch`, or use separate virtual environments."
    )
