"""Events: reading, writing, making and batching them.

- ``larcv``: ``EventFile`` reads larcv3 files, ``EventWriter`` writes them atomically
- ``loader``: ``EventLoader`` gives batches of dense images, prepared in the background
- ``generator``: events of a simulated detector
"""

from cosmictagger.data.larcv import EventFile, EventWriter, Plane, write_events
from cosmictagger.data.loader import Batch, EventLoader, SyntheticLoader, densify

__all__ = [
    "Batch",
    "EventFile",
    "EventLoader",
    "EventWriter",
    "Plane",
    "SyntheticLoader",
    "densify",
    "write_events",
]
