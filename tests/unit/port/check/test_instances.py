"""Programs that use popdist beside their ports to torch.distributed, in two processes each."""

from pathlib import Path

import pytest

from abele.errors import CheckError
from abele.port import files
from abele.port.check.run import check
from abele.port.engine import port
from helpers import port_fixtures
from helpers.warm_python import python

FIXTURES = Path(__file__).parents[1] / "rules_torch"
SUMS = """options.randomSeed(7)
options.Training.accumulationAndReplicationReductionType(poptorch.ReductionType.Sum)"""


def compared(folder, name, steps, change=("", ""), of_port=("", "")):
    """Compare two instances of a fixture with as many processes of its port."""
    text, _ = port_fixtures.read(FIXTURES, name)
    assert change[0] in text
    script = folder / "run.py"
    script.write_text(text.replace(*change, 1) if change[0] else text)
    after = port(files.read(script), to="torch").after["run.py"]
    assert of_port[0] in after
    other = folder / "port.py"
    other.write_text(after.replace(*of_port, 1) if of_port[0] else after)
    return check(script, other, steps, back=True, instances=2, python=python())


@pytest.mark.parametrize(
    ("name", "steps", "change"),
    [
        ("instances", 14, ("", "")),
        ("instances_batches", 8, ("", "")),
        ("instances_batches", 8, ("options.randomSeed(7)", SUMS)),
    ],
)
def test_two_instances_are_two_processes_bit_for_bit(name, steps, change, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    comparison = compared(tmp_path, name, steps, change)
    assert comparison.equal, str(comparison)
    assert len(comparison.steps) == steps
    assert all(each.same_loss for each in comparison.steps)
    assert "2 instances were compared with as many processes" in comparison.notes[-1]


@pytest.mark.parametrize(
    "of_port",
    [
        (
            "return torch.nn.parallel.DistributedDataParallel(model, broadcast_buffers=False)",
            "return model",
        ),
        ("first = RANK * self.count", "first = (WORLD_SIZE - 1 - RANK) * self.count"),
    ],
)
def test_a_port_that_exchanges_or_divides_otherwise_differs(of_port, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    comparison = compared(tmp_path, "instances", 4, of_port=of_port)
    assert not comparison.equal


def test_instances_of_a_port_to_poptorch_are_refused(tmp_path):
    script = tmp_path / "run.py"
    script.write_text("import torch\n")
    with pytest.raises(CheckError, match="2 instances are compared with processes of a port in pl"):
        check(script, script, 2, instances=2)
