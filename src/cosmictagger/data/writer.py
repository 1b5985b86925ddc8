"""Writing larcv3 HDF5 files: generated events, predictions, and the small files of tests.

The file appears under its name only when it is complete. Until then it is a hidden file in the
same folder, which goes away when anything goes wrong.
"""

import contextlib
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import h5py
import numpy as np
import numpy.typing as npt

from abele.storage.atomic import replacing
from cosmictagger.data import layout
from cosmictagger.data.layout import IMAGE, LABEL, PLANES, Plane
from cosmictagger.errors import DataError

# Rows of a chunk. Larger chunks read and write faster; a plane has 3 to 50 thousand voxels.
_CHUNK = {"voxels": 4096, "extents": 256, "event_id": 256}
_CHUNK_OTHERWISE = 256
# Bytes of records kept back before they go to the file, so that each chunk is compressed once.
_BUFFER = 8 << 20
# Bytes on the disk beyond those of the records: HDF5's own tables, and chunks it writes anew.
_SLACK = 4 << 20


class Event(NamedTuple):
    """One event to write.

    Attributes:
        planes: for each producer its three planes.
        event_id: run, subrun and event number.
        particles: records of ``layout.PARTICLE``, or None.
    """

    planes: Mapping[str, Sequence[Plane]]
    event_id: Sequence[int] = (-1, -1, -1)
    particles: npt.NDArray[np.void] | None = None


