"""Reading and writing larcv3 files: the sample, any number of voxels, and every kind of damage."""

import resource

import h5py
import numpy as np
import pytest

from cosmictagger.data import larcv
from cosmictagger.data.larcv import IMAGE, LABEL, Event, EventFile, Plane, event_writer
from cosmictagger.errors import ConfigError, DataError
from helpers.cosmic_reference import SAMPLE, needs_sample
from helpers.cosmic_small import write_events

from .data_cases import SIZE, change, random_event, write_random

GROUP = larcv.sparse_group(IMAGE)
LABELS = larcv.sparse_group(LABEL)


@pytest.fixture
def path(tmp_path):
    return write_random(tmp_path / "events.h5", 4)


def assert_same(actual, expected):
    for one, other in zip(actual, expected, strict=True):
        assert one.ids.dtype == np.uint64
        assert one.values.dtype == np.float32
        np.testing.assert_array_equal(one.ids, other.ids)
        np.testing.assert_array_equal(one.values, other.values)


def test_what_was_written_is_read(path):
    with EventFile(path) as file:
        assert len(file) == 4
        assert file.image_size == SIZE
        assert file.event_ids.dtype == np.int64
        assert file.event_ids.tolist() == [[1, 2, n] for n in range(4)]
        for number in range(4):
            event = random_event(number)
            assert_same(file.sparse(IMAGE, number), event.planes[IMAGE])
            assert_same(file.sparse(LABEL, number), event.planes[LABEL])
            assert file.particles(number) is None


def test_no_voxel_is_lost_beyond_fifty_thousand_of_a_plane(tmp_path):
    size = (300, 256)
    ids = np.arange(size[0] * size[1], dtype=np.uint64)
    full = Plane(ids, np.linspace(5, 9, len(ids), dtype=np.float32))
    write_events(tmp_path / "f.h5", [Event({IMAGE: [full] * 3})], size, [IMAGE])
    with EventFile(tmp_path / "f.h5", label=None) as file:
        assert_same(file.sparse(IMAGE, 0), [full] * 3)


def test_many_events_flush_more_than_once(tmp_path, monkeypatch):
    monkeypatch.setattr("cosmictagger.data.larcv._BUFFER", 10_000)
    with EventFile(write_random(tmp_path / "f.h5", 9)) as file:
        for number in range(9):
            assert_same(file.sparse(IMAGE, number), random_event(number).planes[IMAGE])


def test_empty_planes_are_fine(tmp_path):
    empty = Plane(np.zeros(0, np.uint64), np.zeros(0, np.float32))
    one = Plane(np.array([7], np.uint64), np.array([6.0], np.float32))
    write_events(
        tmp_path / "f.h5",
        [Event({IMAGE: [empty, one, empty]}), Event({IMAGE: [empty] * 3})],
        SIZE,
        [IMAGE],
    )
    with EventFile(tmp_path / "f.h5", label=None) as file:
        assert [len(plane.ids) for plane in file.sparse(IMAGE, 0)] == [0, 1, 0]
        assert [len(plane.ids) for plane in file.sparse(IMAGE, 1)] == [0, 0, 0]


def test_planes_may_be_stored_in_any_order(path):
    with h5py.File(path, "r+") as file:
        table = file[f"{GROUP}/voxel_extents"]
        rows = table[()]
        rows[:3] = rows[[2, 0, 1]]
        table[...] = rows
    with EventFile(path) as file:
        assert_same(file.sparse(IMAGE, 0), random_event(0).planes[IMAGE])


def test_more_producers_and_other_values_than_classes(tmp_path):
    scores = Plane(np.array([1, 5], np.uint64), np.array([0.25, 0.75], np.float32))
    event = random_event(0)
    planes = {**event.planes, "score": [scores] * 3}
    write_events(tmp_path / "f.h5", [Event(planes)], SIZE, list(planes))
    with EventFile(tmp_path / "f.h5") as file:
        assert_same(file.sparse("score", 0), [scores] * 3)


@needs_sample
def test_the_sample_is_read_as_specified():
    with EventFile(SAMPLE) as file:
        assert file.image_size == (1280, 2048)
        counts = [[len(plane.ids) for plane in file.sparse(IMAGE, event)] for event in range(5)]
        energies = [float(file.particles(event)["energy_init"][0]) for event in range(5)]
        kinds = [int(file.particles(event)["pdg"][0]) for event in range(5)]
    assert counts == [
        [23223, 23171, 10084],
        [25094, 23599, 10191],
        [23446, 24703, 12218],
        [26961, 26841, 12336],
        [15775, 16056, 3066],
    ]
    assert kinds == [14, 12, 12, 14, 14]
    np.testing.assert_allclose(energies, [1.3902, 1.0023, 1.8900, 1.5037, 0.4948], atol=5e-5)


