"""Emitted code of random programs of torch's own operators, forward and backward.

``benchmarks/random_programs.py`` runs 2,000 of them, and keeps what became of each.
``ABELE_RANDOM_NETWORKS=40`` tries that many here.
"""

import os

import pytest

from helpers.emitted_agreement import TOGETHER, Agreement

COUNT = int(os.environ.get("ABELE_RANDOM_NETWORKS", "200"))

pytestmark = [pytest.mark.compiler, pytest.mark.long]


def test_programs_of_torchs_operators_compute_what_is_interpreted():
    agreement = Agreement()
    for first in range(0, COUNT, TOGETHER):
        agreement.run(range(first, min(first + TOGETHER, COUNT)))
    assert not agreement.wrong
    counts = agreement.counts
    assert counts["tried"] == COUNT
    assert counts["taken"] + counts["declined"] + counts["untraced"] == COUNT
    assert counts["compared"] > 0.9 * COUNT
    assert counts["taken"] > COUNT // 2
