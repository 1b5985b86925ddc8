"""Each rule on its fixtures: ``NAME.in.py`` is ported with findings at its lines.

A fixture says of its lines what is said of them: ``# ABP302 modified`` at the end of one. Lines
without such a comment may have any finding of verdict ``match`` or ``modified``, but no other.
What is blocked is named ``blocked_``. Some have what their port changes, ``NAME.diff``.
"""

from pathlib import Path

import pytest

from abele.port.engine import port
from abele.port.finding import Verdict
from abele.port.project import Project
from abele.port.source import Source
from helpers import port_fixtures

FIXTURES = Path(__file__).parent / "rules"
#: Ports to PopTorch with several instances, that are left by hand.
ONE_WAY = {"distributed"}
SILENT = {"optimizer_state"}  # prints what only plain PyTorch has, and no losses
#: The port limits gradients in the order of the model, and the original in that of its groups. In
#: float64, what both print has nine equal digits, more than float32 has.
OTHER_ORDER = {"clipped_groups"}


@pytest.mark.parametrize("name", port_fixtures.names(FIXTURES))
def test_a_fixture_becomes_what_it_should(name, request):
    port_fixtures.check(FIXTURES, name, request.config.getoption("--update-golden"))


@pytest.mark.parametrize("name", port_fixtures.names(FIXTURES, whole=True))
def test_porting_the_port_changes_nothing(name):
    _, text = port_fixtures.ported(FIXTURES, name)
    assert "poptorch.trainingModel(" in text
    assert port(Project([Source("again.py", text)])).after["again.py"] == text


@pytest.mark.usefixtures("in_process")
@pytest.mark.parametrize("name", sorted({*port_fixtures.names(FIXTURES, whole=True)} - SILENT))
def test_a_port_and_its_way_back_print_the_same_digits(name, plain, tmp_path):
    program, text = FIXTURES / f"{name}.in.py", port_fixtures.ported(FIXTURES, name)[1]
    before = port_fixtures.printed(program)
    assert len(before) > 1
    (tmp_path / "port.py").write_text(text)
    assert port_fixtures.printed(tmp_path / "port.py") == before
    result = port(Project([Source("run.py", text)]), to="torch")
    if name in ONE_WAY:
        assert result.verdict is Verdict.MANUAL
        return
    assert result.verdict is Verdict.MODIFIED, [str(each) for each in result.findings]
    if name in OTHER_ORDER:
        with port_fixtures.in_float64():
            before = [*map(float, port_fixtures.printed(program))]
            assert [*map(float, plain(result.after))] == pytest.approx(before, rel=1e-9, abs=0)
    else:
        assert plain(result.after) == before
