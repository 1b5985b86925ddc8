"""Ports print what their programs print: the same losses, digit by digit.

Both run in this process, on target ``reference``: programs of the shapes that people write. The
fixtures of rules are compared in ``test_plain.py``, with their way back.
"""

from pathlib import Path

import pytest

from abele.port import files
from abele.port.engine import port
from abele.port.finding import Verdict
from helpers import port_fixtures

pytestmark = pytest.mark.usefixtures("in_process")
HERE = Path(__file__).parent


@pytest.mark.parametrize("path", sorted((HERE / "programs").glob("*.py")), ids=lambda p: p.stem)
def test_a_port_prints_what_the_program_prints(path, tmp_path):
    result = port(files.read(path))
    assert result.verdict is Verdict.MODIFIED, [str(each) for each in result.findings]
    files.write(result, path, tmp_path / "ported")
    ported = tmp_path / "ported" / path.name
    text = ported.read_text()
    assert "poptorch.trainingModel(" in text
    assert ".backward()" not in text
    lines = port_fixtures.printed(path)
    assert len(" ".join(lines).split()) > 20
    assert port_fixtures.printed(ported) == lines
