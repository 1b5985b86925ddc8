"""The model of many ranks: formulas against a simulation, limits, and fits that find what is in."""

import json
import re
import sys
from pathlib import Path

import numpy
import pytest

ROOT = Path(__file__).parents[3]
sys.path.append(str(ROOT / "benchmarks"))

import scaling  # noqa: E402 - after the path above; benchmarks are no package
import scaling_page  # noqa: E402
from scaling_model import (  # noqa: E402
    KINDS,
    Network,
    Spread,
    System,
    Workload,
    exposed,
    fit_network,
    fit_published,
    fit_spread,
    halving,
    ring,
    simulate,
    step,
    tree,
)

NET = Network(latency=1e-4, bandwidth=1e9)
SIZE = 34e6


def workload(kind="exponential", sd=0.05, **changed):
    return Workload("test", Spread(kind, 1.0, sd), SIZE, images=2, **changed)


@pytest.mark.parametrize("kind", KINDS)
def test_shares_belong_to_the_draws(kind):
    spread = Spread(kind, 1.0, 0.2)
    draws = spread.draw(numpy.random.default_rng(2), (50_000,))
    values = numpy.array([0.9, 1.0, 1.3])
    results = [(draws <= value).mean() for value in values]
    assert spread.below(values) == pytest.approx(results, abs=0.01)


@pytest.mark.parametrize("algorithm", ["ring", "halving"])
@pytest.mark.parametrize("ranks", [2, 16, 128])
@pytest.mark.parametrize("kind", KINDS)
def test_simulated_hops_agree_with_the_formula(algorithm, ranks, kind):
    """Where every rank takes part in every hop, the formula is exact in the mean."""
    system = System("test", NET, algorithm)
    mean, error = simulate(workload(kind), system, ranks, steps=2000, seed=3)
    assert abs(mean - step(workload(kind), system, ranks).step) < 4 * error


@pytest.mark.parametrize("algorithm", ["ring", "tree", "halving"])
def test_without_stragglers_simulation_and_formula_are_equal(algorithm):
    system = System("test", NET, algorithm)
    still = workload("normal", 0.0)
    mean, _ = simulate(still, system, 256, steps=2, seed=0)
    assert mean == pytest.approx(step(still, system, 256).step, rel=1e-12)


def test_a_late_rank_near_the_root_of_a_tree_skips_levels():
    """So the formula, which lets the slowest climb all levels, is an upper bound there."""
    system = System("test", NET, "tree")
    mean, error = simulate(workload(), system, 64, steps=2000, seed=4)
    terms = step(workload(), system, 64)
    assert terms.step - terms.reduction / 2 - 4 * error < mean < terms.step + 4 * error


def test_input_that_storage_cannot_deliver_is_waited_for():
    system = System("test", NET, storage=1e6)
    hungry = workload(input_bytes=1e5)
    assert step(hungry, system, 2).input == 0
    terms = step(hungry, system, 1000)
    assert terms.step == pytest.approx(1000 * 2 * 1e5 / 1e6)
    mean, _ = simulate(hungry, system, 64, steps=10, seed=0)
    assert mean == pytest.approx(64 * 2 * 1e5 / 1e6)


def test_costs_of_reductions():
    assert ring(1, SIZE, NET) == tree(1, SIZE, NET) == halving(1, SIZE, NET) == 0
    two = 2 * NET.latency + SIZE / NET.bandwidth
    assert ring(2, SIZE, NET) == pytest.approx(two)
    assert halving(2, SIZE, NET) == pytest.approx(two)
    assert ring(1024, 0, NET) == pytest.approx(2046 * NET.latency)
    assert tree(1024, 0, NET) == halving(1024, 0, NET) == pytest.approx(20 * NET.latency)
    assert tree(1024, SIZE, Network(0, 1e9)) == pytest.approx(20 * SIZE / 1e9)


def test_backward_hides_all_but_the_last_bucket():
    base = exposed(workload(), System("test", NET, calls=4), 64)
    last = ring(64, SIZE / 4, NET)
    assert base == pytest.approx(4 * last)
    assert exposed(workload(), System("test", NET, calls=4, hidden=0.5), 64) == last