@needs_sample
def test_a_copy_of_the_sample_has_its_layout(tmp_path):
    with EventFile(SAMPLE) as source:
        events = [
            Event(
                {name: source.sparse(name, number) for name in (IMAGE, LABEL)},
                source.event_ids[number],
                source.particles(number),
            )
            for number in range(2)
        ]
    write_events(tmp_path / "copy.h5", events, (1280, 2048), particles=True)
    names = [larcv.EVENT_IDS]
    names += [
        f"{larcv.sparse_group(producer)}/{table}"
        for producer in (IMAGE, LABEL)
        for table in ("extents", "voxel_extents", "image_meta", "voxels")
    ]
    names += [f"{larcv.PARTICLE_GROUP}/{table}" for table in ("extents", "particles")]
    with h5py.File(SAMPLE) as source, h5py.File(tmp_path / "copy.h5") as copy:
        for name in names:
            rows = copy[name][()]
            assert copy[name].dtype == source[name].dtype, name
            assert copy[name].maxshape == (None,)
            assert (copy[name].compression, copy[name].compression_opts) == ("gzip", 1)
            assert (rows == source[name][: len(rows)]).all(), name


def test_a_missing_file(tmp_path):
    with pytest.raises(ConfigError, match=r"none\.h5 does not exist.*cosmictagger generate"):
        EventFile(tmp_path / "none.h5")
    with pytest.raises(ConfigError, match="does not exist"):
        EventFile(tmp_path)
    (tmp_path / "text.h5").write_text("events")
    with pytest.raises(DataError, match=r"text\.h5 cannot be opened as an HDF5 file: .*signature"):
        EventFile(tmp_path / "text.h5")


def test_hdf5_of_something_else(tmp_path):
    with h5py.File(tmp_path / "f.h5", "w") as file:
        file["x"] = 1
    with pytest.raises(DataError, match=r"Events/event_id cannot be read .* no larcv3 file"):
        EventFile(tmp_path / "f.h5")


def test_a_wrong_producer_lists_those_there_are(path):
    expected = r"no sparse images of producer 'wire'; it has \['sbnd_cosmicseg', 'sbndwire'\]"
    with pytest.raises(ConfigError, match=expected):
        EventFile(path, image="wire")
    with EventFile(path) as file, pytest.raises(ConfigError, match="producer 'wire'"):
        file.sparse("wire", 0)


def test_images_of_several_sizes(path):
    change(path, f"{GROUP}/image_meta", 7, "number_of_voxels", (8, 8))
    with pytest.raises(DataError, match=r"no common size .*\[\[8, 8\], \[64, 32\]\]"):
        EventFile(path)
    for row in range(12):
        change(path, f"{GROUP}/image_meta", row, "number_of_voxels", (8, 8))
    with pytest.raises(DataError, match=r"labels.* are \(32, 64\), images are \(8, 8\)"):
        EventFile(path)


@pytest.mark.parametrize("label", [3.0, -1.0, 0.5, np.nan])
def test_labels_outside_0_to_2(path, label):
    change(path, f"{LABELS}/voxels", 0, "value", label)
    match = rf"event 0 of 'sbnd_cosmicseg' has label {label:g}"
    with EventFile(path) as file, pytest.raises(DataError, match=match):
        file.sparse(LABEL, 0)


@pytest.mark.parametrize(
    ("table", "row", "field", "value", "match"),
    [
        ("voxel_extents", 4, "first", 10**6, "event 1 of 'sbndwire' has voxels beyond the"),
        ("voxel_extents", 4, "first", 2**64 - 1, "event 1 of 'sbndwire' has voxels beyond the"),
        ("extents", 3, "first", 11, "event 3 of 'sbndwire' does not have 3 planes"),
        ("extents", 3, "N", 2, "event 3 of 'sbndwire' does not have 3 planes"),
        ("extents", 3, "first", 2**64 - 2, "event 3 of 'sbndwire' does not have 3 planes"),
        ("voxel_extents", 5, "ID", 1, "event 1 of 'sbndwire' needs planes 0, 1 and 2, each once"),
        ("image_meta", 0, "number_of_voxels", (0, 32), "images of 'sbndwire' have no common size"),
    ],
)
def test_tables_that_contradict_each_other(path, table, row, field, value, match):
    change(path, f"{GROUP}/{table}", row, field, value)
    with pytest.raises(DataError, match=match):
        EventFile(path)


def test_a_pixel_beyond_the_image(path):
    change(path, f"{GROUP}/voxels", 3, "id", 32 * 64)
    match = "event 0 of 'sbndwire' has pixel id 2048"
    with EventFile(path) as file, pytest.raises(DataError, match=match):
        file.sparse(IMAGE, 0)


