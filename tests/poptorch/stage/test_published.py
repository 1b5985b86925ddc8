"""Networks that ran on IPUs: none is refused on as many as it had, large ones on a quarter."""

import dataclasses
import resource

import pytest

from abele.fit import Verdict
from abele.stage import Span, partition
from helpers.published import PUBLISHED, wrapped


def placed(plan, begins):
    """The plan with stages at these modules, on these devices."""
    units = {unit.name: index for index, unit in enumerate(plan.chain.units)}
    edges = [0, *(units[path] for path, _ in begins), len(plan.chain.units)]
    spans = [Span(stage=i, begin=edges[i], end=edges[i + 1]) for i in range(len(edges) - 1)]
    homes = (0, *(device for _, device in begins))
    return dataclasses.replace(plan, spans=tuple(spans), homes=homes)


@pytest.fixture
def reference(monkeypatch):
    monkeypatch.setenv("ABELE_TARGET", "reference")


CASES = [
    name if name == "BERT-base" else pytest.param(name, marks=pytest.mark.long)
    for name in PUBLISHED
]


@pytest.mark.usefixtures("reference")
@pytest.mark.parametrize("name", CASES)
def test_a_published_placement_is_not_refused(name):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    published, (model, batch) = PUBLISHED[name], wrapped(name)
    plan = model.planStages(published.devices, *batch).plan
    assert plan.verdict is not Verdict.DOES_NOT_FIT
    as_published = placed(plan, published.begins)
    sizes = {load.device: str(load.size) for load in as_published.loads}
    assert as_published.verdict is not Verdict.DOES_NOT_FIT, sizes
    # Balanced stages are no slower than those by layers alone.
    assert max(load.time for load in plan.loads) <= max(x.time for x in as_published.loads)
    if name in ("BERT-large", "GPT-2 large"):
        few = partition(plan.chain, published.devices // 4, plan.device, plan.micro_batches)
        assert few.verdict is Verdict.DOES_NOT_FIT
    # Kilobytes: neither weights nor optimizer state were ever written.
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 700_000
