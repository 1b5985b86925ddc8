"""Simulated events: reproducible, like the sample in their statistics, true to simple physics."""

import sys

import numpy as np
import pytest

from cosmictagger.data import generator, larcv
from cosmictagger.data import generator_physics as physics
from cosmictagger.data.generator import FULL_SIZE, Detector
from cosmictagger.data.generator_physics import cascade, track
from cosmictagger.data.larcv import IMAGE, LABEL, EventFile
from cosmictagger.errors import ConfigError
from helpers.cosmic_reference import SAMPLE, needs_sample

SMALL = (128, 192)


def simulated(number, seed, size=FULL_SIZE):
    return generator._simulated(number, seed, Detector(size))


@pytest.fixture(scope="module")
def full():
    """Events of full size."""
    return [simulated(number, 3) for number in range(8)]


def pixels(event, producer):
    return np.concatenate([plane.values for plane in event.planes[producer]])


def test_equal_seeds_give_equal_files(tmp_path):
    generator.generate(tmp_path / "a.h5", 2, 5, SMALL)
    generator.generate(tmp_path / "b.h5", 2, 5, SMALL)
    generator.generate(tmp_path / "c.h5", 2, 6, SMALL)
    contents = [(tmp_path / f"{name}.h5").read_bytes() for name in "abc"]
    assert contents[0] == contents[1]
    assert contents[0] != contents[2]


def test_an_event_does_not_depend_on_those_before(tmp_path):
    generator.generate(tmp_path / "f.h5", 3, 5, SMALL)
    with EventFile(tmp_path / "f.h5") as file:
        assert file.image_size == SMALL
        assert file.event_ids.tolist() == [[1, 0, n] for n in range(3)]
        for number in (2, 0):
            event = simulated(number, 5, SMALL)
            for producer in (IMAGE, LABEL):
                for result, made in zip(
                    file.sparse(producer, number), event.planes[producer], strict=True
                ):
                    np.testing.assert_array_equal(result.ids, made.ids)
                    np.testing.assert_array_equal(result.values, made.values)
            assert (file.particles(number) == event.particles).all()


def test_every_pixel_of_the_image_has_a_label(full):
    for event in full[:4]:
        for image, label in zip(event.planes[IMAGE], event.planes[LABEL], strict=True):
            np.testing.assert_array_equal(image.ids, label.ids)
            assert (np.diff(image.ids.astype(np.int64)) > 0).all()
            assert image.values.min() >= 5.0
            assert set(np.unique(label.values)) <= {0.0, 1.0, 2.0}


def test_statistics_are_those_of_the_sample(full):
    occupancy = [100 * len(pixels(event, IMAGE)) / (3 * 1280 * 2048) for event in full]
    assert min(occupancy) > 0.35
    assert max(occupancy) < 1.1
    assert 0.45 < np.mean(occupancy) < 0.85
    classes = np.mean([np.bincount(pixels(e, LABEL).astype(int), minlength=3) for e in full], 0)
    assert 10_000 < classes[1] < 30_000
    assert 1_000 < classes[2] < 10_000
    noise = np.array([[np.mean(p.values == 0) for p in e.planes[LABEL]] for e in full]).mean(0)
    assert (abs(noise[:2] - 0.6) < 0.12).all()
    assert 0.05 < noise[2] < 0.2
    means = [pixels(event, IMAGE).mean() for event in full]
    assert 10 < min(means) < max(means) < 70


@needs_sample
def test_pixel_values_are_distributed_as_in_the_sample(full):
    with EventFile(SAMPLE) as file:
        real = [(file.sparse(IMAGE, event), file.sparse(LABEL, event)) for event in range(5)]
    made = [(event.planes[IMAGE], event.planes[LABEL]) for event in full]
    for kind in range(3):
        levels = []
        for events in (real, made):
            values = [
                image.values[label.values == kind]
                for planes in events
                for image, label in zip(*planes, strict=True)
            ]
            levels.append(np.quantile(np.concatenate(values), [0.1, 0.5, 0.9]))
        # Within a factor of two at the edges of the spectrum as in its middle.
        assert (np.abs(np.log2(levels[0] / levels[1])) < 1).all(), (kind, levels)


