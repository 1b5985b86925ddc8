"""larcv3 HDF5 files of events, read and written through h5py without the larcv library."""

import contextlib
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import h5py
import numpy as np
import numpy.typing as npt

from abele.storage.atomic import replacing
from cosmictagger.errors import ConfigError, DataError

IMAGE = "sbndwire"
LABEL = "sbnd_cosmicseg"
PARTICLES = "sbndneutrino"
VERTEX = "bbox_neutrino"
PLANES = 3
CLASSES = ("background", "cosmic", "neutrino")

EVENT_IDS = "Events/event_id"
EVENT_SCORES = "Events/event_scores"  # of our predictions; larcv3 has no such table
DATA = "Data"
PARTICLE_GROUP = f"{DATA}/particle_{PARTICLES}_group"


def _padded(columns: list[tuple[str, npt.DTypeLike]]) -> np.dtype:
    """Return a record type with the padding that a C compiler inserts.

    Without numpy's flag for them: joined records of such a type would keep whatever is in the gaps.
    """
    aligned = np.dtype(columns, align=True)
    offsets = [aligned.fields[name][1] for name, _ in columns]  # type: ignore[index]
    names, formats = map(list, zip(*columns, strict=True))
    return np.dtype(
        {"names": names, "formats": formats, "offsets": offsets, "itemsize": aligned.itemsize}  # type: ignore[arg-type]
    )


