"""larcv3 HDF5 files of events, read and written through h5py without the larcv library."""

import contextlib
import hashlib
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import h5py
import numpy as np
import numpy.typing as npt

from abele.storage.atomic import replacing
from cosmictagger.errors import DataError

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


class _Tables(NamedTuple):
    """Voxel ranges of each event: [events, 3] first rows and counts, planes in order."""

    first: npt.NDArray[np.int64]
    count: npt.NDArray[np.int64]


class EventFile:
    """A file of events, opened lazily in each process that reads it.

    It may be pickled or inherited by a forked process: the tables go along, the HDF5 handle does
    not. Reading from several threads is safe, but HDF5 lets only one of them in at a time.

    Args:
        path: a larcv3 file.
        image: producer of the images.
        label: producer of the labels, or None for a file without labels.

    Attributes:
        path: the file.
        image: producer of the images.
        label: producer of the labels, or None.
        event_ids: int64 [events, 3]: run, subrun and event number; -1 where it was not recorded.
        image_size: (H, W): rows (time) and columns (wires) of every image of the file.
    """

    event_ids: npt.NDArray[np.int64]
    image_size: tuple[int, int]

    def __init__(
        self, path: str | os.PathLike[str], image: str = IMAGE, label: str | None = LABEL
    ) -> None:
        self.path = Path(path)
        self.image = image
        self.label = label
        self._handle: h5py.File | None = None
        self._process = 0
        self._tables: dict[str, _Tables] = {}
        try:
            self._read_head()
        except BaseException:
            self.close()
            raise

    def _read_head(self) -> None:
        ids = self._table(EVENT_IDS, EVENT_ID)
        self.event_ids = np.stack([ids["run"], ids["subrun"], ids["event"]], axis=1)
        for producer in (self.image, self.label):
            if producer is not None:
                self._tables[producer] = self._producer(producer)
        self.image_size = self._size(self.image)
        if self.label is not None and self._size(self.label) != self.image_size:
            raise self._fault(
                f"images of {self.image!r} are {self.image_size} (rows, columns), labels of "
                f"{self.label!r} are {self._size(self.label)}. They have to be the same"
            )

    def __len__(self) -> int:
        return len(self.event_ids)

    def __enter__(self) -> "EventFile":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def digest(self) -> str:
        """Return an identifier of this file's events: a hash of their ids and extents."""
        digest = hashlib.sha256(self.event_ids.tobytes())
        for producer in filter(None, (self.image, self.label)):
            digest.update(self._tables[producer].first.tobytes())
            digest.update(self._tables[producer].count.tobytes())
        return digest.hexdigest()

    def close(self) -> None:
        """Close the HDF5 handle; the next read opens it again."""
        handle, self._handle = self._handle, None
        if handle is not None and self._process == os.getpid():
            handle.close()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_handle": None}

    def producers(self) -> list[str]:
        """Return names of the producers of sparse images that the file holds, sorted."""
        data = self._node(DATA)
        names = list(data) if isinstance(data, h5py.Group) else []
        matches = (re.fullmatch(r"sparse2d_(.+)_group", name) for name in names)
        return sorted(match[1] for match in matches if match)

    def sparse(self, producer: str, event: int) -> list[Plane]:
        """Read the stored pixels of one event.

        Labels (the producer given as ``label``) are checked to be 0, 1 or 2; other values are
        handed out as they are, so that a NaN is found by whoever knows what it means.

        Args:
            producer: any producer of sparse images in the file.
            event: index of the event, 0 to ``len - 1``.

        Returns:
            Three planes, in order; a plane without charge is empty.
        """
        if not 0 <= event < len(self):
            raise self._fault(f"it has {len(self)} events, event {event} was asked for")
        if producer not in self._tables:
            self._tables[producer] = self._producer(producer)
        table = self._tables[producer]
        first, count = table.first[event], table.count[event]
        start, stop = int(first.min()), int((first + count).max())
        name = f"{sparse_group(producer)}/voxels"
        rows = self._rows(name, VOXEL, start, stop, event)
        ids = np.ascontiguousarray(rows["id"], np.uint64)
        values = np.ascontiguousarray(rows["value"], np.float32)
        planes = []
        for plane in range(PLANES):
            part = slice(int(first[plane]) - start, int(first[plane] + count[plane]) - start)
            planes.append(Plane(ids[part], values[part]))
            self._check(producer, event, plane, planes[-1])
        return planes

    def particles(self, event: int, producer: str = PARTICLES) -> npt.NDArray[np.void] | None:
        """Read the true particles of one event, the neutrino first.

        Returns:
            Records of ``layout.PARTICLE`` (energies and momenta in GeV, positions in cm, times in
            ns), or None if the file has no such table.
        """
        group = particle_group(producer)
        if self._node(group) is None:
            return None
        extents = self._table(f"{group}/extents", EXTENT)
        if len(extents) != len(self):
            raise self._fault(f"{group}/extents has {len(extents)} rows for {len(self)} events")
        first, count = int(extents["first"][event]), int(extents["N"][event])
        total = len(self._dataset(f"{group}/particles", PARTICLE))
        if first + count > total:
            raise self._fault(
                f"event {event} has particles {first} to {first + count}, the table has {total}"
            )
        return self._rows(f"{group}/particles", PARTICLE, first, first + count, event)

    def _file(self) -> h5py.File:
        if self._handle is None or self._process != os.getpid():
            self._handle, self._process = _opened(self.path), os.getpid()
        return self._handle

    def _node(self, name: str) -> Any:
        """Return what a path leads to, also through links; None where nothing has that name."""
        with self._reading(name):
            file = self._file()
            return None if file.get(name, getlink=True) is None else file[name]

    def _dataset(self, name: str, kind: np.dtype) -> h5py.Dataset:
        """Return a table with the fields of ``kind``, of types that become those of ``kind``.

        True particles may lack fields: what reads them asks which there are.
        """
        node = self._node(name)
        if node is None:
            raise self._fault(f"it has no table {name!r}, so it is no larcv3 file of events")
        if not isinstance(node, h5py.Dataset):
            raise self._fault(f"{name!r} is a {type(node).__name__.lower()}, needed is a table")
        with self._reading(name):
            shape, fields = node.shape, node.dtype
        if shape is None or len(shape) != 1:
            raise self._fault(
                f"{name!r} has shape {shape}, needed is a table: one row after another"
            )
        present = [field for field in kind.names or () if field in (fields.names or ())]
        missing = [field for field in kind.names or () if field not in present]
        if missing and (kind is not PARTICLE or not present):
            raise self._fault(f"table {name!r} lacks the fields {missing}")
        for field in present:
            if not _becomes(fields[field], kind[field]):
                raise self._fault(
                    f"field {field!r} of table {name!r} is {fields[field]}, needed is {kind[field]}"
                )
        return node

    def _table(self, name: str, kind: np.dtype) -> npt.NDArray[np.void]:
        """Return a whole table, with the fields that ``kind`` names."""
        dataset = self._dataset(name, kind)
        with self._reading(name):
            return dataset[()]

    def _rows(
        self, name: str, kind: np.dtype, start: int, stop: int, event: int
    ) -> npt.NDArray[np.void]:
        dataset = self._dataset(name, kind)
        with self._reading(f"{name}, event {event}"):
            return dataset[start:stop]

    @contextlib.contextmanager
    def _reading(self, place: str) -> Iterator[None]:
        """Give what HDF5 says about damaged chunks, types and links a file and a place."""
        try:
            yield
        except DataError:
            raise
        except (OSError, RuntimeError, LookupError, TypeError, ValueError) as problem:
            raise self._fault(
                f"{place} cannot be read ({problem}): it is damaged, fetch it again"
            ) from problem

    def _producer(self, producer: str) -> _Tables:
        """Read and check the tables of one producer."""
        group = sparse_group(producer)
        if self._node(group) is None:
            raise self._fault(
                f"it has no sparse images of producer {producer!r}; it has "
                f"{', '.join(map(repr, self.producers())) or 'none at all'}"
            )
        events = self._table(f"{group}/extents", EXTENT)
        planes = self._table(f"{group}/voxel_extents", PLANE_EXTENT)
        if len(events) != len(self):
            raise self._fault(f"{group}/extents has {len(events)} rows for {len(self)} events")
        wrong = np.flatnonzero((events["N"] != PLANES) | _outside(events, len(planes)))
        if len(wrong):
            row = events[wrong[0]]
            raise self._fault(
                f"event {wrong[0]} of {producer!r} has {row['N']} planes from row {row['first']} "
                f"on; it needs {PLANES}, and the table has {len(planes)} rows"
            )
        rows = events["first"].astype(np.int64)[:, None] + np.arange(PLANES)
        self._check_planes(producer, planes, rows)
        # The planes of an event may stand in any order: their number tells which is which.
        order = np.take_along_axis(rows, np.argsort(planes["ID"][rows], axis=1), axis=1)
        first, count = planes["first"].astype(np.int64), planes["N"].astype(np.int64)
        return _Tables(first[order], count[order])

    def _check_planes(
        self, producer: str, planes: npt.NDArray[np.void], rows: npt.NDArray[np.int64]
    ) -> None:
        name = f"{sparse_group(producer)}/voxels"
        total = len(self._dataset(name, VOXEL))
        wrong = np.argwhere(_outside(planes, total)[rows])
        if len(wrong):
            event, place = wrong[0]
            row = planes[rows[event, place]]
            raise self._fault(
                f"event {event}, plane {row['ID']} of {producer!r} has {row['N']} voxels from row "
                f"{row['first']} on, the table has {total}"
            )
        numbers = np.sort(planes["ID"][rows], axis=1)
        wrong = np.flatnonzero((numbers != np.arange(PLANES)).any(axis=1))
        if len(wrong):
            raise self._fault(
                f"event {wrong[0]} of {producer!r} has planes {numbers[wrong[0]].tolist()}, "
                f"needed are 0, 1 and 2"
            )

    def _size(self, producer: str) -> tuple[int, int]:
        """(H, W) of a producer's images, which has to be one for the whole file."""
        meta = self._table(f"{sparse_group(producer)}/image_meta", META)
        if not len(meta):
            raise self._fault(f"the image size of {producer!r} cannot be read: it has no events")
        sizes = meta["number_of_voxels"].astype(np.int64).reshape(len(meta), -1)
        columns, rows = sizes[0][:2] if sizes.shape[1] == 2 else (0, 0)
        if min(columns, rows) <= 0:
            raise self._fault(f"the image size of {producer!r} cannot be read: {sizes[0].tolist()}")
        other = np.flatnonzero((sizes != sizes[0]).any(axis=1))
        if len(other):
            raise self._fault(
                f"the images of {producer!r} differ in size: event 0 has {sizes[0].tolist()}, "
                f"event {other[0] // PLANES} has {sizes[other[0]].tolist()} (columns, rows)"
            )
        return int(rows), int(columns)

    def _check(self, producer: str, event: int, plane: int, pixels: Plane) -> None:
        height, width = self.image_size
        place = f"event {event}, plane {plane} of {producer!r}"
        if len(pixels.ids) and int(pixels.ids.max()) >= height * width:
            raise self._fault(
                f"{place} has pixel id {pixels.ids.max()}, beyond its {width} x {height} image"
            )
        if producer == self.label:
            values = pixels.values
            wrong = np.flatnonzero((values != 0) & (values != 1) & (values != 2))
            if len(wrong):
                raise self._fault(
                    f"{place} has label {values[wrong[0]]:g} at pixel id {pixels.ids[wrong[0]]}; "
                    "labels are 0 (background), 1 (cosmic) and 2 (neutrino)"
                )

    def _fault(self, problem: str) -> DataError:
        return DataError(f"{self.path}: {problem}.")


