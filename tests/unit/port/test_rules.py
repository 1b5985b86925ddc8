"""Each rule on its fixtures: ``NAME.in.py`` becomes ``NAME.out.py``, with findings at its lines.

A fixture says of its lines what is said of them: ``# ABP302 modified`` at the end of one. Lines
without such a comment may have any finding of verdict ``match`` or ``modified``, but no other.
What is blocked has no ``NAME.out.py``.
"""

import re
from pathlib import Path

import pytest

from abele.port.engine import port
from abele.port.finding import Verdict
from abele.port.project import Project
from abele.port.source import Source

FIXTURES = Path(__file__).parent / "rules"
_SAID = re.compile(r"  # ((?:ABP\d+ \w+(?:, )?)+)$")


def fixtures():
    return sorted(each.name.removesuffix(".in.py") for each in FIXTURES.glob("*.in.py"))


def read(name):
    """A fixture without what it says, and that: line and code with verdict."""
    said, lines = set(), []
    text = (FIXTURES / f"{name}.in.py").read_text()
    for number, line in enumerate(text.splitlines(), 1):
        match = _SAID.search(line)
        if match:
            said |= {(number, each.strip()) for each in match.group(1).split(",")}
            line = line[: match.start()]
        lines.append(line)
    return "\n".join(lines) + "\n", said


@pytest.mark.parametrize("name", fixtures())
def test_a_fixture_becomes_what_it_should(name, request):
    text, said = read(name)
    result = port(Project([Source(f"{name}.py", text)]))
    expected = FIXTURES / f"{name}.out.py"
    after = result.after[f"{name}.py"]
    if result.verdict is not Verdict.BLOCKED:
        if request.config.getoption("--update-golden"):
            expected.write_text(after)
        assert after == expected.read_text()
    else:
        assert not expected.exists()
    given = {(each.line, f"{each.code} {each.verdict.value}") for each in result.findings}
    assert said <= given
    bad = (Verdict.MANUAL, Verdict.BLOCKED)
    unexpected = {f"{each}" for each in result.findings if each.verdict in bad} - {
        f"{each}"
        for each in result.findings
        if (each.line, f"{each.code} {each.verdict.value}") in said
    }
    assert not unexpected


def ported():
    return [each for each in fixtures() if (FIXTURES / f"{each}.out.py").exists()]


@pytest.mark.parametrize("name", ported())
def test_porting_the_port_changes_nothing(name):
    after = (FIXTURES / f"{name}.out.py").read_text()
    assert port(Project([Source(f"{name}.py", after)])).after[f"{name}.py"] == after
