"""Classes and vertices of whole events: read from files, refused where missing, generated."""

import h5py
import numpy as np
import pytest

from cosmictagger.data import generator, larcv
from cosmictagger.data.generator import FRAME
from cosmictagger.data.larcv import (
    IMAGE,
    LABEL,
    VERTEX,
    Event,
    EventFile,
    Frame,
    Plane,
    event_writer,
)
from cosmictagger.data.loader import EventLoader, SyntheticLoader
from cosmictagger.data.truth import EVENT_LABEL, VERTICES
from cosmictagger.errors import ConfigError, DataError
from cosmictagger.measures import COSMIC_ONLY

SIZE = (32, 64)
PLACES = Frame(
    np.array([[160.0, 320.0]] * 3), np.array([[-80.0, 10.0], [-80.0, 20.0], [0.0, 30.0]])
)
BOTH = (EVENT_LABEL, VERTICES)
BOXES = f"{larcv.DATA}/bbox2d_bbox_neutrino_group"


def particles(*rows):
    table = np.zeros(len(rows), larcv.PARTICLE)
    for row, (pdg, current) in zip(table, rows, strict=True):
        row["pdg"], row["current_type"] = pdg, current
    return table


def event(number=0, pdg=14, current=0, pixels=12, shares=(0.25, 0.75)):
    """An event with so many neutrino pixels in all, and the vertex at these shares."""
    counts = [pixels // 3] * 2 + [pixels - 2 * (pixels // 3)]
    ids = [np.arange(40 + n, dtype=np.uint64) for n in range(3)]
    images = [Plane(i, np.full(len(i), 7.0, np.float32)) for i in ids]
    labels = [
        Plane(i, np.where(np.arange(len(i)) < n, 2, 1).astype(np.float32))
        for i, n in zip(ids, counts, strict=True)
    ]
    boxes = [place[None] for place in PLACES.place(np.array([shares] * 3))]
    planes = {IMAGE: images, LABEL: labels}
    return Event(planes, (1, 0, number), particles((pdg, current), (13, -1)), {VERTEX: boxes})


def written(path, *events, **more):
    layout = {"particles": True, "boxes": [VERTEX], "frame": PLACES} | more
    with event_writer(path, SIZE, **layout) as writer:
        for each in events:
            writer.write(each)
    return path


def load(path, truth=BOTH, **more):
    with EventLoader(path, truth=truth, batch_size=8, **more) as loader:
        return next(iter(loader))


@pytest.mark.parametrize(
    ("pdg", "current", "pixels", "expected"),
    [
        (12, 0, 12, 0),
        (-12, 0, 12, 0),
        (14, 0, 12, 1),
        (-14, 0, 12, 1),
        (14, 1, 12, 2),
        (12, 1, 12, 2),
        (12, 0, 10, 0),
        (12, 0, 9, COSMIC_ONLY),
        (14, 1, 0, COSMIC_ONLY),
        (22, 0, 0, COSMIC_ONLY),
    ],
)
def test_the_class_of_an_event(tmp_path, pdg, current, pixels, expected):
    batch = load(written(tmp_path / "f.h5", event(0, pdg, current, pixels)))
    assert batch.event_label.tolist() == [expected]
    seen = (batch.vertex >= 0).all()
    assert bool(seen) == (expected != COSMIC_ONLY)


def test_pixels_are_counted_as_they_are_run(tmp_path):
    path = written(tmp_path / "f.h5", event(pixels=12))
    assert load(path, downsample=0).event_label.tolist() == [1]
    assert load(path, downsample=2).event_label.tolist() == [COSMIC_ONLY]


def test_a_vertex_is_the_same_share_of_every_plane_and_size(tmp_path):
    path = written(
        tmp_path / "f.h5", event(0, 14, 0, 36, (0.3, 0.9)), event(1, 14, 0, 36, (0.1, 0.2))
    )
    for downsample in (0, 1):
        with EventLoader(path, truth=[VERTICES], batch_size=2, downsample=downsample) as loader:
            batch = next(iter(loader))
            np.testing.assert_array_equal(loader.frame.size, PLACES.size)
            np.testing.assert_array_equal(loader.frame.origin, PLACES.origin)
        assert batch.vertex.dtype.is_floating_point
        expected = np.array([[[0.3, 0.9]] * 3, [[0.1, 0.2]] * 3])
        np.testing.assert_allclose(batch.vertex, expected, rtol=1e-6)


@pytest.mark.parametrize("shares", [(1.0, 0.5), (-0.01, 0.5), (0.5, 1.2), (np.nan, 0.5)])
def test_a_vertex_outside_of_the_image_is_in_no_box(tmp_path, shares):
    batch = load(written(tmp_path / "f.h5", event(shares=shares)))
    assert batch.event_label.tolist() == [1]
    assert (batch.vertex == -1).all()


def test_vertices_in_other_units_are_refused_before_any_event_is_read(tmp_path):
    far = [event(number, shares=(9.0, 7.5)) for number in range(50)]
    with pytest.raises(
        DataError, match=r"none of the 150 true vertices .* first 50 events .*bbox_neutrino_group"
    ):
        load(written(tmp_path / "f.h5", *far))
    assert load(tmp_path / "f.h5", truth=[EVENT_LABEL]).event_label.tolist() == [1] * 8
    one = written(tmp_path / "one.h5", *far[1:], event(0, shares=(0.5, 0.5)))
    assert (load(one).vertex == -1).any()


def test_an_event_may_have_no_box_in_a_plane(tmp_path):
    one = event()
    boxes = list(one.boxes[VERTEX])
    boxes[1] = boxes[1][:0]
    batch = load(written(tmp_path / "f.h5", one._replace(boxes={VERTEX: boxes}), event(1)))
    assert batch.vertex[0, 1].tolist() == [-1, -1]
    assert (batch.vertex[0, [0, 2]] > 0).all()
    assert (batch.vertex[1] > 0).all()


def test_the_first_box_counts(tmp_path):
    one = event(shares=(0.5, 0.25))
    boxes = [np.concatenate([each, each + 1]) for each in one.boxes[VERTEX]]
    batch = load(written(tmp_path / "f.h5", one._replace(boxes={VERTEX: boxes}), event(1)))
    np.testing.assert_allclose(batch.vertex[0], [[0.5, 0.25]] * 3)
    np.testing.assert_allclose(batch.vertex[1], [[0.25, 0.75]] * 3)


def test_nothing_is_read_that_is_not_asked_for(tmp_path):
    path = written(tmp_path / "f.h5", event()._replace(boxes={}), boxes=[])
    assert load(path, truth=[]).event_label is None
    assert load(path, truth=[EVENT_LABEL]).event_label.tolist() == [1]
    only_boxes = written(tmp_path / "b.h5", event()._replace(particles=None), particles=False)
    assert (load(only_boxes, truth=[VERTICES]).vertex > 0).all()


def test_a_missing_group_is_named_when_the_file_is_opened(tmp_path):
    path = written(tmp_path / "v.h5", event()._replace(boxes={}), boxes=[])
    with pytest.raises(ConfigError, match="bbox2d_bbox_neutrino_group is missing"):
        EventLoader(path, truth=BOTH)
    path = written(tmp_path / "p.h5", event()._replace(particles=None), particles=False)
    with pytest.raises(ConfigError, match="particle_sbndneutrino_group is missing"):
        EventLoader(path, truth=BOTH)


def test_files_without_labels_need_no_truth(tmp_path):
    path = written(tmp_path / "v.h5", event()._replace(boxes={}), boxes=[])
    with EventLoader(EventFile(path, label=None), truth=BOTH) as loader:
        assert loader.load([0]).event_label is None
        np.testing.assert_array_equal(loader.frame.size, PLACES.size)


def test_particles_that_tell_no_class(tmp_path):
    path = written(tmp_path / "f.h5", event(0, pdg=13))
    with pytest.raises(DataError, match="has the pdg code 13 first, not 12 or 14"):
        load(path)
    empty = event()._replace(particles=particles())
    with pytest.raises(DataError, match="has no particles, not 12 or 14"):
        load(written(tmp_path / "e.h5", empty))
    with h5py.File(path, "r+") as file:
        name = f"{larcv.PARTICLE_GROUP}/particles"
        rows = file[name][()][["pdg", "id"]]
        del file[name]
        file[name] = rows
    with pytest.raises(DataError, match=r"lacks .'current_type'., which tell the class"):
        EventLoader(path, truth=BOTH)


@pytest.mark.parametrize(
    ("table", "field", "row", "value", "words"),
    [
        ("image_meta", "image_sizes", 1, (0.0, 3.0), "image_sizes that are not above zero"),
        ("image_meta", "origin", 4, (9.0, 9.0), "another size or origin than event 0"),
        ("image_meta", "image_sizes", 0, (np.nan, 3.0), "image_sizes that are not above zero"),
        ("bbox_extents", "ID", 0, 2, "needs planes 0, 1 and 2, each once"),
        ("bbox_extents", "N", 5, 7, "has bboxes beyond the 6 of the table"),
        ("extents", "N", 0, 2, "does not have 3 planes in .*bbox_extents"),
    ],
)
def test_damaged_boxes(tmp_path, table, field, row, value, words):
    path = written(tmp_path / "f.h5", event(), event(1))
    with h5py.File(path, "r+") as file:
        rows = file[f"{BOXES}/{table}"][()]
        rows[field][row] = value
        file[f"{BOXES}/{table}"][...] = rows
    with pytest.raises(DataError, match=words), EventLoader(path, truth=BOTH) as loader:
        loader.load([0, 1])


def test_planes_of_boxes_in_another_order(tmp_path):
    path = written(tmp_path / "f.h5", event())
    with h5py.File(path, "r+") as file:
        for table in ("bbox_extents", "image_meta"):
            file[f"{BOXES}/{table}"][...] = file[f"{BOXES}/{table}"][()][::-1]
    np.testing.assert_allclose(load(path).vertex[0], [[0.25, 0.75]] * 3)


def test_images_of_the_second_version_of_the_data(tmp_path):
    size = (1408, 2048)
    with event_writer(tmp_path / "f.h5", size, particles=True, boxes=[VERTEX], frame=PLACES) as w:
        w.write(event())
    batch = load(tmp_path / "f.h5")
    assert batch.image.shape == (1, 3, *size)
    np.testing.assert_allclose(batch.vertex[0], [[0.25, 0.75]] * 3)


def test_truth_stays_with_its_event_in_every_batch(tmp_path):
    events = [event(n, pdg=12 + 2 * (n % 2), shares=(0.1 * n + 0.05, 0.5)) for n in range(7)]
    path = written(tmp_path / "f.h5", *events)

    def check(batch):
        rows = np.array(batch.entries)
        assert batch.event_label.tolist() == (rows % 2).tolist()
        np.testing.assert_allclose(batch.vertex[:, 0, 0], 0.1 * rows + 0.05, rtol=1e-5)

    order = {"shuffle": True, "across_epochs": True, "seed": 3}
    seen = []
    for index in range(2):
        with EventLoader(path, truth=BOTH, batch_size=2, shard=(index, 2), **order) as loader:
            for _ in range(3):
                for batch in loader:
                    check(batch)
                    seen += batch.entries
    assert set(seen) == set(range(7))
    sizes = []
    for index in range(2):
        with EventLoader(path, truth=BOTH, batch_size=2, shard=(index, 2), equal=True) as loader:
            for batch in loader:
                check(batch)
                assert batch.vertex.shape == (len(batch), 3, 2)
                sizes.append(len(batch))
    assert sorted(sizes) == [1, 2, 2, 2]


def test_an_instance_without_events_has_truth_of_the_right_shape(tmp_path):
    path = written(tmp_path / "f.h5", event())
    with EventLoader(path, truth=BOTH, batch_size=1, shard=(1, 2), equal=True) as loader:
        batch = next(iter(loader))
    assert (len(batch), batch.event_label.shape, batch.vertex.shape) == (0, (0,), (0, 3, 2))


def test_synthetic_truth_is_drawn_where_it_is_asked_for():
    plain = SyntheticLoader(4, size=(8, 16), seed=5)
    with_truth = SyntheticLoader(4, size=(8, 16), seed=5, truth=BOTH)
    batch, other = with_truth.load(range(40)), plain.load(range(40))
    assert other.event_label is None
    assert other.vertex is None
    assert (batch.image == other.image).all()
    assert (batch.label == other.label).all()
    assert set(batch.event_label.tolist()) == {0, 1, 2, 3}
    assert 0 <= batch.vertex.min() < 0.1 < 0.9 < batch.vertex.max() < 1
    np.testing.assert_array_equal(with_truth.frame.size, [[8.0, 16.0]] * 3)


@pytest.fixture(scope="module")
def generated(tmp_path_factory):
    """Twelve generated events, some of them cosmic only."""
    path = tmp_path_factory.mktemp("generated") / "f.h5"
    generator.generate(path, 12, 2, (320, 512), cosmic_only=0.6)
    return path


def test_the_generated_vertex_is_at_the_start_of_the_neutrino(generated):
    batch = load(generated, downsample=0)
    beyond = 0
    for row in range(len(batch)):
        for plane in range(3) if batch.event_label[row] != COSMIC_ONLY else ():
            place = batch.vertex[row, plane].numpy() * (320, 512)
            pixels = np.argwhere(batch.label[row, plane].numpy() == 2) + 0.5
            beyond += np.hypot(*(pixels - place).T).min() > 2
    assert beyond == 0


def test_some_generated_events_have_no_neutrino(generated, tmp_path):
    with EventLoader(generated, truth=BOTH, batch_size=12) as loader:
        batch = next(iter(loader))
        np.testing.assert_array_equal(loader.frame.size, FRAME.size)
        tables = [loader.file.particles(n) for n in range(12)]
    cosmic = (batch.event_label == COSMIC_ONLY).tolist()
    assert 3 < sum(cosmic) < 11
    assert set(batch.event_label.tolist()) > {1, COSMIC_ONLY}
    assert [not len(table) for table in tables] == cosmic
    assert [not (each == 2).any() for each in batch.label] == cosmic
    generator.generate(tmp_path / "f.h5", 12, 2, (320, 512))
    with EventFile(generated) as some, EventFile(tmp_path / "f.h5") as all_of_them:
        for number in range(12):
            pairs = zip(some.sparse(LABEL, number), all_of_them.sparse(LABEL, number), strict=True)
            same = all(np.array_equal(a.values, b.values) for a, b in pairs)
            assert same != cosmic[number]


def test_a_share_of_cosmic_events_is_a_share(tmp_path):
    with pytest.raises(ConfigError, match=r"data.cosmic_only=1.5 was asked for; it is a share"):
        generator.generate(tmp_path / "f.h5", 1, 2, (320, 512), cosmic_only=1.5)
