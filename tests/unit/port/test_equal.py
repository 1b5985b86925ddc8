"""Each fixture that is ported whole prints what it printed before: the same losses, digit by digit.

Both run in this process, on target ``reference``.
"""

from pathlib import Path

import pytest

from helpers import port_fixtures

FIXTURES = Path(__file__).parent / "rules"
#: Fixtures that print no losses.
SILENT = {"optimizer_state"}


@pytest.mark.usefixtures("in_process")
@pytest.mark.parametrize(
    "name", [each for each in port_fixtures.names(FIXTURES, whole=True) if each not in SILENT]
)
def test_a_port_prints_the_same_losses(name):
    before = port_fixtures.printed(FIXTURES / f"{name}.in.py")
    assert len(before) > 1
    assert port_fixtures.printed(FIXTURES / f"{name}.out.py") == before
