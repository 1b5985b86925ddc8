"""Event displays show what they promise; their look was judged by eye."""

import numpy as np
from matplotlib.colors import to_rgb
from matplotlib.image import imread

from cosmictagger.results import plots
from cosmictagger.results.tally import EventRecord, sparse_plane

SIZE = (80, 128)
METRICS = {"Average/mIoU": 0.4321, "plane0/Cosmic_IoU": 0.5, "plane0/Neutrino_IoU": 0.25}


def make(label=True, neutrino=True):
    image = np.zeros(SIZE, np.float32)
    truth = np.zeros(SIZE, np.int64)
    for step in range(70):
        image[step, step], truth[step, step] = 20, 1
    if neutrino:
        image[10:16, 100:110], truth[10:16, 100:110] = 50, 2
    image[40, 100:] = 5  # noise
    score = np.where(truth == 2, 0.9, 0.1).astype(np.float32)
    plane = sparse_plane(image, truth if label else None, truth, score)
    return EventRecord(3, (1, 2, 4), SIZE, 1, METRICS if label else {}, (plane,) * 3)


def panels(figure):
    return [axes for axes in figure.axes if axes.get_images()]


def texts(figure):
    return " | ".join(text.get_text() for text in figure.findobj(lambda a: hasattr(a, "get_text")))


def test_sparse_planes_come_back_dense():
    view = make().plane(1)
    assert (view.label == view.prediction).all()
    assert view.image[5, 5] == 20
    assert view.score[12, 105] == np.float32(0.9)
    assert view.score[40, 99] == 0


def test_a_picture_is_written_at_once(tmp_path, real_pictures):
    path = plots.save_display(make(), tmp_path / "displays" / "entry.png")
    assert imread(path).shape[:2] == (1378, 1950)
    assert [file.name for file in path.parent.iterdir()] == ["entry.png"]


def test_nine_panels_with_axes_ids_and_metrics():
    figure = plots.draw_display(make())
    assert len(panels(figure)) == 9
    shown = texts(figure)
    for wanted in (
        "Run 1, subrun 2, event 4 (entry 3)",
        "mIoU 0.432",
        "IoU: cosmic 0.500, neutrino 0.250",
        "Truth",
        "Prediction",
        "Neutrino score",
        "wire [pixel]",
        "drift time [pixel]",
        "plane 2",
        "60 neutrino pixels",
        "run in cells of 2 x 2",
    ):
        assert wanted in shown
    assert panels(figure)[0].get_images()[0].get_extent() == [0, 256, 0, 160]


def test_a_small_neutrino_is_magnified_where_nothing_is_hidden():
    figure = plots.draw_display(make())
    inset = panels(figure)[0].child_axes[0]
    (left, right), (bottom, top) = inset.get_xlim(), inset.get_ylim()
    assert left <= 200 < 220 <= right
    assert bottom <= 20 < 32 <= top
    view = make().plane(0)
    place = plots._empty_place(view, (5, 20, 95, 115))
    assert place[2] == max(plots._INSETS)
    assert not covered(view.label != 0, place)
    assert not covered(view.score > 0.5, place)


def covered(pixels, place):
    """How many pixels are under an inset."""
    x, y, size = place
    rows, columns = pixels.nonzero()
    inside = (rows + 1 > y * SIZE[0]) & (rows < (y + size) * SIZE[0])
    return int((inside & (columns + 1 > x * SIZE[1]) & (columns < (x + size) * SIZE[1])).sum())


def test_an_inset_shrinks_where_tracks_are_close_and_goes_where_there_is_no_room():
    view = make().plane(0)
    view.label[:] = 0
    view.label[::25] = view.label[:, ::40] = 1
    place = plots._empty_place(view, (5, 20, 95, 115))
    assert place[2] == min(plots._INSETS)
    assert not covered(view.label != 0, place)
    truth = np.where(view.label == 1, 1, make().plane(0).label)
    truth[::9] = 1
    plane = sparse_plane(view.image, truth, truth, view.score)
    figure = plots.draw_display(EventRecord(3, (1, 2, 4), SIZE, 1, METRICS, (plane,) * 3))
    assert not any(panel.child_axes for panel in panels(figure))


def test_without_neutrino_there_is_nothing_to_magnify():
    assert not panels(plots.draw_display(make(neutrino=False)))[0].child_axes


def test_without_labels_the_charge_stands_for_the_truth():
    shown = texts(plots.draw_display(make(label=False)))
    assert "Charge" in shown
    assert "Truth" not in shown
    assert "IoU" not in shown


def test_an_empty_event_can_be_drawn(tmp_path, real_pictures):
    nothing = np.zeros(SIZE)
    plane = sparse_plane(nothing, nothing, nothing.astype(int), nothing)
    assert len(plane[0]) == 0
    plots.save_display(EventRecord(0, (-1, -1, -1), SIZE, 0, {}, (plane,) * 3), tmp_path / "e.png")


def test_hue_is_the_class_and_depth_the_charge():
    image = np.array([[0, 10.0, 1000.0]], np.float32)
    picture = plots._colour(np.array([[0, 2, 2]]), image, 1000.0)
    assert picture[0, 0, 3] == 0
    assert picture[0, 1, :3].sum() > picture[0, 2, :3].sum()
    np.testing.assert_allclose(picture[0, 2, :3], to_rgb(plots.CLASS_COLORS[2]), atol=0.02)


def test_both_bars_have_a_scale():
    """That of charge ends where colours are deepest, the same in all planes of an event."""
    score, charge = plots.draw_display(make()).axes[-2:]
    assert score.get_ylabel() == "probability of neutrino"
    assert charge.get_ylabel() == "charge, as the network gets it"
    assert charge.get_ylim() == (0, 50)
    labels = [label.get_text() for label in charge.get_yticklabels()]
    assert labels == ["0", "0.2", "0.5", "1", "2", "5", "10", "20", "50"]


def test_thinning_keeps_the_rarest_class():
    classes = np.zeros((800, 1200), np.int64)
    image = np.ones((800, 1200), np.float32)
    classes[401, 601] = 2
    thin = plots._thin(plots._colour(classes, image, 1.0))
    assert thin.shape == (266, 400, 4)
    assert (thin[..., 3] == 3).sum() == 1


def test_darkness_of_the_score_rises():
    rgb = plots.SCORE_MAP(np.linspace(0, 1, 32))[:, :3]
    luminance = rgb @ [0.2126, 0.7152, 0.0722]
    assert (np.diff(luminance) < 0).all()
