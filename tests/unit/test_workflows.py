"""Workflows run actions of others by commit, because a tag can be moved to other code."""

import re
from pathlib import Path

import pytest

WORKFLOWS = sorted((Path(__file__).parents[2] / ".github/workflows").glob("*.yml"))


@pytest.mark.skipif(not WORKFLOWS, reason="an sdist has no workflows")
def test_actions_are_pinned_to_commits():
    uses = [line for each in WORKFLOWS for line in re.findall(r"uses: .*", each.read_text())]
    assert len(uses) >= len(WORKFLOWS)
    pinned = re.compile(r"uses: [\w-]+/[\w-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+")
    assert [line for line in uses if not pinned.fullmatch(line)] == []