@pytest.mark.parametrize("kind", KINDS)
def test_the_kind_of_a_distribution_is_found_again(kind):
    times = Spread(kind, 2.0, 0.1).draw(numpy.random.default_rng(6), (5000,))
    result, distances = fit_spread(list(times))
    assert result.kind == kind
    assert (result.mean, result.sd) == (pytest.approx(2, rel=0.01), pytest.approx(0.1, rel=0.1))
    assert set(distances) == set(KINDS)


def test_a_distribution_of_nine_times_is_refused():
    with pytest.raises(ValueError, match="at least ten times, got 9"):
        fit_spread([1.0] * 9)


def test_a_network_is_found_again():
    measured = {n: {s: ring(n, s, NET) for s in (1000, 10**6, 10**8)} for n in (2, 4)}
    result = fit_network(measured, 2)
    assert result.latency == pytest.approx(NET.latency)
    assert result.bandwidth == pytest.approx(NET.bandwidth)


def test_published_rates_are_split_into_what_they_are_made_of():
    def rate(ranks, work, tail, hop):
        harmonic = sum(1 / n for n in range(1, ranks + 1))
        return ranks / (work + tail * harmonic + hop * 2 * (ranks - 1))

    points = {n: rate(n, 0.3, 0.01, 1e-4) for n in (4, 16, 64, 256, 1024)}
    result = fit_published(points)
    assert result["work"] == pytest.approx(0.3)
    assert result["hop"] == pytest.approx(1e-4)
    assert result["error"] < 1e-9
    falling = {n: rate(n, 0.3, -0.01, 1e-4) for n in points}  # faster with ranks: no such tail
    assert fit_published(falling)["tail"] == 0


def test_only_what_is_simulated_is_taken():
    with pytest.raises(ValueError, match="nothing hidden"):
        simulate(workload(), System("test", NET, hidden=0.5), 4, steps=1, seed=0)
    with pytest.raises(ValueError, match="powers of two, not for 6 ranks"):
        simulate(workload(), System("test", NET, "tree"), 6, steps=1, seed=0)


MEASURED = {
    "reduction_s": {
        str(n): {str(s): ring(n, s, NET) for s in (1 << 10, 1 << 20, 1 << 24)} for n in (2, 4)
    },
    "a21_parameters": 8_510_547,
    "a21_step_s": [1.0 + 0.01 * (n % 7) for n in range(40)],
    "a21_loader_s": 0.001,
}
HERE = {"cpu": "Test", "cores": 2, "torch": "2"}


def test_a_record_holds_what_was_measured_assumed_and_follows():
    result = json.loads(json.dumps(scaling.project(HERE, MEASURED, 1.2)))
    assert result["fitted"]["loopback"]["latency_s"] == pytest.approx(NET.latency)
    assert list(result["fitted"]["measured_over_model_4"].values()) == pytest.approx([1.0] * 3)
    results = {(entry["workload"], entry["system"]): entry for entry in result["projected"]}
    assert results["A21", "ring"]["gradient_bytes"] == 34_042_188
    assert results["ResNet-18", "ring"]["gradient_bytes"] == 44_695_848
    assert len(results) == 8
    terms = results["A21", "ring"]["terms_s"]["1024"]
    network = Network(NET.latency + scaling.WIRE_LATENCY, NET.bandwidth)
    assert terms["reduction"] == pytest.approx(ring(1024, 34_042_188, network))
    text = "\n".join(scaling_page.lines(result))
    assert "| published, torch DDP |  | 100 % | 97 % | 80 % | 57 % |  | 3,097 |" in text
    assert "100 microseconds a hop, 1.00 GB/s" in text


def test_the_page_says_what_its_record_says():
    page = (ROOT / "benchmarks" / "notes" / "scaling.md").read_text()
    name = re.search(r"\.\./records/(scaling_\S+\.json)\)", page)[1]
    record = json.loads((ROOT / "benchmarks" / "records" / name).read_text())
    assert "\n".join(scaling_page.lines(record)) in page
    assert "\n".join(scaling_page.lines_64(record)) in page


def test_the_picture_is_drawn_the_same_every_time(tmp_path):
    pytest.importorskip("matplotlib")
    result = json.loads(json.dumps(scaling.project(HERE, MEASURED, 1.2)))
    for name in ("a.svg", "b.svg"):
        scaling_page.draw(result, tmp_path / name)
    text = (tmp_path / "a.svg").read_text()
    assert text == (tmp_path / "b.svg").read_text()
    assert "published: A100, torch DDP" in text
    assert len(text) < 200_000
