"""Each rule on its fixtures: ``NAME.in.py`` is ported with findings at its lines.

A fixture says of its lines what is said of them: ``# ABP302 modified`` at the end of one. Lines
without such a comment may have any finding of verdict ``match`` or ``modified``, but no other.
What is blocked is named ``blocked_``. Some have what their port changes, ``NAME.diff``.
"""

from pathlib import Path

import pytest

from abele.port.engine import port
from abele.port.project import Project
from abele.port.source import Source
from helpers import port_fixtures

FIXTURES = Path(__file__).parent / "rules"


@pytest.mark.parametrize("name", port_fixtures.names(FIXTURES))
def test_a_fixture_becomes_what_it_should(name, request):
    port_fixtures.check(FIXTURES, name, request.config.getoption("--update-golden"))


@pytest.mark.parametrize("name", port_fixtures.names(FIXTURES, whole=True))
def test_porting_the_port_changes_nothing(name):
    _, text = port_fixtures.ported(FIXTURES, name)
    assert "poptorch.trainingModel(" in text
    assert port(Project([Source("again.py", text)])).after["again.py"] == text
