"""From charge in the argon to pixels: two drift volumes, three wire planes, noise and threshold.

The numbers describe a detector like SBND and were read off its sample file: 2 x 2 m of drift on
both sides of a cathode in the middle, 4 m high, 5 m long; wires 3 mm apart, at +-60 degrees on the
induction planes 0 and 1 and upright on the collection plane 2. The lower half of the image is the
volume at x < 0, the upper half the one at x > 0, the cathode lies between them.
"""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from cosmictagger.data.generator_physics import Array, Deposits
from cosmictagger.data.layout import Plane

FULL_SIZE = (1280, 2048)
CORNERS = np.array([[-200.0, -200.0, 0.0], [200.0, 200.0, 500.0]])
THRESHOLD = 5.0

_WIRE_PITCH = 0.3
_PIXELS_PER_CM = 3.125
PIXELS_PER_MICROSECOND = 0.5
_ANODE_PIXEL = 15.0
_FIRST_WIRE = (31, 31, 191)
_LAST_WIRE = (2016, 2016, 1856)
# Image units per MeV of charge: a track along the beam then has the values of the sample.
_GAIN = 175.0
# Diffusion in cm per square root of the drift in cm, and the width of the electronics' pulse.
_DIFFUSION_ALONG, _DIFFUSION_ACROSS = 0.0078, 0.0105
_PULSE = 0.175
# Share of a pulse that comes late and far out; there is no true charge below it.
_TAIL = 0.08
_GAIN_SPREAD = 0.02
_NOISE_ON_CHARGE = 1.0
# Pixels with noise above threshold in (lower, upper) half, at full size: induction wires are noisy
# in the one volume where they see the other plane's pick-up.
_NOISE_PIXELS = ((1100, 11500), (11500, 1100), (210, 250))
_NOISE_SCALE = 0.75
_NOISE_RUNS = np.array([0.815, 0.14, 0.03, 0.015])
_DEAD_SHARE = 0.006


class Response(NamedTuple):
    """Image and label of one plane."""

    image: Plane
    label: Plane


