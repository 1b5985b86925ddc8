"""Each rule on its fixtures: ``NAME.in.py`` becomes ``NAME.out.py``, with findings at its lines.

A fixture says of its lines what is said of them: ``# ABP302 modified`` at the end of one. Lines
without such a comment may have any finding of verdict ``match`` or ``modified``, but no other.
What is blocked has no ``NAME.out.py``.
"""

from pathlib import Path

import pytest

from helpers import port_fixtures

FIXTURES = Path(__file__).parent / "rules"


@pytest.mark.parametrize("name", port_fixtures.names(FIXTURES))
def test_a_fixture_becomes_what_it_should(name, request):
    port_fixtures.check(FIXTURES, name, "poptorch", request.config.getoption("--update-golden"))


@pytest.mark.parametrize("name", port_fixtures.names(FIXTURES, whole=True))
def test_porting_the_port_changes_nothing(name):
    port_fixtures.check_again(FIXTURES, name, "poptorch")