def test_dead_wires_and_edges_of_planes(full):
    detector = Detector((1280, 2048))
    for plane, (first, last) in enumerate(((31, 2016), (31, 2016), (191, 1856))):
        seen = np.zeros(2048, bool)
        for event in full:
            seen[event.planes[IMAGE][plane].ids // 1280] = True
        live = np.arange(first + 1, last)
        dead = detector.dead[plane]
        assert 4 <= dead.sum() <= 25
        assert not seen[dead].any()
        assert not seen[:first].any()
        assert not seen[last + 1 :].any()
        if plane < 2:
            assert seen[live][~dead[live]].mean() > 0.99


def test_noise_sits_in_one_half_of_each_induction_plane(full):
    for plane, noisy_upper in ((0, True), (1, False)):
        upper = lower = 0
        for event in full:
            label = event.planes[LABEL][plane]
            rows = label.ids[label.values == 0] % 1280
            upper, lower = upper + (rows >= 640).sum(), lower + (rows < 640).sum()
        noisy, quiet = (upper, lower) if noisy_upper else (lower, upper)
        assert noisy > 4 * quiet


def test_the_true_neutrino_is_first_in_the_table(full):
    for event in full:
        table = event.particles
        assert table is not None
        assert table.dtype == larcv.PARTICLE
        assert abs(table["pdg"][0]) in (12, 14)
        assert table["current_type"][0] in (0, 1)
        assert (table["current_type"][1:] == -1).all()
        assert 0.3 <= table["energy_init"][0] <= 4.0
        assert table["energy_init"][0] == pytest.approx(table["pz"][0])
        charged = table["current_type"][0] == 0
        assert table["pdg"][1] == table["pdg"][0] - charged
        assert len({row.tobytes() for row in table["vtx"]}) == 1


def test_the_neutrino_is_where_its_vertex_is(full):
    for event in full:
        vertex = event.particles["vtx"][0]
        for image, label in zip(event.planes[IMAGE][2:], event.planes[LABEL][2:], strict=True):
            ids = image.ids[label.values == 2].astype(np.int64)
            wires, times = ids // 1280, ids % 1280
            expected = 191 + vertex["z"] / 0.3, 640 + 3.125 * vertex["x"]
            apart = np.hypot(wires - expected[0], times - expected[1])
            assert apart.min() < 130


def test_one_event_is_seen_by_three_planes_at_the_same_time():
    # A point charge: the same drift time on all planes, wires as the angles demand.
    place = np.array([[-100.0, 50.0, 200.0]] * 50)
    deposits = physics.Deposits(place, np.full(50, 5.0), np.zeros(50, np.int64))
    seen = Detector((1280, 2048)).respond(
        np.random.default_rng(0), deposits, np.zeros(50), np.ones(50, bool)
    )
    expected = (
        31 + (100 + (200 - 50) * 0.75**0.5) / 0.3,
        31 + (100 + (200 + 50) * 0.75**0.5) / 0.3,
        191 + 200 / 0.3,
    )
    for response, wire in zip(seen, expected, strict=True):
        ids = response[1].ids[response[1].values == 2].astype(np.int64)
        assert abs((ids // 1280).mean() - wire) < 2
        assert abs((ids % 1280).mean() - (15 + 3.125 * 100)) < 2


def test_a_late_muon_leaves_a_gap_around_the_cathode():
    # Early charge seems nearer to the anode on both sides: the halves move apart evenly.
    x = np.linspace(-150, 150, 4000)
    place = np.stack([x, np.zeros(4000), np.full(4000, 250.0)], 1)
    deposits = physics.Deposits(place, np.full(4000, 0.3), np.zeros(4000, np.int64))
    late = np.full(4000, -200.0)
    seen = Detector((1280, 2048)).respond(
        np.random.default_rng(0), deposits, late, np.zeros(4000, bool)
    )
    label = seen[2][1]
    rows = (label.ids[label.values == 1] % 1280).astype(np.int64)
    below, above = rows[rows < 640].max(), rows[rows >= 640].min()
    assert abs((640 - below) - 100) < 4
    assert abs((above - 640) - 100) < 4


def test_stopping_power_of_a_muon_in_argon():
    # Minimum ionisation in liquid argon: 1.508 MeV cm^2/g at 266 MeV (Groom et al. 2001).
    kinetic = np.geomspace(10, 1e5, 4000)
    loss = physics.stopping_power(kinetic, physics.MASSES[13])
    assert loss.min() / physics.DENSITY == pytest.approx(1.508, rel=0.01)
    assert kinetic[loss.argmin()] == pytest.approx(266, rel=0.05)


def test_tracks_are_as_long_as_their_range_and_lose_their_energy():
    rng = np.random.default_rng(1)
    start, heading = np.zeros(3), np.array([0.0, 0.0, 1.0])
    kinetic = 300.0
    result = track(rng, start, heading, kinetic, physics.MASSES[13], 0, 1e4)
    assert result.stopped
    length = physics.range_of(kinetic, physics.MASSES[13])
    assert 0.8 * length < result.end[2] <= length
    freed = result.deposits.amount.sum() + result.deltas.energy.sum()
    assert 0.5 * kinetic < freed < 0.95 * kinetic
    ends = result.deposits.amount[-10:].mean(), result.deposits.amount[:100].mean()
    assert ends[0] > 2 * ends[1]


def test_showers_keep_the_energy_and_grow_with_its_logarithm():
    rng = np.random.default_rng(3)
    inside = np.array([[-500.0] * 3, [500.0] * 3])
    depths = []
    for energy in (100.0, 1000.0):
        start = physics.Flying(
            np.zeros((20, 3)), np.tile([0.0, 0.0, 1.0], (20, 1)), np.full(20, energy), np.arange(20)
        )
        result = cascade(rng, start, physics.NONE_FLYING, inside)
        per_shower = np.bincount(result.origin, result.amount, 20)
        recombined = float(physics.charge(np.ones(1), physics.ELECTRON_LOSS)[0])
        assert per_shower.mean() / recombined == pytest.approx(energy, rel=0.06)
        depths.append(np.average(result.position[:, 2], weights=result.amount))
    # Each factor of e adds about one radiation length, here 2.3 of them.
    assert 15 < depths[1] - depths[0] < 50


@pytest.mark.parametrize("size", [(320, 512), (64, 96)])
def test_smaller_images_keep_shares_and_brightness(full, size):
    made = [simulated(number, 3, size) for number in range(5)]

    def shares(events):
        counts = sum(np.bincount(pixels(e, LABEL).astype(int), minlength=3) for e in events)
        return counts / counts.sum()

    np.testing.assert_allclose(shares(made), shares(full[:5]), atol=0.12)
    assert shares(made)[2] > 0.03
    factor = size[1] / 2048
    occupancy = sum(len(pixels(e, IMAGE)) for e in made) / (15 * size[0] * size[1])
    whole = sum(len(pixels(e, IMAGE)) for e in full[:5]) / (15 * 1280 * 2048)
    assert occupancy * factor == pytest.approx(whole, rel=0.5)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"events": 0}, "0 events were asked for"),
        ({"seed": -1}, "seed is -1"),
        ({"size": (16, 64)}, "16 x 64 were asked for"),
        ({"size": (65, 64)}, "rows have to be even"),
        ({"size": (1280, 4096)}, "columns 32 to 2048"),
    ],
)
def test_numbers_out_of_range(tmp_path, settings, message):
    arguments = {"events": 1, **settings}
    with pytest.raises(ConfigError, match=message):
        generator.generate(tmp_path / "f.h5", **arguments)
    assert not list(tmp_path.iterdir())


def test_the_bar_tells_how_far_it_is_where_somebody_looks(tmp_path, capsys, monkeypatch):
    generator.generate(tmp_path / "f.h5", 2, 1, (32, 32))
    assert not capsys.readouterr().err
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    generator.generate(tmp_path / "f.h5", 2, 1, (32, 32))
    assert "2/2" in capsys.readouterr().err


def test_an_interrupted_run_leaves_nothing(tmp_path, monkeypatch):
    real = generator._simulated

    def interrupted(number, *others):
        if number == 2:
            raise KeyboardInterrupt
        return real(number, *others)

    monkeypatch.setattr(generator, "_simulated", interrupted)
    with pytest.raises(KeyboardInterrupt):
        generator.generate(tmp_path / "f.h5", 4, 1, SMALL)
    assert not list(tmp_path.iterdir())