def _outside(extents: npt.NDArray[np.void], total: int) -> npt.NDArray[np.bool_]:
    """Return which row ranges reach beyond a table; written so that no unsigned sum can wrap."""
    first, count = extents["first"], extents["N"].astype(np.uint64)
    return (count > total) | (first > np.uint64(total) - np.minimum(count, np.uint64(total)))


def _becomes(stored: np.dtype, target: np.dtype) -> bool:
    """Return whether a field can be read as another type without another meaning."""
    kinds = (part.subdtype or (part, ()) for part in (stored, target))
    (stored_part, shape), (target_part, target_shape) = kinds
    if target_part.names is not None:
        return shape == target_shape and stored_part.names == target_part.names
    return shape == target_shape and bool(np.can_cast(stored_part, target_part, "same_kind"))


def _opened(path: Path) -> h5py.File:
    if not path.is_file():
        kind = "is a folder, not a file" if path.is_dir() else "does not exist"
        raise DataError(
            f"The event file {path} {kind}. Check data.data_directory and data.file, or make "
            "events with `cosmictagger generate`."
        )
    try:
        return h5py.File(path, "r")
    except BlockingIOError as problem:
        raise DataError(
            f"{path} is locked: another program has it open to write. Wait until that has closed "
            "it; where a file system knows no locks, set HDF5_USE_FILE_LOCKING=FALSE."
        ) from problem
    except PermissionError as problem:
        raise DataError(
            f"{path} may not be read by this user: {problem.strerror}. Ask its owner."
        ) from problem
    except OSError as problem:
        if not h5py.is_hdf5(path):
            raise DataError(
                f"{path} is not an HDF5 file ({path.stat().st_size} bytes); needed is a larcv3 "
                "file."
            ) from problem
        cut = "is cut off" if "truncated" in str(problem) else "cannot be opened"
        raise DataError(f"{path} {cut}: {problem}. Fetch it again.") from problem


