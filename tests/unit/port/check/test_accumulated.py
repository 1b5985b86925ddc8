"""A program whose argument says how many batches are added up, beside its port."""

from pathlib import Path

import pytest

from abele.port import files
from abele.port.check import check
from abele.port.engine import port
from helpers.warm_python import python

SCRIPT = Path(__file__).parent / "scripts" / "accumulated.py"


@pytest.mark.parametrize(("parts", "steps"), [(1, 20), (4, 10)])
def test_any_number_is_equal_bit_for_bit(parts, steps, tmp_path):
    files.write(port(files.read(SCRIPT)), SCRIPT, tmp_path / "ported")
    other = tmp_path / "ported" / SCRIPT.name
    comparison = check(SCRIPT, other, 20, ("--parts", str(parts)), timeout_s=120, python=python())
    assert comparison.equal, str(comparison)
    assert len(comparison.steps) == steps
