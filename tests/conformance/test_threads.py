"""Code that a process with one thread has compiled runs in one with more."""

import pytest

from abele import ExecutableCache, StepConfig
from conftest import usable
from helpers.models import MODELS
from helpers.runs import rule_for, run, started

DENSE = MODELS["dense"]


@pytest.mark.compiler
def test_what_happens_once_is_done_by_one_thread(threads, tmp_path):
    """Adam counts its steps; without marks in the code each thread would count them."""
    module, cache = DENSE.fresh(), ExecutableCache(tmp_path)
    for number in (1, 4):
        threads(number)
        session, record = started(
            module,
            DENSE.batch(),
            rule_for(module, "adam"),
            StepConfig(),
            target=usable("cpu"),
            cache=cache,
        )
        run(session, DENSE.batches(20))
    assert record.cache == "hit"
    counts = {n: v.item() for n, v in session.optimizer_state.items() if n.endswith("step")}
    assert set(counts.values()) == {20.0}
