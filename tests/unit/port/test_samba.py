"""``--to samba``: plain programs become SambaFlow programs that train the same digits."""

from pathlib import Path

import pytest

from abele.port import files
from abele.port.check import check
from abele.port.engine import port
from abele.port.finding import Verdict
from helpers import port_fixtures
from helpers.warm_python import python

pytestmark = pytest.mark.usefixtures("in_process")
HERE = Path(__file__).parent
FIXTURES = HERE / "rules_samba"


@pytest.mark.parametrize("name", port_fixtures.names(FIXTURES))
def test_a_fixture_becomes_what_it_should(name, request):
    port_fixtures.check(FIXTURES, name, "samba", request.config.getoption("--update-golden"))


@pytest.mark.parametrize("name", port_fixtures.names(FIXTURES, whole=True))
def test_porting_the_port_changes_nothing(name):
    port_fixtures.check_again(FIXTURES, name, "samba")


@pytest.mark.parametrize("name", port_fixtures.names(FIXTURES, whole=True))
def test_a_port_prints_the_same_digits(name):
    before = port_fixtures.printed(FIXTURES / f"{name}.in.py")
    assert len(before) > 5
    after = (FIXTURES / f"{name}.out.py").read_text()
    assert "samba.session.run(" in after
    assert ".backward()" not in after
    assert port_fixtures.printed(FIXTURES / f"{name}.out.py") == before


@pytest.mark.parametrize("name", ["functions", "globals", "pairs", "sequences", "trainer"])
def test_programs_print_the_same_digits(name, tmp_path):
    path = HERE / "programs" / f"{name}.py"
    result = port(files.read(path), to="samba")
    assert result.verdict is Verdict.MODIFIED, [str(each) for each in result.findings]
    (tmp_path / path.name).write_text(result.after[path.name])
    assert port_fixtures.printed(tmp_path / path.name) == port_fixtures.printed(path)


def test_a_check_compares_the_runs_of_a_session(tmp_path):
    script = FIXTURES / "logreg.in.py"
    right = FIXTURES / "logreg.out.py"
    assert check(script, right, 5, python=python()).equal
    wrong = tmp_path / "wrong.py"
    wrong.write_text(right.read_text().replace("default=0.9", "default=0.8"))
    comparison = check(script, wrong, 5, python=python())
    assert not comparison.equal
    assert comparison.difference.step == 2
