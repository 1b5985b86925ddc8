"""The time of a synchronous step on N ranks: formulas, and a simulation that goes hop by hop.

One step on N ranks, each with its own share of the data (weak scaling):

    step = max(compute of the slowest rank + exposed reduction, input)

compute     each rank draws its own time from one distribution (``Spread``)
reduction   every hop of every algorithm costs latency + bytes / bandwidth (``Network``)
exposed     what of the reduction backward does not hide; everything where gradients go as one
input       the slower of a rank's own loader and the storage that all share; fetched ahead

Seconds and bytes throughout. Hops are in lockstep, messages of different ranks do not disturb each
other, and no rank dies.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

_EULER = 0.5772156649015329
_GRID = np.linspace(-12.0, 12.0, 20_001)
_BELOW = np.array([0.5 * math.erfc(-x / math.sqrt(2)) for x in _GRID])  # of a standard normal


# -- stragglers ----------------------------------------------------------------------------


@dataclass(frozen=True)
class Spread:
    """The times that ranks take for one step.

    Attributes:
        kind: ``normal``, ``exponential`` (a least time and a tail) or ``gumbel``.
        mean: seconds.
        sd: standard deviation, seconds.
    """

    kind: str
    mean: float
    sd: float

    def expected_maximum(self, ranks: int) -> float:
        """Return the mean time of the slowest of so many independent ranks."""
        if self.kind == "exponential":  # the harmonic numbers
            return self.mean - self.sd + self.sd * float(np.sum(1.0 / np.arange(1, ranks + 1)))
        if self.kind == "gumbel":  # the maximum of Gumbel variables is one, moved
            return self.mean + self.sd * math.sqrt(6) / math.pi * math.log(ranks)
        # The mean of anything below a bound is the bound less the integral of its shares.
        all_below = _BELOW**ranks
        integral = (all_below[1:] + all_below[:-1]).sum() / 2 * (_GRID[1] - _GRID[0])
        return self.mean + self.sd * float(_GRID[-1] - integral)

    def draw(self, generator: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
        """Independent times."""
        if self.kind == "exponential":
            return self.mean - self.sd + generator.exponential(self.sd, shape)
        if self.kind == "gumbel":
            scale = self.sd * math.sqrt(6) / math.pi
            return generator.gumbel(self.mean - _EULER * scale, scale, shape)
        return generator.normal(self.mean, self.sd, shape)

    def below(self, values: np.ndarray) -> np.ndarray:
        """Return the share of times that are at most these values."""
        if self.kind == "exponential":
            return 1 - np.exp(-np.clip((values - self.mean + self.sd) / self.sd, 0, None))
        if self.kind == "gumbel":
            scale = self.sd * math.sqrt(6) / math.pi
            return np.exp(-np.exp(-(values - self.mean + _EULER * scale) / scale))
        return np.interp((values - self.mean) / self.sd, _GRID, _BELOW)


KINDS = ("normal", "exponential", "gumbel")


def fit_spread(times: Sequence[float]) -> tuple[Spread, dict[str, float]]:
    """Return the distribution that measured times look like most, and each kind's distance.

    Args:
        times: seconds, at least ten.

    Returns:
        The best, and by kind the greatest difference between its and the measured shares
        (Kolmogorov and Smirnov's distance).
    """
    if len(times) < 10:
        raise ValueError(f"A distribution needs at least ten times, got {len(times)}.")
    ordered = np.sort(np.asarray(times, float))
    shares = np.arange(1, len(ordered) + 1) / len(ordered)
    distances = {}
    for kind in KINDS:
        spread = Spread(kind, float(ordered.mean()), float(ordered.std(ddof=1)))
        at = spread.below(ordered)
        distances[kind] = float(np.max(np.maximum(shares - at, at - shares + 1 / len(ordered))))
    best = min(distances, key=lambda kind: distances[kind])
    return Spread(best, float(ordered.mean()), float(ordered.std(ddof=1))), distances


# -- reductions ----------------------------------------------------------------------------


@dataclass(frozen=True)
class Network:
    """What one message costs.

    Attributes:
        latency: seconds per hop, software included.
        bandwidth: bytes per second of one rank, in each direction.
    """

    latency: float
    bandwidth: float


def _levels(ranks: int) -> int:
    return math.ceil(math.log2(ranks)) if ranks > 1 else 0


def ring(ranks: int, size: float, network: Network) -> float:
    """2 (N - 1) hops, each with one N-th of the bytes."""
    return 2 * (ranks - 1) * (network.latency + size / (ranks * network.bandwidth))


def tree(ranks: int, size: float, network: Network) -> float:
    """Up a binomial tree and down again, all bytes at every level."""
    return 2 * _levels(ranks) * (network.latency + size / network.bandwidth)


def halving(ranks: int, size: float, network: Network) -> float:
    """Recursive halving and doubling: as many hops as the tree, as many bytes as the ring."""
    return 2 * _levels(ranks) * network.latency + 2 * (ranks - 1) / ranks * size / network.bandwidth


ALGORITHMS: dict[str, Callable[[int, float, Network], float]] = {
    "ring": ring,
    "tree": tree,
    "halving": halving,
}


# -- steps ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Workload:
    """What every rank does in a step.

    Attributes:
        name: for people.
        compute: forward, backward and update.
        gradient_bytes: that one reduction carries.
        images: per rank and step.
        input_bytes: that an image has in storage.
        loader: seconds in which a rank makes a batch of what storage sent.
    """

    name: str
    compute: Spread
    gradient_bytes: float
    images: float
    input_bytes: float = 0.0
    loader: float = 0.0


@dataclass(frozen=True)
class System:
    """What ranks run on.

    Attributes:
        name: for people.
        network: between ranks.
        algorithm: of the reduction: ``ring``, ``tree`` or ``halving``.
        storage: bytes per second that all ranks share.
        hidden: seconds of the reduction that backward hides, as a share of compute; 0 where
            gradients are reduced at once after it, as here.
        calls: reductions per step; each pays its own latencies.
    """

    name: str
    network: Network
    algorithm: str = "ring"
    storage: float = math.inf
    hidden: float = 0.0
    calls: int = 1


@dataclass(frozen=True)
class Terms:
    """Where the time of a step goes, seconds; they add up to ``step``.

    Attributes:
        compute: of an average rank.
        stragglers: waiting for the slowest.
        reduction: what of it is not hidden.
        input: waiting for data after all that.
    """

    compute: float
    stragglers: float
    reduction: float
    input: float

    @property
    def step(self) -> float:
        """All of it."""
        return self.compute + self.stragglers + self.reduction + self.input


def exposed(workload: Workload, system: System, ranks: int) -> float:
    """Return seconds of the reduction that no computation hides."""
    size = workload.gradient_bytes / system.calls
    once = ALGORITHMS[system.algorithm](ranks, size, system.network)
    # The last of several reductions starts when backward is over.
    return max(once * system.calls - system.hidden * workload.compute.mean, once)


def fetching(workload: Workload, system: System, ranks: int) -> float:
    """Return seconds between two batches that loader and storage can deliver."""
    return max(workload.loader, ranks * workload.images * workload.input_bytes / system.storage)


def step(workload: Workload, system: System, ranks: int) -> Terms:
    """Return the expected time of a step, by formula."""
    slowest = workload.compute.expected_maximum(ranks)
    reduction = exposed(workload, system, ranks) if ranks > 1 else 0.0
    wait = max(0.0, fetching(workload, system, ranks) - slowest - reduction)
    mean = workload.compute.mean
    return Terms(mean, slowest - mean, reduction, wait)


def efficiency(workload: Workload, system: System, ranks: int, base: int = 1) -> float:
    """Return images per second and rank, against those on ``base`` ranks."""
    return step(workload, system, base).step / step(workload, system, ranks).step


# -- simulation ----------------------------------------------------------------------------


def simulate(
    workload: Workload, system: System, ranks: int, *, steps: int, seed: int
) -> tuple[float, float]:
    """Return the mean time of simulated steps and its standard error, seconds.

    Every rank draws its time and then exchanges messages hop by hop; a hop starts when both its
    ends are there. Nothing is hidden (``hidden`` is 0, one call).

    Args:
        workload: what ranks compute; of the input only ``loader`` and storage's rate.
        system: network and algorithm.
        ranks: a power of two, but for the ring.
        steps: simulated steps.
        seed: of the random numbers.
    """
    if system.hidden or system.calls != 1:
        raise ValueError("Only one reduction after backward is simulated, with nothing hidden.")
    generator = np.random.default_rng(seed)
    ready = workload.compute.draw(generator, (steps, ranks))
    hops = {"ring": _ring_hops, "tree": _tree_hops, "halving": _halving_hops}[system.algorithm]
    if ranks > 1:
        hops(ready, workload.gradient_bytes, system.network)
    times = np.maximum(ready.max(axis=1), fetching(workload, system, ranks))
    return float(times.mean()), float(times.std(ddof=1) / math.sqrt(steps))


def _ring_hops(ready: np.ndarray, size: float, network: Network) -> None:
    ranks = ready.shape[1]
    cost = network.latency + size / (ranks * network.bandwidth)
    for _ in range(2 * (ranks - 1)):
        np.maximum(ready, np.roll(ready, 1, axis=1), out=ready)
        ready += cost


def _tree_hops(ready: np.ndarray, size: float, network: Network) -> None:
    ranks = ready.shape[1]
    cost = network.latency + size / network.bandwidth
    strides = [1 << level for level in range(_power_of_two(ranks))]
    for stride in strides:
        above, below = ready[:, :: 2 * stride], ready[:, stride :: 2 * stride]
        np.maximum(above, below, out=above)
        above += cost
    for stride in reversed(strides):
        above, below = ready[:, :: 2 * stride], ready[:, stride :: 2 * stride]
        above += cost
        np.maximum(below, above, out=below)


def _halving_hops(ready: np.ndarray, size: float, network: Network) -> None:
    ranks = ready.shape[1]
    levels = _power_of_two(ranks)
    shares = [size / 2 ** (level + 1) for level in range(levels)]
    distances = [ranks >> (level + 1) for level in range(levels)]
    order = list(zip(distances, shares, strict=True))
    for distance, part in [*order, *reversed(order)]:
        partner = ready[:, np.arange(ranks) ^ distance]
        np.maximum(ready, partner, out=ready)
        ready += network.latency + part / network.bandwidth


def _power_of_two(ranks: int) -> int:
    if ranks & (ranks - 1):
        raise ValueError(f"This reduction is simulated for powers of two, not for {ranks} ranks.")
    return _levels(ranks)


# -- what others measured ------------------------------------------------------------------


def fit_published(points: dict[int, float]) -> dict[str, float]:
    """Split published rates into work, stragglers and a cost that grows with every rank.

    Seconds per image of one rank = work + tail * H(N) + hop * 2 (N - 1), least squares of relative
    errors, terms below zero left out. H are the harmonic numbers (an exponential tail), 2 (N - 1)
    the hops of a ring.

    Args:
        points: images per second of all ranks by number of ranks.

    Returns:
        ``work``, ``tail``, ``hop`` (seconds per image) and ``error``, the greatest relative one.
    """
    ranks = np.array(sorted(points))
    times = ranks / np.array([points[n] for n in ranks])
    harmonic = np.array([np.sum(1.0 / np.arange(1, n + 1)) for n in ranks])
    terms = {"work": np.ones(len(ranks)), "tail": harmonic, "hop": 2.0 * (ranks - 1)}
    used = list(terms)
    while True:
        matrix = np.stack([terms[name] / times for name in used], axis=1)
        coefficients = np.linalg.lstsq(matrix, np.ones(len(ranks)), rcond=None)[0]
        if (coefficients >= 0).all():
            break
        used.remove(used[int(np.argmin(coefficients))])
    error = float(np.max(np.abs(matrix @ coefficients - 1)))
    return (
        dict.fromkeys(terms, 0.0)
        | dict(zip(used, map(float, coefficients), strict=True))
        | {"error": error}
    )


def fit_network(measured: dict[int, dict[int, float]], ranks: int) -> Network:
    """Latency and bandwidth of a ring, from times of reductions between so many processes.

    Args:
        measured: by processes, by bytes: seconds.
        ranks: which of them to use; the others tell how well the result carries over.
    """
    sizes = np.array(sorted(measured[ranks]), float)
    times = np.array([measured[ranks][int(size)] for size in sizes])
    hops = np.full(len(sizes), 2.0 * (ranks - 1))
    matrix = np.stack([hops / times, hops * sizes / ranks / times], axis=1)
    latency, inverse = np.linalg.lstsq(matrix, np.ones(len(sizes)), rcond=None)[0]
    return Network(max(float(latency), 0.0), 1.0 / float(inverse))