def test_tables_of_different_length(path):
    with h5py.File(path, "r+") as file:
        file[f"{LABELS}/extents"].resize((3,))
    with pytest.raises(DataError, match="extents has 3 rows for 4 events"):
        EventFile(path)


def test_a_damaged_chunk(path):
    with h5py.File(path) as file:
        chunk = file[f"{GROUP}/voxels"].id.get_chunk_info(0)
    content = bytearray(path.read_bytes())
    content[chunk.byte_offset : chunk.byte_offset + 40] = b"\xff" * 40
    path.write_bytes(content)
    match = r"sbndwire_group/voxels cannot be read"
    with EventFile(path) as file, pytest.raises(DataError, match=match):
        file.sparse(IMAGE, 1)


def test_nothing_is_left_when_writing_fails(tmp_path):
    (tmp_path / "f.h5").write_text("precious")

    def events():
        yield random_event(0)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_events(tmp_path / "f.h5", events(), SIZE)
    assert [result.name for result in tmp_path.iterdir()] == ["f.h5"]
    assert (tmp_path / "f.h5").read_text() == "precious"


@pytest.mark.parametrize(("room", "buffer"), [(10_000, 8 << 20), (400_000, 10_000)])
def test_a_full_disk_is_told_and_nothing_is_left(tmp_path, monkeypatch, room, buffer):
    # A limit on the size of files refuses space as a full disk does, at the start or on the way.
    monkeypatch.setattr("cosmictagger.data.larcv._BUFFER", buffer)
    monkeypatch.setattr("cosmictagger.data.larcv._SLACK", 200_000)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (room, hard))
    try:
        with pytest.raises(DataError, match=r"cannot be written: .*space"):
            write_random(tmp_path / "f.h5", 200)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert not list(tmp_path.iterdir())


def test_space_that_was_reserved_is_given_back(path):
    with h5py.File(path) as file:
        assert path.stat().st_size == file.id.get_filesize()
    assert path.stat().st_size < 200_000


def test_a_folder_that_cannot_be_made(tmp_path):
    (tmp_path / "file").write_text("")
    with (
        pytest.raises(DataError, match="cannot be written"),
        event_writer(tmp_path / "file" / "f.h5", SIZE),
    ):
        pass


def replaced(path, name, make):
    """Puts something else where a table of a file was."""
    with h5py.File(path, "r+") as file:
        if name in file:
            del file[name]
        make(file, name)


def linking(link):
    """Return a function that puts a link in the place of a table."""

    def make(file, name):
        file[name] = link(file, name)

    return make


def dataset(*arguments, **settings):
    """Return a function that puts a dataset in the place of a table."""
    return lambda file, name: file.create_dataset(name, *arguments, **settings)


OBJECTS = [
    linking(lambda file, name: h5py.SoftLink(f"/{name}")),
    linking(lambda file, name: h5py.ExternalLink("nowhere.h5", "/x")),
    linking(lambda file, name: np.dtype("f4")),
    lambda file, name: file.create_group(name),
    dataset(data=np.zeros(100, np.float32)),
    dataset((), larcv.VOXEL),
    dataset(data=h5py.Empty("f4")),
    dataset((20, 5), larcv.VOXEL),
    dataset(data=["a", "b"]),
    dataset((2000,), [("id", "S4"), ("value", "f4")]),
    dataset((2000,), [("id", "i8"), ("value", "f4")]),
]
NAMES = [
    "Events",
    larcv.EVENT_IDS,
    larcv.DATA,
    GROUP,
    *(f"{GROUP}/{table}" for table in ("extents", "voxel_extents", "image_meta", "voxels")),
    LABELS,
]


@pytest.mark.parametrize("name", NAMES)
def test_no_place_of_a_file_holds_something_that_is_not_told(path, name):
    """Every kind of wrong object at every place of the layout names the file and a path."""
    whole = path.read_bytes()
    for make in OBJECTS:
        path.write_bytes(whole)
        replaced(path, name, make)
        with (
            pytest.raises(DataError, match=r"events\.h5: .*(Events|Data|sparse images|voxels)"),
            EventFile(path) as file,
        ):
            file.sparse(IMAGE, 0)


def test_particles_may_lack_fields_and_be_unreadable(path):
    place = larcv.PARTICLE_GROUP
    extents = np.zeros(4, larcv.EXTENT)
    extents["N"] = 1
    with h5py.File(path, "r+") as file:
        file[f"{place}/extents"] = extents
        file[f"{place}/particles"] = np.array([(14,)], [("pdg", "<i4")])
    with EventFile(path) as file:
        assert file.particles(3).tolist() == [(14,)]
    for table in ("particles", "extents"):
        replaced(path, f"{place}/{table}", lambda file, name: file.create_group(name))
        with EventFile(path) as file, pytest.raises(DataError, match=rf"{place}/{table} cannot"):
            file.particles(0)