class Detector:
    """The detector, seen with pixels that make an image of a given size.

    A smaller image is the same detector with coarser pixels. Values are divided by the factor, so
    that tracks keep their brightness, and the number of noise pixels as well, so that noise keeps
    its share of all pixels. As tracks are lines, the share of pixels that are not zero grows with
    the factor, just as when a full image is downsampled.
    """

    def __init__(self, size: tuple[int, int]) -> None:
        self.size = size
        self.scale = (size[0] / FULL_SIZE[0], size[1] / FULL_SIZE[1])
        # The same wires are dead in every file: the detector does not depend on the seed.
        rng = np.random.default_rng(0xDEAD)
        self.dead = [rng.random(size[1]) < _DEAD_SHARE for _ in range(3)]

    def respond(
        self, rng: np.random.Generator, deposits: Deposits, late: Array, neutrino: npt.NDArray
    ) -> list[Response]:
        """Return images and labels of the three planes.

        Args:
            rng: source of random numbers.
            deposits: the charge.
            late: [n] how much later than the trigger the charge was made, microseconds.
            neutrino: bool [n], whether it belongs to the neutrino.
        """
        x, y, z = deposits.position.T
        inside = ((deposits.position > CORNERS[0]) & (deposits.position < CORNERS[1])).all(axis=1)
        drift = 200.0 - np.abs(x)
        spread = rng.standard_normal((2, len(x)))
        across = spread[0] * _DIFFUSION_ACROSS * np.sqrt(np.clip(drift, 0, None))
        along = spread[1] * _DIFFUSION_ALONG * np.sqrt(np.clip(drift, 0, None))
        time = _ANODE_PIXEL + (drift + along) * _PIXELS_PER_CM + late * PIXELS_PER_MICROSECOND
        recorded = inside & (time >= 0) & (time < FULL_SIZE[0] / 2)
        row = np.where(x < 0, time, FULL_SIZE[0] - time)[recorded]
        responses = []
        for plane, up in enumerate((-(0.75**0.5), 0.75**0.5, 0.0)):
            wires = z * (1.0 if plane == 2 else 0.5) + (up * y + abs(up) * 200.0) + across
            column = _FIRST_WIRE[plane] + wires[recorded] / _WIRE_PITCH
            # What diffuses beyond the last wire is collected by it.
            column = np.clip(column, _FIRST_WIRE[plane], _LAST_WIRE[plane])
            amount = deposits.amount[recorded] * _GAIN
            responses.append(
                self._plane(rng, plane, column, row, amount, neutrino[recorded], (x < 0)[recorded])
            )
        return responses

    def _plane(
        self,
        rng: np.random.Generator,
        plane: int,
        column: Array,
        row: Array,
        amount: Array,
        neutrino: npt.NDArray,
        lower: npt.NDArray,
    ) -> Response:
        height, width = self.size
        columns = (column * self.scale[1]).astype(np.int64)
        ids, weights, near = self._pulses(columns, row * self.scale[0], amount, lower)
        signal = np.bincount(ids.ravel(), weights.ravel(), height * width)
        noise_ids, noise = self._noise(rng, plane)
        hit = np.flatnonzero(signal > 0.5)
        # Which class a pixel has: the one that left more charge there, if there is any to speak of.
        place = np.zeros(height * width, np.int32)
        place[hit] = np.arange(len(hit))
        close = weights * near
        of_neutrino = np.bincount(place[ids[neutrino]].ravel(), close[neutrino].ravel(), len(hit))
        of_cosmic = np.bincount(place[ids[~neutrino]].ravel(), close[~neutrino].ravel(), len(hit))
        classes = np.where(of_neutrino > of_cosmic, 2, 1) * (
            of_neutrino + of_cosmic > THRESHOLD / 2
        )
        gains = 1 + _GAIN_SPREAD * rng.standard_normal(width)
        values = signal[hit] * gains[hit // height]
        values += _NOISE_ON_CHARGE * rng.standard_normal(len(hit))
        return self._joined(plane, (hit, values, classes), (noise_ids, noise))

    def _pulses(
        self, columns: npt.NDArray, row: Array, amount: Array, lower: npt.NDArray
    ) -> tuple[npt.NDArray, Array, npt.NDArray]:
        """Spread each deposit over 7 pixels in time: [n, 7] ids, amounts, whether it is near."""
        height, width = self.size
        centre = np.floor(row)
        rows = centre[:, None] + np.arange(-3, 4)
        distance = rows + 0.5 - row[:, None]
        sigma = max(_PULSE * _PIXELS_PER_CM * self.scale[0], 0.4)
        weights = np.exp(-0.5 * np.square(distance / sigma))
        weights /= weights.sum(axis=1, keepdims=True)
        near = np.abs(distance) < 1.2 * sigma + 0.5
        tail = np.exp(-0.5 * np.square(distance / (2.2 * sigma)))
        weights = (1 - _TAIL) * weights + _TAIL * tail / tail.sum(axis=1, keepdims=True)
        # A pulse does not cross from one volume's readout into the other's.
        middle = height // 2
        first = np.where(lower, 0, middle)[:, None]
        valid = (rows >= first) & (rows < first + middle) & (columns < width)[:, None]
        amounts = weights * (amount * max(self.scale))[:, None] * valid
        ids = columns[:, None] * height + np.clip(rows, 0, height - 1).astype(np.int64)
        return np.clip(ids, 0, height * width - 1), amounts, near

    def _noise(self, rng: np.random.Generator, plane: int) -> tuple[npt.NDArray, Array]:
        """Return pixels of noise: short runs in time whose values fall off from the threshold."""
        height, width = self.size
        half = height // 2
        ids = []
        for side, expected in enumerate(_NOISE_PIXELS[plane]):
            mean_run = float(_NOISE_RUNS @ np.arange(1, 5))
            count = rng.poisson(expected * max(self.scale) / mean_run)
            limits = np.array([_FIRST_WIRE[plane], _LAST_WIRE[plane] + 1]) * self.scale[1]
            column = rng.uniform(limits[0], limits[1], count).astype(np.int64)
            start = rng.integers(side * half, (side + 1) * half, count)
            runs = 1 + rng.choice(len(_NOISE_RUNS), count, p=_NOISE_RUNS)
            within = np.arange(runs.sum()) - np.repeat(np.cumsum(runs) - runs, runs)
            row = np.repeat(start, runs) + within
            fits = row < (side + 1) * half
            ids.append((np.repeat(np.minimum(column, width - 1), runs) * height + row)[fits])
        unique_ids = np.unique(np.concatenate(ids))
        # Mostly the tail of a normal distribution, now and then a spike.
        values = THRESHOLD + rng.exponential(_NOISE_SCALE, len(unique_ids))
        return unique_ids, values + (rng.random(len(unique_ids)) < 0.02) * rng.exponential(
            3.0, len(unique_ids)
        )

    def _joined(
        self,
        plane: int,
        charge: tuple[npt.NDArray, Array, npt.NDArray],
        noise: tuple[npt.NDArray, Array],
    ) -> Response:
        """Return charge and noise as pixels above threshold on live wires, ids ascending."""
        hit, values, classes = charge
        # Noise on a pixel with charge adds nothing to see; below threshold it stands alone.
        above = values >= THRESHOLD
        alone = ~np.isin(noise[0], hit[above])
        ids = np.concatenate([hit[above], noise[0][alone]])
        level = np.concatenate([values[above], noise[1][alone]]).astype(np.float32)
        label = np.concatenate([classes[above], np.zeros(alone.sum())]).astype(np.float32)
        order = np.argsort(ids)
        order = order[~self.dead[plane][ids[order] // self.size[0]]]
        sorted_ids = ids[order].astype(np.uint64)
        return Response(Plane(sorted_ids, level[order]), Plane(sorted_ids, label[order]))