# Rows of a chunk. Larger chunks read and write faster; a plane has 3 to 50 thousand voxels.
_CHUNK = {"voxels": 4096, "extents": 256, "event_id": 256}
_CHUNK_OTHERWISE = 256
# Bytes of records kept back before they go to the file, so that each chunk is compressed once.
_BUFFER = 8 << 20
# Bytes on the disk beyond those of the records: HDF5's own tables, and chunks it writes anew.
_SLACK = 4 << 20


class Event(NamedTuple):
    """An event to write.

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
        self._rows_written: dict[str, int] = {}  # or held back
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
        self._add(EVENT_IDS, np.array([tuple(event.event_id)], EVENT_ID))
        for producer in self.producers:
            self._add_planes(sparse_group(producer), event.planes[producer])
        if self._with_particles and event.particles is not None:
            group = particle_group()
            self._add_extent(f"{group}/extents", f"{group}/particles", len(event.particles))
            self._add(f"{group}/particles", event.particles.astype(PARTICLE, copy=False))
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
        first = self._rows_written[f"{group}/voxels"]
        extents = np.zeros(PLANES, PLANE_EXTENT)
        extents["ID"] = np.arange(PLANES)
        extents["N"] = [len(plane.ids) for plane in planes]
        extents["first"] = first + np.concatenate([[0], np.cumsum(extents["N"])[:-1]])
        voxels = np.zeros(int(extents["N"].sum()), VOXEL)
        voxels["id"] = np.concatenate([plane.ids for plane in planes])
        voxels["value"] = np.concatenate([plane.values for plane in planes])
        self._add(f"{group}/voxel_extents", extents)
        self._add(f"{group}/image_meta", self._meta)
        self._add(f"{group}/voxels", voxels)

    def _add_extent(self, extents: str, table: str, count: int) -> None:
        row = np.zeros(1, EXTENT)
        row["first"], row["N"] = self._rows_written[table], count
        self._add(extents, row)

    def _add(self, name: str, rows: npt.NDArray[np.void]) -> None:
        self._rows[name].append(rows)
        self._rows_written[name] += len(rows)
        self._buffered_bytes += rows.nbytes

    def _create_tables(self) -> None:
        tables = {EVENT_IDS: EVENT_ID}
        for producer in self.producers:
            group = sparse_group(producer)
            tables[f"{group}/extents"] = EXTENT
            tables[f"{group}/voxel_extents"] = PLANE_EXTENT
            tables[f"{group}/image_meta"] = META
            tables[f"{group}/voxels"] = VOXEL
        if self._with_particles:
            tables[f"{particle_group()}/extents"] = EXTENT
            tables[f"{particle_group()}/particles"] = PARTICLE
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
    meta = np.zeros(PLANES, META)
    meta["valid"] = 1
    meta["projection_id"] = np.arange(PLANES)
    meta["image_sizes"] = meta["number_of_voxels"] = (size[1], size[0])
    return meta
