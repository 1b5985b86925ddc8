"""Graph batches of PyTorch Geometric, if the original's companion package is installed."""

import importlib
import importlib.util


def registerGeometricCustomArgParsers() -> None:
    """Let ``poptorch_geometric`` register the parsers of its batch types, if it is installed.

    Importing this package does so; nothing happens without that one.
    """
    if importlib.util.find_spec("poptorch_geometric") is None:
        return
    companion = importlib.import_module("poptorch_geometric")
    register = getattr(companion, "registerCustomArgParsers", None)
    if register is not None:
        register()