EVENT_ID = np.dtype([("run", "<i8"), ("subrun", "<i8"), ("event", "<i8")])
EXTENT = _padded([("first", "<u8"), ("N", "<u4")])
PLANE_EXTENT = np.dtype([("first", "<u8"), ("N", "<u4"), ("ID", "<u4")])
VOXEL = _padded([("id", "<u8"), ("value", "<f4")])
META = np.dtype(
    {
        "names": ["valid", "projection_id", "image_sizes", "number_of_voxels", "origin"],
        "formats": ["u1", "<u8", ("<f8", (2,)), ("<u8", (2,)), ("<f8", (2,))],
        "offsets": [0, 8, 16, 32, 48],
        "itemsize": 72,
    }
)
BOX = np.dtype([("centroid", "<f8", (2,)), ("half_length", "<f8", (2,)), ("rotation", "<f8", (4,))])
SCORES = np.dtype([(n, "<f4") for n in ("electron", "muon", "neutral_current", "cosmic_only")])
POINT = np.dtype([("x", "<f8"), ("y", "<f8"), ("z", "<f8"), ("t", "<f8")])
PARTICLE = _padded(
    [
        (name, kind)
        for names, kind in (
            ("id mcst_index mct_index", "<u2"),
            ("shape", "<i4"),
            ("current_type interaction_type", "<i2"),
            ("trackid", "<u4"),
            ("pdg", "<i4"),
            ("px py pz", "<f8"),
            ("vtx end_pt first_step last_step", POINT),
            ("dist_travel energy_init energy_deposit", "<f8"),
            ("process", "S64"),
            ("parent_trackid", "<u4"),
            ("parent_pdg", "<i4"),
            ("parent_vtx", POINT),
            ("ancestor_trackid", "<u4"),
            ("ancestor_pdg", "<i4"),
            ("ancestor_vtx", POINT),
        )
        for name in names.split()
    ]
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


def box_group(producer: str) -> str:
    """Return the path of the group that holds a producer's boxes in the planes."""
    return f"{DATA}/bbox2d_{producer}_group"


class Frame(NamedTuple):
    """Size and place of the planes' images in the units of a file, centimetres as a rule.

    Attributes:
        size: float64 [3, 2], height (time) and width (wires) of each plane's image.
        origin: float64 [3, 2], place of its first row and column.
    """

    size: npt.NDArray[np.float64]
    origin: npt.NDArray[np.float64]

    def place(self, share: npt.NDArray) -> npt.NDArray[np.float64]:
        """Return places in units of the file for shares of the images' height and width."""
        return self.origin + share * self.size


class _Tables(NamedTuple):
    """Row ranges of each event: [events, 3] first rows and counts, planes in order.

    Also the positions in ``image_meta`` of each event's planes.
    """

    first: npt.NDArray[np.int64]
    count: npt.NDArray[np.int64]
    planes: npt.NDArray[np.int64]


class EventFile:
    """A larcv3 file of events, opened for reading; a context manager.

    Reading from several threads is safe, but HDF5 lets only one of them in at a time.

    Args:
        path: a larcv3 file.
        image: producer of the images.
        label: producer of the labels, or None for a file without labels.

    Attributes:
        image: producer of the images.
        label: producer of the labels, or None.
        event_ids: int64 [events, 3]: run, subrun and event number; -1 where it was not recorded.
        image_size: (H, W): rows (time) and columns (wires) of every image of the file.
    """

    def __init__(
        self, path: str | os.PathLike[str], image: str = IMAGE, label: str | None = LABEL
    ) -> None:
        self.path = Path(path)
        self.image = image
        self.label = label
        self._tables: dict[str, _Tables] = {}
        self._handle = _opened(self.path)
        try:
            ids = self._rows(EVENT_IDS, EVENT_ID)
            self.event_ids = np.stack([ids["run"], ids["subrun"], ids["event"]], axis=1)
            for producer in filter(None, (image, label)):
                self._tables[producer] = self._sparse(producer)
            self.image_size = self._size(image)
            if label is not None and self._size(label) != self.image_size:
                raise self._fault(f"labels of {label!r} are {self._size(label)}, images are "
                    f"{self.image_size} (rows, columns). They have to be the same")  # fmt: skip
        except BaseException:
            self.close()
            raise

    def __len__(self) -> int:
        return len(self.event_ids)

    def __enter__(self) -> "EventFile":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the HDF5 file."""
        self._handle.close()

    def sparse(self, producer: str, event: int) -> list[Plane]:
        """Read the stored pixels of one event.

        Labels (the producer given as ``label``) are checked to be 0, 1 or 2; other values are
        returned as they are.

        Args:
            producer: any producer of sparse images in the file.
            event: index of the event, 0 to ``len - 1``.

        Returns:
            Three planes, in order; a plane without charge is empty.
        """
        if producer not in self._tables:
            self._tables[producer] = self._sparse(producer)
        table = self._tables[producer]
        first, count = table.first[event], table.count[event]
        start, stop = int(first.min()), int((first + count).max())
        rows = self._rows(f"{sparse_group(producer)}/voxels", VOXEL, slice(start, stop))
        ids = np.ascontiguousarray(rows["id"], np.uint64)
        values = np.ascontiguousarray(rows["value"], np.float32)
        self._check_pixels(producer, event, ids, values)
        parts = [
            slice(int(f) - start, int(f + n) - start) for f, n in zip(first, count, strict=True)
        ]
        return [Plane(ids[part], values[part]) for part in parts]

    def particles(self, event: int) -> npt.NDArray[np.void] | None:
        """Read the true particles of one event, the neutrino first.

        Returns:
            Records like ``PARTICLE``, maybe with fewer fields (energies and momenta in GeV,
            positions in cm, times in ns), or None if the file has no such table.
        """
        if not self.has(group := PARTICLE_GROUP):
            return None
        extents = self._rows(f"{group}/extents", EXTENT, slice(event, event + 1))
        with self._reading(f"{group}/particles"):
            first, count = int(extents["first"][0]), int(extents["N"][0])
            table: Any = self._handle[f"{group}/particles"]
            return table[first : first + count]

    def has(self, name: str) -> bool:
        """Return whether the file has a group or table of that path."""
        with self._reading(name):
            return name in self._handle

    def boxes(self, producer: str, event: int) -> list[npt.NDArray[np.float64]]:
        """Read the centres of one event's boxes, [n, 2] (time, wire) for each plane.

        In the units of ``frame``; in the order of the file.
        """
        table, name = self._boxes(producer), f"{box_group(producer)}/bboxes"
        return [
            self._rows(name, BOX, slice(int(first), int(first + count)))["centroid"][:, ::-1]
            for first, count in zip(table.first[event], table.count[event], strict=True)
        ]

    def _boxes(self, producer: str) -> _Tables:
        group = box_group(producer)
        if group not in self._tables:
            self._tables[group] = self._ranges(producer, group, "bbox_extents", "bboxes")
        return self._tables[group]

    def frame(self, boxes: str) -> Frame:
        """Return where the images lie that a producer of boxes refers to; equal in every event.

        Without such boxes it is that of the images themselves.
        """
        known, group = self.has(box_group(boxes)), box_group(boxes)
        group, producer = (group, boxes) if known else (sparse_group(self.image), self.image)
        table = self._boxes(boxes) if known else self._tables[self.image]
        meta = self._rows(f"{group}/image_meta", META)
        self._refuse(table.planes.max(axis=1) >= len(meta), producer, "has no image_meta")
        frames = np.stack([meta["image_sizes"], meta["origin"]], axis=1)[table.planes]
        wrong = ~np.isfinite(frames) | (frames != frames[0])
        wrong[:, :, 0] |= frames[:, :, 0] <= 0
        problem = "has image_sizes that are not above zero, or another size or origin than event 0"
        self._refuse(wrong.any(axis=(1, 2, 3)), producer, problem)
        return Frame(frames[0, :, 0, ::-1], frames[0, :, 1, ::-1])

    def event_scores(self, event: int) -> npt.NDArray[np.float32] | None:
        """Read the probabilities of one event's classes, [4]; None if the file has none.

        Electron neutrino, muon neutrino, neutral current, cosmic only.
        """
        if not self.has(EVENT_SCORES):
            return None
        row = self._rows(EVENT_SCORES, SCORES, slice(event, event + 1))[0]
        return np.array(row.tolist(), np.float32)

    def _rows(self, name: str, kind: np.dtype, rows: slice = slice(None)) -> npt.NDArray[np.void]:
        """Return rows of an HDF5 table as records of ``kind``."""
        with self._reading(name):
            table: Any = self._handle[name]
            names = list(kind.names or ())
            if table.ndim != 1 or not np.can_cast(table.dtype[names], kind, "same_kind"):
                raise TypeError(f"it has shape {table.shape} and type {table.dtype}, not {kind}")
            return table[rows]

    @contextlib.contextmanager
    def _reading(self, name: str) -> Iterator[None]:
        """Add the file and the table to errors of HDF5: damaged chunks, types and links."""
        try:
            yield
        except (OSError, RuntimeError, LookupError, TypeError, ValueError, AttributeError) as error:
            raise self._fault(
                f"{name} cannot be read ({error}): it is damaged, or no larcv3 file of events"
            ) from error

    def _sparse(self, producer: str) -> _Tables:
        """Read and check the voxel ranges of one producer."""
        group = sparse_group(producer)
        if not self.has(group):
            with self._reading(DATA):
                data: Any = self._handle[DATA]
                present = sorted(re.findall(r"\bsparse2d_(\S+)_group\b", " ".join(data)))
            raise (ConfigError if present else DataError)(
                f"{self.path}: it has no sparse images of producer {producer!r}; it has "
                f"{present or 'none'}. Choose data.image and data.label among these."
            )
        return self._ranges(producer, group, "voxel_extents", "voxels")

    def _ranges(self, producer: str, group: str, extents: str, name: str) -> _Tables:
        """Read and check which rows of a table, voxels or boxes, belong to each plane."""
        events = self._rows(f"{group}/extents", EXTENT)
        planes = self._rows(f"{group}/{extents}", PLANE_EXTENT)
        with self._reading(f"{group}/{name}"):
            table: Any = self._handle[f"{group}/{name}"]
            total = len(table)
        if len(events) != len(self):
            raise self._fault(f"{group}/extents has {len(events)} rows for {len(self)} events")
        wrong = _outside(events, len(planes)) | np.not_equal(events["N"], PLANES)
        self._refuse(wrong, producer, f"does not have {PLANES} planes in {group}/{extents}")
        rows = events["first"].astype(np.int64)[:, None] + np.arange(PLANES)
        wrong = _outside(planes, total)[rows].any(axis=1)
        self._refuse(wrong, producer, f"has {name} beyond the {total} of the table")
        # The planes of an event may stand in any order: their number tells which is which.
        order = np.argsort(planes["ID"][rows], axis=1)
        rows = np.take_along_axis(rows, order, axis=1)
        wrong = (planes["ID"][rows] != np.arange(PLANES)).any(axis=1)
        self._refuse(wrong, producer, "needs planes 0, 1 and 2, each once")
        first, count = (planes[n].astype(np.int64)[rows] for n in ("first", "N"))
        return _Tables(first, count, rows)

    def _size(self, producer: str) -> tuple[int, int]:
        """Return (H, W) of a producer's images; raise unless it is constant in the file."""
        meta = self._rows(f"{sparse_group(producer)}/image_meta", META)
        sizes = np.unique(meta["number_of_voxels"], axis=0)
        if not len(sizes):
            raise self._fault("it has no events")
        if len(sizes) > 1 or not sizes.all():
            raise self._fault(
                f"images of {producer!r} have no common size (columns, rows): {sizes.tolist()}"
            )
        columns, rows = sizes[0].tolist()
        return rows, columns

    def _check_pixels(
        self, producer: str, event: int, ids: npt.NDArray, values: npt.NDArray
    ) -> None:
        height, width = self.image_size
        if len(ids) and int(ids.max()) >= height * width:
            raise self._fault(
                f"event {event} of {producer!r} has pixel id {ids.max()}, beyond its {width} x "
                f"{height} image"
            )
        if producer == self.label and (wrong := ~np.isin(values, range(len(CLASSES)))).any():
            raise self._fault(
                f"event {event} of {producer!r} has label {values[wrong][0]:g} at pixel id "
                f"{ids[wrong][0]}; labels are 0 (background), 1 (cosmic) and 2 (neutrino)"
            )

    def _refuse(self, wrong: Any, producer: str, problem: str) -> None:
        if wrong.any():
            raise self._fault(f"event {wrong.argmax()} of {producer!r} {problem}")

    def _fault(self, problem: str) -> DataError:
        return DataError(f"{self.path}: {problem}. Check the file, or fetch it again.")


def _outside(extents: npt.NDArray[np.void], total: int) -> npt.NDArray[np.bool_]:
    """Return which row ranges exceed a table; written so that no sum can overflow."""
    first, count = extents["first"].astype(np.int64), extents["N"].astype(np.int64)
    return (first < 0) | (first > total - count)


def _opened(path: Path) -> h5py.File:
    if not path.is_file():
        raise ConfigError(
            f"The event file {path} does not exist. Check data.data_directory and data.file, "
            "or data.paths, or make events with `cosmictagger generate`."
        )
    try:
        return h5py.File(path, "r")
    except BlockingIOError as problem:
        raise DataError(
            f"{path} is locked: another program has it open to write. Wait until that has closed "
            "it; where a file system knows no locks, set HDF5_USE_FILE_LOCKING=FALSE."
        ) from problem
    except OSError as problem:
        raise DataError(
            f"{path} cannot be opened as an HDF5 file: {problem}. Check its rights, or fetch it "
            "again."
        ) from problem


# Rows of a chunk. Larger chunks read and write faster; a plane has 3 to 50 thousand voxels.
_CHUNK, _CHUNK_OTHERWISE = 4096, 256
# Bytes of records kept back before they go to the file, so that each chunk is compressed once.
_BUFFER = 8 << 20
# Bytes on the disk beyond those of the records: HDF5's own tables, and chunks it writes anew.
_SLACK = 4 << 20


class Event(NamedTuple):
    """An event to write to a larcv3 file.

    Attributes:
        planes: for each producer its three planes.
        event_id: run, subrun and event number.
        particles: records of ``PARTICLE``, or None.
        boxes: for each producer of boxes [n, 2] (time, wire) of each plane, in units of the frame.
        scores: [4], of the classes of the event, or None.
    """

    planes: Mapping[str, Sequence[Plane]]
    event_id: Sequence[int] = (-1, -1, -1)
    particles: npt.NDArray[np.void] | None = None
    boxes: Mapping[str, Sequence[npt.NDArray]] = MappingProxyType({})
    scores: Sequence[float] | npt.NDArray | None = None


class Layout(NamedTuple):
    """The tables of a file to write, and the size of its images.

    Attributes:
        size: (H, W) of the images.
        producers: names of the sparse images.
        particles: whether there is a table of true particles.
        boxes: names of the producers of boxes.
        scores: whether there is a table of scores of events.
        frame: where the images lie; default: in pixels.
    """

    size: tuple[int, int]
    producers: Sequence[str] = (IMAGE, LABEL)
    particles: bool = False
    boxes: Sequence[str] = ()
    scores: bool = False
    frame: Frame | None = None


class EventWriter:
    """A writer that appends events to a larcv3 file; see ``event_writer``.

    Attributes:
        size: (H, W) of the images.
        frame: where the images lie, or None.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        file: h5py.File,
        descriptor: int,
        layout: Layout,
    ) -> None:
        self.size, self.frame = layout.size, layout.frame
        self._path, self._layout = path, layout
        self._file, self._descriptor = file, descriptor
        self._meta = np.zeros(PLANES, META)
        self._meta["valid"] = 1
        self._meta["projection_id"] = np.arange(PLANES)
        self._meta["image_sizes"] = self._meta["number_of_voxels"] = layout.size[::-1]
        if layout.frame is not None:
            self._meta["image_sizes"] = layout.frame.size[:, ::-1]
            self._meta["origin"] = layout.frame.origin[:, ::-1]
        self._rows: dict[str, list[npt.NDArray[np.void]]] = {}
        self._rows_written: dict[str, int] = {}  # or held back
        self._buffered_bytes = 0
        for name, kind in _tables(layout).items():
            chunk = _CHUNK if name.endswith("/voxels") else _CHUNK_OTHERWISE
            file.create_dataset(name, (0,), kind, maxshape=(None,), chunks=(chunk,), compression=1)
            self._rows[name], self._rows_written[name] = [], 0

    def write(self, event: Event) -> None:
        """Append one event to the file."""
        self._add(EVENT_IDS, np.array([tuple(event.event_id)], EVENT_ID))
        for producer in self._layout.producers:
            planes, name = event.planes[producer], f"{sparse_group(producer)}/voxels"
            voxels = np.zeros(sum(len(plane.ids) for plane in planes), VOXEL)
            voxels["id"] = np.concatenate([plane.ids for plane in planes])
            voxels["value"] = np.concatenate([plane.values for plane in planes])
            self._add_planes(name, "voxel_extents", voxels, [len(plane.ids) for plane in planes])
        for producer in self._layout.boxes:
            centres, name = event.boxes[producer], f"{box_group(producer)}/bboxes"
            boxes = np.zeros(sum(map(len, centres)), BOX)
            boxes["centroid"] = np.concatenate(centres)[:, ::-1]
            boxes["rotation"] = np.eye(2).reshape(-1)
            self._add_planes(name, "bbox_extents", boxes, list(map(len, centres)))
        if event.scores is not None:
            self._add(EVENT_SCORES, np.array([tuple(event.scores)], SCORES))
        if event.particles is not None:
            group = PARTICLE_GROUP
            self._add_extent(f"{group}/extents", f"{group}/particles", len(event.particles))
            self._add(f"{group}/particles", event.particles)
        if self._buffered_bytes > _BUFFER:
            with _writing(self._path):
                self.flush()

    def _add_planes(
        self, table: str, extents: str, rows: npt.NDArray[np.void], counts: Sequence[int]
    ) -> None:
        """Append rows of a table, those of each plane after those of the one before."""
        group = table.rpartition("/")[0]
        self._add_extent(f"{group}/extents", f"{group}/{extents}", PLANES)
        ranges = np.zeros(PLANES, PLANE_EXTENT)
        ranges["ID"], ranges["N"] = np.arange(PLANES), counts
        ranges["first"] = self._rows_written[table] + np.cumsum([0, *counts[:-1]])
        self._add(f"{group}/{extents}", ranges)
        self._add(f"{group}/image_meta", self._meta)
        self._add(table, rows)

    def _add_extent(self, extents: str, table: str, count: int) -> None:
        row = np.zeros(1, EXTENT)
        row["first"], row["N"] = self._rows_written[table], count
        self._add(extents, row)

    def _add(self, name: str, rows: npt.NDArray[np.void]) -> None:
        self._rows[name].append(rows)
        self._rows_written[name] += len(rows)
        self._buffered_bytes += rows.nbytes

    def flush(self) -> None:
        """Write buffered events to the file."""
        _reserve(self._descriptor, self._file.id.get_filesize() + self._buffered_bytes)
        for name, pending in self._rows.items():
            if pending:
                rows = np.concatenate(pending)
                dataset: Any = self._file[name]
                start = dataset.shape[0]
                dataset.resize((start + len(rows),))
                dataset[start:] = rows
                pending.clear()
        self._buffered_bytes = 0
        self._file.flush()


@contextlib.contextmanager
def event_writer(path: str | os.PathLike[str], *layout: Any, **more: Any) -> Iterator[EventWriter]:
    """Write a larcv3 file that appears only when complete; an error leaves no file.

    Args:
        path: the file to make or to replace.
        layout: arguments of ``Layout``.
        more: likewise, by name.
    """
    with contextlib.ExitStack() as stack:
        with _writing(path):
            partial = stack.enter_context(replacing(Path(path)))
            _reserve(partial.fileno(), 0)
            file = h5py.File(partial.name, "w")
            stack.callback(_close, file)
            writer = EventWriter(path, file, partial.fileno(), Layout(*layout, **more))
        yield writer
        with _writing(path):
            writer.flush()
            length = file.id.get_filesize()
            file.close()
            os.truncate(partial.fileno(), length)
            stack.close()


@contextlib.contextmanager
def _writing(path: str | os.PathLike[str]) -> Iterator[None]:
    try:
        yield
    except (OSError, RuntimeError) as problem:
        raise DataError(
            f"{path} cannot be written: {problem}. Nothing is left of it; check the folder and the "
            "space on the disk."
        ) from problem


def _close(file: h5py.File) -> None:
    # A full disk fails once more while the handle closes; the first error is the story.
    with contextlib.suppress(OSError, RuntimeError):
        file.close()


def _reserve(descriptor: int, size: int) -> None:
    """Reserve disk space for a number of bytes, or fail before data is lost.

    HDF5 writes when it sees fit. When a write fails then, it tells nobody or ends the process
    (seen with HDF5 2.0), so it must not be the one that finds the disk full.
    """
    if hasattr(os, "posix_fallocate"):  # macOS and Windows lack it
        os.posix_fallocate(descriptor, 0, size + _SLACK)


def _tables(layout: Layout) -> dict[str, np.dtype]:
    """Return the record type of each table of a file."""
    sparse = {"extents": EXTENT, "voxel_extents": PLANE_EXTENT, "image_meta": META, "voxels": VOXEL}
    boxes = {"extents": EXTENT, "bbox_extents": PLANE_EXTENT, "image_meta": META, "bboxes": BOX}
    groups = dict.fromkeys(map(sparse_group, layout.producers), sparse)
    groups |= dict.fromkeys(map(box_group, layout.boxes), boxes)
    if layout.particles:
        groups[PARTICLE_GROUP] = {"extents": EXTENT, "particles": PARTICLE}
    tables = {
        f"{group}/{name}": kind for group, kinds in groups.items() for name, kind in kinds.items()
    }
    scores = {EVENT_SCORES: SCORES} if layout.scores else {}
    return {EVENT_IDS: EVENT_ID, **scores, **tables}
