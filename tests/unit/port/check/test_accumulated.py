"""A program that accumulates gradients, beside its port by hand."""

from pathlib import Path

from abele.port.check import check
from helpers.warm_python import python

SCRIPTS = Path(__file__).parent / "scripts"


def test_losses_and_weights_are_equal_bit_for_bit():
    both = SCRIPTS / "accumulated.py", SCRIPTS / "accumulated_port.py"
    comparison = check(*both, 20, timeout_s=120, python=python())
    assert comparison.equal, str(comparison)
    assert len(comparison.steps) == 10