class EventWriter:
    """Writes events one after another; a context manager.

    Args:
        path: the file to make or to replace.
        size: (H, W) of the images.
        producers: names of the sparse images that every event has.
        particles: whether every event has a table of true particles.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        size: tuple[int, int],
        producers: Sequence[str] = (IMAGE, LABEL),
        particles: bool = False,
    ) -> None:
        self.path = Path(path)
        self.size = size
        self.producers = tuple(producers)
        self.events = 0
        self._with_particles = particles
        self._meta = _meta(size)
        self._rows: dict[str, list[npt.NDArray[np.void]]] = {}
        self._rows_written: dict[str, int] = {}
        self._buffered_bytes = 0
        self._file: h5py.File | None = None
        self._partial = replacing(self.path)
        self._entered = False
        with self._writing():
            partial = self._partial.__enter__()
            self._entered = True
            self._descriptor = partial.fileno()
            self._reserve(0)
            self._file = h5py.File(partial.name, "w")
            self._create_tables()

    def __enter__(self) -> "EventWriter":
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is None:
            self.close()
        else:
            self.discard()

    def write(self, event: Event) -> None:
        """Add one event."""
        self._check(event)
        self._add(layout.EVENT_IDS, np.array([tuple(event.event_id)], layout.EVENT_ID))
        for producer in self.producers:
            self._add_planes(layout.sparse_group(producer), event.planes[producer])
        if self._with_particles and event.particles is not None:
            group = layout.particle_group()
            self._add_extent(f"{group}/extents", f"{group}/particles", len(event.particles))
            self._add(f"{group}/particles", event.particles.astype(layout.PARTICLE, copy=False))
        self.events += 1
        if self._buffered_bytes > _BUFFER:
            with self._writing():
                self._flush()

    def close(self) -> None:
        """Complete the file and give it its name."""
        if self._file is None:
            return
        with self._writing():
            self._flush()
            size = self._file.id.get_filesize()
            self._file.close()
            os.truncate(self._descriptor, size)
            self._file, self._entered = None, False
            self._partial.__exit__(None, None, None)

    def discard(self) -> None:
        """Give up; what was under the name before stays."""
        file, self._file = self._file, None
        if file is not None:
            # A full disk fails once more while the handle closes; the first error is the story.
            with contextlib.suppress(OSError, RuntimeError):
                file.close()
        if self._entered:
            self._entered = False
            given_up = DataError("given up")
            self._partial.__exit__(DataError, given_up, None)

    @contextlib.contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            yield
        except (OSError, RuntimeError) as problem:
            self.discard()
            raise DataError(
                f"{self.path} cannot be written after {self.events} events: {problem}. Nothing is "
                "left of it; check the folder and the space on the disk."
            ) from problem
        except BaseException:
            self.discard()
            raise

    def _check(self, event: Event) -> None:
        place = f"{self.path}, event {self.events}"
        if self._with_particles and event.particles is None:
            raise DataError(f"{place}: particles were promised for every event, found none.")
        missing = [name for name in self.producers if name not in event.planes]
        if missing:
            raise DataError(f"{place}: planes of {missing} are missing.")
        for name in self.producers:
            planes = event.planes[name]
            if len(planes) != PLANES:
                raise DataError(f"{place}: {name!r} has {len(planes)} planes, needed are {PLANES}.")
            for plane, (ids, values) in enumerate(planes):
                if len(ids) != len(values):
                    raise DataError(
                        f"{place}, plane {plane}: {name!r} has {len(ids)} ids for {len(values)} "
                        "values."
                    )
                if len(ids) and int(ids.max()) >= self.size[0] * self.size[1]:
                    raise DataError(
                        f"{place}, plane {plane}: pixel id {ids.max()} of {name!r} lies beyond the "
                        f"image of {self.size} (rows, columns)."
                    )

    def _add_planes(self, group: str, planes: Sequence[Plane]) -> None:
        self._add_extent(f"{group}/extents", f"{group}/voxel_extents", PLANES)
        first = self._count(f"{group}/voxels")
        extents = np.zeros(PLANES, layout.PLANE_EXTENT)
        extents["ID"] = np.arange(PLANES)
        extents["N"] = [len(plane.ids) for plane in planes]
        extents["first"] = first + np.concatenate([[0], np.cumsum(extents["N"])[:-1]])
        voxels = np.zeros(int(extents["N"].sum()), layout.VOXEL)
        voxels["id"] = np.concatenate([plane.ids for plane in planes])
        voxels["value"] = np.concatenate([plane.values for plane in planes])
        self._add(f"{group}/voxel_extents", extents)
        self._add(f"{group}/image_meta", self._meta)
        self._add(f"{group}/voxels", voxels)

    def _add_extent(self, extents: str, table: str, count: int) -> None:
        row = np.zeros(1, layout.EXTENT)
        row["first"], row["N"] = self._count(table), count
        self._add(extents, row)

    def _add(self, name: str, rows: npt.NDArray[np.void]) -> None:
        self._rows[name].append(rows)
        self._rows_written[name] += len(rows)
        self._buffered_bytes += rows.nbytes

    def _count(self, name: str) -> int:
        """Return rows of a table so far, in the file or held back."""
        return self._rows_written[name]

    def _create_tables(self) -> None:
        tables = {layout.EVENT_IDS: layout.EVENT_ID}
        for producer in self.producers:
            group = layout.sparse_group(producer)
            tables[f"{group}/extents"] = layout.EXTENT
            tables[f"{group}/voxel_extents"] = layout.PLANE_EXTENT
            tables[f"{group}/image_meta"] = layout.META
            tables[f"{group}/voxels"] = layout.VOXEL
        if self._with_particles:
            tables[f"{layout.particle_group()}/extents"] = layout.EXTENT
            tables[f"{layout.particle_group()}/particles"] = layout.PARTICLE
        assert self._file is not None
        for name, kind in tables.items():
            chunk = _CHUNK.get(name.rsplit("/", 1)[1], _CHUNK_OTHERWISE)
            self._file.create_dataset(
                name, (0,), kind, maxshape=(None,), chunks=(chunk,), compression=1
            )
            self._rows[name], self._rows_written[name] = [], 0

    def _reserve(self, more: int) -> None:
        """Take the space for so many more bytes from the disk, or fail while nothing is lost.

        HDF5 writes when it sees fit. When a write fails then, it tells nobody or ends the process
        (seen with HDF5 2.0), so it must not be the one that finds the disk full.
        """
        present = self._file.id.get_filesize() if self._file is not None else 0
        os.posix_fallocate(self._descriptor, 0, present + more + _SLACK)

    def _flush(self) -> None:
        assert self._file is not None
        self._reserve(self._buffered_bytes)
        for name, pending in self._rows.items():
            if pending:
                rows = np.concatenate(pending)
                dataset = self._file[name]
                assert isinstance(dataset, h5py.Dataset)
                start = dataset.shape[0]
                dataset.resize((start + len(rows),))
                dataset[start:] = rows
                pending.clear()
        self._buffered_bytes = 0
        self._file.flush()


def write_events(
    path: str | os.PathLike[str],
    events: Iterable[Event],
    size: tuple[int, int],
    producers: Sequence[str] = (IMAGE, LABEL),
    particles: bool = False,
) -> int:
    """Write a whole file of events.

    Args:
        path: the file to make or to replace; it appears only when it is complete.
        events: what to write, in order.
        size: (H, W) of the images.
        producers: names of the sparse images that every event has.
        particles: whether every event has a table of true particles.

    Returns:
        How many events were written.
    """
    with EventWriter(path, size, producers, particles) as writer:
        for event in events:
            writer.write(event)
    return writer.events


def _meta(size: tuple[int, int]) -> npt.NDArray[np.void]:
    meta = np.zeros(PLANES, layout.META)
    meta["valid"] = 1
    meta["projection_id"] = np.arange(PLANES)
    meta["image_sizes"] = meta["number_of_voxels"] = (size[1], size[0])
    return meta
