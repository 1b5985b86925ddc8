"""Learning rates against numbers of the original."""

import pytest

from cosmictagger.modes.training import Schedule

_PUBLISHED = {
    0: 1.00000e-4,
    1: 1.00074e-4,
    1000: 1.74289e-4,
    2692: 2.99986e-4,
    2693: 3.0e-4,
    56535: 3.0e-4,
    56536: 2.99995e-4,
    60000: 1.55307e-4,
    67304: 1.03679e-4,
    80000: 1.00033e-4,
}


@pytest.mark.parametrize("step", _PUBLISHED)
def test_published_numbers(step):
    schedule = Schedule(peak=3e-4, images_per_step=16, events=43075)
    assert schedule(step) == pytest.approx(_PUBLISHED[step], rel=4e-6)


def test_accumulated_images_count_as_seen():
    assert Schedule(3e-4, 4, 100).epoch(50) == 2 * Schedule(3e-4, 2, 100).epoch(50)


def test_peak_below_the_lowest_falls_to_it_and_never_leaves_the_two():
    schedule = Schedule(peak=5e-5, images_per_step=1, events=10)
    assert all(5e-5 <= schedule(step) <= 1e-4 for step in range(500))
