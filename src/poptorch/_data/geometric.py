"""Registration of PyTorch Geometric's batch types, if ``poptorch_geometric`` is installed."""

import importlib
import importlib.util


def registerGeometricCustomArgParsers() -> None:
    """Register the parsers of PyTorch Geometric's batches, if ``poptorch_geometric`` exists.

    Importing poptorch does so.
    """
    if importlib.util.find_spec("poptorch_geometric") is None:
        return
    companion = importlib.import_module("poptorch_geometric")
    register = getattr(companion, "registerCustomArgParsers", None)
    if register is not None:
        register()
