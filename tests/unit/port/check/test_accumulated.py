"""A program that accumulates gradients, beside its port."""

from pathlib import Path

from abele.port import files
from abele.port.check import check
from abele.port.engine import port
from helpers.warm_python import python

SCRIPT = Path(__file__).parent / "scripts" / "accumulated.py"


def test_losses_and_weights_are_equal_bit_for_bit(tmp_path):
    files.write(port(files.read(SCRIPT)), SCRIPT, tmp_path / "ported")
    other = tmp_path / "ported" / SCRIPT.name
    comparison = check(SCRIPT, other, 20, timeout_s=120, python=python())
    assert comparison.equal, str(comparison)
    assert len(comparison.steps) == 10
