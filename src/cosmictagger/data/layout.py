"""Names, record types and shape of a larcv3 file of sparse images, as HDF5 stores them.

    /Events/event_id                          one row per event: run, subrun, event
    /Data/sparse2d_<producer>_group/extents         one row per event: rows of the next two tables
                                    /voxel_extents  one row per plane: rows of the voxels
                                    /image_meta     one row per plane: size of the image
                                    /voxels         one row per stored pixel: id and value
    /Data/particle_<producer>_group/extents         one row per event: rows of the particles
                                   /particles       one row per true particle

A pixel's id is ``x * H + y`` with x the wire (0..W-1) and y the time (0..H-1).
"""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

IMAGE = "sbndwire"
LABEL = "sbnd_cosmicseg"
PARTICLES = "sbndneutrino"
PLANES = 3
CLASSES = ("background", "cosmic", "neutrino")

EVENT_IDS = "Events/event_id"
DATA = "Data"


def _padded(names: list[str], formats: list[str], offsets: list[int], itemsize: int) -> np.dtype:
    return np.dtype(
        {"names": names, "formats": formats, "offsets": offsets, "itemsize": itemsize}  # type: ignore[arg-type]
    )


EVENT_ID = np.dtype([("run", "<i8"), ("subrun", "<i8"), ("event", "<i8")])
EXTENT = _padded(["first", "N"], ["<u8", "<u4"], [0, 8], 16)
PLANE_EXTENT = np.dtype([("first", "<u8"), ("N", "<u4"), ("ID", "<u4")])
VOXEL = _padded(["id", "value"], ["<u8", "<f4"], [0, 8], 16)
META = np.dtype(
    {
        "names": ["valid", "projection_id", "image_sizes", "number_of_voxels", "origin"],
        "formats": ["u1", "<u8", ("<f8", (2,)), ("<u8", (2,)), ("<f8", (2,))],
        "offsets": [0, 8, 16, 32, 48],
        "itemsize": 72,
    }
)
POINT = np.dtype([("x", "<f8"), ("y", "<f8"), ("z", "<f8"), ("t", "<f8")])

_PARTICLE_FIELDS: list[tuple[str, npt.DTypeLike, int]] = [
    ("id", "<u2", 0),
    ("mcst_index", "<u2", 2),
    ("mct_index", "<u2", 4),
    ("shape", "<i4", 8),
    ("current_type", "<i2", 12),
    ("interaction_type", "<i2", 14),
    ("trackid", "<u4", 16),
    ("pdg", "<i4", 20),
    ("px", "<f8", 24),
    ("py", "<f8", 32),
    ("pz", "<f8", 40),
    ("vtx", POINT, 48),
    ("end_pt", POINT, 80),
    ("first_step", POINT, 112),
    ("last_step", POINT, 144),
    ("dist_travel", "<f8", 176),
    ("energy_init", "<f8", 184),
    ("energy_deposit", "<f8", 192),
    ("process", "S64", 200),
    ("parent_trackid", "<u4", 264),
    ("parent_pdg", "<i4", 268),
    ("parent_vtx", POINT, 272),
    ("ancestor_trackid", "<u4", 304),
    ("ancestor_pdg", "<i4", 308),
    ("ancestor_vtx", POINT, 312),
]
PARTICLE = np.dtype(
    {
        "names": [name for name, _, _ in _PARTICLE_FIELDS],
        "formats": [kind for _, kind, _ in _PARTICLE_FIELDS],
        "offsets": [offset for _, _, offset in _PARTICLE_FIELDS],
        "itemsize": 344,
    }
)


class Plane(NamedTuple):
    """The stored pixels of one wire plane.

    Attributes:
        ids: uint64 [n], ``x * H + y``, ascending in files that larcv3 wrote.
        values: float32 [n], charge of an image, class of a label, score of a prediction.
    """

    ids: npt.NDArray[np.uint64]
    values: npt.NDArray[np.float32]


def sparse_group(producer: str) -> str:
    """Return the path of the group that holds a producer's sparse images."""
    return f"{DATA}/sparse2d_{producer}_group"


def particle_group(producer: str = PARTICLES) -> str:
    """Return the path of the group that holds a producer's true particles."""
    return f"{DATA}/particle_{producer}_group"
