"""Events: reading, writing, making and batching them.

- ``layout``: names and record types of a larcv3 file
- ``larcv``: ``EventFile`` reads it
- ``writer``: ``EventWriter`` makes one, atomically
- ``dense``: stored pixels become images
- ``order``: which events make which batch
- ``loader``: ``EventLoader`` gives batches, prepared in the background
- ``synthetic``: batches of random numbers, for measuring speed
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
